"""Control flow, calls and barriers of the array executor, and its independence of the chunk size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_kernels import entry, launch, per_thread

from functional.errors import ExecutionError

U32 = np.uint32
LANES = np.arange(32, dtype=U32)
FULL = 0xFFFFFFFF


# -- divergence: blocks in the order a SIMT stack issues them, taken path first -------------------------------------


def test_if_else_runs_the_taken_path_first() -> None:
    out, run = per_thread(
        "mov.u32 %r1, 1; setp.lt.u32 %p0, %r0, 8; @%p0 bra THEN; add.u32 %r1, %r1, 10; bra.uni JOIN;\n"
        "THEN: add.u32 %r1, %r1, 20;\nJOIN: add.u32 %r1, %r1, 100;\n"
    )
    assert out.tolist() == [121] * 8 + [111] * 24
    assert run.blocks() == [0, 2, 1, 3]
    assert run.masks() == [FULL, 0xFF, 0xFFFFFF00, FULL]


def test_divergent_loop_does_not_grow_the_stack() -> None:
    body = "mov.u32 %r1, 0;\nLOOP: add.u32 %r1, %r1, 1; setp.le.u32 %p0, %r1, %r0; @%p0 bra LOOP;\n"
    out, run = per_thread(body)
    assert out.tolist() == (LANES + 1).tolist()
    assert run.blocks() == [0] + [1] * 32 + [2]
    assert run.masks()[:4] == [FULL, FULL, FULL & ~1, FULL & ~3]


def test_nested_divergence_reconverges_inside_out() -> None:
    out, run = per_thread(
        "mov.u32 %r1, 0; and.b32 %r2, %r0, 1; and.b32 %r3, %r0, 2; setp.eq.u32 %p0, %r2, 0; setp.eq.u32 %p1, %r3, 0;\n"
        "@!%p0 bra OUT; @!%p1 bra IN; add.u32 %r1, %r1, 1;\nIN: add.u32 %r1, %r1, 2;\nOUT: add.u32 %r1, %r1, 4;\n"
    )
    assert out[:4].tolist() == [7, 4, 6, 4]
    assert run.blocks() == [0, 1, 2, 3, 4]  # lanes that branch to the reconvergence point wait there
    assert run.masks() == [FULL, 0x55555555, 0x11111111, 0x55555555, FULL]


def test_early_exit_drops_lanes_from_waiting_entries() -> None:
    out, run = per_thread(
        "mov.u32 %r1, 5; setp.lt.u32 %p0, %r0, 30; setp.lt.u32 %p1, %r0, 20; @%p0 bra A; bra.uni J;\n"
        "A: @%p1 ret; add.u32 %r1, %r1, 1;\nJ: add.u32 %r1, %r1, 1;\n"
    )
    assert out.tolist() == [0] * 20 + [7] * 10 + [6] * 2
    assert run.masks()[-1] == 0xFFF00000


def test_partial_last_warp_and_guarded_instructions_are_counted_by_lane() -> None:
    out, run = per_thread("mov.u32 %r1, 1; setp.lt.u32 %p0, %r0, 3; @%p0 mov.u32 %r1, 9;", block=40)
    assert out.tolist() == [9] * 3 + [1] * 37
    assert run.trace.warp_instructions.tolist() == [9, 9]  # with ld.param, mov %tid and the store
    assert run.trace.thread_instructions.tolist() == [8 * 32 + 3, 8 * 8]
    assert run.masks(1) == [0xFF]


def test_indexed_branch() -> None:
    body = (
        "and.b32 %r2, %r0, 3; T: .branchtargets L0, L1, L2, L1;\nbrx.idx %r2, T;\n"
        "L0: mov.u32 %r1, 10; bra.uni J;\nL1: mov.u32 %r1, 11; bra.uni J;\nL2: mov.u32 %r1, 12;\nJ:\n"
    )
    out, run = per_thread(body)
    assert out[:4].tolist() == [10, 11, 12, 11]
    assert run.masks() == [FULL, 0x11111111, 0xAAAAAAAA, 0x44444444, FULL]
    with pytest.raises(ExecutionError, match=r"branch index 4 is not below 4"):
        per_thread(body.replace("%r0, 3;", "%r0, 7;"))


FUNCTION = """
.func (.param .b32 result) twice(.param .b32 x, .param .b32 y) {
  .reg .b32 %r<5>; .reg .pred %p<2>;
  ld.param.u32 %r1, [x]; ld.param.u32 %r2, [y];
  setp.gt.u32 %p1, %r1, 15; @%p1 bra BIG;
  add.u32 %r3, %r1, %r1; st.param.b32 [result], %r3; ret;
  BIG: add.u32 %r3, %r1, %r2; st.param.b32 [result], %r3; ret;
}
"""


def test_calls_return_values_and_diverge_inside() -> None:
    call = (
        "{ .param .b32 p; .param .b32 q; .param .b32 r; st.param.b32 [p], %r0; st.param.b32 [q], 1000;\n"
        "call.uni (r), twice, (p, q); ld.param.b32 %r1, [r]; }\n"
    )
    out, _ = per_thread("setp.lt.u32 %p0, %r0, 31; mov.u32 %r1, 7; @!%p0 bra E;\n" + call + "E: ", before=FUNCTION)
    assert out.tolist() == [*(2 * LANES[:16]), *(LANES[16:31] + 1000), 7]
    again, _ = per_thread(call + "add.u32 %r5, %r1, 0;" + call + "add.u32 %r1, %r1, %r5;", before=FUNCTION)
    assert again.tolist() == [*(4 * LANES[:16]), *(2 * LANES[16:] + 2000)]


# -- barriers ------------------------------------------------------------------------------------------------------

SHARED = ".shared .align 4 .b8 s[512];"
EXCHANGE = (
    "mov.u32 %r9, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r9, %r2; st.shared.u32 [%r3], %r0; bar.sync 0;\n"
    "xor.b32 %r4, %r2, 128; add.u32 %r4, %r4, %r9; ld.shared.u32 %r1, [%r4];\n"
)


def test_barrier_orders_shared_memory_between_warps() -> None:
    out, run = per_thread(SHARED + EXCHANGE, block=128)
    assert out.tolist() == (np.arange(128) ^ 32).tolist()
    assert run.conflicts() == [1, 1]


def test_exited_warps_count_as_arrived() -> None:
    body = "setp.ge.u32 %p0, %r0, 64; @%p0 ret; bar.sync 0; mov.u32 %r1, 3;"
    assert per_thread(body, block=96)[0].tolist() == [3] * 64 + [0] * 32


def test_named_barriers_with_thread_counts() -> None:
    body = (
        "setp.ge.u32 %p0, %r0, 64; @%p0 bra LATE; setp.ge.u32 %p1, %r0, 32; @%p1 bar.arrive 3, 64; @%p1 bra D;\n"
        "bar.sync 3, 64; bra.uni D;\nLATE: bar.sync 4, 32;\nD: mov.u32 %r1, 1;"
    )
    assert per_thread(body, block=96)[0].tolist() == [1] * 96


def test_barrier_reductions() -> None:
    body = "setp.lt.u32 %p0, %r0, 40; bar.red.popc.u32 %r1, 0, %p0; bar.red.and.pred %p1, 1, !%p0;"
    out, _ = per_thread(body + " @%p1 add.u32 %r1, %r1, 100;", block=64)
    assert out.tolist() == [40] * 64
    out, _ = per_thread("setp.eq.u32 %p0, %r0, 50; bar.red.or.pred %p1, 1, %p0; selp.u32 %r1, 1, 0, %p1;", block=64)
    assert out.tolist() == [1] * 64


def test_deadlock_names_the_barrier() -> None:
    text = entry("setp.lt.u32 %p0, %r0, 32; @%p0 bar.sync 0, 96;")
    with pytest.raises(ExecutionError, match=r"kernel 'k', .*kernel.ptx:\d+: bar.sync.*deadlock: 1 warps .*96 threads"):
        launch(text, {"a": np.zeros(1, U32)}, block=64)


# -- the result does not depend on the chunk size ----------------------------------------------------------------------

IRREGULAR = SHARED + (
    "mov.u32 %r20, %ctaid.x; mad.lo.u32 %r0, %r20, 96, %r0; mul.wide.u32 %rd3, %r0, 4; add.s64 %rd3, %rd0, %rd3;\n"
    "ld.global.u32 %r1, [%rd3]; mov.u32 %r2, 0; mov.u32 %r7, s; mov.u32 %r8, %tid.x; mad.lo.u32 %r7, %r8, 4, %r7;\n"
    "LOOP: and.b32 %r3, %r1, 3; setp.eq.u32 %p0, %r3, 0; @%p0 bra EVEN; mad.lo.u32 %r2, %r2, 3, %r1; bra.uni NEXT;\n"
    "EVEN: xor.b32 %r2, %r2, %r1;\nNEXT: shr.u32 %r1, %r1, 2; setp.ne.u32 %p1, %r1, 0; @%p1 bra LOOP;\n"
    "st.shared.u32 [%r7], %r2; bar.sync 0; and.b32 %r9, %r2, 95; setp.ge.u32 %p3, %r9, 96; @%p3 mov.u32 %r9, 1;\n"
    "mov.u32 %r10, s; mad.lo.u32 %r10, %r9, 4, %r10; ld.shared.u32 %r4, [%r10]; add.u32 %r4, %r4, %r2; "
    "st.global.u32 [%rd3], %r4;"
)


@settings(max_examples=10)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_chunk_size_changes_nothing(chunk_warps: int, seed: int, grid: int) -> None:
    data = np.random.default_rng(seed).integers(0, 2**32, 96 * grid, dtype=U32)
    runs = [launch(entry(IRREGULAR), {"a": data}, grid=grid, block=96, chunk_warps=n) for n in (1024, chunk_warps)]
    first, second = (r.trace for r in runs)
    for name in ("blocks", "masks", "records", "conflicts", "block_offsets", "record_offsets", "conflict_offsets",
                 "warp_instructions", "thread_instructions"):  # fmt: skip
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    assert np.array_equal(runs[0].memory.arena, runs[1].memory.arena)
