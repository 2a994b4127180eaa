"""Sparse and weight-stationary products of `tcgen05`: metadata placed one nibble at a time, products of all of A."""

from __future__ import annotations

import numpy as np
import pytest
from nightly import of
from tcgen05_kernels import B_AT, BYTES, COMMIT, COMMIT_PAIR, laid_out, pair_memory_after, tensor_memory_after
from test_matrices import code
from test_tcgen05 import KIND, described, launched, matrix_of, words_of
from test_tcgen05_scaled import SCALES_AT, packed_pairs, total, with_factors
from test_tcgen05_scaled import described as scaled_described

from functional.errors import ExecutionError

RNG = np.random.default_rng(29)
PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 1), (2, 3)]  # of four columns; PTX has the one out of order, too
SPARSE = 1 << 2


def nibbles_of(rows: int, groups: int, per: int) -> tuple[np.ndarray, np.ndarray]:
    """(metadata [row, group], columns [row, stored element] that they say are there)."""
    nibbles, columns = np.zeros((rows, groups), np.int64), [list[int]() for _ in range(rows)]
    for row in range(rows):
        for group in range(groups):
            if per == 2:
                one = int(RNG.integers(2))
                nibbles[row, group] = (0b0100, 0b1110)[one]
                columns[row].append(2 * group + one)
                continue
            first, second = PAIRS[RNG.integers(len(PAIRS))]
            nibbles[row, group] = first | second << 2
            for part in (first, second):
                columns[row] += [4 * group + part] if per == 4 else [8 * group + 2 * part, 8 * group + 2 * part + 1]
    return nibbles, np.array(columns)


def with_metadata(image: np.ndarray, nibbles: np.ndarray, column: int, wide: bool) -> np.ndarray:
    """`image` [lane, column] with metadata in it, as often as its lanes are times the rows."""
    image = image.copy()
    for copy in range(128 // len(nibbles)):
        for row in range(len(nibbles)):
            for group in range(nibbles.shape[1]):
                lane, at, bit = row, column + group // 8, 4 * (group % 8)
                if wide:
                    lane = row // 16 * 16 + row % 8 + (8 if group >= 4 else 0)
                    at, bit = column, 16 * (row // 8 % 2) + 4 * (group % 4)
                lane += copy * len(nibbles)
                image[lane, at] &= ~np.uint32(15 << bit)
                image[lane, at] |= np.uint32(int(nibbles[row, group]) << bit)
    return image


def whole(stored: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """A with all its columns."""
    found = np.zeros((len(stored), 2 * stored.shape[1]), stored.dtype)
    for row in range(len(stored)):
        for n, column in enumerate(columns[row]):
            found[row, column] = stored[row, n]
    return found


def sparse(kind: str, a: str, b: int, word: int, more: str, commit: str = COMMIT, ws: str = "") -> str:
    return (
        f"mov.b64 %m1, {b}; setp.eq.u32 %p4, %r0, %r0; {a} mov.b32 %r12, {word}; add.u32 %r15, %r6, 64;"
        f"@%p1 tcgen05.mma{ws}.sp.cta_group::1.kind::{kind} [%r6], {'[%r11]' if '%r11' in a else '%m0'}, %m1, [%r15],"
        f" %r12, {more};"
    ).replace("cta_group::1", "cta_group::2" if commit == COMMIT_PAIR else "cta_group::1") + commit


CASES = [  # D, A, B, columns, swizzles, transposed, selector, .ws
    ("f32", "f16", "f16", 32, 128, 64, False, False, 0, 0), ("f16", "f16", "f16", 16, 32, 128, False, True, 1, 0),
    ("f32", "bf16", "bf16", 64, 0, 0, True, False, 1, 0), ("f32", "tf32", "tf32", 48, 64, 128, False, False, 1, 0),
    ("f32", "e4m3", "e5m2", 32, 128, 0, False, False, 0, 0), ("s32", "s8", "u8", 16, 0, 64, False, True, 0, 0),
    ("f32", "e2m1", "e3m2", 16, 64, 128, False, False, 0, 0), ("f32", "f16", "f16", 64, 128, 128, False, False, 1, 32),
    ("f32", "tf32", "tf32", 64, 32, 0, False, False, 0, 64), ("s32", "u8", "s8", 128, 0, 128, False, False, 0, 32),
    ("f32", "e5m2", "e4m3", 64, 64, 0, False, False, 0, 128),
]  # fmt: skip


@pytest.mark.parametrize("d,a,b,columns,swizzle_a,swizzle_b,trans_a,trans_b,selector,ws", of(CASES[::2], CASES))
def test_sparse_products(d, a, b, columns, swizzle_a, swizzle_b, trans_a, trans_b, selector, ws):
    rows, depth, wide = ws or 128, 64 // BYTES[a], BYTES[a] > 1
    per = depth // (8 if wide else 16)
    (left, x), (right, y) = matrix_of(a, rows, depth // 2), matrix_of(b, columns, depth)
    image_a, first = laid_out(left, a, swizzle_a, trans_a, 0)
    image_b, second = laid_out(right, b, swizzle_b, trans_b, B_AT)
    nibbles, there = nibbles_of(rows, depth // per, per)
    third, negated = RNG.integers(-50, 50, (rows, columns)), d != "s32"
    before = RNG.integers(0, 1 << 32, (128, 128)).astype(np.uint32)
    before = folded(words_of(third, d), with_metadata(before, nibbles, 64 + selector, wide))
    word = described(d, a, b, rows, columns, SPARSE | selector | negated << 14 | trans_a << 15 | trans_b << 16)
    body = sparse(KIND.get(a, "f8f6f4"), f"mov.b64 %m0, {first};", second, word, "%p4", ws=".ws" if ws else "")
    found = tensor_memory_after(body, np.concatenate([image_a, image_b]), before)
    wanted = third + (-1 if negated else 1) * (whole(x, there) @ y.T)
    assert np.array_equal(found, folded(words_of(wanted, d), before))


def folded(words: np.ndarray, image: np.ndarray) -> np.ndarray:
    """`image` with D in it: where it has fewer rows than lanes, further lanes have further columns."""
    image, rows = image.copy(), len(words)
    per = words.shape[1] * rows // 128
    for row in range(rows):
        for column in range(words.shape[1]):
            image[row + column // per * rows, column % per] = words[row, column]
    return image


NO_MASK = (1 << 56) - 1 & ~(1 << 39)  # bit 39: is there a mask at all?
WS = [("f32", "f16", 32, 64, 0), ("f32", "tf32", 64, 128, 64), ("s32", "s8", 128, 64, 128), ("f16", "e4m3", 32, 256, 0)]


@pytest.mark.parametrize("d,a,rows,columns,width", of(WS[::2], WS))
@pytest.mark.parametrize("more", ["", ", %m2"])
def test_weight_stationary_products(d, a, rows, columns, width, more):
    depth = 32 // BYTES[a]
    (left, x), (right, y) = matrix_of(a, rows, depth), matrix_of(a, columns, depth)
    image_a, first = laid_out(left, a, width, False, 0)
    image_b, second = laid_out(right, a, width, False, B_AT)
    third = RNG.integers(-50, 50, (rows, columns))
    before = folded(words_of(third, d), RNG.integers(0, 1 << 32, (128, 128)).astype(np.uint32))
    word = described(d, a, a, rows, columns, 2 << 30)
    body = (
        f"mov.b64 %m0, {first}; mov.b64 %m1, {second}; mov.b64 %m2, {NO_MASK}; setp.eq.u32 %p4, %r0, %r0;"
        f"mov.b32 %r12, {word}; @%p1 tcgen05.mma.ws.cta_group::1.kind::{KIND.get(a, 'f8f6f4')}.collector::b1::fill"
        f" [%r6], %m0, %m1, %r12, %p4{more};" + COMMIT
    )
    found = tensor_memory_after(body, np.concatenate([image_a, image_b]), before)
    assert np.array_equal(found, folded(words_of(third + x @ y.T, d), before))


def test_a_sparse_matrix_in_tensor_memory():
    stored, right = RNG.integers(-8, 9, (128, 32)), RNG.integers(-8, 9, (32, 64))
    image_b, second = laid_out(right, "s8", 128, False, B_AT)
    nibbles, there = nibbles_of(128, 16, 4)
    before = with_metadata(RNG.integers(0, 1 << 32, (128, 128)).astype(np.uint32), nibbles, 64, False)
    for row in range(128):
        for k in range(8):
            before[row, 40 + k] = sum(code(int(stored[row, 4 * k + n]), "s8") << 8 * n for n in range(4))
    word = described("s32", "s8", "s8", 128, 32, SPARSE)
    body = sparse("i8", "add.u32 %r11, %r6, 40;", second, word, "!%p4")
    found = tensor_memory_after(body, np.concatenate([np.zeros(B_AT, np.uint8), image_b]), before)
    assert np.array_equal(found, folded(words_of(whole(stored, there) @ right.T, "s32"), before))


def test_a_sparse_product_of_a_pair():
    """Each block has the metadata of its own rows."""
    (left, x), (right, y) = matrix_of("f16", 256, 16), matrix_of("f16", 32, 32)
    nibbles, there = nibbles_of(256, 8, 4)
    before = RNG.integers(0, 1 << 32, (2, 128, 128)).astype(np.uint32)
    shared, sums = [], words_of(whole(x, there) @ y.T, "f32")
    for block in range(2):
        own, half = slice(128 * block, 128 * block + 128), slice(16 * block, 16 * block + 16)
        before[block] = with_metadata(before[block], nibbles[own], 64, True)
        (image_a, first), (image_b, second) = (
            laid_out(left[own], "f16", 32, False, 0), laid_out(right[half], "f16", 64, False, B_AT)
        )  # fmt: skip
        shared.append(np.concatenate([image_a, image_b]))
    word = described("f32", "f16", "f16", 256, 32, SPARSE)
    body = sparse("f16", f"mov.b64 %m0, {first};", second, word, "!%p4", COMMIT_PAIR)
    found = pair_memory_after(body, shared, before)
    for block in range(2):
        assert np.array_equal(found[block], folded(sums[128 * block : 128 * block + 128], before[block]))


SCALED = [
    ("mxf8f6f4.block_scale", "e4m3", "e2m1", "ue8m0", 1), ("mxf4.block_scale", "e2m1", "e2m1", "ue8m0", 2),
    ("mxf4nvf4.block_scale.scale_vec::4X", "e2m1", "e2m1", "ue4m3", 4),
]  # fmt: skip


@pytest.mark.parametrize("kind,a,b,scale,factors", of(SCALED[::2], SCALED))
def test_block_scaled_sparse_products(kind, a, b, scale, factors):
    packed = "mxf4" in kind
    depth, per, lay = (128, 8, packed_pairs) if packed else (64, 4, None)
    (left, x), (right, y) = matrix_of(a, 128, depth // 2), matrix_of(b, 24, depth)
    image_a, first = lay(left, 128, 0) if lay else laid_out(left, a, 128, False, 0)
    image_b, second = lay(right, 64, B_AT) if lay else laid_out(right, b, 64, False, B_AT)
    nibbles, there = nibbles_of(128, 16, per)
    low, high = (0x30, 0x50) if scale == "ue4m3" else (124, 131)
    codes = [RNG.integers(low, high, (n, factors)) for n in (128, 24)]
    before = with_metadata(RNG.integers(0, 1 << 32, (128, 128)).astype(np.uint32), nibbles, 64, False)
    before = with_factors(with_factors(before, codes[0], 24, 0), codes[1], 24 + SCALES_AT, 0)
    word = scaled_described(a, b, 24, ue8m0=scale == "ue8m0", packed=packed) | SPARSE
    more = f"[%r6+24], [%r6+{24 + SCALES_AT}], !%p4"
    body = sparse(kind, f"mov.b64 %m0, {first};", second, word, more)
    found = tensor_memory_after(body, np.concatenate([image_a, image_b]), before)
    assert np.array_equal(found, folded(words_of(total(whole(x, there), y, *codes, scale), "f32"), before))


GOOD = 1 << 46 | 8 << 16 | 16 << 32
F16, TF32 = (described("f32", kind, kind, 128, 16, SPARSE) for kind in ("f16", "tf32"))


ONES = "mov.b32 %r11, 0x3F803F80; @%p1 st.shared.b32 [s+{}], %r11;"


def f16(word=F16, at=64, kind="f16", b=GOOD, ws="", put="mov.b32 %d0, 0x44444444;"):
    body = sparse(kind, f"mov.b64 %m0, {GOOD};", b, word, "!%p4", "", ws).replace("%r6, 64;", f"%r6, {at};")
    return f"{put} add.u32 %r10, %r9, 64; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r10], {{%d0}}; bar.sync 0;" + body


WRONG = {
    f16(F16 & ~SPARSE): "says of sparsity other than the instruction",
    f16(F16 | 2): "sparsity selector 2 of kind::f16 is not supported",
    f16(described("s32", "s8", "s8", 128, 16, SPARSE | 1), kind="i8"): "sparsity selector 1 of kind::i8",
    f16(described("f32", "f16", "f16", 64, 16, SPARSE)): "sparse products of 64 rows are not supported",
    f16(at=64 + (16 << 16)): "metadata do not begin in lane 16",
    f16(b=GOOD | 6 << 61): "rows of 64 bytes in a swizzle of 32",
    f16(put="mov.b32 %d0, 0x44404444;" + ONES.format(256)): "metadata 0b0000 of row 8 of A have no meaning",
    f16(TF32, kind="tf32", put="mov.b32 %d0, 0xEEEE8E4E;" + ONES.format(12)): "metadata 0b1000 of row 0",
    f16(described("f32", "f16", "f16", 32, 256, SPARSE), ws=".ws"): "32 x 256 is none of kind::f16 with .ws",
    f16(described("f32", "f16", "f16", 64, 64, SPARSE), ws=".ws", put="selp.b32 %d0, 0x44444444, 0x99999999, %p2;"):
        "metadata are not the same in all lanes",
}  # fmt: skip


@pytest.mark.parametrize("body,message", WRONG.items(), ids=WRONG.values())
def test_what_a_kernel_may_not_do(body, message):
    with pytest.raises(ExecutionError, match=message):
        launched(body, 128)


def test_metadata_of_zeros_say_nothing():
    launched(f16(put="mov.b32 %d0, 0x44404444;"), 128)


def test_masks_of_zero_columns_are_refused():
    word = described("f32", "f16", "f16", 32, 64)
    body = f"mov.b64 %m0, {GOOD}; mov.b64 %m2, {1 << 39}; setp.eq.u32 %p4, %r0, %r0; mov.b32 %r12, {word};"
    body += "@%p1 tcgen05.mma.ws.cta_group::1.kind::f16 [%r6], {}, %m0, %r12, !%p4, %m2;"
    with pytest.raises(ExecutionError, match="masks of zero columns are not supported"):
        launched(body.format("%m0"), 64)
    with pytest.raises(ExecutionError, match="A of 32 rows in tensor memory is not supported with"):
        launched(body.format("[%r6]").replace(f"{1 << 39};", "0;"), 64)
