"""Warp-wide operations, special registers, address spaces, atomics and matrix instructions."""

from __future__ import annotations

import numpy as np
import pytest
from both_executors import run
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_kernels import entry, launch, per_thread

U32 = np.uint32
FULL = 0xFFFFFFFF
SHARED = ".shared .align 4 .b8 s[512];"

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


ATOMICS = ["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "exch.b32", "inc.u32", "dec.u32"]


@settings(max_examples=15)
@given(st.sampled_from(ATOMICS),
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
        "mov.f64 %fd1, 0d3FD0000000000000; atom.global.add.f64 %fd2, [%rd0+16], %fd1; "
        "red.global.max.s64 [%rd0+24], %rd3;"
    )
    run = launch(entry("cvt.u64.u32 %rd3, %r0;" + body), {"a": np.zeros(8, U32)}, block=64)
    out = run.memory.read("a", U32)
    assert out[0] == 5 and out[2:4].view(np.float32)[0] == 32 and out[4:6].view(np.float64)[0] == 16 and out[6] == 63


# -- matrices --------------------------------------------------------------------------------------------------------


def test_ldmatrix_hands_out_rows_of_8x8_tiles() -> None:
    body = (
        ".shared .align 16 .b8 s[512]; mov.u32 %r20, s; mul.lo.u32 %r21, %r0, 16; add.u32 %r21, %r20, %r21;\n"
        "mul.wide.u32 %rd2, %r0, 16; add.s64 %rd2, %rd0, %rd2; ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd2];\n"
        "st.shared.v4.u32 [%r21], {%r1, %r2, %r3, %r4}; bar.sync 0;\n"
        "ldmatrix.sync.aligned.m8n8.x4{}.shared.b16 {{%r5, %r6, %r7, %r8}}, [%r21];\n"
        "add.s64 %rd2, %rd2, 512; st.global.v4.u32 [%rd2], {{%r5, %r6, %r7, %r8}};"
    )
    data = np.arange(256, dtype=np.uint16)
    tiles = data.reshape(4, 8, 8)
    for trans in ("", ".trans"):
        text = entry(body.replace("{}", trans).replace("{{", "{").replace("}}", "}"))
        run = launch(text, {"a": np.concatenate([data, np.zeros_like(data)])})
        got = run.memory.read("a", np.uint16)[256:].reshape(32, 4, 2)
        expected = (tiles.swapaxes(1, 2) if trans else tiles).reshape(4, 32, 2).swapaxes(0, 1)
        assert (got == expected).all()
        assert run.conflicts()[-1] == 4  # 16-byte rows, first words 4 banks apart


@pytest.mark.parametrize(
    "kind,k,per_register", [("f16", 16, 2), ("f16", 8, 2), ("bf16", 16, 2), ("tf32", 8, 1), ("tf32", 4, 1)]
)
def test_mma_multiplies_matrices(kind: str, k: int, per_register: int) -> None:
    rng = np.random.default_rng(k)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, k), (k, 8), (16, 8)))
    lane = np.arange(32)
    group, place = lane // 4, lane % 4

    def packed(values: np.ndarray) -> np.ndarray:  # [lane, element] as registers
        if kind == "f16":
            return np.ascontiguousarray(values.astype(np.float16)).view(U32)
        bits = np.ascontiguousarray(values).view(U32)
        return np.ascontiguousarray((bits >> 16).astype(np.uint16)).view(U32) if kind == "bf16" else bits

    columns = [
        place * per_register + h + 4 * per_register * j
        for j in range(k // 4 // per_register)
        for h in range(per_register)
    ]
    half = [columns[i : i + per_register] for i in range(0, len(columns), per_register)]
    left = np.stack([a[group + 8 * up, col] for cols in half for up in (0, 1) for col in cols], axis=1)
    right = np.stack([b[col, group] for col in columns], axis=1)
    third = np.stack([c[group + 8 * (i // 2), 2 * place + i % 2] for i in range(4)], axis=1)
    words = np.concatenate([packed(left), packed(right), third.view(U32)], axis=1)
    na, nb = packed(left).shape[1], packed(right).shape[1]
    names = [f"%r{10 + i}" for i in range(words.shape[1])]
    loads = "".join(f"ld.global.u32 {n}, [%rd3+{4 * i}];" for i, n in enumerate(names))
    operands = [", ".join(names[i:j]) for i, j in ((0, na), (na, na + nb))]
    sums = [f"%f{i}" for i in range(4)]
    moves = "".join(f"mov.b32 {f}, {n};" for f, n in zip(sums, names[na + nb :], strict=True))
    body = (
        f"mul.wide.u32 %rd2, %r0, {4 * len(names)}; add.s64 %rd3, %rd0, %rd2; {loads} {moves}\n"
        f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 {{%f4, %f5, %f6, %f7}}, {{{operands[0]}}}, "
        f"{{{operands[1]}}}, {{{', '.join(sums)}}};\n"
        "mul.wide.u32 %rd4, %r0, 16; add.s64 %rd4, %rd1, %rd4; st.global.v4.f32 [%rd4], {%f4, %f5, %f6, %f7};"
    )
    run = launch(entry(body, 2), {"in": words, "out": np.zeros(128, np.float32)})
    got, product = run.memory.read("out", np.float32).reshape(32, 4), a @ b + c
    assert (got == np.stack([product[group + 8 * (i // 2), 2 * place + i % 2] for i in range(4)], axis=1)).all()


def test_shared_memory_that_is_cudas_own_lies_behind_the_kernels():
    text = """.entry k(.param .u64 o) { .shared .u32 s[5]; .reg .b32 %r<9>; .reg .b64 %rd<4>;
     mov.u32 %r0, %reserved_smem_offset_1; mov.u32 %r1, s; mov.u32 %r2, %total_smem_size; mov.u32 %r3, %tid.x;
     st.shared.u32 [%r1+16], 7; ld.shared.u32 %r4, [%r0]; st.shared.u32 [%r0+1020], %r0; ld.shared.u32 %r5, [%r0+1020];
     ld.param.u64 %rd0, [o]; st.global.v4.u32 [%rd0], {%r0, %r2, %r4, %r5}; ret; }"""
    found, _ = run(text, {"o": np.zeros(4, np.uint32)}, block=1)
    assert found["o"].tolist() == [32, 20, 0, 32]
