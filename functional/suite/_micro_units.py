"""Micro-benchmarks of the arithmetic units."""

from __future__ import annotations

from functools import reduce

import numpy as np

from functional.suite._recipe import Recipe, bench, f32, f64, rng, u32, uniform

FULL, HALF = (16, 4), (8, 2)


def chains(c, seeds, per_trip, variants, extra, step, trips=FULL, rtol=0.0, atol=0.0):
    """Latency (one warp) and throughput (full machine) launches of dependent and independent chains.

    `variants` lists (kernel name, operation); a trip of the kernel's loop holds `per_trip` operations, `trips` are
    those of one warp and of the full machine; `extra` are the scalar arguments. Chain j starts `step` j further on; the
    ends of 8 chains are added, of integers without carry.
    """
    b_in, join = c.input("in", seeds), np.add if seeds.dtype.kind == "f" else np.bitwise_xor
    for kernel, fn in variants:
        for label, grid, block, rounds in (("1warp", 1, 32, trips[0]), ("full", 60, 128, trips[1])):
            x = seeds[np.arange(grid * block) & 255]
            for shape, number in (("dep", 1), ("ind", 8)):
                ends = []
                for v in (x + seeds.dtype.type(step * j) for j in range(number)):
                    for _ in range(rounds * per_trip // number):
                        v = fn(v)
                    ends.append(v)
                name = f"{kernel}_{shape}_{label}"
                out = c.output("out_" + name, reduce(join, ends).astype(seeds.dtype), rtol, atol)
                c.launch(f"{kernel}_{shape}", grid, block, b_in, out, *extra, rounds, label=name)


@bench("micro", independent=True)
def micro_int_add(c: Recipe) -> None:
    seeds = rng(301).integers(0, 1 << 32, 512, dtype=np.uint64).astype(u32)
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
            c.launch(f"int_add_{shape}", grid, block, b_in, c.output("out_" + name, result), trips, label=name)


@bench("micro", independent=True)
def micro_int_mad(c: Recipe) -> None:
    m, k = u32(1664525), u32(1013904223)
    seeds = rng(302).integers(0, 1 << 32, 256, dtype=np.uint64).astype(u32)
    chains(c, seeds, 32, [("int_mul", lambda x: x * m), ("int_mad", lambda x: x * m + k)], [m, k], 2)


@bench("micro", independent=True)
def micro_fp32_fma(c: Recipe) -> None:
    m, k = f32(-0.99902344), f32(0.37)

    def fma(x):
        return (x.astype(f64) * m.astype(f64) + k.astype(f64)).astype(f32)

    chains(c, uniform(rng(303), -4, 4, 256), 32, [("fp32_fma", fma)], [m, k], 1, rtol=1e-5, atol=1e-5)


@bench("micro", independent=True)
def micro_fp64_fma(c: Recipe) -> None:
    m, k = f64(-0.99902344), f64(0.37)
    seeds = rng(304).uniform(-4, 4, 256)
    chains(c, seeds, 32, [("fp64_fma", lambda x: x * m + k)], [m, k], 1, HALF, 1e-12, 1e-12)


@bench("micro", independent=True)
def micro_sfu(c: Recipe) -> None:
    functions = {"sin": np.sin, "cos": np.cos, "ex2": lambda x: np.exp2(-x), "rsqrt": lambda x: 1 / np.sqrt(x)}
    single = [(f"sfu_{name}", lambda x, f=f: f(x.astype(f64)).astype(f32)) for name, f in functions.items()]
    # wide tolerance: real hardware approximates these to about 2^-21
    chains(c, uniform(rng(305), 0.25, 1, 256), 32, single, [], 0.125, HALF, 1e-3, 1e-4)


@bench("micro", independent=True)
def micro_int_div(c: Recipe) -> None:
    k, d = u32(3900000000), u32(3950000000)
    seeds = rng(306).integers(1000, 60000, 256).astype(u32)
    chains(c, seeds, 8, [("int_div", lambda x: d // (k // x))], [k, d], 1)


@bench("micro", independent=True)
def micro_fp32_div(c: Recipe) -> None:
    k, d = f32(3.7), f32(3.73)
    both = [(kernel, lambda x: d / (k / x)) for kernel in ("fp32_div", "fp32_div_fast")]
    chains(c, uniform(rng(307), 0.5, 8, 256), 8, both, [k, d], 1, rtol=1e-4, atol=1e-5)
