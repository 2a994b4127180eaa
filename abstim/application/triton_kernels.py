"""Triton's kernels: a driver and a compiler of ours, which stops at PTX, while something is captured.

NumPy arrays and torch's CPU tensors are arguments. What an argument lies in is copied to the device before a launch and
back after it. For a tensor descriptor that the host makes (`TensorDescriptor`) a kernel gets, where the GPU has tensor
maps, one, else the tensor's address; in both cases followed by its shape and strides."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec.structs import replace
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver as drivers
from triton.runtime.jit import JITFunction

from abstim.application.call_server import CallServer, CudaError, Shape
from abstim.application.device_memory import DeviceMemory, compute_capability, most_shared_bytes
from abstim.application.loaded_modules import LoadedModule
from abstim.gpu.config import Gpu
from functional.arrays import UInt8, UInt64
from functional.errors import InputError, refuse
from functional.launches.launch import Dim3
from functional.launches.views import ELEMENTS, SWIZZLES_BYTES, TensorMap, placed
from functional.programs.program import Program

_LOWEST = 1 << 32  # numbers below are no addresses of the host


def tensors_behind(words: Iterable[UInt64[np.ndarray, " word"]]) -> list[Any]:
    """Tensors of torch, on the CPU, that begin at one of the numbers or hold it: kernels follow addresses that lie in a
    tensor, which are the host's, to other tensors."""
    wanted = np.unique(np.concatenate([np.zeros(0, np.uint64), *(w[w >= _LOWEST] for w in words)]))
    torch = sys.modules.get("torch")
    if torch is None or not wanted.size:
        return []
    return [tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor) and _holds(tensor, wanted)]


def _holds(tensor: Any, wanted: UInt64[np.ndarray, " word"]) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not sys.modules["torch"].strided:
        return False
    storage = tensor.untyped_storage()
    first = np.searchsorted(wanted, storage.data_ptr())
    return bool(first < len(wanted) and wanted[first] < storage.data_ptr() + storage.nbytes())


def translate(words: UInt64[np.ndarray, " word"], start: int, size_bytes: int, device: int) -> Callable[[], None]:
    """Numbers that lie in `size_bytes` from host address `start` become addresses from `device` on. What is returned
    undoes that: those that the kernel has not changed are what they were."""
    places = np.flatnonzero((words >= start) & (words < start + size_bytes))
    host = words[places].copy()
    there = words[places] = host - np.uint64(start) + np.uint64(device)

    def undo() -> None:
        same = words[places] == there
        words[places[same]] = host[same]

    return undo


@dataclass
class _Range:
    start: int  # on the host
    bytes: int
    writeable: bool
    device: int = 0  # where `start` lies there
    allocation: int = 0


class HostRanges:
    """What arrays and tensors lie in, on the device for as long as the context is open. What a kernel changed is
    written back at its end, unless it ended in an error."""

    def __init__(self, memory: DeviceMemory, arguments: Iterable[Any], addresses: Iterable[Any] = ()) -> None:
        """`addresses`: those of the arguments that hold 64-bit integers, which may lead to tensors. Raises InputError
        for an argument that is no array or tensor of the CPU."""
        self._memory = memory
        self._integers = [_range_of(argument) for argument in addresses if argument is not None]
        behind = tensors_behind(_words(_on_host(part)) for part in self._integers)
        self._ranges = _merged(_range_of(a) for a in (*arguments, *behind) if a is not None)
        self._scratch: list[int] = []
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> HostRanges:
        for part in self._ranges:
            before = part.start % 16
            part.allocation = self._memory.allocate(part.bytes + before)
            part.device = part.allocation + before
            self._on_device(part)[:] = _on_host(part)
        for integers in self._integers:
            host = integers.start
            owner = next(part for part in self._ranges if part.start <= host < part.start + part.bytes)
            words = _words(self._on_device(owner)[integers.start - owner.start :][: integers.bytes])
            self._undo += [translate(words, part.start, part.bytes, part.device) for part in self._ranges]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for undo in self._undo:
                undo()
            for part in self._ranges if kind is None else ():
                host, device = _on_host(part), self._on_device(part)
                if np.array_equal(host, device):
                    continue
                refuse(not part.writeable, "a kernel wrote to an array that is read-only")
                host[:] = device
        finally:
            for address in (*(part.allocation for part in self._ranges), *self._scratch):
                self._memory.release(address)

    def address(self, argument: Any) -> int:
        """Where the first element of an array or tensor lies on the device; 0 for None."""
        if argument is None:
            return 0
        host = argument.data_ptr()
        part = next((r for r in self._ranges if r.start <= host <= r.start + r.bytes), None)
        return 0 if part is None else part.device + host - part.start

    def scratch(self, size_bytes: int) -> int:
        """Address of memory that a launch has for itself; 0 for none."""
        if not size_bytes:
            return 0
        self._scratch.append(self._memory.allocate(size_bytes))
        return self._scratch[-1]

    def _on_device(self, part: _Range) -> UInt8[np.ndarray, " byte"]:
        region = self._memory.region_at(part.allocation)
        assert region is not None
        return self._memory.memory.bytes_of(region)[part.device - part.allocation :][: part.bytes]


def _words(data: UInt8[np.ndarray, " byte"]) -> UInt64[np.ndarray, " word"]:
    return data[: len(data) // 8 * 8].view(np.uint64)


def _on_host(part: _Range) -> UInt8[np.ndarray, " byte"]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * part.bytes).from_address(part.start))


def _range_of(argument: Any) -> _Range:
    """All of what an array or tensor is a view of. Raises InputError."""
    array = getattr(argument, "array", None)
    if isinstance(array, np.ndarray):
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        first, after = np.lib.array_utils.byte_bounds(owner)
        return _Range(first, after - first, array.flags.writeable)
    if not hasattr(argument, "untyped_storage"):
        kind = type(argument).__name__
        raise InputError(f"an argument of type {kind} is neither a NumPy array nor a tensor of torch")
    if argument.device.type != "cpu":
        raise InputError(f"a tensor lies on '{argument.device}': abstim.capture takes those of the CPU")
    storage = argument.untyped_storage()
    return _Range(storage.data_ptr(), storage.nbytes(), True)


def _merged(ranges: Iterable[_Range]) -> list[_Range]:
    """Ranges that share bytes as one; none that is empty."""
    found: list[_Range] = []
    for part in sorted((r for r in ranges if r.bytes), key=lambda r: r.start):
        last = found[-1] if found else None
        if last is None or part.start >= last.start + last.bytes:
            found.append(part)
        else:
            last.bytes = max(last.start + last.bytes, part.start + part.bytes) - last.start
            last.writeable = last.writeable or part.writeable
    return found


TENSOR_MAP = "tensor map"  # beside Triton's own names of types


@dataclass(frozen=True)
class MappedTensor:
    """A tensor of the host, and its map, whose address counts from the tensor's first element."""

    tensor: Any
    map: TensorMap


def expanded(type_: str, descriptor: Any, about: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """Types and values of the parameters. `about`: what the compiler chose of the map; None where there is none. Raises
    InputError for elements that are not there."""
    if about is None:
        yield "*" + type_.partition("<")[2].partition("[")[0], descriptor.base
        yield from _sizes(descriptor, "i64")
        yield "i1", descriptor.padding == "nan"
        yield "i1", descriptor.round_f32_to_tf32
    else:
        yield TENSOR_MAP, MappedTensor(descriptor.base, _tensor_map(descriptor, about))
    yield from _sizes(descriptor, "i32")


def _sizes(descriptor: Any, shape_type: str) -> Iterator[tuple[str, int]]:
    yield from ((shape_type, extent) for extent in descriptor.shape)
    yield from (("i64", stride) for stride in descriptor.strides)


def _tensor_map(descriptor: Any, about: Mapping[str, Any]) -> TensorMap:
    """Triton's axes go from the outermost in, a map's from the innermost out."""
    number, swizzle = about["elem_type"], about["swizzle"]
    if number >= len(ELEMENTS) or swizzle >= len(SWIZZLES_BYTES):
        raise InputError(f"a tensor descriptor of element type {number}, swizzle {swizzle} is not supported")
    inner, *outer = _inwards(descriptor.shape)
    tiles = TensorMap(
        "tf32" if descriptor.round_f32_to_tf32 else ELEMENTS[number],
        (inner * (2 if about["fp4_padded"] else 1), *outer),  # two in a byte of the tensor
        tuple(stride * about["elem_size"] for stride in _inwards(descriptor.strides)[1:]),
        _inwards(about["block_size"]),
        swizzle_bytes=SWIZZLES_BYTES[swizzle],
        fill_nan=descriptor.padding == "nan",
    )
    if not about.get("is_im2col"):
        return tiles
    channels, pixels = tiles.box
    lower, upper = map(_inwards, (descriptor.pixel_box_lower_corner, descriptor.pixel_box_upper_corner))
    box, steps = (channels, *[1] * (len(tiles.size) - 1)), _inwards(descriptor.element_strides or ())
    return replace(tiles, box=box, pixels=pixels, steps=steps, lower=lower, upper=upper)


def _inwards(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in reversed(values))


Trial = Callable[[Callable[[], object]], float]  # seconds of what something launches

# Types of Triton's signatures, as NumPy has them; pointers begin with a star
_NUMBERS = {f"{kind}{8 * size}": f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}
_NUMBERS |= {"i1": "<i1", "u1": "<u1", "fp16": "<f2", "fp32": "<f4", "f32": "<f4", "fp64": "<f8"}
_DEVICES = itertools.count(1)  # Triton keeps what it compiled by device: each capture is one


@dataclass(frozen=True)
class HostArray:
    """A NumPy array in the form in which Triton takes tensors."""

    array: np.ndarray

    @property
    def dtype(self) -> str:
        """The element type's name, as torch's ends."""
        return str(self.array.dtype)

    def data_ptr(self) -> int:
        """Host address of the first element."""
        return int(self.array.ctypes.data)


def _wrapped(argument: Any) -> Any:
    return HostArray(argument) if isinstance(argument, np.ndarray) else argument


class Launcher:
    """What Triton calls to launch a kernel that it has compiled."""

    def __init__(self, server: CallServer, source: Any, metadata: Any) -> None:
        self._server, self._metadata = server, metadata
        self._signature = list(source.signature.values())
        self._cluster = Dim3(getattr(metadata, "num_ctas", 1))
        self._descriptors = list(getattr(metadata, "tensordesc_meta", None) or ())

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: tuple[LoadedModule, Program], packed: Any, about: Any,
        enter: Callable[[Any], None] | None, leave: Callable[[Any], None] | None, *arguments: Any,
    ) -> None:  # fmt: skip
        """Launch, unless the grid is empty. Raises InputError for what cannot be executed, and what faults."""
        if not x * y * z:
            return
        if enter is not None:
            enter(about)
        self._launch(Dim3(x * self._cluster.x, y, z), function, arguments)
        if leave is not None:
            leave(about)

    def _launch(self, grid: Dim3, function: tuple[LoadedModule, Program], arguments: Sequence[Any]) -> None:
        loaded, program = function
        server, metadata = self._server, self._metadata
        descriptors = iter(self._descriptors) if self._descriptors else itertools.repeat(None)
        pairs = list(_flat(self._signature, arguments, descriptors))
        pointers = [value for type_, value in pairs if type_.startswith("*")]
        pointers += [value.tensor for type_, value in pairs if type_ == TENSOR_MAP]
        integers = [value for type_, value in pairs if type_.lstrip("*k") in ("i64", "u64") and type_.startswith("*")]
        with HostRanges(server.memory, pointers, integers) as ranges:
            values = [_number(type_, value, ranges, program.name) for type_, value in pairs]
            sizes = [getattr(metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile")]
            values += [np.uint64(ranges.scratch(grid.total * size)) for size in sizes]
            cluster = self._cluster if self._cluster.x > 1 else None
            cooperative = bool(getattr(metadata, "launch_cooperative_grid", False))
            shape = Shape(grid, Dim3(32 * metadata.num_warps), metadata.shared, cluster, cooperative)
            try:
                said = server.execute(loaded, program, shape, _block(program, values), 0)
            except CudaError as error:
                raise InputError(f"kernel '{program.name}': a GPU refuses this launch: {error}") from None
        if said:
            print(said, end="")


def _flat(types: Sequence[Any], values: Sequence[Any], descriptors: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    """Types and values, tuples and tensor descriptors taken apart, without what is known when the kernel is compiled.
    `descriptors`: what the compiler says of each."""
    for type_, value in zip(types, values, strict=True):
        if isinstance(type_, tuple):
            yield from _flat(type_, value, descriptors)
        elif type_.startswith("tensordesc"):
            yield from expanded(type_, value, next(descriptors))
        elif type_ != "constexpr":
            yield type_, value


def _number(type_: str, value: Any, ranges: HostRanges, kernel: str) -> np.generic | np.ndarray:
    if type_ == TENSOR_MAP:
        return np.frombuffer(placed(value.map, ranges.address(value.tensor)).encode(), np.uint8)
    if type_.startswith("*"):
        return np.uint64(ranges.address(value))
    if type_ == "bf16":
        return np.uint16(np.float32(value).view(np.uint32) >> 16)
    refuse(type_ not in _NUMBERS, f"Triton kernel '{kernel}': an argument of type {type_} is not there")
    return np.dtype(_NUMBERS[type_]).type(value)


def _block(program: Program, values: Sequence[np.generic | np.ndarray]) -> bytes:
    """The parameter block. Raises InputError if the kernel has other parameters than Triton says."""
    if [p.bytes for p in program.parameters] != [v.nbytes for v in values][: len(program.parameters)]:
        raise InputError(f"kernel '{program.name}': its parameters are not those that Triton passes")
    block = bytearray(max((p.offset + p.bytes for p in program.parameters), default=0))
    for parameter, value in zip(program.parameters, values, strict=False):
        block[parameter.offset : parameter.offset + parameter.bytes] = value.tobytes()
    return bytes(block)


class _Driver(DriverBase):
    """Triton's view of the GPU."""

    def __init__(self, server: CallServer, gpu: Gpu, trial: Trial) -> None:
        self._server, self._gpu, self._trial, self._number = server, gpu, trial, next(_DEVICES)
        self.launcher_cls = lambda source, metadata: Launcher(server, source, metadata)
        self.utils = SimpleNamespace(load_binary=self._load, get_device_properties=self._properties)
        self.utils.unload_module = lambda module: None

    @classmethod
    def is_active(cls) -> bool:
        return False

    def get_current_target(self) -> GPUTarget:
        """The first GPU; one that names no architecture has 8.0."""
        major, minor = compute_capability(self._gpu, 80)
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_device(self) -> int:
        return self._number

    def set_current_device(self, device: int) -> None:
        """There is one."""

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return compute_capability(self._gpu, 80)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., list[float] | float]:
        """How `triton.autotune` finds the fastest: by simulated times, which do not vary."""

        def found(call: Callable[[], object], *, quantiles: Sequence[float] | None = None, **_: Any) -> Any:
            milliseconds = 1e3 * self._trial(call)  # as often as quantiles are asked for
            return milliseconds if quantiles is None else [milliseconds] * len(quantiles)

        return found

    def map_python_to_cpp_type(self, ty: str) -> str:
        from triton.backends.nvidia.driver import ty_to_cpp

        return str(ty_to_cpp(ty))

    def _load(self, name: str, ptx: bytes, shared_bytes: int, device: int) -> tuple[Any, ...]:
        """Module, function, registers a thread, spills, and the most threads of a block."""
        server = self._server
        loaded = server.modules[server.modules.load(False, bytes(ptx))]
        program = loaded.program(name)
        return loaded, (loaded, program), server.case.registers_of(program).count, 0, 1024

    def _properties(self, device: int) -> dict[str, int]:
        gpu = self._gpu
        clock_khz = round(gpu.spec.core_clock_hz / 1000)
        found = {"max_shared_mem": most_shared_bytes(gpu), "max_num_regs": gpu.spec.registers_per_sm, "warpSize": 32}
        found |= {"multiprocessor_count": gpu.spec.sm_count, "sm_clock_rate": clock_khz, "mem_clock_rate": clock_khz}
        return found | {"mem_bus_width": 64 * gpu.spec.dram_channels}


def _ptx_compiler(compiler: type) -> type:
    """Triton's compiler for NVIDIA's GPUs, without its last step."""

    class PtxCompiler(compiler):  # type: ignore[misc, valid-type]
        def __init__(self, target: GPUTarget) -> None:
            super().__init__(target)
            self.binary_ext = "ptx"

        def add_stages(self, stages: dict[str, Any], *others: Any) -> None:
            super().add_stages(stages, *others)
            del stages["cubin"]

        def hash(self) -> str:
            return f"abstim-{super().hash()}"

    return PtxCompiler


@contextmanager
def attached(server: CallServer, gpu: Gpu, trial: Trial) -> Iterator[None]:
    """Triton's kernels are compiled for a GPU and go to a server; `trial` times what only tries a configuration."""
    original, before, run = backends["nvidia"], drivers._active, JITFunction.run

    def run_on_arrays(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        held = {name: _wrapped(value) for name, value in named.items()}
        return run(self, *(_wrapped(a) for a in arguments), grid=grid, warmup=warmup, **held)

    backends["nvidia"] = type(original)(compiler=_ptx_compiler(original.compiler), driver=original.driver)
    JITFunction.run = run_on_arrays
    drivers.set_active(_Driver(server, gpu, trial))
    try:
        yield
    finally:
        JITFunction.run = run
        drivers._active = before
        backends["nvidia"] = original
