"""Products of warpgroups against products of Python integers; matrices are laid out one element at a time, as the PTX
ISA draws the canonical layouts."""

from __future__ import annotations

import numpy as np
import pytest
from both_executors import run
from oracle.array_executor import ArrayExecutor
from ptx_kernels import module
from test_matrices import code

from abstim.gpu.config import load_gpu
from functional.errors import ExecutionError, PtxError
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from precharacterize.build import build_table

BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
RANGE = {"s8": (-128, 128), "u8": (0, 256), "e4m3": (-8, 9), "e5m2": (-4, 5)}
SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}
A_AT, B_AT = 0, 32768


def laid_out(matrix: np.ndarray, kind: str, width: int, mn_inner: bool, base: int) -> tuple[np.ndarray, int]:
    """(bytes of shared memory from `base` on, descriptor) of a matrix [mn, k]."""
    size, extent = BYTES[kind], matrix.shape[0]
    t = 16 // size
    image = np.zeros(32768, np.uint8)
    row = width or 16
    if mn_inner and width:  # rows of `width` bytes along mn, 8 of them along k; the next 8 of k follow
        leading, stride = 2 * 8 * row, 8 * row
    elif mn_inner:
        leading, stride = 128, 256
    else:  # 8 rows of mn; without a swizzle the second half of k follows
        leading, stride = 128, 256 if not width else 8 * width
    for mn in range(extent):
        for k in range(matrix.shape[1]):
            if mn_inner and width:
                at = mn // (row // size) * leading + mn % (row // size) * size + k // 8 * stride + k % 8 * row
            elif mn_inner:
                at = mn // t * stride + mn % t * size + k // 8 * leading + k % 8 * 16
            elif width:
                at = mn // 8 * stride + mn % 8 * width + k * size
            else:
                at = mn // 8 * stride + mn % 8 * 16 + k // t * leading + k % t * size
            line = (base + at) // 128
            at ^= {0: 0, 32: line % 2, 64: line % 4, 128: line % 8}[width] * 16
            image[at : at + size] = np.frombuffer(code(int(matrix[mn, k]), kind).to_bytes(4, "little")[:size], np.uint8)
    return image, base >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLES[width] << 62


COPY = """.shared .align 1024 .b8 s[65536];
.entry k(.param .u64 i, .param .u64 c, .param .u64 o) {{ .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p<3>;
 .reg .b32 %d<{count}>; .reg .b32 %a<5>; .reg .b64 %m<3>;
 ld.param.u64 %rd0, [i]; ld.param.u64 %rd1, [c]; ld.param.u64 %rd2, [o]; mov.u32 %r0, %tid.x; mov.u32 %r1, s;
 mov.u32 %r2, %r0; L: shl.b32 %r3, %r2, 2; cvt.u64.u32 %rd3, %r3; add.u64 %rd3, %rd0, %rd3; ld.global.u32 %r4, [%rd3];
 add.u32 %r5, %r1, %r3; st.shared.u32 [%r5], %r4; add.u32 %r2, %r2, 128; setp.lt.u32 %p0, %r2, 16384; @%p0 bra L;
 bar.sync 0; fence.proxy.async; mul.wide.u32 %rd4, %r0, {row}; add.u64 %rd1, %rd1, %rd4; add.u64 %rd2, %rd2, %rd4;
 {body}
 ret; }}"""


def product(form, a, b, c, images, descriptors, options, fragments=None, times=1, sparse=""):
    """D [128 threads, registers] of C [128, registers], both as words; `sparse`: what loads the metadata."""
    count = c.shape[1]
    names = "{" + ", ".join(f"%d{n}" for n in range(count)) + "}"
    loads = "".join(f"ld.global.u32 %d{n}, [%rd1+{4 * n}];" for n in range(count))
    stores = "".join(f"st.global.u32 [%rd2+{4 * n}], %d{n};" for n in range(count))
    first = "%m0"
    if fragments is not None:
        first = "{%a0, %a1, %a2, %a3}"
        loads += f"mad.wide.u32 %rd5, %r0, 16, %rd0; ld.global.v4.u32 {first}, [%rd5+65536];"
    body = (
        f"{loads} {sparse} mov.u64 %m0, {descriptors[0]}; mov.u64 %m1, {descriptors[1]}; setp.eq.u32 %p1, %r0, %r0;"
        " wgmma.fence.sync.aligned;"
        + f" wgmma.mma_async{'.sp' if sparse else ''}.sync.aligned.{form} {names}, {first}, %m1, {options};" * times
        + f" wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; {stores}"
    )
    text = COPY.format(count=count + 1, row=4 * count, body=body)
    whole = np.concatenate([*images, np.zeros(0, np.uint8) if fragments is None else fragments.view(np.uint8)])
    buffers = {"i": whole, "c": c, "o": np.zeros_like(c)}
    found, _ = run(text, buffers, block=128, native=False)
    return found["o"].reshape(c.shape)


def d_place(thread: int, i: int) -> tuple[int, int]:
    lane, warp = thread % 32, thread // 32
    return 16 * warp + lane // 4 + 8 * (i // 2 % 2), lane % 4 * 2 + i % 2 + i // 4 * 8


def accumulators(matrix: np.ndarray, kind: str) -> np.ndarray:
    count = matrix.shape[1] // 2
    values = np.array([[matrix[d_place(t, i)] for i in range(count)] for t in range(128)])
    return np.ascontiguousarray(values.astype({"f32": "f4", "f16": "f2", "s32": "i4"}[kind])).view(np.uint32)


CASES = [
    ("f32", "f16", "f16", 64, 128, 128, False, False), ("f16", "f16", "f16", 16, 128, 64, False, True),
    ("f32", "bf16", "bf16", 8, 32, 0, True, False), ("f32", "f16", "f16", 64, 64, 128, True, True),
    ("f32", "f16", "f16", 32, 0, 64, False, True), ("f32", "bf16", "bf16", 24, 0, 0, True, True),
    ("f32", "tf32", "tf32", 32, 128, 64, False, False), ("s32", "s8", "u8", 16, 32, 128, False, False),
    ("f32", "e4m3", "e5m2", 40, 128, 0, False, False), ("f16", "e5m2", "e5m2", 8, 64, 32, False, False),
    ("f32", "f16", "f16", 256, 128, 128, False, False),
]  # fmt: skip


def matrices(kind_a, kind_b, columns):
    rng, depth = np.random.default_rng(columns), 32 // BYTES[kind_a]
    left = rng.integers(*RANGE.get(kind_a, (-8, 9)), (64, depth))
    return left, rng.integers(*RANGE.get(kind_b, (-8, 9)), (depth, columns)), rng.integers(-50, 50, (64, columns))


@pytest.mark.parametrize("d,a,b,columns,swizzle_a,swizzle_b,trans_a,trans_b", CASES)
def test_products(d, a, b, columns, swizzle_a, swizzle_b, trans_a, trans_b):
    left, right, third = matrices(a, b, columns)
    image_a, first = laid_out(left, a, swizzle_a, trans_a, A_AT)
    image_b, second = laid_out(right.T, b, swizzle_b, trans_b, B_AT)
    form = f"m64n{columns}k{left.shape[1]}.{d}.{a}.{b}"
    numbers = "" if d == "s32" else ", -1, 1" + (f", {int(trans_a)}, {int(trans_b)}" if a in ("f16", "bf16") else "")
    sign = 1 if d == "s32" else -1
    c = accumulators(third, d)
    found = product(form, a, b, c, (image_a, image_b), (first, second), f"%p1{numbers}")
    assert np.array_equal(found, accumulators(third + sign * (left @ right), d))


@pytest.mark.parametrize("a", ["f16", "tf32", "s8", "e4m3"])
def test_a_in_registers_and_nothing_added(a):
    """Two products in turn: the second one's accumulators are the first one's, left out by its predicate."""
    left, right, third = matrices(a, a, 16)
    d, size = ("s32" if a == "s8" else "f32"), BYTES[a]
    image_b, second = laid_out(right.T, a, 32, False, B_AT)
    fragments = np.zeros((128, 4), np.uint32)
    for thread in range(128):
        lane, warp, per = thread % 32, thread // 32, 4 // size
        for register in range(4):
            for part in range(per):
                row = 16 * warp + lane // 4 + 8 * (register % 2)
                column = lane % 4 * per + part + register // 2 * 4 * per
                fragments[thread, register] |= code(int(left[row, column]), a) << 8 * size * part
    form = f"m64n16k{left.shape[1]}.{d}.{a}.{a}"
    numbers = {"f16": ", 1, 1, 0", "s8": ""}.get(a, ", 1, 1")
    c = accumulators(third, d)
    images = (np.zeros(32768, np.uint8), image_b)
    found = product(form, a, a, c, images, (0, second), f"!%p1{numbers}", fragments.reshape(-1), times=2)
    assert np.array_equal(found, accumulators(left @ right, d))
    found = product(form, a, a, c, images, (0, second), f"%p1{numbers}", fragments.reshape(-1), times=2)
    assert np.array_equal(found, accumulators(third + 2 * (left @ right), d))


def test_a_warp_waits_for_the_others_of_its_group():
    """The first warp tells a fifth one that the product is made; that one then overwrites B, which must not matter."""
    left, right, _ = matrices("f16", "f16", 8)
    image_a, first = laid_out(left, "f16", 32, False, A_AT)
    image_b, second = laid_out(right.T, "f16", 32, False, B_AT)
    text = COPY.format(
        count=5, row=16,
        body=f"""setp.ge.u32 %p1, %r0, 128; setp.lt.u32 %p2, %r0, 32; mov.u32 %r6, 0; @%p1 bra Z; @%p2 bra G;
         mov.u32 %r7, 0; S: add.u32 %r7, %r7, 1; setp.lt.u32 %p0, %r7, 300; @%p0 bra S;
         G: mov.u64 %m0, {first}; mov.u64 %m1, {second}; setp.ne.u32 %p0, %r0, %r0;
         wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%d0, %d1, %d2, %d3}}, %m0, %m1, %p0, 1, 1, 0, 0;
         st.global.v4.u32 [%rd2], {{%d0, %d1, %d2, %d3}}; setp.eq.u32 %p2, %r0, 0; mov.u32 %r6, 1;
         @%p2 st.volatile.global.u32 [%rd0+65536], %r6; ret;
         Z: ld.volatile.global.u32 %r7, [%rd0+65536]; setp.eq.u32 %p0, %r7, 0; @%p0 bra Z;
         sub.u32 %r2, %r0, 128; Y: shl.b32 %r3, %r2, 2; add.u32 %r5, %r1, %r3; st.shared.u32 [%r5+32768], %r6;
         add.u32 %r2, %r2, 32; setp.lt.u32 %p0, %r2, 64; @%p0 bra Y;""",
    )  # fmt: skip
    whole = np.concatenate([image_a, image_b, np.zeros(64, np.uint8)])
    buffers = {"i": whole, "c": np.zeros(4, np.uint32), "o": np.zeros(160 * 4, np.uint32)}
    found, _ = run(text, buffers, block=160, native=False)
    assert np.array_equal(found["o"].reshape(160, 4)[:128], accumulators(left @ right, "f32"))


def small(body):
    parsed = module(COPY.format(count=9, row=16, body="mov.u64 %m0, 0; setp.eq.u32 %p1, %r0, %r0;" + body))
    return link(parsed, "k")


FORM = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, "


def test_the_unit_is_held_as_long_as_the_products_take():
    program = small((FORM + "%m0, %m0, %p1, 1, 1, 0, 0;") * 2 + (FORM + "%m0, %m0, %p1, 1, 1, 0, 0;").replace(
        "n8k16", "n16k16").replace("%d3}", "%d3, %d4, %d5, %d6, %d7}"))  # fmt: skip
    table = build_table(program, load_gpu("rtx3070").pipeline)
    one, two, wide = [i for i in program.instructions if "mma_async" in i.modifiers]
    cycles = table.initiation_cycles
    assert cycles[wide.index] == 2 * cycles[one.index]
    written = set(table.writes[one.index].tolist()) - {-1}
    assert not written & set(table.waits[two.index].tolist()), "products of one accumulator do not wait for each other"


WRONG = [
    (FORM + "%m0, %m0, %p1, 1, 1, 0, 2;", PtxError, "is not supported"),
    (FORM.replace("n8k16", "n8k8") + "%m0, %m0, %p1, 1, 1, 0, 0;", PtxError, "is not supported"),
    ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%d0, %d1, %d2, %d3}, %m0, %m0, %r0, 2, %p1, 1, 1, 0, 0;",
     PtxError, "wgmma.mma_async.sp"),
    ("mov.u64 %m0, 0x4002000000000000;" + FORM + "%m0, %m0, %p1, 1, 1, 0, 0;", ExecutionError, "base offset"),
    ("mov.u64 %m0, 0x3fff;" + FORM + "%m0, %m0, %p1, 1, 1, 0, 0;", ExecutionError, "out of bounds"),
]  # fmt: skip


@pytest.mark.parametrize("body,error,message", WRONG)
def test_what_is_refused(body, error, message):
    memory = Memory()
    for name in "ico":
        memory.allocate(name, 65536)
    with pytest.raises(error, match=message):
        launch = make_launch(small(body), 1, 128, [Pointer(n) for n in "ico"], memory)
        ArrayExecutor().run(launch, memory)
