"""Micro-benchmarks of barriers, divergence, occupancy, atomics and block launch."""

from __future__ import annotations

import numpy as np

from functional.suite._recipe import Recipe, bench, f32, f64, rng, u32, uniform


@bench("micro", independent=True)
def micro_barrier(c: Recipe) -> None:
    grid, rounds = 15, 16
    data = rng(312).integers(0, 1 << 32, 1024, dtype=np.uint64).astype(u32)
    b_in = c.input("in", data)
    for warps in (2, 4, 8, 16, 32):
        n = warps * 32
        ring = np.roll(data[:n], -32 * rounds) + u32(rounds)
        out = c.output(f"ring_{warps}", np.tile(ring, grid))
        c.launch("barrier_ring", grid, n, b_in, out, rounds, label=f"ring_{warps}warps")
    for warps in (2, 4, 8, 16, 32):
        n = warps * 32
        half = [data[: n // 2].copy(), data[n // 2 : n].copy()]
        for k in range(rounds):
            half[1 - (k & 1)] = half[k & 1] * u32(3) + u32(1)
        out = c.output(f"pingpong_{warps}", np.tile(np.concatenate(half), grid))
        c.launch("barrier_ping_pong", grid, n, b_in, out, rounds, label=f"pingpong_{warps}warps")


@bench("micro", independent=True)
def micro_divergence(c: Recipe) -> None:
    grid, block, trips = 60, 64, 4
    seeds = rng(313).integers(0, 1 << 32, 256, dtype=np.uint64).astype(u32)
    b_in = c.input("in", seeds)
    gid = np.arange(grid * block)
    lane = gid % 32

    def leaf(x, number):
        number = np.asarray(number).astype(u32)
        for _ in range(16):
            x = x * (u32(2) * number + u32(5)) + (number + u32(17))
        return x

    for ways in (1, 2, 4, 8, 16, 32):
        x = seeds[gid & 255]
        for t in range(trips):
            x = leaf(x, lane % ways) ^ u32(t)
        c.launch(f"diverge_{ways}", grid, block, b_in, c.output(f"out_{ways}", x), trips, label=f"ways_{ways}")
    for k in (0, 1, 7):
        x, count = seeds[gid & 255], 1 + (lane * k) % 32
        for t in range(32):
            x = np.where(t < count, leaf(x, 0), x)
        c.launch("diverge_trips", grid, block, b_in, c.output(f"trips_{k}", x), k, label=f"trips_{k}")


@bench("micro", independent=True)
def micro_warp_sweep(c: Recipe) -> None:
    trips = 8
    data = uniform(rng(314), -1, 1, 65536)
    b_in = c.input("in", data)
    for warps in (1, 2, 4, 8, 12, 16, 24, 32, 48):
        grid, block = (15, warps * 32) if warps <= 32 else (30, warps * 16)
        at = np.arange(grid * block)
        a, b = np.zeros(at.size, f32), np.ones(at.size, f32)
        for _ in range(trips):
            v = data[at & 0xFFFF]
            at = at + 7936
            for _ in range(4):
                a = (a.astype(f64) * 0.5 + v).astype(f32)
                b = (b.astype(f64) * 0.25 + v).astype(f32)
        out = c.output(f"out_{warps}", a - b, 1e-5, 1e-5)
        c.launch("warp_sweep", grid, block, b_in, out, trips, label=f"{warps}warps_per_sm")


@bench("micro", independent=True)
def micro_local_spill(c: Recipe) -> None:
    grid, block, trips = 60, 64, 32
    seeds = rng(315).integers(0, 1 << 32, 256, dtype=np.uint64).astype(u32)
    b_in = c.input("in", seeds)
    gid = np.arange(grid * block)
    for step in (1, 5):
        x = seeds[gid & 255]
        a = np.zeros((32, gid.size), u32)
        for i in range(32):
            a[i] = x
            x = x * u32(1664525) + u32(1013904223)
        at, col = gid & 31, np.arange(gid.size)
        for _ in range(trips):
            x = x + a[at, col]
            a[(at + 7) & 31, col] = x
            at = (at + step) & 31
        out = c.output(f"out_{step}", a.sum(0, dtype=u32))
        c.launch("local_spill", grid, block, b_in, out, step, trips, label=f"step_{step}")


@bench("micro", independent=True)
def micro_atomics(c: Recipe) -> None:
    grid, block, trips = 60, 128, 4
    gid = np.arange(grid * block)

    def counts(index, n):
        return sum(np.bincount((index + t * 37) & (n - 1), minlength=n) for t in range(trips)).astype(u32)

    for n in (1, 32, 4096):
        c.launch("atomics_global", grid, block, c.output(f"global_{n}", counts(gid, n)), n, trips, label=f"global_{n}")
    for n in (1, 32, 4096):
        both = [c.output(f"return_{n}", counts(gid, n)), c.output(f"ok_{n}", np.full(gid.size, trips, u32))]
        c.launch("atomics_return", grid, block, *both, n, trips, label=f"return_{n}")
    for n in (1, 32, 1024):
        out = c.output(f"shared_{n}", counts(gid % block, n))
        c.launch("atomics_shared", grid, block, out, n, trips, label=f"shared_{n}")


@bench("micro", independent=True)
def micro_block_launch(c: Recipe) -> None:
    m = u32(2654435761)
    for grid, block in ((15, 32), (240, 32), (1920, 32), (960, 64), (120, 1024)):
        gid = np.arange(grid * block).astype(u32)
        name = f"tiny_{grid}x{block}"
        c.launch("tiny_block", grid, block, c.output("out_" + name, gid * m + gid // u32(block)), m, label=name)
    grid, block = 300, 64
    gid = np.arange(grid * block).astype(u32)
    b = np.arange(grid * block) // block
    trips = (1 + (7 * b) % 16) * np.where(b % 60 == 59, 8, 1)
    x = gid.copy()
    for t in range(int(trips.max())):
        x = np.where(t < trips, x * m + u32(12345), x)
    c.launch("uneven_block", grid, block, c.output("out_uneven", x), m, label="uneven")
    for kb in (1, 16, 48):
        grid, block = 240, 64
        gid = np.arange(grid * block).astype(u32)
        out = (gid ^ u32(1)) * m + gid // u32(block)
        result = c.output(f"out_smem_{kb}", out)
        c.launch("shared_block", grid, block, result, m, dynamic_smem=kb * 1024, label=f"smem_{kb}KB")
