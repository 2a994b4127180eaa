"""Applications: simulation, signal processing, elimination."""

from __future__ import annotations

import numpy as np

from functional.suite._recipe import Recipe, bench, blocks, f32, f64, i32, rng, uniform


@bench("apps")
def mandelbrot(c: Recipe, w: int = 125, h: int = 123) -> None:
    x0, y0, dx, dy, max_iter = f32(-2.0), f32(-1.25), f32(2.6 / w), f32(2.5 / h), 64
    cx = (x0 + np.arange(w).astype(f32) * dx)[None, :].repeat(h, 0)
    cy = (y0 + np.arange(h).astype(f32) * dy)[:, None].repeat(w, 1)
    x = np.zeros((h, w), f32)
    y, xx, yy = x.copy(), x.copy(), x.copy()
    count, live = np.zeros((h, w), i32), np.ones((h, w), bool)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(max_iter):  # same single-precision operations
            live &= (xx + yy) <= f32(4)
            xy = x * y
            x, y = (xx - yy) + cx, (xy + xy) + cy
            xx, yy = x * x, y * y
            count += live
    c.launch(
        "mandelbrot", (blocks(w, 16), blocks(h, 16)), (16, 16), c.output("count", count), w, h, x0, y0, dx, dy, max_iter
    )


@bench("apps")
def nbody(c: Recipe) -> None:
    n, slices, threads, eps2, dt = 768, 6, 64, 0.01, 0.01
    r = rng(215)
    pos = np.concatenate([uniform(r, -1, 1, n, 3), uniform(r, 0.1, 1, n, 1)], 1)
    vel = np.concatenate([uniform(r, -1, 1, n, 3), np.zeros((n, 1), f32)], 1)
    p = pos.astype(f64)
    d = p[None, :, :3] - p[:, None, :3]
    f = p[None, :, 3] / ((d**2).sum(2) + f64(f32(eps2))) ** 1.5
    part = (f[..., None] * d).reshape(n, slices, n // slices, 3).sum(2).transpose(1, 0, 2)
    acc = np.concatenate([part, np.zeros((slices, n, 1))], 2)
    new_v, new_p = vel.astype(f64), p.copy()
    new_v[:, :3] += f64(f32(dt)) * part.sum(0)
    new_p[:, :3] += f64(f32(dt)) * new_v[:, :3]
    b_pos, b_vel = c.input("pos", pos), c.input("vel", vel)
    c.expect(b_pos, new_p, 1e-4, 1e-4)
    c.expect(b_vel, new_v, 1e-4, 1e-3)
    b_acc = c.output("acc", acc.astype(f32), 1e-4, 2e-3)
    c.launch("nbody_partial", (n // threads, slices), threads, b_pos, b_acc, n, n // slices, eps2)
    c.launch("nbody_integrate", n // threads, threads, b_pos, b_vel, b_acc, n, slices, dt)


@bench("apps")
def dct8x8(c: Recipe) -> None:
    n, scales = 96, (1.0, 1.0, 3.0, 3.0)
    u, x = np.mgrid[:8, :8]
    basis = np.cos((2 * x + 1) * u * np.pi / 16) * np.where(u == 0, np.sqrt(1 / 8), 0.5)
    table = (8 + 2 * (u + x)).astype(f32)  # coarser towards high frequencies

    def tiles(a):
        return a.reshape(n // 8, 8, n // 8, 8).transpose(0, 2, 1, 3)

    def image_of(t):
        return t.transpose(0, 2, 1, 3).reshape(n, n)

    def run(image):
        """Round trips in double precision; also the distance from a rounding tie."""
        margin = 1.0
        for s in scales:
            raw = basis @ (tiles(image) - 128) @ basis.T
            level = raw / (table * s)
            margin = min(margin, np.abs(np.abs(level - np.floor(level)) - 0.5).min())
            coef = np.rint(level) * table * s
            image = image_of(basis.T @ coef @ basis + 128)
        return image, image_of(coef), margin

    yy, xx = np.mgrid[:n, :n]
    for attempt in range(200):  # an image none of whose coefficients is next to a tie
        r = rng(2160 + attempt)
        image = np.clip(128 + 60 * np.sin(xx / 9) + 40 * np.cos(yy / 7) + r.normal(0, 15, (n, n)), 0, 255).astype(f32)
        out, coef, margin = run(image.astype(f64))
        if margin > 1e-4:
            break
    else:
        raise AssertionError("no suitable image")
    b_img, b_q = c.input("image", image), c.input("table", table)
    b_coef = c.output("coef", coef.astype(f32), 1e-4, 1e-3)
    c.expect(b_img, out, 1e-4, 1e-2)
    for s in scales:
        grid, block = (n // 8, n // 8), (8, 8)
        c.launch("dct_forward", grid, block, b_img, b_coef, n)
        c.launch("dct_quantise", grid, block, b_coef, b_q, n, s)
        c.launch("dct_inverse", grid, block, b_coef, b_img, n)


@bench("apps")
def fdtd2d(c: Recipe) -> None:
    nx, ny, steps = 128, 120, 7
    r = rng(217)
    ex0, ey0, hz0 = (uniform(r, -1, 1, ny, nx) for _ in range(3))
    ex, ey, hz = (a.astype(f64) for a in (ex0, ey0, hz0))
    h7 = f64(f32(0.7))
    for t in range(steps):
        ey[1:] -= 0.5 * (hz[1:] - hz[:-1])
        ey[0] = 0.5 * t
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= h7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    b = [c.input(name, a) for name, a in (("ex", ex0), ("ey", ey0), ("hz", hz0))]
    for ref, a in zip(b, (ex, ey, hz), strict=True):
        c.expect(ref, a, 1e-4, 1e-4)
    grid, block = (nx // 32, ny // 8), (32, 8)
    for t in range(steps):
        c.launch("fdtd_ey", grid, block, b[1], b[2], nx, ny, 0.5 * t)
        c.launch("fdtd_ex", grid, block, b[0], b[2], nx, ny)
        c.launch("fdtd_hz", grid, block, b[0], b[1], b[2], nx, ny)


@bench("apps")
def gaussian_elimination(c: Recipe) -> None:
    n = 96
    r = rng(218)
    a0 = uniform(r, -1, 1, n, n) + f32(n / 4) * np.eye(n, dtype=f32)
    b0 = uniform(r, -1, 1, n)
    a, b, mult = a0.astype(f64), b0.astype(f64), np.zeros(n)
    for k in range(n - 1):
        mult[k + 1 :] = a[k + 1 :, k] / a[k, k]
        a[k + 1 :, k:] -= mult[k + 1 :, None] * a[k, k:]
        b[k + 1 :] -= mult[k + 1 :] * b[k]
    ba, bb = c.input("a", a0), c.input("b", b0)
    c.expect(ba, a, 1e-4, 1e-4)
    c.expect(bb, b, 1e-4, 1e-4)
    bm = c.output("mult", mult.astype(f32), 1e-4, 1e-5)
    for k in range(n - 1):
        c.launch("gauss_multipliers", blocks(n - k - 1, 32), 32, ba, bm, n, k)
        c.launch("gauss_eliminate", (blocks(n - k, 16), blocks(n - k - 1, 8)), (16, 8), ba, bb, bm, n, k)


@bench("apps")
def srad(c: Recipe) -> None:
    cols, rows, iters, lam = 126, 118, 3, 0.5
    r = rng(219)
    img0 = np.exp(uniform(r, 0, 1, rows, cols)).astype(f32)
    img = img0.astype(f64)
    q0s = []
    for _ in range(iters):
        roi = img[:32, :32]
        q0 = float(f32(roi.var() / roi.mean() ** 2))
        q0s.append(q0)
        p = np.pad(img, 1, mode="edge")
        dn, ds = p[:-2, 1:-1] - img, p[2:, 1:-1] - img
        dw, de = p[1:-1, :-2] - img, p[1:-1, 2:] - img
        g2 = (dn**2 + ds**2 + dw**2 + de**2) / img**2
        lap = (dn + ds + dw + de) / img
        q = (0.5 * g2 - lap**2 / 16) / (1 + 0.25 * lap) ** 2
        coef = np.clip(1 / (1 + (q - q0) / (q0 * (1 + q0))), 0, 1)
        pc = np.pad(coef, 1, mode="edge")
        img = img + 0.25 * lam * (coef * dn + pc[2:, 1:-1] * ds + coef * dw + pc[1:-1, 2:] * de)
    b_img = c.input("image", img0)
    c.expect(b_img, img, 1e-4)
    d = [c.output(name, a.astype(f32), 1e-3, 1e-4) for name, a in (("dn", dn), ("ds", ds), ("dw", dw), ("de", de))]
    b_c = c.output("coefficient", coef.astype(f32), 1e-3, 1e-3)
    grid, block = (blocks(cols, 32), blocks(rows, 8)), (32, 8)
    for q0 in q0s:
        c.launch("srad_coefficient", grid, block, b_img, *d, b_c, cols, rows, q0)
        c.launch("srad_update", grid, block, b_img, *d, b_c, cols, rows, lam)
