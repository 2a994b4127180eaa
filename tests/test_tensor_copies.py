"""Copies of boxes of tensors, against boxes cut out one element at a time."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from both_executors import run
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle.array_executor import ArrayExecutor
from ptx_kernels import module

from functional.errors import ExecutionError, InputError, PtxError
from functional.execution.default_executor import StrictExecutor
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.launches.views import ELEMENTS, TensorMap, decode, driver_map
from functional.programs.link import link

DTYPES = {"u8": "u1", "u16": "u2", "f32": "f4", "u64": "u8", "bf16": "u2", "s32": "i4", "f16": "f2"}
HEAD = """.shared .align 1024 .b8 s[16384]; .shared .align 8 .b64 m;
.entry k(.param .u64 i, .param .u64 o, .param .align 64 .b8 t[128]) {{
 .reg .b64 %rd<9>; .reg .b32 %r<20>; .reg .pred %p<5>;
 ld.param.u64 %rd0, [i]; ld.param.u64 %rd1, [o]; mov.u64 %rd2, t; cvta.param.u64 %rd2, %rd2;
 mov.u32 %r0, %tid.x; mov.u32 %r1, s; mov.u32 %r2, m; setp.eq.u32 %p0, %r0, 7; {setup}
 @%p0 mbarrier.init.shared.b64 [%r2], 1; bar.sync 0;"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra W;"
COPY_OUT = """ mov.u32 %r3, %r0;
T: setp.ge.u32 %p2, %r3, {words}; @%p2 bra D; shl.b32 %r4, %r3, 2; add.u32 %r5, %r4, %r1; ld.shared.u32 %r6, [%r5];
 cvt.u64.u32 %rd3, %r4; add.u64 %rd3, %rd1, %rd3; st.global.u32 [%rd3], %r6; add.u32 %r3, %r3, 32; bra T; D: ret; }}"""
COPY_IN = """ mov.u32 %r3, %r0;
T: setp.ge.u32 %p2, %r3, {words}; @%p2 bra D; shl.b32 %r4, %r3, 2; add.u32 %r5, %r4, %r1;
 cvt.u64.u32 %rd3, %r4; add.u64 %rd3, %rd0, %rd3; ld.global.u32 %r6, [%rd3]; st.shared.u32 [%r5], %r6;
 add.u32 %r3, %r3, 32; bra T; D: bar.sync 0; fence.proxy.async.shared::cta;"""


def setup(coordinates):
    return " ".join(f"mov.s32 %r{10 + n}, {c};" for n, c in enumerate(coordinates))


def vector(coordinates):
    return "{" + ", ".join(f"%r{10 + n}" for n in range(len(coordinates))) + "}"


def tensor_of(rng, shape, element, box, steps=(), swizzle=0, fill_nan=False):
    """A map of buffer `t` (axes innermost first in `shape`) and the tensor's values, outermost axis first."""
    size = np.dtype(DTYPES[element]).itemsize
    strides, below = [], -(-shape[0] * size // 16) * 16
    for extent in shape[1:]:
        strides.append(below)
        below *= extent
    data = rng.integers(0, 256, max(below, 16), np.uint8)
    return TensorMap(element, shape, tuple(strides), box, steps, swizzle, fill_nan, buffer="t"), data


def place(tensor, data, index):
    """Byte offset of an element, None outside the tensor; index innermost first."""
    if any(not 0 <= i < n for i, n in zip(index, tensor.size, strict=True)):
        return None
    return index[0] * tensor.element_bytes + sum(i * s for i, s in zip(index[1:], tensor.strides_bytes, strict=True))


def boxes(tensor, first):
    """(byte in shared memory, index) of each element of a box."""
    ranges = [range(0, b, s) for b, s in zip(tensor.box, tensor.taken, strict=True)]
    for number, offsets in enumerate(product(*reversed(ranges))):
        at = number * tensor.element_bytes
        row = at // 128
        unit = {0: 0, 32: row % 2, 64: row % 4, 128: row % 8}[tensor.swizzle_bytes]
        yield at ^ unit * 16, [c + o for c, o in zip(first, reversed(offsets), strict=True)]


def loaded(tensor, data, first):
    out = np.zeros(int(np.prod(tensor.counts)) * tensor.element_bytes, np.uint8)
    for at, index in boxes(tensor, first):
        where = place(tensor, data, index)
        if where is not None:
            out[at : at + tensor.element_bytes] = data[where : where + tensor.element_bytes]
    return out


def execute(text, tensor, data, given, **options):
    """Buffers `i` (given), `o` and `t` (the tensor) after the kernel."""
    buffers = {"i": given, "o": np.zeros(16384, np.uint8)}
    parsed = module(text)
    memory = Memory(parsed.variables)
    for name, values in (buffers | {"t": data}).items():
        memory.allocate(name, values.nbytes, values)
    arguments = [Pointer("i"), Pointer("o"), tensor]
    launch = make_launch(link(parsed, "k"), 1, 32, arguments, memory)
    options.get("executor", ArrayExecutor()).run(launch, memory)
    return {name: memory.read(name, np.uint8) for name in ("o", "t")}


def load_text(tensor, first):
    axes, size = len(first), int(np.prod(tensor.in_words.counts)) * tensor.in_words.element_bytes
    return (
        HEAD.format(setup=setup(first))
        + f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], {size};"
        + f"@%p0 cp.async.bulk.tensor.{axes}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], "
        + f"[%rd2, {vector(first)}], [%r2];"
        + WAIT
        + COPY_OUT.format(words=size // 4)
    )


@st.composite
def tensors(draw):
    element, swizzle = draw(st.sampled_from(sorted(DTYPES))), draw(st.sampled_from([0, 0, 32, 64, 128]))
    axes, size = draw(st.integers(1, 5)), np.dtype(DTYPES[element]).itemsize
    inner = (swizzle or draw(st.sampled_from([16, 48, 64]))) // size
    box = (inner, *(draw(st.integers(1, 4)) for _ in range(axes - 1)))
    shape = (draw(st.integers(1, inner + 9)), *(draw(st.integers(1, 6)) for _ in range(axes - 1)))
    steps = tuple(draw(st.integers(1, 3)) for _ in box)
    first = tuple(draw(st.integers(-3, 4)) for _ in box)
    return element, shape, box, steps, swizzle, first


@given(tensors())
@settings(max_examples=25)
def test_a_box_is_loaded(case):
    element, shape, box, steps, swizzle, first = case
    tensor, data = tensor_of(np.random.default_rng(1), shape, element, box, steps, swizzle)
    assert decode(tensor.encode()) == TensorMap(**{**fields_of(tensor), "buffer": "", "steps": tensor.taken})
    found = execute(load_text(tensor, first), tensor, data, np.zeros(16, np.uint8))["o"]
    expected = loaded(tensor, data, first)
    assert np.array_equal(found[: len(expected)], expected)


def fields_of(tensor):
    return {name: getattr(tensor, name) for name in TensorMap.__struct_fields__}


@given(tensors(), st.sampled_from(["", "add"]))
@settings(max_examples=15)
def test_a_box_is_stored(case, operation):
    element, shape, box, steps, swizzle, first = case
    element = "s32" if operation else element
    if operation:
        box = ((swizzle or 64) // 4, *box[1:])
    tensor, data = tensor_of(np.random.default_rng(2), shape, element, box, steps, swizzle)
    size = int(np.prod(tensor.counts)) * tensor.element_bytes
    given_ = np.random.default_rng(3).integers(0, 256, 16384, np.uint8)
    form = f"cp.reduce.async.bulk.tensor.{len(box)}d.global.shared::cta.{operation}.tile.bulk_group"
    form = form if operation else f"cp.async.bulk.tensor.{len(box)}d.global.shared::cta.tile.bulk_group"
    text = HEAD.format(setup=setup(first)) + COPY_IN.format(words=size // 4)
    text += (
        f"@%p0 {form} [%rd2, {vector(first)}], [%r1]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }}"
    )
    found = execute(text, tensor, data, given_)["t"]
    expected = data.copy()
    for at, index in boxes(tensor, first):
        where = place(tensor, data, index)
        if where is not None:
            own, new = slice(where, where + tensor.element_bytes), given_[at : at + tensor.element_bytes]
            expected[own] = (expected[own].view("u4") + new.view("u4")).view("u1") if operation else new
    assert np.array_equal(found, expected)


def test_what_lies_outside_may_be_nan():
    tensor, data = tensor_of(np.random.default_rng(1), (4,), "f32", (8,), fill_nan=True)
    found = execute(load_text(tensor, (2,)), tensor, data, np.zeros(16, np.uint8))["o"][:32].view("f4")
    assert np.array_equal(found[:2].view("u4"), data.view("u4")[2:4])
    assert np.isnan(found[2:]).all()


def test_both_executors_and_the_trace():
    tensor, data = tensor_of(np.random.default_rng(1), (64, 9), "f16", (64, 8), swizzle=128)
    buffers = {"i": np.zeros(16, np.uint8), "o": np.zeros(1024, np.uint8), "t": data}
    text = load_text(tensor, (0, 1)).replace(".param .u64 o,", ".param .u64 o, .param .u64 u,")
    found, _ = run(text, buffers, native=False, more=(tensor,))
    assert np.array_equal(found["o"], loaded(tensor, data, (0, 1)))
    execute(load_text(tensor, (0, 1)), tensor, data, np.zeros(16, np.uint8), executor=StrictExecutor())


REPLACE = """
 mov.u32 %r3, s; add.u32 %r3, %r3, 8192; mov.u32 %r4, 0;
 L: cvt.u64.u32 %rd6, %r4; add.u64 %rd5, %rd2, %rd6; ld.u32 %r6, [%rd5]; add.u32 %r5, %r3, %r4;
 st.shared.u32 [%r5], %r6; add.u32 %r4, %r4, 4; setp.lt.u32 %p3, %r4, 128; @%p3 bra L;
 ld.u64 %rd7, [%rd2+16]; add.u64 %rd7, %rd7, 32; bar.sync 0;
 @%p0 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r3], %rd7;
 @%p0 tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r3], 0x1, 4;
 @%p0 tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r3], 0x1;
 @%p0 tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r3], 0x6;
 @%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r3], 0x0, 5;
 @%p0 tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r3], 0x0, 64; bar.sync 0;
 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd0], [%r3], 128;
 fence.proxy.tensormap::generic.acquire.gpu [%rd0], 128; mov.u64 %rd2, %rd0; """


def test_fields_are_replaced():
    """A map of one row of 8 numbers of 16 bits becomes one of four rows, of which five numbers are there."""
    tensor, data = tensor_of(np.random.default_rng(1), (16, 8), "u16", (8, 1))
    text = load_text(TensorMap("f16", (5, 4), (64,), (8, 4)), (0, 0)).replace("bar.sync 0;", "bar.sync 0;" + REPLACE, 1)
    found = execute(text, tensor, data, np.zeros(128, np.uint8))["o"][:64].view("u2").reshape(4, 8)
    expected = np.zeros((4, 8), "u2")
    expected[:, :5] = data.view("u2")[16:].reshape(7, 16)[::2, :5]
    assert np.array_equal(found, expected)


def test_numbers_are_rounded_to_tf32():
    tensor, data = tensor_of(np.random.default_rng(1), (4,), "f32", (4,))
    data[:] = np.array([0x3F801000, 0x3F803000, 0x7F800000, 0x3F800FFF], "u4").view("u1")
    tensor = TensorMap("tf32", (4,), (), (4,), buffer="t")
    found = execute(load_text(tensor, (0,)), tensor, data, np.zeros(16, np.uint8))["o"][:16].view("u4")
    assert found.tolist() == [0x3F800000, 0x3F804000, 0x7F800000, 0x3F800000]


SUB_BYTE = [
    ("b4x16", 256, 128, 0),
    ("b4x16_p64", 256, 128, 128),
    ("b4x16_p64", 256, 128, 0),
    ("b6x16_p32", 256, 128, 128),
]


@pytest.mark.parametrize("element,extent,inner,swizzle", SUB_BYTE)
def test_elements_of_4_and_6_bits_are_loaded(element, extent, inner, swizzle):
    """Sixteen of them after the other, from the lowest bit on; padded ones fill 16 bytes of shared memory each, of
    which the rest stays as it was."""
    bits, unit = int(element[1]), 8 if element == "b4x16" else 16
    tensor = TensorMap(element, (extent, 3), (extent * bits // 8 + 64,), (inner, 2), (), swizzle, buffer="t")
    data = np.random.default_rng(3).integers(0, 256, 3 * tensor.strides_bytes[0], np.uint8)
    wanted, size = np.zeros(2 * inner // 16 * unit, np.uint8), 2 * inner * bits // 8
    for row in range(2):
        for column in range(inner):
            for bit in range(bits):
                at = (row * inner + column) // 16 * unit * 8 + column % 16 * bits + bit
                byte = at // 8 ^ ((at // 8 // 128 % 8 * 16) if swizzle else 0)
                from_ = (row + 2) * tensor.strides_bytes[0] * 8 + (inner + column) * bits + bit
                inside = row + 2 < 3
                wanted[byte] |= (int(data[from_ // 8]) >> from_ % 8 & 1 if inside else 0) << at % 8
    text = load_text(tensor, (inner, 2)).replace(f"%r3, {size // 4};", f"%r3, {len(wanted) // 4};")
    assert f"_, [%r2], {size};" in text and f"%r3, {len(wanted) // 4};" in text
    assert np.array_equal(execute(text, tensor, data, np.zeros(16, np.uint8))["o"][: len(wanted)], wanted)


def test_units_of_32_bytes_are_exchanged():
    """Of four rows of 128 bytes each, as the driver's CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B says."""
    data = np.random.default_rng(4).integers(0, 256, 128 * 9, np.uint8)
    axes = ((32, 9), (32, 9), (1, 1), (0, 128), (), ())
    tensor = replace(driver_map(2, 64, 0, 4, False, 0, axes), address=0, buffer="t")
    assert decode(tensor.encode()) == replace(tensor, buffer="")
    found = execute(load_text(tensor, (0, 0)), tensor, data, np.zeros(16, np.uint8))["o"][: len(data)]
    for at in range(len(data)):
        assert found[at ^ at // 128 % 4 * 32] == data[at]
    with pytest.raises(InputError, match="a swizzle of 64 bytes with units of 32"):
        replace(tensor, swizzle_bytes=64, box=(16, 9)).encode()
    with pytest.raises(InputError, match="a tensor map with swizzle 5 is not supported"):
        driver_map(2, 64, 0, 5, False, 0, axes)


def test_what_is_refused_of_elements_of_4_and_6_bits():
    data, padded = np.zeros(4096, np.uint8), TensorMap("b4x16_p64", (256,), (), (128,), buffer="t")
    with pytest.raises(ExecutionError, match="coordinate 64 of elements that lie 128 together"):
        execute(load_text(padded, (64,)), padded, data, data)
    whole = TensorMap("b4x16", (256,), (), (128,), buffer="t")
    with pytest.raises(ExecutionError, match="coordinate 3 of elements that lie 2 together"):
        execute(load_text(whole, (3,)), whole, data, data)
    out = "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd2, {%r10}], [%r1];"
    text = HEAD.format(setup=setup([0])) + f"@%p0 {out} ret; }}"
    execute(text, whole, data, data)
    with pytest.raises(ExecutionError, match="padded ones loaded alone"):
        execute(text, padded, data, data)
    assert driver_map(14, 64, 0, 3, False, 0, ((256,), (128,), (1,), (0,), (), ())).element == "b4x16_p64"
    with pytest.raises(InputError, match="data type 16 is not supported"):
        driver_map(16, 64, 0, 3, False, 0, ((256,), (128,), (1,), (0,), (), ()))


WRONG = [
    (TensorMap("b4x16_p64", (256,), (), (64,)), "boxes have 128"),
    (TensorMap("b6x16_p32", (200,), (), (128,)), "elements b6x16_p32 in boxes of 128 are not supported"),
    (TensorMap("b4x16_p64", (256, 2), (144,), (128, 1)), "multiples of 32"),
    (TensorMap("b4x16_p64", (256,), (), (128,), address=16), "multiples of 32"),
    (TensorMap("b4x16", (65,), (), (32,)), "in boxes of 32 are not supported"),
    (TensorMap("b4x16", (64,), (), (32,), fill_nan=True), "integers"),
    (TensorMap("f16", (64,), (), (4,)), "rows of 8 bytes"),
    (TensorMap("f16", (64, 2), (100,), (8, 1)), "strides"),
    (TensorMap("f16", (64, 2), (128,), (32, 1), swizzle_bytes=128), "with a swizzle its 128"),
    (TensorMap("f16", (64,), (), (512,)), "256 at most"),
    (TensorMap("f16", (64,), (), (8,), (9,)), "steps"),
    (TensorMap("u8", (64,), (), (16,), fill_nan=True), "integers"),
    (TensorMap("f16", (64,), (), (8,), address=8), "no multiple of 16"),
    (TensorMap("f16", (64,), (), (8,), address=1 << 63), "beyond all memory"),
    (TensorMap("f16", (64,), (), (8,), address=(1 << 64) - 16), "beyond all memory"),
    (TensorMap("f16", (64, 1 << 31), (1 << 39,), (8, 1)), "beyond all memory"),
]


@pytest.mark.parametrize("tensor,message", WRONG)
def test_wrong_maps(tensor, message):
    with pytest.raises(InputError, match=message):
        tensor.encode()


def test_faults():
    data = np.zeros(256, np.uint8)
    beyond = TensorMap("u8", (512,), (), (16,), buffer="t")
    with pytest.raises(ExecutionError, match="out of bounds"):
        execute(load_text(beyond, (248,)), beyond, data, data)
    flat = TensorMap("u8", (256,), (), (16,), buffer="t")
    with pytest.raises(ExecutionError, match="2 coordinates for a tensor of 1 axes"):
        execute(load_text(TensorMap("u8", (16, 1), (16,), (16, 1)), (0, 0)), flat, data, data)
    huge = TensorMap("u8", (256,) * 5, (256, 256, 256, 256), (256,) * 5, buffer="t")  # 1 TiB, if somebody made it
    with pytest.raises(ExecutionError, match="box of 1099511627776 bytes is out of bounds: shared memory"):
        execute(load_text(huge, (0,) * 5), huge, data, data)
    with pytest.raises(ExecutionError, match="there is no tensor map"):
        execute(load_text(flat, (0,)).replace("cvta.param.u64 %rd2, %rd2;", "mov.u64 %rd2, %rd0;"), flat, data, data)
    for mode in ("im2col", "im2col::w", "tile::scatter4"):
        with pytest.raises(PtxError, match="is not supported"):
            execute(load_text(flat, (0,)).replace(".tile.", f".{mode}."), flat, data, data)


def im2col_pixels(tensor, first):
    """The places that im2col goes through, by division: pixel n of the window of all images."""
    sizes = [-(-(n + u - low) // s) for n, low, u, s in
             zip(tensor.size[1:-1], tensor.lower, tensor.upper, tensor.taken[1:-1], strict=True)]  # fmt: skip
    start = 0
    for c, low, s, n in [*zip(first[1:-1], tensor.lower, tensor.taken[1:-1], sizes, strict=True)][::-1]:
        start = start * n + (c - low) // s
    start += first[-1] * int(np.prod(sizes))
    for number in range(start, start + tensor.pixels):
        place = []
        for low, s, n in zip(tensor.lower, tensor.taken[1:-1], sizes, strict=True):
            place.append(low + number % n * s)
            number //= n
        yield [*place, number]


@st.composite
def images(draw):
    space = draw(st.integers(1, 3))
    shape = (draw(st.integers(3, 12)), *(draw(st.integers(4, 6)) for _ in range(space)), draw(st.integers(1, 3)))
    lower = tuple(draw(st.integers(-2, 0)) for _ in range(space))
    upper = tuple(draw(st.integers(-1, 1)) for _ in range(space))
    steps = (1, *(draw(st.integers(1, 2)) for _ in range(space)), 1)
    taps = tuple(draw(st.integers(0, 2)) for _ in range(space))
    within = [draw(st.integers(0, 1)) * s + low for low, s in zip(lower, steps[1:], strict=False)]
    first = (draw(st.integers(0, 3)), *within, draw(st.integers(0, 1)))
    return shape, lower, upper, steps, taps, first, draw(st.integers(1, 40))


@given(images())
@settings(max_examples=25)
def test_pixels_under_a_filter_are_loaded_and_stored(case):
    shape, lower, upper, steps, taps, first, pixels = case
    tiles, data = tensor_of(np.random.default_rng(1), shape, "f32", (8, *[1] * (len(shape) - 1)), steps)
    tensor = replace(tiles, pixels=pixels, lower=lower, upper=upper)
    assert decode(tensor.encode()) == replace(tensor, buffer="")
    text = load_text(tensor, first).replace(".tile.", ".im2col.")
    text = text.replace("[%r2];W:", "[%r2], {" + ", ".join(f"%h{n}" for n in range(len(taps))) + "};W:")
    text = text.replace("expect_tx.shared.b64 _, [%r2], 32", f"expect_tx.shared.b64 _, [%r2], {32 * pixels}")
    text = text.replace(f"%r3, {8}; @%p2", f"%r3, {8 * pixels}; @%p2")
    setting = " ".join(f"mov.u16 %h{n}, {tap};" for n, tap in enumerate(taps))
    text = text.replace(".reg .pred %p<5>;", f".reg .pred %p<5>; .reg .b16 %h<4>; {setting}")
    found = execute(text, tensor, data, np.zeros(16, np.uint8))["o"][: 32 * pixels].view(np.uint32)
    expected = []
    for place in im2col_pixels(tensor, first):
        *spaces, image = place
        index = [*(p + t for p, t in zip(spaces, taps, strict=True)), image]
        for channel in range(first[0], first[0] + 8):
            where = globals()["place"](tensor, data, [channel, *index])
            expected.append(0 if where is None else int(data[where : where + 4].view(np.uint32)[0]))
    assert found.tolist() == expected


@pytest.mark.parametrize("swizzle", [0, 32])
def test_four_rows_are_gathered_and_scattered(swizzle):
    tensor, data = tensor_of(np.random.default_rng(1), (20, 9), "f32", (8, 1), swizzle=swizzle)
    first = (4, 7, 0, 12, 3)  # 12: outside
    text = load_text(tensor, first).replace(".5d.", ".2d.").replace(".tile.", ".tile::gather4.")
    text = text.replace("_, [%r2], 32", "_, [%r2], 128").replace("%r3, 8; @%p2", "%r3, 32; @%p2")
    found = execute(text, tensor, data, np.zeros(16, np.uint8))["o"][:128].view(np.uint32).reshape(4, 8)
    rows = data.view(np.uint32).reshape(9, 20)
    expected = np.array([rows[r, 4:12] if r < 9 else np.zeros(8, np.uint32) for r in first[1:]])
    assert np.array_equal(unswizzled(found) if swizzle else found, expected)
    given_ = np.arange(4096, dtype=np.uint32).view(np.uint8)
    form = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
    text = HEAD.format(setup=setup(first)) + COPY_IN.format(words=32)
    text += f"@%p0 {form} [%rd2, {vector(first)}], [%r1]; cp.async.bulk.wait_group 0; ret; }}"
    stored = execute(text, tensor, data, given_)["t"].view(np.uint32).reshape(9, 20)
    words = np.arange(32, dtype=np.uint32).reshape(4, 8)
    for row, values in zip(first[1:], unswizzled(words) if swizzle else words, strict=True):
        if row < 9:
            rows[row, 4:12] = values
    assert np.array_equal(stored, rows)


def unswizzled(words):
    """Rows of 32 bytes, whose two units of 16 change places in every second 128 bytes."""
    out = words.reshape(-1, 2, 4).copy()
    out[4:] = out[4:, ::-1]
    return out.reshape(words.shape)


def test_element_numbers_are_those_of_ptx():
    assert [ELEMENTS.index(e) for e in ("u8", "f16", "f32", "f64", "bf16", "tf32")] == [0, 6, 7, 9, 10, 11]
