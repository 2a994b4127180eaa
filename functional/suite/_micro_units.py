"""Micro-benchmarks of the arithmetic units."""

from __future__ import annotations

import numpy as np

from functional.suite._recipe import Recipe, bench, f32, f64, rng, u32, uniform


def chains(seed_array, per_trip, variants, kinds, dtype, extra, start_of, finish, rtol=0.0, atol=0.0):
    """Latency (one warp) and throughput (full machine) launches of dependent and independent
    chains. `variants` lists (kernel name, operation); a trip of the kernel's loop holds
    `per_trip` operations; `kinds` maps a launch label to (grid, block, trips); `extra` are the
    scalar arguments; start_of(x, j) is the start of chain j, finish() joins 8 chains.
    """
    c = Recipe(independent=True)
    b_in = c.input("in", seed_array)
    for kernel, fn in variants:
        for label, (grid, block, trips) in kinds.items():
            gid = np.arange(grid * block)
            x = seed_array[gid & 255]
            for shape in ("dep", "ind"):
                count = trips * per_trip // (1 if shape == "dep" else 8)
                starts = [x] if shape == "dep" else [start_of(x, j) for j in range(8)]
                ends = []
                for v in starts:
                    for _ in range(count):
                        v = fn(v)
                    ends.append(v)
                result = ends[0] if shape == "dep" else finish(ends)
                name = f"{kernel}_{shape}_{label}"
                out = c.output("out_" + name, np.asarray(result, dtype), rtol, atol)
                c.launch(f"{kernel}_{shape}", grid, block, [b_in, out, *extra, trips], label=name)
    return c


def xor_all(values):
    return np.bitwise_xor.reduce(values)


def add_all(values):
    total = values[0]
    for v in values[1:]:
        total = total + v
    return total


@bench("micro")
def micro_int_add() -> Recipe:
    seeds = rng(301).integers(0, 1 << 32, 512, dtype=np.uint64).astype(u32)
    c = Recipe(independent=True)
    b_in = c.input("in", seeds)
    for label, grid, block, trips in (("1warp", 1, 32, 16), ("full", 60, 128, 4)):
        gid = np.arange(grid * block)
        a, b = seeds[gid & 255], seeds[(gid & 255) + 256]
        for shape in ("dep", "ind"):
            pairs = [(a, b)] if shape == "dep" else [(a + u32(j), b ^ u32(j)) for j in range(8)]
            result = np.zeros(gid.size, u32)
            for p, q in pairs:
                for _ in range(trips * (16 if shape == "dep" else 2)):
                    p = p + q
                    q = q + p
                result ^= p ^ q
            name = f"int_add_{shape}_{label}"
            c.launch(f"int_add_{shape}", grid, block, [b_in, c.output("out_" + name, result), trips], label=name)
    return c


FULL = {"1warp": (1, 32, 16), "full": (60, 128, 4)}


@bench("micro")
def micro_int_mad() -> Recipe:
    m, k = u32(1664525), u32(1013904223)
    seeds = rng(302).integers(0, 1 << 32, 256, dtype=np.uint64).astype(u32)
    return chains(
        seeds,
        32,
        [("int_mul", lambda x: x * m), ("int_mad", lambda x: x * m + k)],
        FULL,
        u32,
        [m, k],
        lambda x, j: x + u32(2 * j),
        xor_all,
    )


@bench("micro")
def micro_fp32_fma() -> Recipe:
    m, k = f32(-0.99902344), f32(0.37)
    seeds = uniform(rng(303), -4, 4, 256)
    return chains(
        seeds,
        32,
        [("fp32_fma", lambda x: (x.astype(f64) * m.astype(f64) + k.astype(f64)).astype(f32))],
        FULL,
        f32,
        [m, k],
        lambda x, j: x + f32(j),
        add_all,
        1e-5,
        1e-5,
    )


@bench("micro")
def micro_fp64_fma() -> Recipe:
    m, k = f64(-0.99902344), f64(0.37)
    seeds = rng(304).uniform(-4, 4, 256)
    return chains(
        seeds,
        32,
        [("fp64_fma", lambda x: x * m + k)],
        {"1warp": (1, 32, 8), "full": (60, 128, 2)},
        f64,
        [m, k],
        lambda x, j: x + f64(j),
        add_all,
        1e-12,
        1e-12,
    )


@bench("micro")
def micro_sfu() -> Recipe:
    seeds = uniform(rng(305), 0.25, 1, 256)

    def single(fn):
        return lambda x: fn(x.astype(f64)).astype(f32)

    # wide tolerance: real hardware approximates these to about 2^-21
    return chains(
        seeds,
        32,
        [
            ("sfu_sin", single(np.sin)),
            ("sfu_cos", single(np.cos)),
            ("sfu_ex2", single(lambda x: np.exp2(-x))),
            ("sfu_rsqrt", single(lambda x: 1 / np.sqrt(x))),
        ],
        {"1warp": (1, 32, 8), "full": (60, 128, 2)},
        f32,
        [],
        lambda x, j: x + f32(0.125 * j),
        add_all,
        1e-3,
        1e-4,
    )


@bench("micro")
def micro_int_div() -> Recipe:
    k, d = u32(3900000000), u32(3950000000)
    seeds = rng(306).integers(1000, 60000, 256).astype(u32)
    return chains(seeds, 8, [("int_div", lambda x: d // (k // x))], FULL, u32, [k, d], lambda x, j: x + u32(j), xor_all)


@bench("micro")
def micro_fp32_div() -> Recipe:
    k, d = f32(3.7), f32(3.73)
    seeds = uniform(rng(307), 0.5, 8, 256)
    return chains(
        seeds,
        8,
        [("fp32_div", lambda x: d / (k / x)), ("fp32_div_fast", lambda x: d / (k / x))],
        FULL,
        f32,
        [k, d],
        lambda x, j: x + f32(j),
        add_all,
        1e-4,
        1e-5,
    )
