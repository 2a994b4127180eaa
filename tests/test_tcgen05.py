"""`tcgen05` against products of Python integers and words moved one by one."""

from __future__ import annotations

import numpy as np
import pytest
from nightly import of
from oracle.array_executor import ArrayExecutor
from ptx_kernels import module
from tcgen05_kernels import (
    B_AT,
    BYTES,
    COMMIT,
    SMALL,
    descriptor_of,
    exchanged,
    laid_out,
    tensor_memory_after,
    text_of,
    value_of,
)
from test_matrices import code

from functional.errors import ExecutionError, PtxError
from functional.execution.default_executor import StrictExecutor
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link

RANGE = {"s8": (-128, 128), "u8": (0, 256), "e4m3": (-8, 9), "e5m2": (-4, 5)}
KIND = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "s8": "i8", "u8": "i8"}
NUMBER = {"f16": 0, "bf16": 1, "tf32": 2, "u8": 0, "s8": 1, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
RESULT = {"f16": 0, "f32": 1, "s32": 2}
RNG = np.random.default_rng(5)


def described(d: str, a: str, b: str, rows: int, columns: int, bits: int = 0) -> int:
    return RESULT[d] << 4 | NUMBER[a] << 7 | NUMBER[b] << 10 | columns >> 3 << 17 | rows >> 4 << 24 | bits


def words_of(matrix: np.ndarray, d: str) -> np.ndarray:
    """One element a word."""
    given = matrix.astype({"f32": "f4", "f16": "f2", "s32": "i4"}[d])
    return given.view(f"u{given.itemsize}").astype(np.uint32)


def lane_of(row: int, rows: int) -> int:
    return row if rows == 128 else row // 16 * 32 + row % 16


def in_lanes(words: np.ndarray, image: np.ndarray, first_lane: int = 0) -> np.ndarray:
    """`image` with a matrix in it."""
    image = image.copy()
    for row in range(len(words)):
        image[lane_of(row, len(words)) + first_lane, : words.shape[1]] = words[row]
    return image


def columns_of(extent: int) -> int:
    return max(32, 1 << (extent - 1).bit_length())


def matrix_of(kind: str, extent: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """(what `laid_out` takes, the numbers)."""
    if kind in SMALL:
        codes = RNG.integers(0, 1 << (1 + sum(SMALL[kind][:2])), (extent, depth))
        return codes, np.array([[float(value_of(int(c), kind)) for c in row] for row in codes])
    values = RNG.integers(*RANGE.get(kind, (-8, 9)), (extent, depth))
    return values, values


def product(kind: str, a: str, b: str, word: int, more: str = "", guard: str = "@%p1") -> str:
    return (
        f"mov.b64 %m1, {b}; setp.eq.u32 %p4, %r0, %r0; {a} mov.b32 %r12, {word};"
        f"{guard} tcgen05.mma.cta_group::1.kind::{kind} [%r6], {'[%r11]' if '%r11' in a else '%m0'}, %m1, %r12, {more};"
        + COMMIT
    )


CASES = [
    ("f32", "f16", "f16", 128, 64, 128, 128, False, False), ("f16", "f16", "f16", 64, 24, 64, 32, False, True),
    ("f32", "bf16", "bf16", 128, 16, 0, 128, True, False), ("f32", "tf32", "tf32", 64, 8, 128, 64, False, False),
    ("s32", "s8", "u8", 128, 32, 32, 0, False, False), ("f32", "e4m3", "e5m2", 64, 40, 128, 0, False, False),
    ("f32", "e5m2", "e4m3", 128, 48, 64, 128, True, True), ("s32", "u8", "s8", 64, 32, 0, 0, True, True),
    ("f32", "e2m3", "e2m1", 128, 16, 128, 64, False, False), ("f16", "e3m2", "e4m3", 64, 8, 0, 128, False, False),
    ("f32", "f16", "f16", 128, 256, 128, 128, False, True), ("f32", "tf32", "tf32", 128, 32, 128, 128, True, True),
]  # fmt: skip


@pytest.mark.parametrize("d,a,b,rows,columns,swizzle_a,swizzle_b,trans_a,trans_b", of(CASES[::2], CASES))
def test_products(d, a, b, rows, columns, swizzle_a, swizzle_b, trans_a, trans_b):
    depth = 32 // BYTES[a]
    (left, x), (right, y) = matrix_of(a, rows, depth), matrix_of(b, columns, depth)
    image_a, first = laid_out(left, a, swizzle_a, trans_a, 0)
    image_b, second = laid_out(right, b, swizzle_b, trans_b, B_AT)
    third = RNG.integers(-50, 50, (rows, columns))
    negated = d != "s32"
    word = described(d, a, b, rows, columns, negated << 13 | trans_a << 15 | trans_b << 16)
    before = in_lanes(words_of(third, d), RNG.integers(0, 1 << 32, (128, columns_of(columns))).astype(np.uint32))
    body = product(KIND.get(a, "f8f6f4"), f"mov.b64 %m0, {first};", second, word, "%p4")
    found = tensor_memory_after(body, np.concatenate([image_a, image_b]), before)
    wanted = third + (-1 if negated else 1) * (x @ y.T)
    assert np.array_equal(found, in_lanes(words_of(wanted, d), before))


@pytest.mark.parametrize("more,factor", [("!%p4", 0), ("%p4, 3", 0.125), ("%p4, 0", 1)])
def test_what_is_added(more, factor):
    (left, x), (right, y) = matrix_of("f16", 64, 16), matrix_of("f16", 8, 16)
    image_a, first = laid_out(left, "f16", 32, False, 0)
    image_b, second = laid_out(right, "f16", 0, False, B_AT)
    third = RNG.integers(-50, 50, (64, 8))
    before = in_lanes(words_of(third, "f32"), np.zeros((128, 32), np.uint32))
    body = product("f16", f"mov.b64 %m0, {first};", second, described("f32", "f16", "f16", 64, 8), more)
    found = tensor_memory_after(body, np.concatenate([image_a, image_b]), before)
    assert np.array_equal(found, in_lanes(words_of(third * factor + x @ y.T, "f32"), before))


@pytest.mark.parametrize("rows,a,lane", [(128, "f16", 0), (64, "e4m3", 16), (64, "tf32", 0)])
def test_a_in_tensor_memory_and_lanes_left_out(rows, a, lane):
    """A lies in columns 32 to 39; D begins in the same lane."""
    depth, per = 32 // BYTES[a], 4 // BYTES[a]
    left, right = RNG.integers(-8, 9, (rows, depth)), RNG.integers(-8, 9, (16, depth))
    packed = np.zeros((rows, 8), np.uint32)
    for row in range(rows):
        for k in range(depth):
            packed[row, k // per] |= np.uint32(code(int(left[row, k]), a) << 8 * BYTES[a] * (k % per))
    image_b, second = laid_out(right, a, 128, False, 0)
    before = RNG.integers(0, 1 << 32, (128, 64)).astype(np.uint32)
    before[:, 32:] = in_lanes(packed, before[:, 32:], lane)
    without = RNG.integers(0, 1 << 32, 4)
    body = product(
        KIND.get(a, "f8f6f4"), f"add.u32 %r6, %r6, {lane << 16}; add.u32 %r11, %r6, 32;", second,
        described("f32", a, a, rows, 16), "{%d100, %d101, %d102, %d103}, !%p4",
    )  # fmt: skip
    body = "".join(f"mov.b32 %d{100 + n}, {word};" for n, word in enumerate(without)) + body
    found = tensor_memory_after(body + f"sub.u32 %r6, %r6, {lane << 16};", image_b, before)
    wanted = in_lanes(words_of(left @ right.T, "f32"), before, lane)
    for n in range(128):
        if int(without[n // 32]) >> n % 32 & 1:
            wanted[n] = before[n]
    assert np.array_equal(found, wanted)


def test_saturation_is_of_integers():
    left, right = np.full((64, 32), -128), np.full((8, 32), -128)
    image_a, first = laid_out(left, "s8", 32, False, 0)
    image_b, second = laid_out(right, "s8", 32, False, B_AT)
    before = in_lanes(words_of(np.full((64, 8), (1 << 31) - 5), "s32"), np.zeros((128, 32), np.uint32))
    for bit, wanted in ((1 << 3, (1 << 31) - 1), (0, (1 << 31) - 5 + 32 * 16384 - (1 << 32))):
        body = product("i8", f"mov.b64 %m0, {first};", second, described("s32", "s8", "s8", 64, 8, bit), "%p4")
        found = tensor_memory_after(body, np.concatenate([image_a, image_b]), before)
        assert np.array_equal(found, in_lanes(words_of(np.full((64, 8), wanted), "s32"), before))


def register_place(shape: str, thread: int, register: int) -> tuple[int, int]:
    """(lane, column) of a register, as the PTX ISA draws the fragments."""
    if shape == "32x32b":
        return thread, register
    if shape == "16x64b":
        return thread // 4 + (8 if thread % 2 else 0), 2 * register + (thread >> 1 & 1)
    if shape == "16x128b":
        return thread // 4 + (8 if register % 2 else 0), register // 2 * 4 + thread % 4
    if shape == "16x256b":
        return thread // 4 + (8 if register & 2 else 0), register // 4 * 8 + thread % 4 * 2 + register % 2
    return thread % 16, register + (17 if thread >= 16 else 0)


REGISTERS_OF = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
MOVES = [
    ("32x32b", 1, False, 0), ("32x32b", 32, False, 0), ("32x32b", 8, True, 0), ("16x64b", 1, False, 16),
    ("16x64b", 16, False, 0), ("16x64b", 4, True, 0), ("16x128b", 2, False, 16), ("16x128b", 8, False, 0),
    ("16x128b", 1, True, 16), ("16x256b", 4, False, 0), ("16x256b", 1, False, 16), ("16x256b", 2, True, 0),
    ("16x32bx2", 1, False, 0), ("16x32bx2", 8, False, 16), ("16x32bx2", 4, True, 0),
]  # fmt: skip


def places(shape: str, count: int, packed: bool, lane: int):
    """(thread of the warpgroup, register, [lane, column] of each half or word)."""
    for thread in range(128):
        for register in range(count):
            row, column = register_place(shape, thread % 32, register)
            if packed and shape == "16x32bx2":
                columns = [2 * register + half + (17 if thread % 32 >= 16 else 0) for half in range(2)]
            else:
                columns = [2 * column, 2 * column + 1] if packed else [column]
            yield thread, register, thread // 32 * 32 + lane + row, [2 + c for c in columns]


@pytest.mark.parametrize("shape,times,packed,lane", of(MOVES[::2], MOVES))
def test_loads(shape, times, packed, lane):
    count = REGISTERS_OF[shape] * times
    names = ", ".join(f"%d{n}" for n in range(count))
    before = RNG.integers(0, 1 << 32, (128, 64)).astype(np.uint32)
    half = ", 17" if shape == "16x32bx2" else ""
    pack = ".pack::16b" if packed else ""
    body = f"add.u32 %r11, %r9, {2 + (lane << 16)}; tcgen05.ld.sync.aligned.{shape}.x{times}{pack}.b32"
    body += f" {{{names}}}, [%r11]{half}; tcgen05.wait::ld.sync.aligned; bar.sync 0;"
    body += "".join(
        f"add.u32 %r10, %r9, {n}; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r10], {{%d{n}}};" for n in range(count)
    )  # each register goes to the column of its number
    found = tensor_memory_after(body + "tcgen05.wait::st.sync.aligned;", np.zeros(0, np.uint8), before)
    wanted = before.copy()
    for thread, register, row, columns in places(shape, count, packed, lane):
        words = [int(before[row, c]) for c in columns]
        wanted[thread, register] = words[0] & 0xFFFF | (words[1] & 0xFFFF) << 16 if packed else words[0]
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("shape,times,packed,lane", of(MOVES[1::2], MOVES))
def test_stores(shape, times, packed, lane):
    count = REGISTERS_OF[shape] * times
    names = ", ".join(f"%d{n}" for n in range(count))
    before = RNG.integers(0, 1 << 32, (128, 64)).astype(np.uint32)
    half = "17, " if shape == "16x32bx2" else ""
    pack = ".unpack::16b" if packed else ""
    body = f"tcgen05.ld.sync.aligned.32x32b.x{max(1, count)}.b32 {{{names}}}, [%r9]; tcgen05.wait::ld.sync.aligned;"
    body += f"add.u32 %r11, %r9, {2 + (lane << 16)}; bar.sync 0;"
    body += (
        f"tcgen05.st.sync.aligned.{shape}.x{times}{pack}.b32 [%r11], {half}{{{names}}}; tcgen05.wait::st.sync.aligned;"
    )
    found = tensor_memory_after(body, np.zeros(0, np.uint8), before)
    wanted = before.copy()
    for thread, register, row, columns in places(shape, count, packed, lane):
        word = int(before[thread, register])
        for i, column in enumerate(columns):
            wanted[row, column] = word >> 16 * i & 0xFFFF if packed else word
    assert np.array_equal(found, wanted)


COPIES = [
    ("128x256b", 128, 32, lambda row: [row]), ("128x128b", 128, 16, lambda row: [row]),
    ("64x128b.warpx2::02_13", 64, 16, lambda row: [row, row + 64]),
    ("64x128b.warpx2::01_23", 64, 16, lambda row: [row % 32 + 64 * (row // 32) + n for n in (0, 32)]),
    ("4x256b", 4, 32, lambda row: [32 * row]), ("32x128b.warpx4", 32, 16, lambda row: [row + 32 * n for n in range(4)]),
    ("warpx4.32x128b", 32, 16, lambda row: [row + 32 * n for n in range(4)]),
]  # fmt: skip


@pytest.mark.parametrize("shape,rows,row_bytes,lanes", COPIES)
@pytest.mark.parametrize("width", of([128], [0, 128]))
def test_copies_from_shared_memory(shape, rows, row_bytes, lanes, width):
    shared = RNG.integers(0, 256, 32768).astype(np.uint8)
    strides = (128, 8 * width or 256)
    before = RNG.integers(0, 1 << 32, (128, 32)).astype(np.uint32)
    wanted = before.copy()
    for row in range(rows):
        for word in range(row_bytes // 4):
            inside = row % 8 * (width or 16) + (4 * word if width else word // 4 * 128 + word % 4 * 4)
            at = exchanged(2048 + row // 8 * strides[1] + inside, width)
            for lane in lanes(row):
                wanted[lane, 3 + word] = int.from_bytes(shared[at : at + 4].tobytes(), "little")
    body = (
        f"mov.b64 %m0, {descriptor_of(2048, strides, width) | (0 if width else 5 << 49)}; add.u32 %r11, %r6, 3;"
        f"@%p1 tcgen05.cp.cta_group::1.{shape} [%r11], %m0;" + COMMIT
    )
    assert np.array_equal(tensor_memory_after(body, shared, before), wanted)


def launched(body: str, columns: int = 32, put: bool = True, executor=None, text: str = "") -> None:
    memory = Memory()
    for name in "ico":
        memory.allocate(name, 65536)
    program = link(module(text or text_of(body, columns, put, False)), "k")
    launch = make_launch(program, 1, 128, [Pointer(n) for n in "ico"], memory)
    (executor or ArrayExecutor()).run(launch, memory)


DENSE = "mov.b64 %m0, {a}; mov.b64 %m1, {b}; mov.b32 %r12, {word}; setp.eq.u32 %p4, %r0, %r0;" + (
    "@%p1 tcgen05.mma.cta_group::1.kind::{kind} [%r6+{at}], %m0, %m1, %r12, !%p4;"
)
GOOD, WORD = descriptor_of(0, (128, 256), 0), described("f32", "f16", "f16", 64, 8)


def dense(a=GOOD, b=GOOD, word=WORD, kind="f16", at=0):
    return DENSE.format(a=a, b=b, word=word, kind=kind, at=at)


WRONG = {
    dense(a=GOOD ^ 1 << 46): "bits 46 to 48",
    dense(a=GOOD | 1 << 49 | 2 << 61): "base offset",
    dense(b=GOOD | 1 << 52): "absolute leading address",
    dense(b=GOOD | 3 << 61): "swizzle 3",
    dense(b=GOOD | 1 << 61): "swizzles of 32-byte units are of matrices that have M or N innermost",
    dense(b=GOOD | 1 << 61, word=described("f32", "f16", "f16", 64, 8, 1 << 16)): "are of tf32 with M or N innermost",
    dense(word=described("f32", "tf32", "tf32", 64, 8, 1 << 15), kind="tf32"): "are of tf32 with M or N innermost",
    dense(b=GOOD | 0x3FFF): "out of bounds",
    dense(word=described("s32", "f16", "f16", 64, 8)): "types that kind::f16 does not have",
    dense(word=described("f32", "f16", "f16", 64, 8, 1 << 2)): "says of sparsity other than the instruction",
    dense(word=described("f32", "f16", "f16", 64, 8, 1)): "bits that a product of kind::f16 does not",
    dense(word=described("f32", "e4m3", "e4m3", 64, 24, 1 << 16), kind="f8f6f4"): "a product of 64 x 24",
    dense(word=described("f32", "f16", "f16", 128, 24)): "a product of 128 x 24",
    dense(word=described("f32", "f16", "f16", 256, 16)): "a product of 256 x 16",
    dense(word=described("f32", "f16", "f16", 64, 8, 1 << 3)): "bits that kind::f16 does not",
    dense(word=described("f32", "e2m1", "e4m3", 64, 8, 1 << 15), kind="f8f6f4"): "K innermost",
    dense(at=28): "column 32 of tensor memory is not allocated",
    dense(at=8 << 16): "does not begin in lane 8",
    "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%d0}, [%r6];": "this warp has lanes 32 to 63",
    "tcgen05.ld.sync.aligned.16x64b.x1.b32 {%d0}, [%r9+524288];": "this warp has lanes",
    "tcgen05.ld.sync.aligned.32x32b.x64.b32 {" + ", ".join(f"%d{n}" for n in range(64)) + "}, [%r9];": "not allocated",
    "add.u32 %r11, %r9, %r0; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%d0}, [%r11];": "the address is the same",
    "@%p1 bra Q; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%d0}, [%r9]; Q:": "all 32 threads",
    "@!%p2 bra Q; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [tm], 32; Q:": "given up its permit",
    "@!%p2 bra Q; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 64; Q:": "64 columns from address 0x0",
}  # fmt: skip


@pytest.mark.parametrize("body,message", WRONG.items(), ids=WRONG.values())
def test_what_a_kernel_may_not_do(body, message):
    with pytest.raises(ExecutionError, match=message):
        launched(body)


def test_what_is_allocated():
    """Two allocations lie apart; what is given back can be had again; what is not given back at the end is an error."""
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [tm], {};"
    kernel = text_of("{}", 32, False, False).replace("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", "")
    body = "@!%p2 bra Q; " + alloc.format(256) + "ld.shared.u32 %r11, [tm];" + alloc.format(128) + "{} Q:"
    free = "ld.shared.u32 %r13, [tm]; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r13, 128;"
    rest = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r11, 256;"
    launched("", text=kernel.replace("{}", body.replace("{}", free + alloc.format(128) + free + rest)))
    with pytest.raises(ExecutionError, match="ends with 256 columns"):
        launched("", text=kernel.replace("{}", body.replace("{}", free)))
    with pytest.raises(ExecutionError, match="128 columns are not free: 96 of 512 are"):
        launched("", text=kernel.replace("{}", body.replace("{}", alloc.format(128))))
    with pytest.raises(ExecutionError, match="48 columns: an allocation is of"):
        launched("", text=kernel.replace("{}", body.replace("{}", alloc.format(48))))


def test_strict_sees_tensor_memory_that_nothing_has_written():
    body = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%d0}, [%r9]; tcgen05.wait::ld.sync.aligned;"
    launched(body, put=True, executor=StrictExecutor())
    with pytest.raises(ExecutionError, match="tensor memory is read, and nothing has written"):
        launched(body, put=False, executor=StrictExecutor())


MMA = "@%p1 tcgen05.mma{} [%r6], %m0, %m1, %r12, {};"
REFUSED = [
    MMA.format(".ws.cta_group::2.kind::f16", "%p4"), MMA.format(".ws.cta_group::1.kind::f16", "%p4, 3, 4"),
    MMA.format(".cta_group::2.kind::f16", "{%r6, %r6, %r6, %r6}, %p4"), MMA.format(".kind::f16", "%p4"),
    MMA.format(".sp.cta_group::1.kind::f16", "%p4"), MMA.format(".ws.cta_group::1.kind::mxf4.block_scale", "%p4"),
    MMA.format(".ws.cta_group::1.kind::f16.collector::a::fill", "%p4"),
    "@%p1 tcgen05.mma.cta_group::1.kind::f16.ashift [%r6], [%r6], %m1, %r12, %p4;",
    "@%p1 tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [%r6], %m0;",
    "@%p1 tcgen05.shift.cta_group::1.down [%r6];", "tcgen05.alloc.sync.aligned.shared::cta.b32 [tm], 32;",
    "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%d0}, [%r9];",
]  # fmt: skip


@pytest.mark.parametrize("instruction", REFUSED)
def test_what_is_refused_by_name(instruction):
    name = next(word for word in instruction.split() if word.startswith("tcgen05")).rstrip(";")
    with pytest.raises(PtxError, match=f"instruction '{name.replace('shared::cta', 'shared')}' is not supported"):
        launched(instruction)


@pytest.mark.parametrize("guard", ["@%p5", "@!%p3"])
def test_guards_hold_for_whole_warps(guard):
    """Warps 1 and 3 load and store; the registers of the others stay as they were."""
    before = RNG.integers(0, 1 << 32, (128, 32)).astype(np.uint32)
    body = (
        "mov.b32 %d0, 77; shr.u32 %r11, %r0, 5; and.b32 %r11, %r11, 1; setp.eq.u32 %p5, %r11, 1;"
        "setp.eq.u32 %p3, %r11, 0; add.u32 %r12, %r9, 1; add.u32 %r13, %r9, 2; add.u32 %r14, %r9, 3;"
        f"{guard} tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%d0}}, [%r12]; tcgen05.wait::ld.sync.aligned;"
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r13], {%d0};"
        f"{guard} tcgen05.st.sync.aligned.32x32b.x1.b32 [%r14], {{%r0}}; tcgen05.wait::st.sync.aligned;"
    )
    wanted = before.copy()
    for thread in range(128):
        odd = thread // 32 % 2 == 1
        wanted[thread, 2] = before[thread, 1] if odd else 77
        wanted[thread, 3] = thread if odd else before[thread, 3]
    assert np.array_equal(tensor_memory_after(body, np.zeros(0, np.uint8), before), wanted)


def test_an_allocation_of_the_warp_whose_guard_is_true():
    kernel = text_of("", 32, False, False)
    for name in ("alloc", "dealloc", "relinquish_alloc_permit"):
        kernel = kernel.replace(f"tcgen05.{name}.", f"@%p2 tcgen05.{name}.")
    launched("", text=kernel.replace("@!%p2 bra A;", "").replace("@!%p2 bra Z;", ""))
    with pytest.raises(ExecutionError, match="all 32 threads"):
        launched("@%p1 tcgen05.ld.sync.aligned.32x32b.x1.b32 {%d0}, [%r9];")
