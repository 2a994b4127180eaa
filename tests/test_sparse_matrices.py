"""Products of a sparse A against dense products of Python integers; metadata are placed bit by bit, as ELayout_* of
CUTLASS has them. And products of single bits by warpgroups."""

from __future__ import annotations

import numpy as np
import pytest
from both_executors import each_lane
from test_matrices import BITS, RANGE, pack, place_a, place_b, place_c
from test_wgmma import A_AT, B_AT, SWIZZLES, accumulators, laid_out, product

GROUP = {"f16": (4, 2), "bf16": (4, 2), "tf32": (2, 1), "s8": (4, 2), "u8": (4, 2), "e4m3": (4, 2), "e5m2": (4, 2),
         "s4": (8, 4), "u4": (8, 4)}  # fmt: skip
CASES = [
    ("m16n8k16", "f32", "f16", "f16", 3), ("m16n8k32", "f16", "f16", "f16", 1), ("m16n8k32", "f32", "bf16", "bf16", 0),
    ("m16n8k8", "f32", "tf32", "tf32", 2), ("m16n8k16", "f32", "tf32", "tf32", 1), ("m16n8k32", "s32", "s8", "u8", 1),
    ("m16n8k64", "s32", "u8", "s8", 0), ("m16n8k64", "s32", "s4", "u4", 1), ("m16n8k128", "s32", "u4", "u4", 0),
    ("m16n8k64", "f32", "e4m3", "e5m2", 0),
]  # fmt: skip


def sparse(rng, rows, depth, kind):
    """(A with zeros, A without, nibbles [row, group]) at random."""
    size, kept = GROUP[kind]
    dense = np.zeros((rows, depth), np.int64)
    stored, nibbles = np.zeros((rows, depth // 2), np.int64), np.zeros((rows, depth // size), np.int64)
    for row in range(rows):
        for g in range(depth // size):
            if kind == "tf32":
                first = int(rng.integers(2))
                places, nibbles[row, g] = [first], (0b0100, 0b1110)[first]
            else:
                a, b = sorted(rng.choice(4, 2, replace=False).tolist())
                nibbles[row, g] = a | b << 2
                places = [a, b] if size == 4 else [2 * a, 2 * a + 1, 2 * b, 2 * b + 1]
            values = rng.integers(*RANGE.get(kind, (-8, 9)), kept)
            dense[row, [g * size + p for p in places]] = values
            stored[row, g * kept : (g + 1) * kept] = values
    return dense, stored, nibbles


def metadata(nibbles, kind, selector):
    """Words [32] of the metadata of 16 rows; lanes that hold none get noise."""
    words, groups = np.full(32, 0xDEADBEEF, np.uint64), nibbles.shape[1]
    lanes = groups // 4  # of a quad
    for lane in range(32):
        place = lane % 4 - selector * lanes
        if not 0 <= place < lanes:
            continue
        word = 0
        for bit in range(0, 32, 4):
            n = bit // 4
            if BITS[kind] >= 16:
                row, group = lane // 4 + 8 * (n // 4), 4 * place + n % 4
            else:
                row, group = lane // 4 + 8 * (place % 2), 8 * (place // 2) + n
            word |= int(nibbles[row, group]) << bit
        words[lane] = word
    return words.astype(np.uint32)


@pytest.mark.parametrize("shape,d,a,b,selector", CASES)
def test_a_sparse_product(shape, d, a, b, selector):
    k = int(shape[6:])
    rng = np.random.default_rng(k + selector)
    dense, stored, nibbles = sparse(rng, 16, k, a)
    right, third = rng.integers(*RANGE.get(b, (-8, 9)), (k, 8)), rng.integers(-50, 50, (16, 8))
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d]
    values = np.array([[third[place_c(lane, i)] for i in range(4)] for lane in range(32)])
    parts = [
        pack(stored, lambda lane, i: place_a(16, BITS[a], lane, i), a, k // 4),
        pack(right, lambda lane, i: place_b(BITS[b], lane, i), b, k // 4),
        np.ascontiguousarray(values.astype(dtype)).view(np.uint32),
        metadata(nibbles, a, selector)[:, None],
    ]
    names = iter(f"%i{n}" for n in range(sum(p.shape[1] for p in parts)))
    *vectors, word = ["{" + ", ".join(next(names) for _ in range(p.shape[1])) + "}" for p in parts]
    outputs = "{" + ", ".join(f"%o{n}" for n in range(parts[2].shape[1])) + "}"
    form = f"mma.sp{'::ordered_metadata' if selector else ''}.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d}"
    body = f"{form} {outputs}, {', '.join(vectors)}, {word[1:-1]}, {selector};"
    got = np.ascontiguousarray(each_lane(body, np.hstack(parts), parts[2].shape[1], False)).view(dtype)
    want = dense @ right + third
    assert [[int(got[lane, i]) for i in range(4)] for lane in range(32)] == [
        [int(want[place_c(lane, i)]) for i in range(4)] for lane in range(32)
    ]


@pytest.mark.parametrize(("kind", "d", "selector"), [("f16", "f32", 1), ("s8", "s32", 0), ("tf32", "f32", 0)])
def test_a_sparse_product_of_a_warpgroup(kind, d, selector):
    rng, depth = np.random.default_rng(3), 512 // BITS[kind]
    dense, stored, nibbles = sparse(rng, 64, depth, kind)
    right, third = rng.integers(-8, 9, (depth, 16)), rng.integers(-50, 50, (64, 16))
    image_a, first = laid_out(stored, kind, 0, False, A_AT)
    image_b, second = laid_out(right.T, kind, 64, False, B_AT)
    words = np.concatenate([metadata(nibbles[16 * w : 16 * w + 16], kind, selector) for w in range(4)])
    numbers = "" if d == "s32" else ", 1, 1" + (", 0, 0" if kind == "f16" else "")
    form = f"m64n16k{depth}.{d}.{kind}.{kind}"
    image_a[-512:] = words.view(np.uint8)  # behind A, where each thread reads its word
    before = "mad.lo.u32 %r6, %r0, 4, %r1; ld.shared.u32 %r7, [%r6+32256];"
    found = product(form, kind, kind, accumulators(third, d), (image_a, image_b), (first, second),
                    f"%r7, {selector}, %p1{numbers}", sparse=before)  # fmt: skip
    assert np.array_equal(found, accumulators(third + dense @ right, d))


def test_a_product_of_bits_of_a_warpgroup():
    rng = np.random.default_rng(5)
    left, right, third = rng.integers(0, 2, (64, 256)), rng.integers(0, 2, (256, 8)), rng.integers(-50, 50, (64, 8))
    images, descriptors = [], []
    for matrix, width, base in ((left, 32, A_AT), (right.T, 0, B_AT)):
        rows = np.packbits(matrix, axis=1, bitorder="little").astype(np.int64)
        image, descriptor = laid_out(rows, "u8", width, False, base)
        images.append(image)
        descriptors.append(descriptor)
    assert descriptors[0] >> 62 == SWIZZLES[32]
    c = accumulators(third, "s32")
    found = product("m64n8k256.s32.b1.b1.and.popc", "b1", "b1", c, images, descriptors, "%p1")
    assert np.array_equal(found, accumulators(third + left @ right, "s32"))
