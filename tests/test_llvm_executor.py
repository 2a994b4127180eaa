"""The LLVM executor gives exactly the memory and the trace of the array executor, on random kernels; on the suite:
test_suite_outputs.py."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ptx_kernels
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import examples
from oracle.array_executor import ArrayExecutor, array_step_of
from random_kernels import IN_WORDS, OUT_WORDS, KernelText

import functional.suite as suite
from functional.errors import ExecutionError, PtxError
from functional.isa.operation import refuse_if
from functional.launches.launch import Launch, Pointer, make_launch
from functional.launches.memory import Memory
from functional.llvm_executor import LlvmExecutor, by_piece, generate, object_code
from functional.llvm_executor.pieces import Care
from functional.llvm_executor.unit import Unit
from functional.programs.link import link
from functional.traces.trace import Trace

# the last one runs what launches that fault are run with
LLVM, NUMPY, CAREFUL = LlvmExecutor(), ArrayExecutor(), LlvmExecutor(care=Care.FAULTS)


def assert_equal(launch: Launch, memory: Memory, thread_blocks: Sequence[int] | None = None) -> Trace:
    """Run a launch with both executors; `memory` is left as both left it. Raises ExecutionError where both do, with one
    text."""
    other = memory.copy()
    try:
        expected = NUMPY.run(launch, memory, thread_blocks)
    except ExecutionError as error:
        with pytest.raises(ExecutionError) as raised:
            LLVM.run(launch, other, thread_blocks)
        assert str(raised.value) == str(error)
        raise
    trace = LLVM.run(launch, other, thread_blocks)
    assert_traces_equal(trace, expected)
    assert np.array_equal(other.arena, memory.arena)
    return trace


def assert_traces_equal(trace: Trace, expected: Trace) -> None:
    for field in dataclasses.fields(Trace):
        got, want = getattr(trace, field.name), getattr(expected, field.name)
        assert np.array_equal(got, want) and np.asarray(got).dtype == np.asarray(want).dtype, field.name


def random_launch(seed: int, size: int, grid: int, block: tuple[int, int]) -> tuple[Launch, Memory]:
    threads = block[0] * block[1]
    module = ptx_kernels.module(KernelText(seed, size, threads).text)
    memory = Memory(module.variables)
    rng = np.random.default_rng(seed)
    memory.allocate("a", 4 * IN_WORDS, rng.integers(0, 1 << 32, IN_WORDS, np.uint32))
    memory.allocate("o", 4 * OUT_WORDS * threads * grid)
    memory.allocate("h", 64)
    arguments = [Pointer("a"), Pointer("o"), Pointer("h"), seed % 9]
    return make_launch(link(module, "k"), grid, block, arguments, memory), memory


@examples(10, 40)
@given(
    seed=st.integers(0, 1 << 32), size=st.integers(1, 60), grid=st.integers(1, 3),
    block=st.sampled_from([(32, 1), (8, 1), (70, 1), (64, 1), (16, 3), (5, 9), (128, 1)]),
)  # fmt: skip
def test_random_kernels(seed: int, size: int, grid: int, block: tuple[int, int]) -> None:
    launch, memory = random_launch(seed, size, grid, block)
    assert LLVM.compiled(launch.program) is not None
    other = memory.copy()
    assert_traces_equal(CAREFUL.run(launch, other), assert_equal(launch, memory))
    assert np.array_equal(other.arena, memory.arena)


@examples(5, 40)
@given(
    seed=st.integers(0, 1 << 32), size=st.integers(1, 20), share=st.floats(0.02, 1),
    block=st.sampled_from([(32, 1), (8, 1), (70, 1), (16, 3), (128, 1)]),
)  # fmt: skip
def test_pieces_of_random_kernels(seed: int, size: int, share: float, block: tuple[int, int]) -> None:
    """Whichever instructions are left to steps, branches and barriers too."""
    launch, memory = random_launch(seed, size, 2, block)
    left_out = np.random.default_rng(seed).random(len(launch.program.instructions)) < share

    def unless_left_out(build: Callable) -> Callable:
        def built(unit: Unit, *given: Any) -> None:
            inst = next(g for g in (*given, *(g[-1] for g in given if isinstance(g, tuple))) if hasattr(g, "opcode"))
            refuse_if(left_out[inst.index])
            build(unit, *given)

        return built

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("ABSTIM_CACHE", folder)
        patch.setattr(by_piece, "step_of", array_step_of)  # which knows all of them
        for name in ("instruction", "terminate"):
            patch.setattr(generate, name, unless_left_out(getattr(generate, name)))
        own = LlvmExecutor()
        assert own.compiled(launch.program).generated.by_piece == left_out.any()
        other = memory.copy()
        trace, expected = own.run(launch, other), NUMPY.run(launch, memory)
    assert_traces_equal(trace, expected)
    assert np.array_equal(other.arena, memory.arena)


def test_thread_blocks_on_demand() -> None:
    case = suite.case("hotspot")
    trace = assert_equal(case.launches[0], case.memory.copy(), [7, 3, 3, 11])
    assert trace.thread_blocks.tolist() == [7, 3, 3, 11]


def test_what_is_not_generated_runs_all_the_same() -> None:
    text = ptx_kernels.entry("movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r0; st.global.u32 [%rd0], %r1;")
    module = ptx_kernels.module(text)
    memory = Memory(module.variables)
    memory.allocate("out", 4)
    launch = make_launch(link(module, "k"), 1, 32, [Pointer("out")], memory)
    assert LLVM.compiled(launch.program).generated.by_piece
    assert_equal(launch, memory)


def test_an_endless_loop_ends() -> None:
    text = ptx_kernels.entry("LOOP: bra.uni LOOP;")
    module = ptx_kernels.module(text)
    memory = Memory(module.variables)
    memory.allocate("out", 4)
    launch = make_launch(link(module, "k"), 1, 32, [Pointer("out")], memory)
    with pytest.raises(ExecutionError, match=r"kernel.ptx:\d+: the launch exceeds its budget of 10000000 thread"):
        LLVM.run(launch, memory, instruction_budget=10_000_000)


def test_the_stack_has_room_for_all_lanes_to_part_and_for_calls() -> None:
    """Lane by lane in the innermost of 31 branches, both ways of each of which take the lanes somewhere."""
    inner = ".func (.param .b32 out) f(.param .b32 x) { .reg .b32 %r<3>; ld.param.b32 %r1, [x];\n"
    inner += "add.u32 %r1, %r1, 7; st.param.b32 [out], %r1; ret; }\n"
    body = "mov.u32 %r1, %r0;\n"
    for lane in range(31):
        body += f"setp.gt.u32 %p0, %r0, {lane}; @%p0 bra D{lane}; mul.lo.u32 %r1, %r1, 3; bra.uni J{lane};\nD{lane}:\n"
    body += "{ .param .b32 a; .param .b32 o; st.param.b32 [a], %r1; call (o), f, (a); ld.param.b32 %r1, [o]; }\n"
    body += "".join(f"J{lane}: add.u32 %r1, %r1, {lane};\n" for lane in reversed(range(31)))
    body += "mad.wide.u32 %rd1, %r0, 4, %rd0; st.global.u32 [%rd1], %r1;"
    module = ptx_kernels.module(ptx_kernels.entry(body, before=inner))
    memory = Memory(module.variables)
    memory.allocate("out", 128)
    launch = make_launch(link(module, "k"), 1, 32, [Pointer("out")], memory)
    careful = memory.copy()
    assert_traces_equal(CAREFUL.run(launch, careful), assert_equal(launch, memory))
    assert np.array_equal(careful.arena, memory.arena)


def test_a_cpu_that_cannot_convert_halves_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    monkeypatch.setattr(object_code, "features", lambda: "+sse2")
    monkeypatch.setattr(object_code.platform, "machine", lambda: "x86_64")
    program = link(ptx_kernels.module(ptx_kernels.entry("cvt.f32.f16 %f1, %h1;")), "k")
    with pytest.raises(PtxError, match="kernel 'k' cannot be compiled: this CPU cannot convert halves"):
        LlvmExecutor().prepare(program)
