"""GATSim's Table I: particle filter, stream clustering, 3-D stencil, nearest neighbours."""

from __future__ import annotations

import numpy as np

from functional.suite._recipe import Recipe, bench, blocks, f32, f64, i32, rng, u8, u32, uniform


@bench("table1")
def particlefilter(c: Recipe) -> None:
    n, threads, width, height = 1536, 64, 128, 120
    r = rng(112)
    yy, xx = np.mgrid[:height, :width]
    image = r.normal(100, 10, (height, width))
    image[(xx - 66) ** 2 + (yy - 57) ** 2 <= 25] += 128
    image = np.clip(np.rint(image), 0, 255).astype(u8)
    disc = np.array([(dx, dy) for dy in range(-4, 5) for dx in range(-4, 5) if dx * dx + dy * dy <= 16], i32)
    x0, y0 = uniform(r, 60, 70, n), uniform(r, 52, 66, n)

    def next_uniform(state):
        state = state * u32(1103515245) + u32(12345)
        return state, (((state >> u32(8)).astype(f32) + f32(0.5)) * f32(1 / 16777216)).astype(f64)

    def gaussian(state):
        state, u = next_uniform(state)
        state, v = next_uniform(state)
        return state, np.sqrt(-2 * np.log(u)) * np.cos(f64(f32(6.2831853)) * v)

    def move(seed):
        state, g = gaussian(seed)
        state, h = gaussian(state)
        return state, x0 + 1.0 + 5.0 * g, y0 - 2.0 + 2.0 * h

    seed = r.integers(1, 1 << 31, n).astype(u32)
    while True:  # new seeds for particles close to a rounding boundary of the pixels
        state, x, y = move(seed)
        edge = np.minimum(np.abs(x - np.floor(x) - 0.5), np.abs(y - np.floor(y) - 0.5)) < 1e-3
        if not edge.any():
            break
        seed[edge] = r.integers(1, 1 << 31, int(edge.sum())).astype(u32)
    cx = np.clip(np.rint(x).astype(int)[:, None] + disc[None, :, 0], 0, width - 1)
    cy = np.clip(np.rint(y).astype(int)[:, None] + disc[None, :, 1], 0, height - 1)
    pixel = image[cy, cx].astype(f64)
    score = ((pixel - 100) ** 2 - (pixel - 228) ** 2).sum(1) / 6400
    weight = np.exp(score / len(disc))
    block_sum = weight.reshape(-1, threads).sum(1)
    total = weight.sum()
    cdf = np.cumsum(weight / total)
    u0 = 0.31 / n
    u = f64(f32(u0)) + np.arange(n) / n
    # resampling compares floats; it gets its own exact copies of cdf and u
    cdf_in, u_in = cdf.astype(f32), u.astype(f32)
    index = np.minimum(np.searchsorted(cdf_in, u_in, "left"), n - 1).astype(i32)

    b_x, b_y, b_seed = c.input("x", x0), c.input("y", y0), c.input("seed", seed)
    c.expect(b_x, x, 1e-5, 1e-4)
    c.expect(b_y, y, 1e-5, 1e-4)
    c.expect(b_seed, state)
    b_w = c.output("weight", weight.astype(f32), 1e-4)
    b_bs = c.output("block_sum", block_sum.astype(f32), 1e-4)
    b_total = c.output("total", np.array([total], f32), 1e-4)
    b_cdf = c.output("cdf", cdf.astype(f32), 2e-4)
    b_u = c.output("u", u.astype(f32), 1e-6)
    grid = n // threads
    given = c.inputs(disc=disc, image=image)
    c.launch("pf_likelihood", grid, threads, b_x, b_y, b_seed, *given, b_w, b_bs, n, len(disc), width, height)
    c.launch("pf_sum", 1, threads, b_bs, b_total, grid)
    result = c.output("normalized", (weight / total).astype(f32), 2e-4)
    c.launch("pf_normalize_weights", grid, threads, b_w, b_total, result, b_cdf, b_u, n, float(u0))
    given = c.inputs(cdf_in=cdf_in, u_in=u_in)
    found = [
        c.output("x_new", x[index].astype(f32), 1e-5, 1e-4),
        c.output("y_new", y[index].astype(f32), 1e-5, 1e-4),
        c.output("index", index),
    ]
    c.launch("pf_find_index", grid, threads, *given, b_x, b_y, *found, n)


@bench("table1")
def streamcluster_compute_cost(c: Recipe) -> None:
    n, dim, k, cand = 15360, 16, 10, 7001
    r = rng(113)
    coord, weight = uniform(r, 0, 1, dim, n), uniform(r, 0.5, 2, n)
    assign = r.integers(0, 500, n).astype(i32)  # centre number of each point
    column = r.integers(0, k, 500).astype(i32)  # column of each centre
    d = ((coord.astype(f64) - coord[:, cand : cand + 1].astype(f64)) ** 2).sum(0) * weight
    cost = uniform(r, 0.5, 4, n)
    close = np.abs(d - cost) < 1e-3  # keep the comparison clear-cut
    cost[close] += f32(0.01)
    switch = d < cost
    work = np.zeros((n, k + 1))
    work[switch, k] = (d - cost)[switch]
    stay = np.flatnonzero(~switch)
    work[stay, column[assign[stay]]] = (cost - d)[stay]
    given = c.inputs(coord=coord, weight=weight, cost=cost, assign=assign, centre_column=column)
    out = [c.output("work", work.astype(f32), 1e-5, 1e-5), c.output("switches", switch.astype(u8))]
    c.launch("streamcluster_compute_cost", n // 256, 256, *given, *out, n, dim, k, cand)


@bench("table1")
def hotspot3d(c: Recipe) -> None:
    nx, ny, nz, launches = 128, 128, 8, 2
    cx, cy, cz, cp, amb = 0.03, 0.03, 0.08, 0.01, 80.0
    cc = 1.0 - (2 * cx + 2 * cy + 3 * cz)
    r = rng(114)
    t0, power = uniform(r, 320, 340, nz, ny, nx), uniform(r, 0, 10, nz, ny, nx)
    k = [f64(f32(v)) for v in (cc, cx, cy, cz, cp, amb)]

    def step(t):
        p = np.pad(t, 1, mode="edge")
        return (
            k[0] * t
            + k[1] * (p[1:-1, 1:-1, :-2] + p[1:-1, 1:-1, 2:])
            + k[2] * (p[1:-1, :-2, 1:-1] + p[1:-1, 2:, 1:-1])
            + k[3] * (p[:-2, 1:-1, 1:-1] + p[2:, 1:-1, 1:-1])
            + k[4] * power
            + k[3] * k[5]
        )

    t1 = step(t0.astype(f64))
    b_p, b_a = c.input("power", power), c.input("temp_a", t0)
    b_b = c.output("temp_b", t1.astype(f32), 1e-5)
    c.expect(b_a, step(t1), 1e-5)
    for i in range(launches):
        src, dst = (b_a, b_b) if i % 2 == 0 else (b_b, b_a)
        c.launch("hotspot3d_step", (nx // 64, ny // 4), (64, 4), b_p, src, dst, nx, ny, nz, cc, cx, cy, cz, cp, amb)


@bench("table1")
def nn_euclid(c: Recipe, n: int = 30700) -> None:
    lat, lon = 30.0, 90.0
    r = rng(115)
    rec = np.stack([uniform(r, 0, 90, n), uniform(r, 0, 180, n)], 1)
    dist = np.hypot(rec[:, 0].astype(f64) - lat, rec[:, 1].astype(f64) - lon)
    given = c.input("record", rec)
    out = c.output("distance", dist.astype(f32), 1e-5, 1e-5)
    c.launch("nn_euclid", blocks(n, 256), 256, given, out, n, lat, lon)
