"""Instrumented PTX: it assembles, and what it writes down gives the executor's own trace."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from executor_device import ExecutorDevice, equal
from nightly import of
from oracle.array_executor import ArrayExecutor

import abstim
from functional import suite
from functional.errors import InputError, PtxError
from functional.gpu_recording import instrument, record
from functional.gpu_recording.cuda import CudaDevice
from functional.gpu_recording.record import TABLE

QUICK = (
    "micro_int_add",
    "micro_const_load",
    "micro_local_spill",
    "micro_barrier",
    "micro_global_stride",
    "kmeans_point",
)
MORE = ("bfs", "hotspot", "lavamd", "reduction", "histogram_atomics", "gemm_mma", "scan", "spmv_csr")


@cache
def instrumented(name):
    case = suite.case(name)
    return instrument(case.module, {launch.program.name: launch.program for launch in case.launches}.values())


def assemble(name, folder, *options):
    path = folder / f"{name}.ptx"
    path.write_text(instrumented(name))
    command = [shutil.which("ptxas"), f"-arch={suite.case(name).module.target}", *options, "-o", "/dev/null", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (name, done.stderr[:500])


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas on the PATH")
def test_instrumented_kernels_assemble(tmp_path):
    for name in QUICK:
        assemble(name, tmp_path, "-O0")
    calls = abstim.load(str(Path(__file__).parent / "data" / "calls.ptx"))
    (tmp_path / "calls.ptx").write_text(instrument(calls.module, [calls.kernel("calls").program]))
    command = [shutil.which("ptxas"), "-arch=sm_75", "-o", "/dev/null", str(tmp_path / "calls.ptx")]
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas on the PATH")
def test_every_kernel_of_the_suite_assembles(tmp_path):
    for name in of(suite.names()[::4], suite.names()):
        assemble(name, tmp_path, "-O0")


def check(name):
    case = suite.case(name)
    memory, executor = case.memory.copy(), ArrayExecutor()
    own = [executor.run(launch, memory) for launch in case.launches]
    assert all(map(equal, own, record(case, ExecutorDevice()))), name


@pytest.mark.parametrize("name", QUICK)
def test_recorded_trace_is_the_executors(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", of(MORE[::3], MORE))
def test_recorded_trace_is_the_executors_for_more_kernels(name):
    check(name)


KERNEL = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    .shared .align 4 .b8 tile[256];
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    setp.lt.u32 %p1, %r1, 11;
    setp.eq.u32 %p2, %r1, 60;
    @%p2 bra DONE;
    mov.u32 %r2, tile;
    cvt.u64.u32 %rd4, %r2;
    cvta.shared.u64 %rd5, %rd4;
    add.s64 %rd6, %rd5, %rd2;
    st.u32 [%rd6], %r1;
    @!%p1 bra NEXT;
    @%p1 ld.u32 %r3, [%rd6];
    @!%p1 st.global.u32 [%rd3], %r3;
NEXT:
    @%p1 st.global.u32 [%rd3], %r3;
    @%p1 ret;
    st.global.u32 [%rd3], %r1;
DONE:
    ret;
}
"""


def loaded(tmp_path, text):
    path = tmp_path / "k.ptx"
    path.write_text(text)
    return abstim.load(str(path)).kernel("k")


def test_predicates_generic_addresses_early_exit_and_partial_warps(tmp_path):
    case = loaded(tmp_path, KERNEL).launch(grid=3, block=61, args=[np.zeros(64, np.int32)])
    own = ArrayExecutor().run(case.launches[0], case.memory.copy())
    assert equal(own, record(case, ExecutorDevice())[0])
    assert own.thread_instructions.sum() < own.warp_instructions.sum() * 32


BRANCH = """    mov.u32 %r4, 0;
    @%p1 mov.u32 %r4, 1;
TARGETS: .branchtargets DONE, NEXT;
    brx.idx %r4, TARGETS;
"""


def test_indexed_branches(tmp_path):
    text = KERNEL.replace("    @!%p1 bra NEXT;\n", BRANCH)
    case = loaded(tmp_path, text).launch(grid=1, block=64, args=[np.zeros(64, np.int32)])
    own = ArrayExecutor().run(case.launches[0], case.memory.copy())
    assert equal(own, record(case, ExecutorDevice())[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("st.u32 [%rd6], %r1;", "ld.param.u32 %r3, [%rd6];"), "parameter"),
        (("st.u32 [%rd6], %r1;", "bar.sync %r1;"), "operands"),
        (("NEXT:\n", "NEXT: "), "line of its own"),
        (("    @%p1 ret;\n", "    @%p1 ret; @%p2 ret;\n"), "line of its own"),
    ],
)
def test_what_cannot_be_instrumented_is_refused_by_line(tmp_path, change, message):
    assert change[0] in KERNEL
    case = loaded(tmp_path, KERNEL.replace(*change)).launch(grid=1, block=64, args=[np.zeros(64, np.int32)])
    with pytest.raises(PtxError, match=message):
        record(case, ExecutorDevice())


def test_functions_structures_and_pointers_to_local_memory():
    kernel = abstim.load(str(Path(__file__).parent / "data" / "calls.ptx")).kernel("calls")
    start = np.array([(5, 1.5, [10, 20, 30, 40, 50, 60])], [("a", "<i4"), ("b", "<f4"), ("c", "<i2", 6)])
    case = kernel.launch(2, 48, [np.zeros(70, np.int32), np.zeros(70, np.float32), 70, start.tobytes()])
    own = ArrayExecutor().run(case.launches[0], case.memory.copy())
    assert equal(own, record(case, ExecutorDevice())[0])


def test_registers_of_nested_scopes(tmp_path):
    inner = """    {
        .reg .pred %p<2>;
        .reg .b64 %rd<2>;
        setp.gt.u32 %p1, %r1, 40;
        mov.b64 %rd1, %rd3;
        @%p1 st.global.u32 [%rd1], %r1;
    }
NEXT:
"""
    case = loaded(tmp_path, KERNEL.replace("NEXT:\n", inner)).launch(grid=1, block=64, args=[np.zeros(64, np.int32)])
    own = ArrayExecutor().run(case.launches[0], case.memory.copy())
    assert equal(own, record(case, ExecutorDevice())[0])


def test_a_changed_file_is_refused(tmp_path):
    kernel = loaded(tmp_path, KERNEL)
    (tmp_path / "k.ptx").write_text(KERNEL + "\n")
    with pytest.raises(InputError, match="changed"):
        instrument(kernel.module, [kernel.program])


def test_a_run_that_differs_from_the_first_is_noticed(tmp_path):
    """The kernel goes another way the second time: its flag survives because the device does not restore it."""
    text = KERNEL.replace("setp.lt.u32 %p1, %r1, 11;", "ld.global.u32 %r5, [%rd1];\n    setp.lt.u32 %p1, %r1, %r5;")
    case = loaded(tmp_path, text).launch(grid=1, block=64, args=[np.full(64, 5, np.int32)])

    class Forgetful(ExecutorDevice):
        def launch(self, kernel, grid, block, parameters, dynamic_shared_bytes):
            super().launch(kernel, grid, block, parameters, dynamic_shared_bytes)
            if kernel == "k":
                self.changed = True

        def write(self, address, data):
            if getattr(self, "changed", False) and len(data) == 256:
                data = np.full(64, 20, np.int32).view(np.uint8)
            super().write(address, data)

    with pytest.raises(InputError, match="same every time"):
        record(case, Forgetful())


def test_words_of_another_program_are_refused(tmp_path):
    case = loaded(tmp_path, KERNEL).launch(grid=1, block=64, args=[np.zeros(64, np.int32)])

    class Wrong(ExecutorDevice):
        def read(self, address, size_bytes):
            data = super().read(address, size_bytes)
            if size_bytes > 64 * 16:  # the words
                data.view(np.uint64)[0] = 77
            return data

    with pytest.raises(InputError, match="not what this program does"):
        record(case, Wrong())


class FakeLibrary:
    """libcuda's calls with their C signatures, on top of the executor."""

    def __init__(self):
        self.device, self.kernels = ExecutorDevice(), []

    def __getattr__(self, name):
        if name in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxSynchronize"):
            return lambda *arguments: 0
        raise AttributeError(name)

    def cuModuleLoadData(self, module, text):
        self.device.load(text.value.decode())
        return 0

    def cuModuleGetFunction(self, function, module, name):
        self.kernels.append(name.value.decode())
        function._obj.value = len(self.kernels)
        return 0

    def cuModuleGetGlobal_v2(self, address, size, module, name):
        address._obj.value = self.device.variable(name.value.decode())
        return 0

    def cuMemAlloc_v2(self, address, size):
        if size.value > 1 << 32:
            return 2
        address._obj.value = self.device.allocate(size.value)
        return 0

    def cuMemFree_v2(self, address):
        return 0

    def cuMemcpyHtoD_v2(self, address, data, size):
        import ctypes

        self.device.write(address.value, np.frombuffer(ctypes.string_at(data.value, size.value), np.uint8))
        return 0

    def cuMemcpyDtoH_v2(self, data, address, size):
        import ctypes

        found = self.device.read(address.value, size.value)
        ctypes.memmove(data.value, found.ctypes.data, size.value)
        return 0

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        import ctypes

        from functional.launches.launch import Dim3

        assert (extra[0], extra[2], extra[4]) == (1, 2, None)  # buffer, size, end
        block = ctypes.string_at(extra[1], ctypes.c_size_t.from_address(extra[3]).value)
        grid, threads = (Dim3(*(n.value for n in extents)) for extents in ((gx, gy, gz), (bx, by, bz)))
        self.device.launch(self.kernels[function.value - 1], grid, threads, block, shared.value)
        return 0

    def cuGetErrorString(self, status, text):
        text._obj.value = b"out of memory"
        return 0


def test_driver_calls(tmp_path):
    """What CudaDevice passes to the driver, seen from the driver's side."""
    case = loaded(tmp_path, KERNEL).launch(grid=3, block=61, args=[np.zeros(64, np.int32)])
    own = ArrayExecutor().run(case.launches[0], case.memory.copy())
    device = CudaDevice(library=FakeLibrary())
    assert equal(own, record(case, device)[0])
    assert device.variable(TABLE)
    with pytest.raises(InputError, match="refuses cuMemAlloc_v2: out of memory"):
        device.allocate(1 << 40)


@pytest.mark.parametrize("name", QUICK)
def test_on_a_gpu(name):
    """Only where there is one. Where local memory begins, and hence its lines, is the GPU's own business."""
    try:
        device = CudaDevice()
    except InputError as error:
        pytest.skip(str(error))
    case = suite.case(name)
    memory, executor = case.memory.copy(), ArrayExecutor()
    for launch, got in zip(case.launches, record(case, device), strict=True):
        own = executor.run(launch, memory)
        streams = [s for s in own.__dataclass_fields__ if s != "records" or name != "micro_local_spill"]
        assert all(np.array_equal(getattr(own, s), getattr(got, s)) for s in streams), (name, launch.label)


def test_without_a_driver_or_a_gpu_it_says_so():
    try:
        CudaDevice()
    except InputError as error:
        assert "GPU" in str(error)
    else:
        pytest.skip("there is a GPU")
