"""Micro-benchmarks of the memory spaces."""

from __future__ import annotations

import numpy as np

from functional.suite._recipe import Recipe, bench, rng, u32


@bench("micro", independent=True)
def micro_smem_conflict(c: Recipe) -> None:
    grid, block, trips, words = 15, 128, 8, 1024
    data = rng(308).integers(0, 1 << 32, words, dtype=np.uint64).astype(u32)
    b_in = c.input("in", data)
    tid = np.arange(block)
    for stride in (1, 2, 4, 8, 16, 32):
        at = (tid & 31) * stride + (tid >> 5)
        total = np.zeros(block, u32)
        for j in range(8):
            total += data[at + j] * u32(trips)
        out = c.output(f"ind_{stride}", np.tile(total, grid))
        c.launch("smem_load_ind", grid, block, b_in, out, stride, trips, label=f"ind_{stride}way")
    for stride in (1, 2, 4, 8, 16, 32):
        end = ((np.arange(32) * stride) + 32 * 8 * 16) & (words - 1)
        out = c.output(f"dep_{stride}", np.tile(end, grid).astype(u32))
        c.launch("smem_load_dep", grid, 32, out, stride, 16, label=f"dep_{stride}way")


@bench("micro", independent=True)
def micro_global_stride(c: Recipe) -> None:
    grid, block = 60, 64
    total = grid * block
    data = rng(309).integers(0, 1 << 32, 2 * total * 32, dtype=np.uint64).astype(u32)
    b_in = c.input("in", data)
    gid = np.arange(total)
    for stride in (1, 2, 4, 8, 16, 32):
        out = data[gid * stride] + u32(3) * data[(gid + total) * stride]
        c.launch("global_stride", grid, block, b_in, c.output(f"out_{stride}", out), stride, label=f"stride_{stride}")


@bench("micro", independent=True)
def micro_pointer_chase(c: Recipe) -> None:
    block, steps = 256, 1024
    sizes_kb = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
    r = rng(310)
    words = np.zeros((sizes_kb[-1] * 1024 // 128, 32), u32)
    for slot, kb in enumerate(sizes_kb):
        lines = kb * 1024 // 128
        cycle = np.concatenate([[0], 1 + r.permutation(lines - 1)])
        words[cycle, slot] = np.roll(cycle, -1) * 32 + slot
    flat = words.ravel()
    b_next = c.input("next", words)
    for slot, kb in enumerate(sizes_kb):
        lines = kb * 1024 // 128
        sums = np.zeros(block, u32)
        for i in range(0, lines, block):
            part = words[i : min(i + block, lines), slot]
            sums[: part.size] += part
        at = slot
        for _ in range(steps):
            at = int(flat[at])
        out = c.output(f"out_{kb}k", np.append(sums, u32(at)))
        c.launch("pointer_chase", 1, block, b_next, out, slot, lines, steps, label=f"{kb}KB")


@bench("micro", independent=True)
def micro_stream_copy(c: Recipe) -> None:
    n = 65536
    data = rng(311).integers(0, 1 << 32, n, dtype=np.uint64).astype(u32)
    b_in = c.input("in", data)
    for kernel, grid in (
        ("copy_word", 15),
        ("copy_word", 60),
        ("copy_word", 240),
        ("copy_vec4", 15),
        ("copy_vec4", 60),
        ("copy_vec4", 120),
    ):
        name = f"{kernel}_{grid}"
        count = n if kernel == "copy_word" else n // 4
        c.launch(kernel, grid, 128, b_in, c.output("out_" + name, data), count, label=name)


@bench("micro", independent=True)
def micro_const_load(c: Recipe) -> None:
    grid, block, trips = 30, 128, 8
    table = np.arange(1024, dtype=u32) * u32(2654435761) + u32(12345)
    tid = np.arange(block)
    for ways in (1, 2, 4, 8, 16, 32):
        at = (tid & (ways - 1)) * 4
        total = np.zeros(block, u32)
        for j in range(8 * trips):
            total += table[at + j]
        c.launch(
            "const_load", grid, block, c.output(f"out_{ways}", np.tile(total, grid)), ways, trips, label=f"ways_{ways}"
        )
