"""Slow paths of divisions and roots: in traces of both executors, and in timed machine code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from both_executors import run
from ptx_kernels import module
from test_machine_code import needs_tools

import abstim
from abstim.gpu.config import load_gpu
from abstim.study.sample.automatic import _equal_blocks
from abstim.study.sample.sampler import opened
from abstim.targets.resolve import open_target
from functional.programs.link import link

F32 = np.array([1.0, 3.0, 0.0, -0.0, 1e-40, 1e-31, 3e38, np.inf, np.nan, -2.0, 2.0**-101, 2.0**-102], np.float32)
F64 = np.array([1.0, 3.0, 0.0, -0.0, 1e-310, 1e-292, 1.5e308, np.inf, np.nan, -2.0, 2.0**-969, 2.0**-971])
KERNEL = """.entry k(.param .u64 a, .param .u64 b, .param .u64 o) {{
.reg .b{bits} %x<4>; .reg .b32 %r<4>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [a];
ld.param.u64 %rd2, [b];
ld.param.u64 %rd3, [o];
mov.u32 %r1, {index};
mul.wide.u32 %rd4, %r1, {bytes};
add.s64 %rd1, %rd1, %rd4;
add.s64 %rd2, %rd2, %rd4;
add.s64 %rd3, %rd3, %rd4;
ld.global.b{bits} %x1, [%rd1];
ld.global.b{bits} %x2, [%rd2];
{code}
st.global.b{bits} [%rd3], %x3;
ret;
}}"""


def text_of(code: str, of: np.ndarray, index: str = "%tid.x") -> str:
    """A kernel that makes one element of two; `code`: how, or an instruction by its name."""
    if ";" not in code:
        code = f"{code} %x3, %x1, %x2;" if code.startswith(("div", "rem", "add")) else f"{code} %x3, %x1;"
    return KERNEL.format(bits=8 * of.itemsize, bytes=of.itemsize, code=code, index=index)


def written(folder: Path, text: str) -> Path:
    """A file of it."""
    path = folder / "k.ptx"
    path.write_text(".version 8.0\n.target sm_75\n.address_size 64\n.visible " + text)
    return path


def slow_lanes(name: str, a: np.ndarray, b: np.ndarray) -> int:
    """Lanes that take the slow path of an instruction of one or two operands, by number, as both executors say."""
    text = text_of(name, a)
    _, trace = run(text, {"a": a, "b": b, "o": np.zeros_like(a)}, block=len(a), native=True)
    path = link(module(text), "k").slow_paths
    (number,) = path.values()
    return int(trace.masks[trace.blocks == number].sum())


def bits(lanes: list[bool]) -> int:
    return sum(1 << lane for lane, slow in enumerate(lanes) if slow)


@pytest.mark.parametrize(
    ("name", "a", "slow"),
    [
        ("div.rn.f32", F32, [2, 3, 4, 5, 6, 7, 8]),
        ("rcp.rn.f32", F32, [2, 3, 4, 6, 7, 8]),
        ("sqrt.rn.f32", F32, [2, 3, 4, 5, 7, 8, 9, 11]),
        ("div.rn.f64", F64, [2, 3, 4, 5, 6, 7, 8, 11]),
        ("rcp.rn.f64", F64, [2, 3, 4, 6, 7, 8]),
        ("sqrt.rn.f64", F64, [2, 3, 4, 5, 7, 8, 9, 11]),
    ],
)
def test_lanes_that_take_a_slow_path(name, a, slow):
    """Zeros, what is subnormal or no number, extremes; the other operand is three."""
    assert slow_lanes(name, a, np.full_like(a, 3)) == bits([lane in slow for lane in range(len(a))])


@pytest.mark.parametrize(("name", "first", "second"), [("div.rn.f32", F32, F32), ("div.rn.f64", F64, F64)])
def test_executors_agree_on_all_pairs(name, first, second):
    for shift in range(len(first)):
        slow_lanes(name, first, np.roll(second, shift))


def test_a_guarded_division_takes_it_in_lanes_that_divide():
    code = ".reg .pred %p; setp.lt.u32 %p, %r1, 2;\n@%p div.rn.f32 %x3, %x1, %x2;"
    zeros = np.zeros(8, np.float32)
    text = text_of(code, zeros)
    _, trace = run(text, {"a": zeros, "b": zeros + 1, "o": zeros.copy()}, block=8)
    (number,) = link(module(text), "k").slow_paths.values()
    assert trace.masks[trace.blocks == number].tolist() == [0b11]


def test_no_slow_path_without_a_lane_that_takes_it():
    assert slow_lanes("div.rn.f32", F32[:2], F32[:2]) == 0


def timed(folder, name: str, a: np.ndarray, b: np.ndarray, gpu: str):
    """The launch of an instruction on a GPU."""
    launch = abstim.load(written(folder, text_of(name, a))).kernel().launch(1, 32, [a, b, np.zeros_like(a)])
    return abstim.run(launch, gpu=gpu).launches[0]


@needs_tools
@pytest.mark.parametrize(
    ("name", "quick", "slow", "least"),
    [
        ("div.rn.f32", np.ones(32, np.float32), np.zeros(32, np.float32), 30),
        ("div.rn.f64", np.ones(32), np.zeros(32), 20),
        ("sqrt.rn.f32", np.ones(32, np.float32), np.zeros(32, np.float32), 5),
    ],
)
def test_machine_code_takes_it_where_lanes_do(tmp_path, name, quick, slow, least):
    """And in a warp one lane of which does, all the more: its subroutine is executed once, whoever needs it."""
    one = quick.copy()
    one[5] = slow[5]
    divisor = np.ones_like(quick)
    none, some, all_ = (timed(tmp_path, name, a, divisor, "h100") for a in (quick, one, slow))
    assert some.timed_instructions == all_.timed_instructions >= none.timed_instructions + least
    assert some.cycles == all_.cycles >= none.cycles  # the store is under way meanwhile
    assert none.warp_instructions == all_.warp_instructions


def test_ptx_has_no_slow_path(tmp_path):
    ones = np.ones(32, np.float32)
    quick, slow = (timed(tmp_path, "div.rn.f32", a, ones, "gtx480") for a in (ones.copy(), np.zeros_like(ones)))
    assert (quick.cycles, quick.timed_instructions) == (slow.cycles, slow.timed_instructions)


@needs_tools
@pytest.mark.parametrize("name", ["div.u16", "rem.u64", "div.rp.f64"])
def test_what_always_calls_a_subroutine_is_timed_with_it(tmp_path, name):
    """Of integers of 16 and 64 bits, and rounded towards infinity, there is no short division."""
    a = np.ones(32, {"u16": np.uint16, "u64": np.uint64}.get(name[-3:], np.float64))
    divided, added = (timed(tmp_path, n, a, a, "h100") for n in (name, "add" + name[name.rindex(".") :]))
    assert divided.timed_instructions >= added.timed_instructions + 10


@needs_tools
@pytest.mark.parametrize(("gpu", "alike"), [("h100", False), ("gtx480", True)])
def test_thread_blocks_some_of_which_take_it_are_not_alike(tmp_path, gpu, alike):
    """Where machine code is timed, nothing is said of some thread blocks by others: zeros may be anywhere."""
    values = np.repeat([1, 0], 16).astype(np.float32)  # of which each thread block divides its own
    kernel = abstim.load(written(tmp_path, text_of("div.rn.f32", values, "%ctaid.x"))).kernel()
    ones = np.ones_like(values)
    case = open_target(kernel.launch(32, 32, [values, ones, ones.copy()]))
    program = opened(case, load_gpu(gpu, ["sm_count=1"]), online=True)
    assert (_equal_blocks(program, 0) is not None) == alike
