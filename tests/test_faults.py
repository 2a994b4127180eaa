"""What the executor refuses: one clear error with kernel, PTX line, thread and address."""

from __future__ import annotations

import numpy as np
import ptx_kernels
import pytest
from ptx_kernels import Run, entry

from functional.errors import ExecutionError, InputError, PtxError
from functional.llvm_executor import LlvmExecutor

U32 = np.uint32
LLVM = LlvmExecutor(threads=1)
SHARED = ".shared .align 4 .b8 s[512];"


def launch(*given: object, **options: object) -> Run:
    """By the oracle and by the compiled executor, whose errors are the same."""
    try:
        found = ptx_kernels.launch(*given, **options)
    except (ExecutionError, PtxError) as error:
        with pytest.raises(type(error)) as raised:
            ptx_kernels.launch(*given, executor=LLVM, **options)
        assert str(raised.value).partition(".ptx:")[2] == str(error).partition(".ptx:")[2]
        raise
    ptx_kernels.launch(*given, executor=LLVM, **options)
    return found


# -- faults ----------------------------------------------------------------------------------------------------------


def test_out_of_bounds_names_thread_address_and_neighbour() -> None:
    text = entry("mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; ld.global.u32 %r1, [%rd1];")
    who = r"kernel 'k', .*:\d+: ld.global.u32, thread \(20, 0, 0\) of block \(0, 0, 0\): "
    with pytest.raises(ExecutionError, match=who + r"4 bytes at 0x\w+ are out of bounds: .*'a' \(80 bytes\)"):
        launch(text, {"a": np.zeros(20, U32)})


@pytest.mark.parametrize(
    "body,message",
    [
        ("ld.global.u32 %r1, [%rd0+2];", "misaligned address .*4 bytes need a multiple of 4"),
        ("ld.global.v2.u32 {%r1, %r2}, [%rd0+4];", "8 bytes need a multiple of 8"),
        (SHARED + "mov.u32 %r2, 512; st.shared.u32 [%r2], 1;", "shared memory has 512 bytes"),
        (SHARED + "mov.u32 %r2, -4; st.shared.u32 [%r2], 1;", "0xfffffffc are out of bounds"),
        (".local .b8 l[8]; ld.local.u32 %r1, [l+16];", "local memory has"),
        ("mov.u64 %rd1, 0; ld.global.u32 %r1, [%rd1];", "at 0x0 are out of bounds"),
        ("mov.u64 %rd1, -8; ld.u32 %r1, [%rd1];", "at 0xfffffffffffffff8 are out of bounds"),
        ("trap;", "trapped"),
    ],
)
def test_faults(body: str, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        launch(entry(body), {"a": np.zeros(4, U32)})


def test_inactive_lanes_do_not_fault() -> None:
    body = (
        "setp.eq.u32 %p0, %r0, 9; mul.wide.u32 %rd1, %r0, 4000; add.s64 %rd1, %rd0, %rd1; "
        "@%p0 ld.global.u32 %r1, [%rd1-36000];"
    )
    launch(entry(body), {"a": np.zeros(4, U32)})


def test_instruction_budget() -> None:
    with pytest.raises(ExecutionError, match=r"budget of 10000 thread instructions"):
        launch(entry("LOOP: bra.uni LOOP;"), {"a": np.zeros(1, U32)}, budget=10000)


def test_unsupported_instructions_are_refused_by_name_before_anything_runs() -> None:
    memory = np.zeros(1, U32)
    with pytest.raises(PtxError, match=r"kernel.ptx:\d+: instruction 'vmad.u32.u32.u32' is not supported"):
        launch(entry("st.global.u32 [%rd0], 1; vmad.u32.u32.u32 %r1, %r2, %r3, %r1;"), {"a": memory})
    with pytest.raises(PtxError, match=r"instruction 'add.sat.u32' is not supported"):
        launch(entry("add.sat.u32 %r1, %r2, %r3;"), {"a": memory})


def test_thread_blocks_on_demand() -> None:
    body = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], 1;"
    run = launch(entry(body), {"a": np.zeros(8, U32)}, grid=8, thread_blocks=[2, 5])
    assert run.memory.read("a", U32).tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    assert run.trace.thread_blocks.tolist() == [2, 5] and len(run.trace.warp_instructions) == 2
    with pytest.raises(InputError, match="thread blocks 0 to 7"):
        launch(entry(body), {"a": np.zeros(8, U32)}, grid=8, thread_blocks=[8])
