"""Applications: dense linear algebra, filters, AES."""

from __future__ import annotations

import numpy as np

from functional.suite._recipe import Recipe, bench, blocks, f32, f64, rng, u8, u32, uniform


def matmul(c, seed, kernel, side, k):
    r = rng(seed)
    a, b = uniform(r, -1, 1, side, k), uniform(r, -1, 1, k, side)
    p_a, p_b = c.input("a", a), c.input("b", b)
    out = c.output("c", (a.astype(f64) @ b.astype(f64)).astype(f32), 1e-4, 1e-4)
    c.launch(kernel, (side // 16, side // 16), (16, 16), p_a, p_b, out, side, k)


@bench("apps")
def matmul_tiled(c: Recipe, side: int = 128) -> None:
    matmul(c, 201, "matmul_tiled", side, 128)


@bench("apps")
def matmul_naive(c: Recipe, side: int = 128) -> None:
    matmul(c, 202, "matmul_naive", side, 64)


@bench("apps")
def relu(c: Recipe, n: int = 61400) -> None:
    x = uniform(rng(203), -1, 1, n)
    c.launch("relu", blocks(n, 256), 256, c.input("x", x), c.output("y", np.maximum(x, 0)), x.size)


@bench("apps")
def fir(c: Recipe, n: int = 15360) -> None:
    taps = 32
    r = rng(204)
    x, h = uniform(r, -1, 1, n), uniform(r, -1, 1, taps)
    y = np.convolve(x.astype(f64), h.astype(f64))[:n]
    given = c.inputs(x_padded=np.concatenate([np.zeros(taps, f32), x]), coeff=h)
    out = c.output("y", y.astype(f32), 1e-4, 1e-5)
    c.launch("fir", n // 256, 256, *given, out, n, taps)


@bench("apps")
def simple_convolution(c: Recipe) -> None:
    w, h = 126, 118
    r = rng(205)
    image, mask = uniform(r, 0, 1, h, w), uniform(r, -1, 1, 5, 5)
    p = np.pad(image.astype(f64), 2)
    out = sum(mask[i, j].astype(f64) * p[i : i + h, j : j + w] for i in range(5) for j in range(5))
    given = c.inputs(image=image, mask=mask)
    result = c.output("out", out.astype(f32), 1e-4, 1e-5)
    c.launch("simple_convolution", (blocks(w, 32), blocks(h, 8)), (32, 8), *given, result, w, h)


# --- AES-256, straightforward byte-wise form (the kernel uses word tables) -------------------


def gf_mul(a, b):
    p = 0
    while b:
        if b & 1:
            p ^= a
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return p


def aes_sbox():
    box = np.zeros(256, u8)
    for x in range(256):
        inv = next((y for y in range(256) if gf_mul(x, y) == 1), 0)
        v = 0x63
        for s in range(5):
            v ^= ((inv << s) | (inv >> (8 - s))) & 0xFF
        box[x] = v
    return box


def aes256_round_keys(key, box):
    words = [list(key[i : i + 4]) for i in range(0, 32, 4)]
    rcon = 1
    for i in range(8, 60):
        t = list(words[-1])
        if i % 8 == 0:
            t = [int(box[b]) for b in t[1:] + t[:1]]
            t[0] ^= rcon
            rcon = gf_mul(rcon, 2)
        elif i % 8 == 4:
            t = [int(box[b]) for b in t]
        words.append([a ^ b for a, b in zip(words[i - 8], t, strict=True)])
    return np.array(words, u8)  # 60 x 4


def aes256_reference(plain, round_keys, box):
    """plain: n x 16 bytes."""
    mul = {m: np.array([gf_mul(x, m) for x in range(256)], u8) for m in (2, 3)}
    key = round_keys.reshape(15, 16)
    shift = [(c * 4 + r + 4 * r) % 16 for c in range(4) for r in range(4)]
    s = plain ^ key[0]
    for rnd in range(1, 15):
        s = box[s][:, shift]
        if rnd < 14:
            a = s.reshape(-1, 4, 4)
            rot = [np.roll(a, -k, axis=2) for k in range(4)]
            s = (mul[2][rot[0]] ^ mul[3][rot[1]] ^ rot[2] ^ rot[3]).reshape(-1, 16)
        s = s ^ key[rnd]
    return s


@bench("apps")
def aes256_encrypt(c: Recipe, n: int = 60 * 128) -> None:
    box = aes_sbox()
    # known answer of FIPS-197, appendix C.3
    kat_key, kat_in = bytes(range(32)), bytes.fromhex("00112233445566778899aabbccddeeff")
    kat = aes256_reference(np.frombuffer(kat_in, u8)[None], aes256_round_keys(kat_key, box), box)
    assert kat.tobytes().hex() == "8ea2b7ca516745bfeafc49904b496089"
    r = rng(206)
    plain = r.integers(0, 256, (n, 16)).astype(u8)
    keys = aes256_round_keys(r.integers(0, 256, 32).tolist(), box)
    t0 = np.array([(gf_mul(int(s), 2) << 24) | (int(s) << 16) | (int(s) << 8) | gf_mul(int(s), 3) for s in box], u32)
    rot = [t0] + [(t0 >> u32(8 * k)) | (t0 << u32(32 - 8 * k)) for k in (1, 2, 3)]
    table = np.concatenate([*rot, box.astype(u32)])
    round_key = np.frombuffer(keys.tobytes(), ">u4").astype(u32)
    given = c.input("plain", plain)
    out = c.output("cipher", aes256_reference(plain, keys, box))
    more = c.inputs(table=table, round_key=round_key)
    c.launch("aes256_encrypt", n // 128, 128, given, out, *more)
