"""`tcgen05` of two thread blocks: products of which each has a half of the rows of A and of the columns of B."""

from __future__ import annotations

import numpy as np
import pytest
from nightly import of
from oracle.array_executor import ArrayExecutor
from ptx_kernels import module
from tcgen05_kernels import B_AT, COMMIT_PAIR, SHARED_BYTES, laid_out, pair_memory_after, pair_text_of
from test_tcgen05 import BYTES, KIND, columns_of, described, matrix_of, words_of
from test_tcgen05_scaled import SCALES_AT, matrices, total, with_factors
from test_tcgen05_scaled import described as scaled_described

from functional.errors import ExecutionError
from functional.execution.default_executor import StrictExecutor
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.launches.views import TensorMap
from functional.programs.link import link

RNG = np.random.default_rng(23)


def place_of(row: int, column: int, rows: int, columns: int) -> tuple[int, int, int]:
    """(thread block, lane, column) of an element of D."""
    block, own = row // (rows // 2), row % (rows // 2)
    if rows == 256:
        return block, own, column
    return block, own + (64 if column >= columns // 2 else 0), column % (columns // 2)


def with_d(words: np.ndarray, image: np.ndarray) -> np.ndarray:
    """`image` [block, lane, column] with a matrix in it."""
    image = image.copy()
    for row in range(len(words)):
        for column in range(words.shape[1]):
            image[place_of(row, column, *words.shape)] = words[row, column]
    return image


def halves(matrix: np.ndarray, kind: str, width: int, transposed: bool, base: int) -> tuple[list[np.ndarray], int]:
    """Bytes of shared memory of each thread block, and their descriptor."""
    laid = [laid_out(half, kind, width, transposed, base) for half in np.split(matrix, 2)]
    assert laid[0][1] == laid[1][1]
    return [image for image, _ in laid], laid[0][1]


def product(kind: str, a: str, b: int, word: int, more: str) -> str:
    return (
        f"mov.b64 %m1, {b}; setp.eq.u32 %p4, %r0, %r0; {a} mov.b32 %r12, {word};"
        f"@%p1 tcgen05.mma.cta_group::2.kind::{kind} [%r6], {'[%r11]' if '%r11' in a else '%m0'}, %m1, %r12, {more};"
        + COMMIT_PAIR
    )


CASES = [  # D, A, B, rows, columns, swizzles, transposed, the block that asks for it
    ("f32", "f16", "f16", 256, 32, 128, 64, False, False, 0), ("f16", "f16", "f16", 128, 48, 0, 32, True, False, 1),
    ("f32", "bf16", "bf16", 128, 16, 64, 128, False, True, 0), ("f32", "tf32", "tf32", 256, 16, 32, 0, False, False, 1),
    ("f32", "e4m3", "e5m2", 256, 32, 128, 0, False, True, 0), ("s32", "s8", "u8", 128, 64, 0, 128, False, False, 0),
    ("f32", "e3m2", "e2m1", 256, 16, 128, 128, False, False, 0),
    ("f32", "f16", "f16", 256, 256, 128, 128, False, False, 0),
]  # fmt: skip


@pytest.mark.parametrize("d,a,b,rows,columns,swizzle_a,swizzle_b,trans_a,trans_b,issuer", of(CASES[::2], CASES))
def test_products(d, a, b, rows, columns, swizzle_a, swizzle_b, trans_a, trans_b, issuer):
    depth = 32 // BYTES[a]
    (left, x), (right, y) = matrix_of(a, rows, depth), matrix_of(b, columns, depth)
    images_a, first = halves(left, a, swizzle_a, trans_a, 0)
    images_b, second = halves(right, b, swizzle_b, trans_b, B_AT)
    third = RNG.integers(-50, 50, (rows, columns))
    word = described(d, a, b, rows, columns, trans_a << 15 | trans_b << 16)
    before = with_d(words_of(third, d), RNG.integers(0, 1 << 32, (2, 128, columns_of(columns))).astype(np.uint32))
    body = product(KIND.get(a, "f8f6f4"), f"mov.b64 %m0, {first};", second, word, "%p4")
    shared = [np.concatenate(both) for both in zip(images_a, images_b, strict=True)]
    found = pair_memory_after(body, shared, before, issuer)
    assert np.array_equal(found, with_d(words_of(third + x @ y.T, d), before))


@pytest.mark.parametrize("rows", [128, 256])
def test_a_in_tensor_memory_and_lanes_left_out(rows):
    """A lies in columns 32 to 39, of 128 rows twice; the first four words are lanes of the block of rank 0."""
    left, right = RNG.integers(-8, 9, (rows, 16)), RNG.integers(-8, 9, (32, 16))
    images, second = halves(right, "f16", 128, False, 0)
    before = RNG.integers(0, 1 << 32, (2, 128, 64)).astype(np.uint32)
    for row in range(rows):
        block, own = row // (rows // 2), row % (rows // 2)
        for k in range(8):
            pair = left[row, 2 * k : 2 * k + 2].astype(np.float16).view(np.uint32)[0]
            for lane in {own, own + (64 if rows == 128 else 0)}:
                before[block, lane, 32 + k] = pair
    without = RNG.integers(0, 1 << 32, 8)
    names = ", ".join(f"%d{100 + n}" for n in range(8))
    body = "".join(f"mov.b32 %d{100 + n}, {word};" for n, word in enumerate(without))
    body += product(
        "f16", "add.u32 %r11, %r6, 32;", second, described("f32", "f16", "f16", rows, 32), f"{{{names}}}, !%p4"
    )
    wanted = with_d(words_of(left @ right.T, "f32"), before)
    for lane in range(256):
        if int(without[lane // 32]) >> lane % 32 & 1:
            wanted[lane // 128, lane % 128] = before[lane // 128, lane % 128]
    assert np.array_equal(pair_memory_after(body, images, before), wanted)


@pytest.mark.parametrize(
    "kind,a,b,columns,scale,factors",
    [
        ("mxf8f6f4.block_scale", "e4m3", "e2m3", 48, "ue8m0", 1),
        ("mxf4.block_scale", "e2m1", "e2m1", 32, "ue8m0", 2),
        ("mxf4nvf4.block_scale.block16", "e2m1", "e2m1", 16, "ue4m3", 4),
    ],
)
def test_block_scaled_products(kind, a, b, columns, scale, factors):
    """Each block has the scale factors of its rows of A and, of its own, of all columns of B."""
    low = list(matrices(kind, a, b, columns // 2, (128, 64)))
    high = list(matrices(kind, a, b, columns // 2, (128, 64)))
    x, y = (np.concatenate([one[0], other[0]]) for one, other in zip(low, high, strict=True))
    top = 0x58 if scale == "ue4m3" else 131
    rows_of_factors = RNG.integers(0x30 if scale == "ue4m3" else 120, top, (256, factors))
    columns_of_factors = RNG.integers(0x30 if scale == "ue4m3" else 120, top, (2, columns, factors))
    before = RNG.integers(0, 1 << 32, (2, 128, 128)).astype(np.uint32)
    wanted = before.copy()
    for block in range(2):
        own = slice(128 * block, 128 * block + 128)
        before[block] = with_factors(before[block], rows_of_factors[own], columns, 0)
        before[block] = with_factors(before[block], columns_of_factors[block], columns + SCALES_AT, 0)
        wanted[block] = before[block]
        sums = total(x[own], y, rows_of_factors[own], columns_of_factors[block], scale)
        wanted[block, :, :columns] = words_of(sums, "f32")
    word = scaled_described(a, b, columns, ue8m0=scale == "ue8m0", packed="mxf4" in kind) ^ 3 << 27
    more = f"[%r6+{columns}], [%r6+{columns + SCALES_AT}], !%p4"
    body = product(kind, f"mov.b64 %m0, {low[0][2]};", low[1][2], word, more)
    shared = [np.concatenate([side[0][1], side[1][1]]) for side in (low, high)]
    assert np.array_equal(pair_memory_after(body, shared, before), wanted)


def test_a_copy_goes_from_each_shared_memory_to_its_own_tensor_memory():
    shared = RNG.integers(0, 256, (2, 32768)).astype(np.uint8)
    before = RNG.integers(0, 1 << 32, (2, 128, 32)).astype(np.uint32)
    descriptor = (2048 >> 4) | (128 >> 4) << 16 | (256 >> 4) << 32 | 1 << 46
    body = f"mov.b64 %m0, {descriptor}; @%p1 tcgen05.cp.cta_group::2.128x128b [%r6+5], %m0;" + COMMIT_PAIR
    wanted = before.copy()
    for block in range(2):
        for lane in range(128):
            row = shared[block, 2048 + lane // 8 * 256 + lane % 8 * 16 :][:16]
            wanted[block, lane, 5:9] = row.view(np.uint32)
    assert np.array_equal(pair_memory_after(body, list(shared), before, 1), wanted)


TENSOR_COPY = """.shared .align 128 .b8 s[256]; .shared .align 8 .b64 m;
.entry k(.param .u64 o, .param .align 64 .b8 t[128]) .reqnctapercluster 4 {
 .reg .b64 %rd<9>; .reg .b32 %r<20>; .reg .pred %p<9>; .reg .b16 %h<2>;
 ld.param.u64 %rd0, [o]; mov.u64 %rd2, t; cvta.param.u64 %rd2, %rd2; mov.u32 %r0, %tid.x;
 mov.u32 %r1, s; mov.u32 %r2, m; mov.u32 %r3, %cluster_ctarank; and.b32 %r4, %r3, 1;
 setp.eq.u32 %p0, %r0, 0; setp.eq.and.u32 %p1, %r4, 0, %p0;
 setp.eq.and.u32 %p2, %r3, 3, %p0; setp.eq.and.u32 %p3, %r3, 1, %p0; setp.eq.u32 %p4, %r4, 0; mov.u32 %r9, 0;
 @%p0 mbarrier.init.shared.b64 [%r2], 1; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; add.u32 %r6, %r1, 128;
 barrier.cluster.arrive; barrier.cluster.wait; and.b32 %r5, %r2, 0xFEFFFFFF; mov.u16 %h0, 13;
 @%p2 cp.async.bulk.tensor.1d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
  [%r1], [%rd2, {%r9}], [%r5], %h0;
 @%p3 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2
  [%r6], [%rd2, {%r9}], [%r5];
 @!%p4 bra D; W: mbarrier.try_wait.parity.shared.b64 %p5, [%r2], 0; @!%p5 bra W;
 D: barrier.cluster.arrive; barrier.cluster.wait; mbarrier.test_wait.parity.shared.b64 %p6, [%r2], 0;
 selp.u32 %r7, 1, 0, %p6; shl.b32 %r8, %r0, 2; add.u32 %r8, %r8, %r1; ld.shared.u32 %r10, [%r8];
 ld.shared.u32 %r11, [%r8+128];
 mad.lo.u32 %r12, %r3, 32, %r0; mul.wide.u32 %rd3, %r12, 12; add.u64 %rd0, %rd0, %rd3;
 st.global.u32 [%rd0], %r10; st.global.u32 [%rd0+4], %r11; st.global.u32 [%rd0+8], %r7; ret; }"""


def test_copies_count_at_the_blocks_of_even_rank():
    """The block of rank 3 copies to 0, 2 and 3, that of rank 1 to itself; both name the barrier of the one before."""
    words, memory = RNG.integers(1, 1 << 32, 32).astype(np.uint32), Memory()
    memory.allocate("o", 4 * 32 * 12)
    memory.allocate("t", 128, words)
    tensor = TensorMap("u32", (32,), (), (32,), buffer="t")
    ArrayExecutor().run(make_launch(link(module(TENSOR_COPY), "k"), 4, 32, [Pointer("o"), tensor], memory), memory)
    found = memory.read("o", np.uint32).reshape(4, 32, 3)
    assert np.array_equal(found[:, :, 0], np.outer([1, 0, 1, 1], words))
    assert np.array_equal(found[:, :, 1], np.outer([0, 1, 0, 0], words))
    assert found[:, 0, 2].tolist() == [1, 0, 1, 0]


def launched(text: str, executor=None, grid: int = 2) -> None:
    memory = Memory()
    for name in "ico":
        memory.allocate(name, grid * SHARED_BYTES)
    launch = make_launch(link(module(text), "k"), grid, 128, [Pointer(n) for n in "ico"], memory)
    (executor or ArrayExecutor()).run(launch, memory)


F16 = f"mov.b64 %m0, {1 << 46 | 8 << 16 | 16 << 32}; setp.eq.u32 %p4, %r0, %r0; mov.b32 %r12, {{word}};" + (
    "@%p1 tcgen05.mma.cta_group::2.kind::{kind} [%r6+{at}], {a}, %m0, %r12, {more}!%p4;"
)


def f16(word=None, kind="f16", at=0, a="%m0", more=""):
    word = described("f32", "f16", "f16", 128, 16) if word is None else word
    return F16.format(word=word, kind=kind, at=at, a=a, more=more)


WRONG = {
    f16(described("f32", "f16", "f16", 64, 16)): "64 x 16 is none of kind::f16 of a pair",
    f16(described("f32", "f16", "f16", 256, 24)): "256 x 24 is none",
    f16(described("s32", "s8", "s8", 128, 48), "i8"): "128 x 48 is none of kind::i8 of a pair",
    f16(described("f32", "e4m3", "e4m3", 128, 48, 1 << 16), "f8f6f4"): "128 x 48 is none",
    f16(at=25): "column 32 of tensor memory is not allocated",
    f16(at=16 << 16): "does not begin in lane 16",
    "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r9], {%r0};" + f16(a="[%r6]"): "not the same in both halves of the lanes",
}  # fmt: skip


@pytest.mark.parametrize("body,message", WRONG.items(), ids=WRONG.values())
def test_what_a_kernel_may_not_do(body, message):
    with pytest.raises(ExecutionError, match=message):
        launched(pair_text_of(body, 32, 0))


def test_lanes_left_out_by_the_block_of_odd_rank_are_the_same_in_both():
    words = "{%d1, %d1, %d1, %d1, %d1, %d1, %d1, %d2}, "
    launched(pair_text_of("mov.b32 %d1, 3; mov.b32 %d2, 3;" + f16(more=words), 32, 1))
    with pytest.raises(ExecutionError, match="are the same in both"):
        launched(pair_text_of("mov.b32 %d1, 3; mov.b32 %d2, 4;" + f16(more=words), 32, 1))


def test_both_blocks_allocate_and_free_the_same():
    text = pair_text_of("", 32, 0, False, False)
    launched(text, StrictExecutor())
    alloc, free = "shared::cta.b32 [tm], 32", "sync.aligned.b32 %r6, 32"
    assert alloc in text and free in text
    mine = "mov.u32 %r18, 32; shl.b32 %r18, %r18, %r16;"
    with pytest.raises(ExecutionError, match=r"do not do the same: allocate (32|64) columns from 0x0 on here"):
        launched(text.replace("@!%p2 bra A;", mine + "@!%p2 bra A;").replace(alloc, "shared::cta.b32 [tm], %r18"))
    alone = "setp.eq.and.u32 %p2, %r16, 0, %p2;"
    with pytest.raises(ExecutionError, match="the other thread block of its pair does not allocate 32 columns"):
        launched(text.replace("@!%p2 bra A;", alone + "@!%p2 bra A;"))
    with pytest.raises(ExecutionError, match="the other thread block of its pair does not free 32 columns"):
        launched(text.replace("@!%p2 bra Z;", alone + "@!%p2 bra Z;"))
    with pytest.raises(ExecutionError, match="a cluster of 3 thread blocks has no pairs"):
        launched(text.replace(".reqnctapercluster 2", ".reqnctapercluster 3"), grid=3)
