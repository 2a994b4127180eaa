"""GATSim's Table I: stencils, dynamic programming, molecular boxes, k-means."""

from __future__ import annotations

import numpy as np

from functional.suite._recipe import Recipe, bench, blocks, f32, f64, i32, rng, uniform


@bench("table1")
def hotspot(c: Recipe) -> None:
    n, steps, launches = 126, 2, 2
    k, rx, ry, rz, amb = 0.2, 0.5, 0.45, 0.05, 80.0
    r = rng(106)
    t0, power = uniform(r, 320, 340, n, n), uniform(r, 0, 10, n, n)

    def advance(t, count):
        k_, rx_, ry_, rz_, amb_ = (f64(f32(v)) for v in (k, rx, ry, rz, amb))
        for _ in range(count):
            p = np.pad(t, 1, mode="edge")
            t = t + k_ * (
                power
                + (p[:-2, 1:-1] + p[2:, 1:-1] - 2 * t) * ry_
                + (p[1:-1, :-2] + p[1:-1, 2:] - 2 * t) * rx_
                + (amb_ - t) * rz_
            )
        return t

    t1 = advance(t0.astype(f64), steps)
    t2 = advance(t1, steps)
    b_p, b_a = c.input("power", power), c.input("temp_a", t0)
    b_b = c.output("temp_b", t1.astype(f32), 1e-5, 0)
    c.expect(b_a, t2, 1e-5, 0)
    grid = blocks(n, 16 - 2 * steps)
    for i in range(launches):
        src, dst = (b_a, b_b) if i % 2 == 0 else (b_b, b_a)
        c.launch("hotspot_step", (grid, grid), (16, 16), b_p, src, dst, n, n, steps, k, rx, ry, rz, amb)


@bench("table1")
def pathfinder(c: Recipe) -> None:
    rows, per_launch = 13, 4
    inner = 256 - 2 * per_launch
    cols = 60 * inner
    wall = rng(107).integers(0, 10, (rows, cols)).astype(i32)
    state = [wall[0].astype(i32)]
    for row in range(1, rows):
        p = np.pad(state[-1], 1, mode="edge")
        state.append(wall[row] + np.minimum(np.minimum(p[:-2], p[1:-1]), p[2:]))
    b_wall, b_a = c.input("wall", wall), c.input("cost_a", state[0])
    b_b = c.output("cost_b", state[12])  # launches end in b, a, b
    c.expect(b_a, state[8])
    for i in range((rows - 1) // per_launch):
        src, dst = (b_a, b_b) if i % 2 == 0 else (b_b, b_a)
        c.launch("pathfinder_rows", blocks(cols, inner), 256, b_wall, src, dst, cols, 1 + i * per_launch, per_launch)


@bench("table1")
def lavamd(c: Recipe, boxes: tuple[int, int, int] = (4, 4, 4)) -> None:
    per, alpha2 = 18, 0.5
    n = int(np.prod(boxes))
    r = rng(108)
    box = np.array([(x, y, z) for z in range(boxes[2]) for y in range(boxes[1]) for x in range(boxes[0])])
    xyz = (r.uniform(0, 1, (n, per, 3)) + box[:, None, :]).astype(f32)
    w = (0.5 * (xyz.astype(f64) ** 2).sum(2)).astype(f32)
    pos = np.concatenate([w[..., None], xyz], 2).astype(f32)
    charge = uniform(r, 0.1, 1, n, per)
    n_near, near = np.zeros(n, i32), np.zeros((n, 27), i32)
    for b in range(n):
        around = np.flatnonzero(np.abs(box - box[b]).max(1) <= 1)
        close = [b, *around[around != b]]
        n_near[b] = len(close)
        near[b, : len(close)] = close
    force = np.zeros((n, per, 4))
    for b in range(n):
        js = near[b, : n_near[b]]
        pj, qj = pos[js].reshape(-1, 4).astype(f64), charge[js].reshape(-1).astype(f64)
        pi = pos[b].astype(f64)
        r2 = pi[:, None, 0] + pj[None, :, 0] - pi[:, 1:] @ pj[:, 1:].T
        qv = qj * np.exp(-alpha2 * r2)
        force[b, :, 0] = qv.sum(1)
        force[b, :, 1:] = (2 * qv[..., None] * (pi[:, None, 1:] - pj[None, :, 1:])).sum(1)
    given = c.inputs(pos=pos, charge=charge, n_near=n_near, near=near)
    out = c.output("force", force.astype(f32), 1e-4, 1e-3)
    c.launch("lavamd_force", n, 32, *given, out, alpha2)


@bench("table1")
def kmeans_invert_mapping(c: Recipe) -> None:
    n, feats = 15360, 12
    x = uniform(rng(109), 0, 1, n, feats)
    c.launch(
        "kmeans_invert_mapping", n // 256, 256, c.input("point_major", x), c.output("feature_major", x.T), n, feats
    )


@bench("table1")
def kmeans_point(c: Recipe) -> None:
    n, feats, k = 15300, 8, 5
    r = rng(110)
    centre = uniform(r, 0, 1, k, feats)
    x = uniform(r, 0, 1, n, feats)

    def distances():
        return ((x[:, None, :].astype(f64) - centre[None].astype(f64)) ** 2).sum(2)

    while True:  # draw again the points that are nearly as close to a second centre
        d = np.sort(distances(), 1)
        close = d[:, 1] - d[:, 0] < 1e-4
        if not close.any():
            break
        x[close] = uniform(r, 0, 1, int(close.sum()), feats)
    given = c.inputs(feature_major=x.T, centre=centre)
    out = c.output("membership", distances().argmin(1).astype(i32))
    c.launch("kmeans_point", blocks(n, 256), 256, *given, out, n, feats, k)


@bench("table1")
def nw(c: Recipe) -> None:
    n, tile, penalty = 256, 16, 10
    sim = np.zeros((n + 1, n + 1), i32)
    sim[1:, 1:] = rng(111).integers(-4, 11, (n, n))
    m0 = np.zeros((n + 1, n + 1), i32)
    m0[0, :] = m0[:, 0] = -penalty * np.arange(n + 1)
    m = m0.astype(np.int64)
    for d in range(2, 2 * n + 1):  # cells with i + j == d
        i = np.arange(max(1, d - n), min(n, d - 1) + 1)
        j = d - i
        m[i, j] = np.maximum(m[i - 1, j - 1] + sim[i, j], np.maximum(m[i, j - 1], m[i - 1, j]) - penalty)
    b_m, b_sim = c.input("m", m0), c.input("similarity", sim)
    c.expect(b_m, m)
    tiles = n // tile
    for diag in range(tiles):
        c.launch("nw_upper", diag + 1, tile, b_m, b_sim, n + 1, penalty, diag)
    for diag in range(tiles, 2 * tiles - 1):
        c.launch("nw_lower", 2 * tiles - 1 - diag, tile, b_m, b_sim, n + 1, penalty, diag, tiles)
