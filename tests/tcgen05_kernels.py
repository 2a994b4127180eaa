"""A kernel of one warpgroup that fills shared and tensor memory, runs `tcgen05` instructions, and gives tensor memory
back; matrices laid out one element at a time, as the PTX ISA draws the canonical layouts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from both_executors import run
from test_matrices import code

SMALL = {"e2m1": (2, 1, 1), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3)}  # exponent bits, mantissa bits, bias
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1, **dict.fromkeys(SMALL, 1)}
SWIZZLES = {0: 0, 128: 2, 64: 4, 32: 6}
SHARED_BYTES, B_AT = 65536, 32768

SETUP = """.shared .align 1024 .b8 s[65536]; .shared .align 8 .b64 bar; .shared .align 4 .b32 tm;
.entry k(.param .u64 i, .param .u64 c, .param .u64 o) {{ .reg .b64 %rd<12>; .reg .b32 %r<20>; .reg .pred %p<6>;
 .reg .b32 %d<129>; .reg .b64 %m<4>; .reg .b16 %h<2>;
 ld.param.u64 %rd0, [i]; ld.param.u64 %rd1, [c]; ld.param.u64 %rd2, [o]; mov.u32 %r0, %tid.x; mov.u32 %r1, s;
 mov.u32 %r2, %r0; L: shl.b32 %r3, %r2, 2; cvt.u64.u32 %rd3, %r3; add.u64 %rd3, %rd0, %rd3; ld.global.u32 %r4, [%rd3];
 add.u32 %r5, %r1, %r3; st.shared.u32 [%r5], %r4; add.u32 %r2, %r2, 128; setp.lt.u32 %p0, %r2, 16384; @%p0 bra L;
 setp.eq.u32 %p1, %r0, 0; setp.lt.u32 %p2, %r0, 32; @%p1 mbarrier.init.shared::cta.b64 [bar], 1;
 @!%p2 bra A; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [tm], {columns};
 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
 A: fence.proxy.async; tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
 ld.shared.u32 %r6, [tm]; and.b32 %r7, %r0, 96; shl.b32 %r8, %r7, 16; add.u32 %r9, %r6, %r8;
 mul.wide.u32 %rd4, %r0, {row_bytes}; add.u64 %rd1, %rd1, %rd4; add.u64 %rd2, %rd2, %rd4;
 {before}
 tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
 {body}
 tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
 {after}
 tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
 @!%p2 bra Z; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, {columns}; Z: ret; }}"""
PUT = """ld.global.u32 %d0, [%rd1+{at}]; add.u32 %r10, %r9, {column};
 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r10], {{%d0}};"""
GET = """add.u32 %r10, %r9, {column}; tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{names}}}, [%r10];
 tcgen05.wait::ld.sync.aligned; {stores}"""
COMMIT = """@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];
 W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [bar], 0; @!%p3 bra W;"""


def text_of(body: str, columns: int, put: bool = True, get: bool = True) -> str:
    """The kernel that runs `body` between filling `columns` of tensor memory and reading them."""
    names = ", ".join(f"%d{n}" for n in range(8))
    before = "".join(PUT.format(at=4 * n, column=n) for n in range(columns if put else 0))
    after = ""
    for column in range(0, columns if get else 0, 8):
        stores = "".join(f"st.global.u32 [%rd2+{4 * (column + n)}], %d{n};" for n in range(8))
        after += GET.format(column=column, names=names, stores=stores)
    return SETUP.format(
        columns=columns, row_bytes=4 * columns, before=before + "tcgen05.wait::st.sync.aligned;", body=body, after=after
    )


def tensor_memory_after(body: str, shared: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Words [128 lanes, columns] of tensor memory after `body`, of those before and the bytes of shared memory."""
    image = np.zeros(SHARED_BYTES, np.uint8)
    image[: len(shared)] = shared
    buffers = {"i": image, "c": before, "o": np.zeros_like(before)}
    found, _ = run(text_of(body, before.shape[1]), buffers, block=128, native=False)
    return found["o"].reshape(before.shape)


COMMIT_PAIR = """mov.u16 %h0, 3;
 @%p1 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [bar], %h0;
 W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [bar], 0; @!%p3 bra W;"""
_MEET = "barrier.cluster.arrive; barrier.cluster.wait;"


def pair_text_of(body: str, columns: int, issuer: int, put: bool = True, get: bool = True) -> str:
    """The same of a pair of thread blocks, each with memory of its own; `%p1` in one thread of the block `issuer`."""
    offsets = "".join(
        f"mul.wide.u32 %rd5, %r16, {size}; add.u64 %rd{n}, %rd{n}, %rd5;"
        for n, size in enumerate((SHARED_BYTES, 512 * columns, 512 * columns))
    )
    text = text_of(_MEET + body, columns, put, get).replace("cta_group::1", "cta_group::2")
    text = text.replace(".param .u64 o) {", ".param .u64 o) .reqnctapercluster 2 {")
    text = text.replace("mov.u32 %r0, %tid.x;", f"mov.u32 %r16, %cluster_ctarank; {offsets} mov.u32 %r0, %tid.x;")
    text = text.replace("fence.proxy.async;", f"fence.proxy.async; {_MEET} setp.eq.and.u32 %p1, %r16, {issuer}, %p1;")
    return text.replace("@!%p2 bra Z;", f"{_MEET} @!%p2 bra Z;")


def pair_memory_after(body: str, shared: list[np.ndarray], before: np.ndarray, issuer: int = 0) -> np.ndarray:
    """Words [2 blocks, 128 lanes, columns] of tensor memory after `body`, as `tensor_memory_after`."""
    image = np.zeros((2, SHARED_BYTES), np.uint8)
    for own, given in zip(image, shared, strict=True):
        own[: len(given)] = given
    buffers = {"i": image, "c": before, "o": np.zeros_like(before)}
    found, _ = run(pair_text_of(body, before.shape[2], issuer), buffers, grid=2, block=128, native=False)
    return found["o"].reshape(before.shape)


def value_of(bits: int, name: str) -> Fraction:
    """The number of a code of 4 or 6 bits, by definition."""
    exponent_bits, mantissa_bits, bias = SMALL[name]
    mantissa, exponent = bits & ((1 << mantissa_bits) - 1), bits >> mantissa_bits & ((1 << exponent_bits) - 1)
    fraction = Fraction(mantissa, 1 << mantissa_bits) + (exponent > 0)
    size = fraction * Fraction(2) ** (max(exponent, 1) - bias)
    return -size if bits >> (exponent_bits + mantissa_bits) else size


def element_bytes(value: int, kind: str) -> np.ndarray:
    return np.frombuffer(code(value, kind).to_bytes(4, "little")[: BYTES[kind]], np.uint8)


def place(mn: int, k: int, size: int, width: int, mn_inner: bool, strides: tuple[int, int]) -> int:
    """Offset of an element, before its unit is exchanged."""
    (leading, stride), row = strides, width or 16
    if mn_inner and width:
        rows = 4 if size == 4 else 8  # tf32 has its swizzle repeat after four
        return mn // (row // size) * leading + mn % (row // size) * size + k // rows * stride + k % rows * row
    if mn_inner:
        return mn // (16 // size) * stride + mn % (16 // size) * size + k // 8 * leading + k % 8 * 16
    if width:
        return mn // 8 * stride + mn % 8 * width + k * size
    return mn // 8 * stride + mn % 8 * 16 + k // (16 // size) * leading + k % (16 // size) * size


def strides_of(depth: int, width: int, mn_inner: bool, size: int = 1) -> tuple[int, int]:
    """(leading, stride) bytes of a layout without gaps."""
    if mn_inner:
        return (depth * width, (4 if size == 4 else 8) * width) if width else (128, 16 * depth)
    return 128, 8 * (width or depth * size)


def descriptor_of(base: int, strides: tuple[int, int], width: int) -> int:
    leading, stride = strides
    return base >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | SWIZZLES[width] << 61


def exchanged(at: int, width: int, wide: bool = False) -> int:
    """Where the byte of an address lies under a swizzle; `wide`: of units of 32 bytes."""
    line = at // 128
    if wide:
        return at ^ line % 4 * 32
    return at ^ {0: 0, 32: line % 2, 64: line % 4, 128: line % 8}[width] * 16


def laid_out(matrix: np.ndarray, kind: str, width: int, mn_inner: bool, base: int) -> tuple[np.ndarray, int]:
    """(bytes of shared memory from `base` on, descriptor) of a matrix [mn, k], of codes if its kind is small."""
    extent, depth = matrix.shape
    wide = kind == "tf32" and mn_inner  # it has no other swizzle there
    image, strides = np.zeros(32768, np.uint8), strides_of(depth, width, mn_inner, BYTES[kind])
    for mn in range(extent):
        for k in range(depth):
            if kind in SMALL:  # sixteen in a unit of 16 bytes, from its first bit on
                bits = 1 + sum(SMALL[kind][:2])
                unit = place(mn, k // 16 * 16, 1, width, mn_inner, strides)
                for bit in range(bits):
                    where = k % 16 * bits + bit
                    at = exchanged(base + unit + where // 8, width) - base
                    image[at] |= (int(matrix[mn, k]) >> bit & 1) << where % 8
                continue
            at = exchanged(base + place(mn, k, BYTES[kind], width, mn_inner, strides), width, wide) - base
            image[at : at + BYTES[kind]] = element_bytes(int(matrix[mn, k]), kind)
    return image, descriptor_of(base, strides, width) & ~((1 << 62) * wide) | (1 << 61) * wide
