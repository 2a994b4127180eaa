"""Applications: sparse and graph data, histogram, reduction, scan, sorting, transposition, option prices."""

from __future__ import annotations

import numpy as np

from functional.suite._recipe import Recipe, bench, blocks, f32, f64, i32, rng, u32, uniform


@bench("apps")
def spmv_csr(c: Recipe, n: int = 15300) -> None:
    r = rng(207)
    length = np.minimum((r.pareto(1.1, n) * 3 + 1).astype(int), 400)
    row_ptr = np.concatenate([[0], np.cumsum(length)]).astype(i32)
    nnz = int(row_ptr[-1])
    col, val, x = r.integers(0, n, nnz).astype(i32), uniform(r, -1, 1, nnz), uniform(r, -1, 1, n)
    y = np.add.reduceat(val.astype(f64) * x[col], row_ptr[:-1])  # no row is empty
    given = c.inputs(row_ptr=row_ptr, col=col, val=val, x=x)
    out = c.output("y", y.astype(f32), 1e-4, 1e-4)
    c.launch("spmv_csr", blocks(n, 128), 128, *given, out, n)


@bench("apps")
def pagerank(c: Recipe, n: int = 7650, iters: int | None = 4, change: float = 0.0) -> None:
    """`iters` steps, or, without a number, as many as it takes until one moves at most `change` of all rank."""
    damping, steps, moved = 0.85, 0, np.inf
    r = rng(208)
    degree = np.minimum((r.pareto(1.2, n) * 3).astype(int), 300)  # in-degrees, some zero
    in_ptr = np.concatenate([[0], np.cumsum(degree)]).astype(i32)
    in_node = r.integers(0, n, in_ptr[-1]).astype(i32)
    out_degree = np.bincount(in_node, minlength=n).astype(i32)
    rank = np.full(n, 1 / n)
    owner = np.repeat(np.arange(n), degree)
    d = f64(f32(damping))
    while steps < iters if iters is not None else moved > change:
        share = np.where(out_degree > 0, rank / np.maximum(out_degree, 1), 0)
        before, rank = rank, (1 - d) / n + d * np.bincount(owner, share[in_node], n)
        steps, moved = steps + 1, np.abs(rank - before).sum()
    b_rank = c.input("rank", np.full(n, 1 / n, f32))
    c.expect(b_rank, rank, 1e-4)
    b_share = c.output("share", share.astype(f32), 1e-4)
    b_deg, b_ptr, b_node = c.input("out_degree", out_degree), c.input("in_ptr", in_ptr), c.input("in_node", in_node)
    for _ in range(steps):
        c.launch("pagerank_share", blocks(n, 128), 128, b_rank, b_deg, b_share, n)
        c.launch("pagerank_gather", blocks(n, 128), 128, b_ptr, b_node, b_share, b_rank, n, damping)


@bench("apps")
def histogram_atomics(c: Recipe, n: int = 122801, grid: int = 60) -> None:
    r = rng(209)
    value = r.integers(0, 256, n)
    hot = r.random(n) < 0.5  # half of the values in 8 bins
    value[hot] = r.integers(0, 8, int(hot.sum()))
    given = c.input("value", value.astype(u32))
    out = c.output("bins", np.bincount(value, minlength=256).astype(u32))
    c.launch("histogram_atomics", grid, 256, given, out, n)


@bench("apps")
def reduction(c: Recipe) -> None:
    x = uniform(rng(210), 0, 1, 131001)
    src, level, values = c.input("x", x), 0, x.astype(f64)
    while values.size > 1:
        n = values.size
        count = blocks(n, 256)
        values = np.pad(values, (0, count * 256 - n)).reshape(count, 256).sum(1)
        level += 1
        dst = c.output(f"sum{level}", values.astype(f32), 1e-5)
        c.launch("reduce_sum", count, 128, src, dst, n)
        src = dst


@bench("apps")
def scan(c: Recipe) -> None:
    n, per = 30701, 512
    x = rng(211).integers(0, 10, n).astype(i32)
    count = blocks(n, per)
    sums = np.add.reduceat(x, np.arange(0, n, per)).astype(i32)
    b_out = c.output("out", (np.cumsum(x) - x).astype(i32))
    b_sums = c.output("sums", sums)
    b_off = c.output("offset", (np.cumsum(sums) - sums).astype(i32))
    c.launch("scan_block", count, 256, c.input("x", x), b_out, b_sums, n, 1)
    c.launch("scan_block", 1, 256, b_sums, b_off, b_sums, count, 0)
    c.launch("scan_add", count, 256, b_out, b_off, n)


@bench("apps")
def bitonic_sort(c: Recipe) -> None:
    n = 8192
    x = rng(212).integers(0, 1 << 32, n, dtype=np.uint64).astype(u32)
    data = c.input("data", x)
    c.expect(data, np.sort(x))
    k = 2
    while k <= n:
        j = k // 2
        while j:
            c.launch("bitonic_step", n // 2 // 64, 64, data, j, k)
            j //= 2
        k *= 2


@bench("apps", independent=True)
def transpose(c: Recipe) -> None:
    h, w = 320, 256
    x = uniform(rng(213), -1, 1, h, w)
    b = c.input("x", x)
    for kind in ("naive", "smem", "padded"):
        c.launch(f"transpose_{kind}", (w // 32, h // 32), (32, 8), b, c.output(f"out_{kind}", x.T), w, h, label=kind)


@bench("apps")
def black_scholes(c: Recipe, n: int = 15300) -> None:
    rate, sigma = 0.02, 0.3
    r = rng(214)
    s, x, t = uniform(r, 5, 30, n), uniform(r, 1, 100, n), uniform(r, 0.25, 10, n)
    s_, x_, t_ = s.astype(f64), x.astype(f64), t.astype(f64)
    rt, sg = f64(f32(rate)), f64(f32(sigma))

    def cdf(d):
        k = 1 / (1 + 0.2316419 * np.abs(d))
        poly = k * (0.319381530 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
        tail = 0.39894228 * np.exp(-0.5 * d * d) * poly
        return np.where(d > 0, 1 - tail, tail)

    vol = sg * np.sqrt(t_)
    d1 = (np.log(s_ / x_) + (rt + 0.5 * sg * sg) * t_) / vol
    n1, n2, disc = cdf(d1), cdf(d1 - vol), x_ * np.exp(-rt * t_)
    given = c.inputs(spot=s, strike=x, years=t)
    out = [
        c.output("call", (s_ * n1 - disc * n2).astype(f32), 1e-4, 1e-4),
        c.output("put", (disc * (1 - n2) - s_ * (1 - n1)).astype(f32), 1e-4, 1e-4),
    ]
    c.launch("black_scholes", blocks(n, 256), 256, *given, *out, n, rate, sigma)
