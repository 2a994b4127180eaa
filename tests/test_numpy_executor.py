"""Control flow, barriers, warp-wide operations, address spaces, calls and faults of the NumPy executor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_kernels import Run, entry, launch

from functional.errors import ExecutionError, InputError, PtxError

U32 = np.uint32
LANES = np.arange(32, dtype=U32)
FULL = 0xFFFFFFFF
STORE = "mul.wide.u32 %rd30, %r0, 4; add.s64 %rd30, %rd0, %rd30; st.global.u32 [%rd30], {};"


def per_thread(body: str, value: str = "%r1", before: str = "", **options) -> tuple[np.ndarray, Run]:
    """Run a body that leaves one u32 a thread in `value`; yields those, for one block of 32 threads unless told."""
    threads = int(np.prod(options.get("block", 32))) * int(options.get("grid", 1))
    run = launch(entry(body + STORE.format(value), before=before), {"out": np.zeros(threads, U32)}, **options)
    return run.memory.read("out", U32), run


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
    out, run = per_thread("setp.lt.u32 %p0, %r0, 31; mov.u32 %r1, 7; @!%p0 bra E;\n" + call + "E: ", before=FUNCTION)
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


# -- operations across a warp ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form,expected",
    [
        ("down.b32 %r1|%p0, %r0, 4, 0x1f", [(i + 4, 1) if i < 28 else (i, 0) for i in range(32)]),
        ("up.b32 %r1|%p0, %r0, 3, 0", [(i - 3, 1) if i >= 3 else (i, 0) for i in range(32)]),
        ("bfly.b32 %r1|%p0, %r0, 16, 0x1f", [(i ^ 16, 1) for i in range(32)]),
        ("idx.b32 %r1|%p0, %r0, 5, 0x1f", [(5, 1)] * 32),
        ("idx.b32 %r1|%p0, %r0, 9, 0x181f", [(i & 24 | 1, 1) for i in range(32)]),
        ("down.b32 %r1|%p0, %r0, 2, 0x181f", [(i + 2, 1) if i % 8 < 6 else (i, 0) for i in range(32)]),
        ("up.b32 %r1|%p0, %r0, 1, 0x1800", [(i - 1, 1) if i % 8 else (i, 0) for i in range(32)]),
    ],
)
def test_shuffles(form: str, expected: list) -> None:
    out, _ = per_thread(f"shfl.sync.{form}, -1; selp.u32 %r2, 1000, 0, %p0; add.u32 %r1, %r1, %r2;")
    assert out.tolist() == [lane + 1000 * inside for lane, inside in expected]


def test_votes_see_only_active_members() -> None:
    body = (
        "setp.lt.u32 %p0, %r0, 4; setp.lt.u32 %p1, %r0, 2; mov.u32 %r1, 0; @!%p0 bra E; activemask.b32 %r2;\n"
        "vote.sync.ballot.b32 %r3, %p1, -1; vote.sync.all.pred %p2, %p0, -1; vote.sync.any.pred %p3, %p1, 12;\n"
        "vote.sync.uni.pred %p4, %p1, 3; shl.b32 %r3, %r3, 8; or.b32 %r1, %r2, %r3; @%p2 or.b32 %r1, %r1, 0x10000;\n"
        "@%p3 or.b32 %r1, %r1, 0x20000; @%p4 or.b32 %r1, %r1, 0x40000;\nE:"
    )
    out, _ = per_thread(body)
    assert out.tolist() == [0x5030F] * 4 + [0] * 28


def test_match_and_redux() -> None:
    out, _ = per_thread("and.b32 %r2, %r0, 1; match.any.sync.b32 %r1, %r2, -1;")
    assert out[:2].tolist() == [0x55555555, 0xAAAAAAAA]
    out, _ = per_thread("shr.u32 %r2, %r0, 5; match.all.sync.b32 %r1|%p0, %r2, -1;")
    assert out.tolist() == [FULL] * 32
    out, _ = per_thread("redux.sync.add.u32 %r1, %r0, 0xff;")
    assert out[:8].tolist() == [28] * 8
    out, _ = per_thread("sub.s32 %r2, 5, %r0; redux.sync.min.s32 %r1, %r2, -1;")
    assert out.view(np.int32)[0] == -26


# -- special registers, spaces ---------------------------------------------------------------------------------------


def test_special_registers() -> None:
    text = entry(
        "mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mad.lo.u32 %r5, %r3, 2, %r2;\n"
        "mad.lo.u32 %r6, %r5, %r4, %r0; mov.u32 %r7, %ctaid.y; mov.u32 %r8, %nctaid.x; mov.u32 %r9, %ctaid.x;\n"
        "mad.lo.u32 %r9, %r7, %r8, %r9; mul.lo.u32 %r10, %r9, 48; add.u32 %r10, %r10, %r6; mov.u32 %r11, %laneid;\n"
        "mov.u32 %r12, %warpid; shl.b32 %r12, %r12, 5; or.b32 %r11, %r11, %r12; mov.u32 %r13, %lanemask_lt;\n"
        "popc.b32 %r13, %r13; and.b32 %r14, %r11, 31; sub.u32 %r13, %r13, %r14; add.u32 %r11, %r11, %r13;\n"
        "mul.wide.u32 %rd2, %r10, 4; add.s64 %rd2, %rd0, %rd2; st.global.u32 [%rd2], %r11;"
    )
    run = launch(text, {"out": np.zeros(48 * 6, U32)}, grid=(3, 2), block=(8, 2, 3))
    assert run.memory.read("out", U32).tolist() == list(range(48)) * 6


def test_generic_addresses_reach_every_space() -> None:
    before = ".global .align 4 .u32 g[2] = {7, 8}; .const .align 4 .u32 c[2] = {50, 60};"
    body = (
        ".shared .align 4 .b8 s[128]; .local .align 4 .b8 l[16]; and.b32 %r2, %r0, 3;\n"
        "mov.u64 %rd1, s; cvta.shared.u64 %rd1, %rd1; mul.wide.u32 %rd5, %r0, 4; add.s64 %rd1, %rd1, %rd5;\n"
        "mov.u64 %rd2, l; cvta.local.u64 %rd2, %rd2; mov.u64 %rd3, g; cvta.global.u64 %rd3, %rd3;\n"
        "mov.u64 %rd4, c; cvta.const.u64 %rd4, %rd4; add.u32 %r3, %r0, 100; st.u32 [%rd1], %r3;\n"
        "add.u32 %r4, %r0, 200; st.local.u32 [l], %r4; setp.eq.u32 %p0, %r2, 1; setp.eq.u32 %p1, %r2, 2;\n"
        "setp.eq.u32 %p2, %r2, 3; selp.b64 %rd6, %rd2, %rd1, %p0; selp.b64 %rd6, %rd3, %rd6, %p1;\n"
        "selp.b64 %rd6, %rd4, %rd6, %p2; ld.u32 %r1, [%rd6]; isspacep.shared %p4, %rd6; @%p4 add.u32 %r1, %r1, 1000;\n"
    )
    out, run = per_thread(body, before=before)
    assert out[:8].tolist() == [1100, 201, 7, 50, 1104, 205, 7, 50]
    lines = [line for line, _, _ in run.records()]
    assert lines.count((1 << 27) - 1) == 2  # a conflict cycle each of the generic store and load


def test_narrow_and_vector_memory_accesses() -> None:
    body = (
        "mul.wide.u32 %rd2, %r0, 16; add.s64 %rd3, %rd0, %rd2; ld.global.v4.u32 {%r1, _, %r2, %r3}, [%rd3];\n"
        "ld.global.s8 %r4, [%rd3+4]; ld.global.u16 %h1, [%rd3+4]; cvt.u32.u16 %r5, %h1;\n"
        "add.s64 %rd4, %rd1, %rd2; st.global.v2.u32 [%rd4], {%r3, %r1}; st.global.u8 [%rd4+8], %r4;\n"
        "st.global.u16 [%rd4+10], %h1; st.global.u32 [%rd4+12], %r2;"
    )
    data = np.arange(128, dtype=U32) * 0x01010181
    run = launch(entry(body, 2), {"a": data, "b": np.zeros(128, U32)})
    got, rows = run.memory.read("b", U32).reshape(32, 4), data.reshape(32, 4)
    assert (got[:, 0] == rows[:, 3]).all() and (got[:, 1] == rows[:, 0]).all() and (got[:, 3] == rows[:, 2]).all()
    assert (got[:, 2] == (rows[:, 1] & 0xFF) | (rows[:, 1] & 0xFFFF) << 16).all()


def test_shared_addresses_are_32_bits_and_wrap() -> None:
    body = SHARED + "mov.u32 %r2, s; sub.u32 %r2, %r2, 4; st.shared.u32 [%r2+8], 77; ld.shared.u32 %r1, [%r2+8];"
    assert per_thread(body)[0].tolist() == [77] * 32


# -- atomics ---------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "exch.b32", "inc.u32", "dec.u32"]),
       st.lists(st.integers(0, 5), min_size=64, max_size=64), st.integers(0, 2**32 - 1), st.booleans())  # fmt: skip
def test_atomics_are_sequential(form: str, where: list[int], seed: int, shared: bool) -> None:
    values = np.random.default_rng(seed).integers(0, 12, 64).astype(U32)
    target = "s" if shared else "%rd7"
    body = (
        ".shared .align 4 .b8 s[32]; mul.wide.u32 %rd4, %r0, 4; add.s64 %rd5, %rd0, %rd4; ld.global.u32 %r1, [%rd5];\n"
        "add.s64 %rd6, %rd1, %rd4; ld.global.u32 %r2, [%rd6]; mul.wide.u32 %rd8, %r1, 4; add.s64 %rd7, %rd2, %rd8;\n"
        "cvt.u32.u64 %r5, %rd8; mov.u32 %r6, s; add.u32 %r5, %r5, %r6;\n"
        f"atom.{'shared' if shared else 'global'}.{form} %r3, [{'%r5' if shared else target}], %r2;\n"
        "add.s64 %rd9, %rd3, %rd4; st.global.u32 [%rd9], %r3;"
    )
    buffers = {"where": np.array(where, U32), "values": values, "cells": np.zeros(6, U32), "old": np.zeros(64, U32)}
    run = launch(entry(body, 4), buffers, block=64)
    cells, old = np.zeros(6, np.int64), []
    for cell, value in zip(where, values.tolist(), strict=True):
        before = int(cells[cell])
        old.append(before)
        cells[cell] = {
            "add": before + value, "min": min(before, value), "max": max(before, value), "and": before & value,
            "or": before | value, "xor": before ^ value, "exch": value, "inc": 0 if before >= value else before + 1,
            "dec": value if before == 0 or before > value else before - 1,
        }[form.partition(".")[0]]  # fmt: skip
    assert run.memory.read("old", U32).tolist() == old
    if not shared:
        assert run.memory.read("cells", U32).tolist() == cells.tolist()


def test_compare_and_swap_and_float_atomics() -> None:
    body = (
        "atom.global.cas.b32 %r1, [%rd0], 0, 5; atom.global.add.f32 %f1, [%rd0+8], 0f3F000000;\n"
        "mov.f64 %fd1, 0d3FD0000000000000; atom.global.add.f64 %fd2, [%rd0+16], %fd1; red.global.max.s64 [%rd0+24], %rd3;"
    )
    run = launch(entry("cvt.u64.u32 %rd3, %r0;" + body), {"a": np.zeros(8, U32)}, block=64)
    out = run.memory.read("a", U32)
    assert out[0] == 5 and out[2:4].view(np.float32)[0] == 32 and out[4:6].view(np.float64)[0] == 16 and out[6] == 63


# -- faults ----------------------------------------------------------------------------------------------------------


def test_out_of_bounds_names_thread_address_and_neighbour() -> None:
    text = entry("mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; ld.global.u32 %r1, [%rd1];")
    with pytest.raises(ExecutionError, match=r"kernel 'k', .*:\d+: ld.global.u32, thread \(20, 0, 0\) of block \(0, 0, 0\): "
                                             r"4 bytes at 0x\w+ are out of bounds: .*'a' \(80 bytes\)"):  # fmt: skip
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
    body = "setp.eq.u32 %p0, %r0, 9; mul.wide.u32 %rd1, %r0, 4000; add.s64 %rd1, %rd0, %rd1; @%p0 ld.global.u32 %r1, [%rd1-36000];"
    launch(entry(body), {"a": np.zeros(4, U32)})


def test_instruction_budget() -> None:
    with pytest.raises(ExecutionError, match=r"budget of 10000 thread instructions"):
        launch(entry("LOOP: bra.uni LOOP;"), {"a": np.zeros(1, U32)}, budget=10000)


def test_unsupported_instructions_are_refused_by_name_before_anything_runs() -> None:
    memory = np.zeros(1, U32)
    with pytest.raises(PtxError, match=r"kernel.ptx:\d+: instruction 'vadd.u32.u32.u32' is not supported"):
        launch(entry("st.global.u32 [%rd0], 1; vadd.u32.u32.u32 %r1, %r2, %r3;"), {"a": memory})
    with pytest.raises(PtxError, match=r"instruction 'add.sat.u32' is not supported"):
        launch(entry("add.sat.u32 %r1, %r2, %r3;"), {"a": memory})


def test_thread_blocks_on_demand() -> None:
    body = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], 1;"
    run = launch(entry(body), {"a": np.zeros(8, U32)}, grid=8, thread_blocks=[2, 5])
    assert run.memory.read("a", U32).tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    assert run.trace.thread_blocks.tolist() == [2, 5] and len(run.trace.warp_instructions) == 2
    with pytest.raises(InputError, match="thread blocks 0 to 7"):
        launch(entry(body), {"a": np.zeros(8, U32)}, grid=8, thread_blocks=[8])


# -- the result does not depend on the chunk size ----------------------------------------------------------------------

IRREGULAR = SHARED + (
    "mov.u32 %r20, %ctaid.x; mad.lo.u32 %r0, %r20, 96, %r0; mul.wide.u32 %rd3, %r0, 4; add.s64 %rd3, %rd0, %rd3;\n"
    "ld.global.u32 %r1, [%rd3]; mov.u32 %r2, 0; mov.u32 %r7, s; mov.u32 %r8, %tid.x; mad.lo.u32 %r7, %r8, 4, %r7;\n"
    "LOOP: and.b32 %r3, %r1, 3; setp.eq.u32 %p0, %r3, 0; @%p0 bra EVEN; mad.lo.u32 %r2, %r2, 3, %r1; bra.uni NEXT;\n"
    "EVEN: xor.b32 %r2, %r2, %r1;\nNEXT: shr.u32 %r1, %r1, 2; setp.ne.u32 %p1, %r1, 0; @%p1 bra LOOP;\n"
    "st.shared.u32 [%r7], %r2; bar.sync 0; and.b32 %r9, %r2, 95; setp.ge.u32 %p3, %r9, 96; @%p3 mov.u32 %r9, 1;\n"
    "mov.u32 %r10, s; mad.lo.u32 %r10, %r9, 4, %r10; ld.shared.u32 %r4, [%r10]; add.u32 %r4, %r4, %r2; st.global.u32 [%rd3], %r4;"
)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_chunk_size_changes_nothing(chunk_warps: int, seed: int, grid: int) -> None:
    data = np.random.default_rng(seed).integers(0, 2**32, 96 * grid, dtype=U32)
    runs = [launch(entry(IRREGULAR), {"a": data}, grid=grid, block=96, chunk_warps=n) for n in (1024, chunk_warps)]
    first, second = (r.trace for r in runs)
    for name in ("blocks", "masks", "records", "conflicts", "block_offsets", "record_offsets", "conflict_offsets",
                 "warp_instructions", "thread_instructions"):  # fmt: skip
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    assert np.array_equal(runs[0].memory.arena, runs[1].memory.arena)
