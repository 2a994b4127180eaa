"""Triton's kernels: a driver and a compiler of ours, which stops at PTX, while something is captured.

NumPy arrays and torch's CPU tensors are arguments. What an argument lies in is copied to the device before a launch and
back after it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver as drivers
from triton.runtime.jit import JITFunction

from abstim.application.call_server import CallServer, CudaError, Shape
from abstim.application.device_memory import HostRanges, compute_capability, memory_clock_and_width, most_shared_bytes
from abstim.application.loaded_modules import LoadedModule
from abstim.application.triton_descriptors import TENSOR_MAP, expanded
from abstim.gpu.config import Gpu
from functional.errors import InputError, refuse
from functional.launches.launch import Dim3
from functional.launches.views import placed
from functional.programs.program import Program

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
            scratch = [ranges.scratch(grid.total * size) for size in sizes]
            values += [np.uint64(address) for address in scratch]
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
        clock_khz, (memory_khz, bits) = round(gpu.spec.core_clock_hz / 1000), memory_clock_and_width(gpu)
        found = {"max_shared_mem": most_shared_bytes(gpu), "max_num_regs": gpu.spec.registers_per_sm, "warpSize": 32}
        found |= {"multiprocessor_count": gpu.spec.sm_count, "sm_clock_rate": clock_khz, "mem_clock_rate": memory_khz}
        return found | {"mem_bus_width": bits}


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
