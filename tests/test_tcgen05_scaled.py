"""Block-scaled products of `tcgen05` against sums of fractions; scale factors placed one byte at a time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from nightly import of
from tcgen05_kernels import B_AT, COMMIT, descriptor_of, exchanged, laid_out, place, strides_of, tensor_memory_after
from test_tcgen05 import NUMBER, dense, in_lanes, launched, matrix_of, words_of

from functional.errors import ExecutionError, PtxError

RNG = np.random.default_rng(17)
SCALES_AT = 4  # columns behind D: of A; of B four later
ROWS = 128


def described(a: str, b: str, columns: int, ids=(0, 0), ue8m0: bool = True, packed: bool = False, bits: int = 0) -> int:
    types = (1, 1) if packed else (NUMBER[a], NUMBER[b])
    word = ids[1] << 4 | types[0] << 7 | types[1] << 10 | columns >> 3 << 17 | ue8m0 << 23 | ids[0] << 29
    return word | ROWS >> 7 << 27 | bits


def factor_of(code: int, kind: str) -> Fraction:
    """The number of a scale factor's byte, by definition."""
    if kind == "ue8m0":
        return Fraction(2) ** (code - 127)
    exponent, mantissa = code >> 3, code & 7
    return (Fraction(mantissa, 8) + (exponent > 0)) * Fraction(2) ** (max(exponent, 1) - 7)


def packed_pairs(codes: np.ndarray, width: int, base: int) -> tuple[np.ndarray, int]:
    """(bytes of shared memory, descriptor) of 4-bit codes [mn, k], two a byte, the lower half first."""
    image, strides = np.zeros(32768, np.uint8), strides_of(codes.shape[1] // 2, width, False)
    for mn in range(len(codes)):
        for k in range(codes.shape[1]):
            at = exchanged(base + place(mn, k // 2, 1, width, False, strides), width) - base
            image[at] |= int(codes[mn, k]) << k % 2 * 4
    return image, descriptor_of(base, strides, width)


def with_factors(image: np.ndarray, codes: np.ndarray, column: int, first: int) -> np.ndarray:
    """`image` with the bytes [row, factor] of scale factors in it."""
    image = image.copy()
    for row in range(len(codes)):
        for k in range(codes.shape[1]):
            for quarter in range(4):
                where = (32 * quarter + row % 32, column + row // 32)
                image[where] &= ~np.uint32(0xFF << 8 * (first + k))
                image[where] |= np.uint32(int(codes[row, k]) << 8 * (first + k))
    return image


def scaled(kind: str, word: int, first: int, second: int, d: int, more: str = "%p4", address_bits=(0, 0)) -> str:
    at = [(d + SCALES_AT * n) | bits << 30 for n, bits in enumerate(address_bits)]
    return (
        f"mov.b64 %m0, {first}; mov.b64 %m1, {second}; mov.b32 %r12, {word}; setp.eq.u32 %p4, %r0, %r0;"
        f"add.u32 %r13, %r6, {at[0]}; add.u32 %r14, %r6, {at[1]};"
        f"@%p1 tcgen05.mma.cta_group::1.kind::{kind} [%r6], %m0, %m1, %r12, [%r13], [%r14], {more};" + COMMIT
    )


def matrices(kind: str, a: str, b: str, columns: int, widths: tuple[int, int], transposed=(False, False)):
    """((numbers, bytes, descriptor) of A, of B)."""
    for name, extent, base, width, turned in zip((a, b), (ROWS, columns), (0, B_AT), widths, transposed, strict=True):
        given, numbers = matrix_of(name, extent, 32 if "mxf8" in kind else 64)
        laid = laid_out(given, name, width, turned, base) if "mxf8" in kind else packed_pairs(given, width, base)
        yield numbers, *laid


def total(x: np.ndarray, y: np.ndarray, x_codes: np.ndarray, y_codes: np.ndarray, kind: str) -> np.ndarray:
    """Sums of fractions [row, column], as float64 that hold them exactly."""
    size = x.shape[1] // x_codes.shape[1]

    def times_factors(numbers, codes):
        factors = [[factor_of(int(c), kind) for c in row] for row in codes]
        whole = [[Fraction(float(v)) * factors[r][k // size] * 2**20 for k, v in enumerate(row)]
                 for r, row in enumerate(numbers)]  # fmt: skip
        assert all(v.denominator == 1 for row in whole for v in row)
        return np.array([[int(v) for v in row] for row in whole], dtype=object)

    exact = times_factors(x, x_codes) @ times_factors(y, y_codes).T
    return np.array([[float(Fraction(int(v), 2**40)) for v in row] for row in exact])


CASES = [  # kind, A, B, columns, first bytes of scale factors, their type, factors, swizzles, transposed
    ("mxf8f6f4.block_scale", "e4m3", "e5m2", 8, (0, 3), "ue8m0", 1, (128, 0), (False, False)),
    ("mxf8f6f4.block_scale.scale_vec::1X", "e2m3", "e2m1", 56, (2, 1), "ue8m0", 1, (64, 128), (False, False)),
    ("mxf8f6f4.block_scale.block32", "e5m2", "e4m3", 256, (1, 2), "ue8m0", 1, (128, 128), (True, True)),
    ("mxf4.block_scale", "e2m1", "e2m1", 24, (2, 0), "ue8m0", 2, (32, 128), (False, False)),
    ("mxf4.block_scale.block32", "e2m1", "e2m1", 144, (0, 2), "ue8m0", 2, (0, 64), (False, False)),
    ("mxf4nvf4.block_scale.scale_vec::2X", "e2m1", "e2m1", 40, (2, 2), "ue8m0", 2, (128, 0), (False, False)),
    ("mxf4nvf4.block_scale.scale_vec::4X", "e2m1", "e2m1", 128, (0, 0), "ue4m3", 4, (128, 128), (False, False)),
    ("mxf4nvf4.block_scale.block16", "e2m1", "e2m1", 16, (0, 0), "ue8m0", 4, (64, 32), (False, False)),
]


@pytest.mark.parametrize("kind,a,b,columns,ids,scale,factors,widths,transposed", of(CASES[1::2], CASES))
def test_products(kind, a, b, columns, ids, scale, factors, widths, transposed):
    (x, image_a, first), (y, image_b, second) = matrices(kind, a, b, columns, widths, transposed)
    codes = [RNG.integers(120, 131, (n, factors)) if scale == "ue8m0" else RNG.integers(0, 0x58, (n, factors))
             for n in (ROWS, columns)]  # fmt: skip
    third, negated = RNG.integers(-50, 50, (ROWS, columns)), columns % 16 == 8
    word = described(a, b, columns, ids, scale == "ue8m0", "mxf4" in kind, negated << 14 | transposed[0] << 15)
    word |= transposed[1] << 16
    d = max(32, 1 << (columns + 11).bit_length())
    before = in_lanes(words_of(third, "f32"), RNG.integers(0, 1 << 32, (ROWS, d)).astype(np.uint32))
    before = with_factors(before, codes[0], columns, ids[0])
    before = with_factors(before, codes[1], columns + SCALES_AT, ids[1])
    body = scaled(kind, word, first, second, columns, address_bits=ids if columns > 100 else (0, 0))
    found = tensor_memory_after(body, np.concatenate([image_a, image_b]), before)
    wanted = third + (-1 if negated else 1) * total(x, y, *codes, scale)
    assert np.array_equal(found, in_lanes(words_of(wanted, "f32"), before))


def test_scale_factors_that_are_no_numbers_and_the_largest():
    """0xFF of ue8m0 and 0x7F of ue4m3 are no numbers; 2 ** 254 is beyond float32, 2 ** -254 below."""
    kind = "mxf8f6f4.block_scale"
    (x, image_a, first), (y, image_b, second) = matrices(kind, "e4m3", "e4m3", 8, (128, 128))
    codes = np.full((ROWS, 1), 254), np.full((8, 1), 254)
    codes[0][:3, 0], codes[1][1, 0] = (0xFF, 0, 127), 0
    before = with_factors(with_factors(np.zeros((ROWS, 32), np.uint32), codes[0], 8, 0), codes[1], 12, 0)
    body = scaled(kind, described("e4m3", "e4m3", 8), first, second, 8, "!%p4")
    found = tensor_memory_after(body, np.concatenate([image_a, image_b]), before)[:, :8].view(np.float32)
    sums = x @ y.T
    assert np.isnan(found[0]).all() and found[1, 0] == sums[1, 0] and found[1, 1] == 0
    assert np.array_equal(found[3, :1], np.sign(sums[3, :1]) * np.inf) and found[3, 1] == sums[3, 1]


def block_scaled(kind="mxf4.block_scale", at=(8, 12), bits=0, word=None, **more):
    a = more.pop("a", "e2m1")
    word = described(a, a, 8, packed="mxf4" in kind, **more) | bits if word is None else word
    text = dense(word=word, kind=kind)
    return text.replace("%r12, !%p4", f"%r12, [%r6+{at[0]}], [%r6+{at[1]}], !%p4")


def stored(word: int, skip: str = "") -> str:
    """`word` in the column of the scale factors of A."""
    text = f"mov.b32 %d0, {word}; add.u32 %r10, %r9, 8; {skip}"
    return text + "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r10], {%d0}; Q: bar.sync 0;"


FOUR = "mxf4nvf4.block_scale.block16"
WRONG = {
    block_scaled(at=(8 + (16 << 16), 12)): "do not begin in lane 16",
    block_scaled(at=(8 + (1 << 30), 12)): "says byte 1, its descriptor byte 0",
    block_scaled(at=(8, 32)): "column 32 of tensor memory is not allocated",
    block_scaled(ids=(1, 0)): "2 scale factors do not begin in byte 1",
    block_scaled(FOUR, ids=(0, 2)): "4 scale factors do not begin in byte 2",
    block_scaled(ue8m0=False): "with 2 a row scales by ue8m0",
    block_scaled("mxf8f6f4.block_scale", ue8m0=False): "with 1 a row scales by ue8m0",
    block_scaled(bits=1 << 31): "32 bytes of K",
    block_scaled(bits=1 << 2): "says of sparsity",
    block_scaled(bits=1 << 15): "K innermost",
    block_scaled(bits=2 << 7): "types that kind::mxf4 does not have",
    block_scaled(word=described("e2m1", "e2m1", 8, packed=True) ^ 3 << 26): "a product of 64 x 8",
    block_scaled(word=described("e2m1", "e2m1", 264, packed=True)): "a product of 128 x 264",
    stored(7, "@!%p2 bra Q;") + block_scaled(): "not the same in all four quarters",
    stored(0x80) + block_scaled(FOUR, ue8m0=False): "has its highest bit set",
}  # fmt: skip


@pytest.mark.parametrize("body,message", WRONG.items(), ids=WRONG.values())
def test_what_a_kernel_may_not_do(body, message):
    with pytest.raises(ExecutionError, match=message):
        launched(body)


FORM = "@%p1 tcgen05.mma.cta_group::1.kind::{} [%r6], {}, %m1, %r12, {};"
REFUSED = [
    FORM.format("mxf4nvf4.block_scale", "%m0", "[%r6], [%r6], %p4"),
    FORM.format("mxf4.block_scale.block16", "%m0", "[%r6], [%r6], %p4"),
    FORM.format("mxf8f6f4.block_scale.scale_vec::2X", "%m0", "[%r6], [%r6], %p4"),
    FORM.format("mxf8f6f4", "%m0", "[%r6], [%r6], %p4"), FORM.format("f16.block_scale", "%m0", "[%r6], [%r6], %p4"),
    FORM.format("mxf4.block_scale", "%m0", "{%r6, %r6, %r6, %r6}, [%r6], [%r6], %p4"),
    FORM.format("mxf4.block_scale", "%m0", "[%r6], [%r6], %p4, 3"),
    FORM.format("mxf4.block_scale", "%m0", "%p4"),
]  # fmt: skip


@pytest.mark.parametrize("instruction", REFUSED)
def test_what_is_refused_by_name(instruction):
    with pytest.raises(PtxError, match=f"instruction '{instruction.split()[1]}' is not supported"):
        launched(instruction)
