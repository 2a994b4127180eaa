"""Applications: layers of neural networks, matrix multiplication on tensor cores."""

from __future__ import annotations

import numpy as np

from functional.suite._recipe import Recipe, bench, blocks, f16, f32, f64, rng, uniform


@bench("apps")
def conv2d_implicit_gemm(c: Recipe) -> None:
    n, ch, h, w, oc = 2, 8, 16, 16, 32
    r = rng(220)
    x, k = uniform(r, -1, 1, n, ch, h, w), uniform(r, -1, 1, oc, ch, 3, 3)
    p = np.pad(x.astype(f64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = sum(
        np.einsum("nchw,oc->nohw", p[:, :, i : i + h, j : j + w], k[:, :, i, j].astype(f64))
        for i in range(3)
        for j in range(3)
    )
    given = [c.input("in", x), c.input("weight", k)]
    result = c.output("out", out.astype(f32), 1e-4, 1e-4)
    c.launch("conv2d_implicit_gemm", (n * h * w // 16, oc // 16), (16, 16), *given, result, ch, h, w, oc)


@bench("apps")
def maxpool(c: Recipe) -> None:
    planes, h, w = 15, 63, 61
    x = uniform(rng(221), -1, 1, planes, h, w)
    oh, ow = (h + 1) // 2, (w + 1) // 2
    p = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-3.4e38)
    out = np.max([p[:, i : i + h : 2, j : j + w : 2] for i in range(3) for j in range(3)], axis=0)
    c.launch(
        "maxpool3x3s2", blocks(planes * oh * ow, 256), 256, c.input("in", x), c.output("out", out), planes, h, w, oh, ow
    )


@bench("apps")
def batchnorm_relu(c: Recipe) -> None:
    n, ch, area, eps = 4, 15, 1024, 1e-5
    r = rng(222)
    x = uniform(r, -2, 2, n, ch, area)
    mean, var = uniform(r, -1, 1, ch), uniform(r, 0.5, 2, ch)
    gamma, beta = uniform(r, 0.5, 2, ch), uniform(r, -1, 1, ch)
    m, v, g, b = (a.astype(f64)[None, :, None] for a in (mean, var, gamma, beta))
    out = np.maximum((x - m) * g / np.sqrt(v + f64(f32(eps))) + b, 0)
    given = [
        c.input("in", x),
        c.input("mean", mean),
        c.input("var", var),
        c.input("gamma", gamma),
        c.input("beta", beta),
    ]
    result = c.output("out", out.astype(f32), 1e-4, 1e-5)
    c.launch("batchnorm_relu", x.size // 256, 256, *given, result, x.size, ch, area, eps)


@bench("apps")
def fully_connected(c: Recipe) -> None:
    n_in, n_out, batch = 512, 240, 4
    r = rng(223)
    x, w, b = uniform(r, -1, 1, batch, n_in), uniform(r, -1, 1, n_out, n_in), uniform(r, -1, 1, n_out)
    out = x.astype(f64) @ w.astype(f64).T + b
    given = [c.input("in", x), c.input("weight", w), c.input("bias", b)]
    result = c.output("out", out.astype(f32), 1e-4, 1e-4)
    c.launch("fully_connected", n_out // 4, 128, *given, result, n_in, n_out)


@bench("apps", independent=True)
def gemm_mma(c: Recipe) -> None:
    m, n, k = 256, 256, 128
    r = rng(224)
    a, b = r.uniform(-1, 1, (m, k)).astype(f16), r.uniform(-1, 1, (n, k)).astype(f16)
    d = (a.astype(f64) @ b.astype(f64).T).astype(f32)
    ba, bb = c.input("a", a), c.input("b", b)
    c.launch(
        "gemm_mma_direct", (n // 32, m // 16), 128, ba, bb, c.output("d_direct", d, 1e-4, 1e-4), n, k, label="direct"
    )
    c.launch("gemm_mma_smem", (n // 32, m // 32), 128, ba, bb, c.output("d_smem", d, 1e-4, 1e-4), n, k, label="smem")
