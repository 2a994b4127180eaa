"""Kernels that Python frameworks launch: Numba's driver with our library, and Triton where it is installed."""

from __future__ import annotations

import ctypes
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import abstim
from abstim.application.device_memory import DeviceMemory, HostRanges, translate
from abstim.application.triton_descriptors import TENSOR_MAP, expanded
from abstim.gpu.config import load_gpu
from functional.errors import InputError
from functional.launches.views import TensorMap

CAN = sys.platform == "linux" and shutil.which("cc") is not None
pytestmark = pytest.mark.skipif(not CAN, reason="needs Linux and a C compiler")
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 p, .param .f32 by) { .reg .b32 %r<2>; .reg .b64 %rd<4>; .reg .f32 %f<4>;
 ld.param.u64 %rd1, [p]; ld.param.f32 %f1, [by]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4;
 add.u64 %rd3, %rd1, %rd2; ld.global.f32 %f2, [%rd3]; mul.f32 %f3, %f1, %f2; st.global.f32 [%rd3], %f3; ret; }
"""


@pytest.fixture
def gpus():
    return [load_gpu(name, ("perfect_memory=true",)) for name in ("rtx3070", "gtx480")]


class Held:
    """An array as a framework hands it over."""

    def __init__(self, array):
        self.array = array

    def data_ptr(self):
        return self.array.ctypes.data


def test_what_is_changed_on_the_device_comes_back():
    memory, whole = DeviceMemory(), np.arange(100, dtype=np.int32)
    views = [Held(whole[3:10]), Held(whole[50:]), None]
    with HostRanges(memory, views) as ranges:
        first, second, nothing = (ranges.address(view) for view in views)
        assert second - first == 47 * 4 and nothing == 0 and memory.region_at(first) is not None
        assert first % 16 == views[0].data_ptr() % 16  # what a compiler took for aligned is aligned
        region = memory.region_at(first)
        memory.memory.bytes_of(region)[first - region.address :][:4] = 255
        assert memory.region_at(ranges.scratch(64)) is not region
    assert whole[3] == -1 and whole[4] == 4 and memory.region_at(first) is None


def test_arrays_side_by_side_in_memory_are_two():
    """The second began where the first ends, and its address led behind the first on the device."""
    whole = bytearray(128)
    parts = [Held(np.frombuffer(whole, np.uint8, 64, offset)) for offset in (0, 64)]
    with HostRanges(memory := DeviceMemory(), parts) as ranges:
        region = memory.region_at(ranges.address(parts[1]))
        memory.memory.bytes_of(region)[ranges.address(parts[1]) - region.address] = 7
    assert whole[64] == 7


def test_a_read_only_array_is_not_written():
    memory, constant = DeviceMemory(), np.zeros(8)
    constant.flags.writeable = False
    with pytest.raises(InputError, match="read-only"), HostRanges(memory, [Held(constant)]) as ranges:
        memory.memory.bytes_of(memory.region_at(ranges.address(Held(constant))))[:] = 1
    assert not constant.any() and not memory.memory.regions


def test_other_things_are_refused():
    with pytest.raises(InputError, match="neither a NumPy array nor a tensor"):
        HostRanges(DeviceMemory(), [3])
    with pytest.raises(InputError, match="after its end"):
        _ = abstim.capture("gtx480").launches
    with pytest.raises(InputError, match="unknown GPU"):
        abstim.capture("no_such_gpu")


def launch(values, by):
    """What Numba does with a compiled kernel: its module, a device array, and a launch through its driver."""
    from numba import cuda
    from numba.cuda.cudadrv import driver

    context = cuda.current_context()
    kernel = context.create_module_ptx(PTX.encode()).get_function("scale")
    array = cuda.to_device(values)
    start, end = cuda.event(), cuda.event()
    start.record()
    pointer, factor = ctypes.c_uint64(array.device_ctypes_pointer.value), ctypes.c_float(by)
    driver.launch_kernel(kernel.handle, 1, 1, 1, len(values), 1, 1, 0, 0, [pointer, factor])
    end.record()
    return array.copy_to_host(), cuda.event_elapsed_time(start, end)


def test_numba_and_a_second_capture(gpus):
    pytest.importorskip("numba.cuda")
    values = np.arange(64, dtype=np.float32)
    with abstim.capture(gpus) as first:
        found, milliseconds = launch(values, 3)
        with pytest.raises(InputError, match="another capture is active"), abstim.capture(gpus):
            pass
    assert np.array_equal(found, 3 * values)
    results = first.launches[0].results
    assert len(first.launches) == 1 and [r.kernel for r in results] == ["scale"] * 2
    assert milliseconds == pytest.approx(results[0].seconds * 1e3, rel=1e-5) and results[0].cycles != results[1].cycles
    with abstim.capture(gpus[::-1]) as second:
        found, milliseconds = launch(values, 2)
    assert np.array_equal(found, 2 * values) and milliseconds == pytest.approx(results[1].seconds * 1e3, rel=1e-5)
    assert [r.cycles for r in second.launches[0].results] == [r.cycles for r in results[::-1]]
    assert second.result.to_json()["kind"] == "application"


@pytest.mark.parametrize("flush", ["all", "none"])
def test_kept_caches_of_a_capture(flush):
    cuda = pytest.importorskip("numba.cuda")
    with abstim.capture("gtx480", flush=flush) as c:
        for _ in range(2):
            launch(np.arange(64, dtype=np.float32), 3)
    first, second = (timed.results[0].cycles for timed in c.launches)
    assert cuda and (second < first if flush == "none" else second == first)


def test_triton(gpus):
    triton = pytest.importorskip("triton")
    from capture_triton_kernels import add, matmul

    x, y = np.random.default_rng(1).random((2, 3000)).astype(np.float32)
    out, square = np.zeros_like(x), np.eye(64, dtype=np.float16)
    a = np.random.default_rng(2).random((64, 64)).astype(np.float16)
    product = np.zeros((64, 64), np.float32)
    before = triton.runtime.driver._active
    with abstim.capture(gpus[0]) as c:
        add[(triton.cdiv(3000, 1024),)](x, y, out, 3000, SIZE=1024)
        matmul[(1,)](a, square, product, SIZE=64)
    assert np.array_equal(out, x + y) and np.array_equal(product, a.astype(np.float32))
    # one of the two ways to compile the product was tried and found slower, then the other used
    assert [t.launch.program.name for t in c.launches] == ["add", "matmul"] and len(c.trials) == 2
    assert min(t.results[0].cycles for t in c.trials) == c.launches[1].results[0].cycles
    assert triton.runtime.driver._active is before


def descriptor(shape, strides, **more):
    defaults = {"padding": "zero", "round_f32_to_tf32": False, "element_strides": None}
    return SimpleNamespace(base="the tensor", shape=shape, strides=strides, **{**defaults, **more})


def test_what_a_kernel_gets_for_a_tensor_descriptor():
    given, sizes = descriptor([30, 40], [64, 1]), [("i32", 30), ("i32", 40), ("i64", 64), ("i64", 1)]
    plain = [*expanded("tensordesc<fp16[8,16]>", given, None)]
    wide = [("i64", value) for value in (30, 40, 64, 1)]
    assert plain == [("*fp16", "the tensor"), *wide, ("i1", False), ("i1", False), *sizes]
    about = {"swizzle": 1, "elem_size": 2, "elem_type": 6, "block_size": [8, 16], "fp4_padded": False}
    (kind, mapped), *rest = expanded("tensordesc<fp16[8,16]>", given, about)
    assert (kind, mapped.tensor, rest) == (TENSOR_MAP, "the tensor", sizes)
    assert mapped.map == TensorMap("f16", (40, 30), (128,), (16, 8), swizzle_bytes=32)
    padded = about | {"fp4_padded": True, "elem_type": 14, "elem_size": 1, "swizzle": 3, "block_size": [8, 128]}
    (_, mapped), *_ = expanded("tensordesc<i8[8,64]>", descriptor([30, 64], [64, 1]), padded)
    assert mapped.map == TensorMap("b4x16_p64", (128, 30), (64,), (128, 8), swizzle_bytes=128)
    with pytest.raises(InputError, match="element type 16, swizzle 1"):
        next(expanded("tensordesc<i8[8,16]>", given, about | {"elem_type": 16}))


def test_a_tensor_descriptor_of_images():
    corners = {"pixel_box_lower_corner": [-1, -2], "pixel_box_upper_corner": [3, 4]}
    image = descriptor([2, 5, 7, 8], [280, 56, 8, 1], round_f32_to_tf32=True, padding="nan", **corners)
    about = {"swizzle": 0, "elem_size": 4, "elem_type": 7, "block_size": [24, 8], "fp4_padded": False}
    (_, mapped), *_ = expanded("tensordesc_im2col<fp32[24,8],input_rank=4>", image, about | {"is_im2col": True})
    shape, strides = (8, 7, 5, 2), (32, 224, 1120)
    assert mapped.map == TensorMap(
        "tf32", shape, strides, (8, 1, 1, 1), fill_nan=True, pixels=24, lower=(-2, -1), upper=(4, 3)
    )
    mapped.map.check()


@pytest.mark.parametrize("architecture", ["a100", "h100"])
def test_triton_with_tensor_descriptors(architecture):
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    from capture_triton_kernels import transposed
    from triton.tools.tensor_descriptor import TensorDescriptor

    source = torch.arange(48 * 64, dtype=torch.float32).reshape(48, 64)[:40, :56]
    to = torch.zeros(56, 48)[:, :40]
    with abstim.capture(load_gpu(architecture, ["perfect_memory=true"])) as c:
        descriptors = [TensorDescriptor.from_tensor(t, block) for t, block in ((source, [16, 32]), (to, [32, 16]))]
        transposed[(3, 2)](*descriptors, ROWS=16, COLUMNS=32)
    assert torch.equal(to, source.T)
    assert (b"TMAP" in c.launches[0].launch.parameters) == (architecture == "h100")


def test_addresses_in_a_tensor_lead_to_the_device_and_back():
    words = np.array([7, 0x7F0000001000, 0x7F0000001FFF, 0x7F0000002000, 0x7F0000000FFF], np.uint64)
    before = words.copy()
    undo = translate(words, 0x7F0000001000, 4096, 0x10000)
    assert words.tolist() == [7, 0x10000, 0x10FFF, 0x7F0000002000, 0x7F0000000FFF]
    words[2] = 5  # the kernel's own
    undo()
    assert words.tolist() == [*before[:2].tolist(), 5, *before[3:].tolist()]
