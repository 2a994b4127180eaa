"""Answers what a program's CUDA calls ask: one method a message of the protocol, of the server or of its clock.

The messages are one table, from which both sides are made. One is a head of two 32-bit numbers (which message, bytes of
payload), its fields, each of 64 bits, and the payload. A reply, to messages that have one, is a head (error of CUDA's,
bytes of payload), fields and payload."""

import struct
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import BinaryIO

import numpy as np

from abstim.application.device_memory import (
    USUAL_SHARED_BYTES,
    DeviceMemory,
    compute_capability,
    described,
    most_shared_bytes,
)
from abstim.application.launch_recorder import LaunchRecorder
from abstim.application.loaded_modules import LoadedModule, LoadedModules, ProgramCase
from abstim.application.stream_clock import StreamClock
from abstim.gpu.occupancy import occupancy
from functional.errors import BudgetSpent, ExecutionError, InputError, PtxError, note, refuse
from functional.execution.device_launches import DeviceLaunches
from functional.files import toml_beside
from functional.launches.launch import Dim3, Launch, check_shape, cuda_shape, open_regions, static_bytes
from functional.launches.views import Texture, driver_map
from functional.programs.link import LAUNCH_FUNCTIONS, calls_any
from functional.programs.program import Program

HEAD = struct.Struct("<II")


@dataclass(frozen=True)
class Message:
    """`request` and `reply`: names of the fields; None for what is only told. `payload`: what else it holds."""

    name: str
    request: tuple[str, ...]
    reply: tuple[str, ...] | None
    payload: str = ""

    @property
    def takes_payload(self) -> bool:
        """Does a request have one?"""
        return bool(self.payload.partition("reply:")[0])

    @cached_property
    def request_layout(self) -> struct.Struct:
        """Of the fields, each of 64 bits."""
        return struct.Struct(f"<{len(self.request)}Q")

    @cached_property
    def reply_layout(self) -> struct.Struct:
        """The same of a reply."""
        return struct.Struct(f"<{len(self.reply or ())}Q")


def _read(name: str, said: dict[str, str]) -> Message:
    reply = tuple(said["reply"].split()) if "reply" in said else None
    return Message(name, tuple(said.get("request", "").split()), reply, said.get("payload", ""))


MESSAGES = tuple(_read(name, said) for name, said in toml_beside(__file__, "messages.toml").items())


def header() -> str:
    """The table as a C header."""
    lines = ["// Made by abstim/application/call_server.py", "#pragma once", "#include <stdint.h>"]
    for number, message in enumerate(MESSAGES):
        lines += ["", f"enum {{ MESSAGE_{message.name.upper()} = {number} }};  // {message.payload}".rstrip("/ ")]
        lines += [_struct(f"{message.name}_request", message.request)]
        if message.reply is not None:
            lines += [_struct(f"{message.name}_reply", message.reply)]
    return "\n".join(lines) + "\n"


def _struct(name: str, fields: Sequence[str]) -> str:
    return f"struct {name} {{ " + "".join(f"uint64_t {name}; " for name in fields) + "};"


@dataclass(frozen=True)
class Request:
    """A message that has come."""

    message: Message
    values: dict[str, int]
    payload: bytes


def receive(stream: BinaryIO) -> Request | None:
    """The next message; None once the other side has closed. Raises InputError for what is none."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    number, payload_bytes = HEAD.unpack(head)
    refuse(number >= len(MESSAGES), "the program wrote to the socket that its CUDA calls go through; it cannot run")
    message = MESSAGES[number]
    values = stream.read(message.request_layout.size)
    payload = stream.read(payload_bytes) if payload_bytes else b""
    if len(values) + len(payload) < message.request_layout.size + payload_bytes:
        return None
    return Request(message, dict(zip(message.request, message.request_layout.unpack(values), strict=True)), payload)


def reply(message: Message, error: int = 0, values: Sequence[int] = (), payload: bytes = b"") -> bytes:
    """The bytes of a reply; without values, those are 0."""
    found = values or (0,) * len(message.reply or ())
    return HEAD.pack(error, len(payload)) + message.reply_layout.pack(*found) + payload


# Numbers of CUDA's errors
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION, INVALID_FUNCTION, NO_BINARY, INVALID_PTX = 1, 2, 9, 98, 209, 218
NOT_FOUND, ILLEGAL_ADDRESS, OUT_OF_RESOURCES, LAUNCH_TIMEOUT, LAUNCH_FAILURE = 500, 700, 701, 702, 719
ASSERTED, MISALIGNED, COOPERATIVE_TOO_LARGE, NOT_SUPPORTED = 710, 716, 720, 801
_FAULTS = {"assertion": ASSERTED, "misaligned": MISALIGNED, "out of bounds": ILLEGAL_ADDRESS}  # by words of the message
_WORKSPACE_BYTES = 8
_KINDS = {0: "s", 1: "u", 2: "f"}
_MODES = ("wrap", "clamp", "mirror", "border")
_FROM_HOST = {  # by cudaMemoryType, of memory that is timed as the device's own
    1: "a kernel is given pinned memory of the host: it is timed as the device's, a GPU reads it over the link",
    3: "a kernel is given managed memory: it is timed as the device's, a GPU fetches what was not there over the link",
}


Answer = int | bytes | tuple[int | bytes, ...]  # of a reply: its fields, and what else it holds


class CudaError(Exception):
    """An answer with an error. `why`: said to the user, once, where it is abstim that cannot; "": the program's own."""

    def __init__(self, number: int, why: str = "", lasting: bool = False) -> None:
        super().__init__(why or f"CUDA error {number}")
        self.number, self.why, self.lasting = number, why, lasting


@dataclass(frozen=True)
class Shape:
    """Of a launch. `cluster`: None for that of the kernel itself."""

    grid: Dim3
    block: Dim3
    dynamic_shared_bytes: int = 0
    cluster: Dim3 | None = None
    cooperative: bool = False
    programmatic: bool = False  # launched while the kernel before it on its stream runs


@dataclass
class CallServer:
    """State of the device that a program sees. `problems`: what abstim could not do, in the order it was met."""

    memory: DeviceMemory
    modules: LoadedModules
    clock: StreamClock
    case: ProgramCase
    recorder: LaunchRecorder
    problems: dict[str, int] = field(default_factory=dict)  # -> how often
    allowed: set[tuple[str, str, Shape]] = field(default_factory=set)  # launches on this GPU; module's digest, kernel
    _workspace: int = 0
    _from_host: dict[int, int] = field(default_factory=dict)  # address of an allocation -> a key of _FROM_HOST
    _told: set[int] = field(default_factory=set)
    _may_share: dict[int, int] = field(default_factory=dict)  # function -> dynamic shared bytes that the program let it
    _functions: list[tuple[LoadedModule, Program]] = field(default_factory=list)

    def serve(self, requests: BinaryIO, replies: BinaryIO) -> None:
        """Answer until the program ends."""
        while (request := receive(requests)) is not None:
            answer = self.answer(request)
            if request.message.reply is not None:
                replies.write(answer)
                replies.flush()

    def answer(self, request: Request) -> bytes:
        """The reply to one message (nothing is sent where it has none)."""
        name, payload = request.message.name, [request.payload] if request.message.takes_payload else []
        act: Callable[..., Answer | None] = getattr(self, f"_{name}", None) or getattr(self.clock, name)
        try:
            found = act(*request.values.values(), *payload)
        except CudaError as error:
            if error.why:
                self.problem(error.why)
            return reply(request.message, error.number, (int(error.lasting),) if name == "launch" else ())
        except InputError as error:
            self.problem(str(error))
            return reply(request.message, NOT_SUPPORTED)
        parts = found if isinstance(found, tuple) else () if found is None else (found,)
        data = b"".join(part for part in parts if isinstance(part, bytes))
        return reply(request.message, 0, [part for part in parts if isinstance(part, int)], data)

    def problem(self, what: str) -> None:
        """Say what cannot be done; once."""
        if what not in self.problems:
            note(f"abstim: {what}")
        self.problems[what] = self.problems.get(what, 0) + 1

    # -- the device
    def _hello(self, process: int) -> Answer:
        self.clock.new_process()
        return self.memory.start, self.memory.bytes

    def _device(self) -> Answer:
        return self.memory.global_bytes, described(self.clock.gpu, self.modules.architecture)

    def _usage(self) -> Answer:
        free_bytes = self.memory.global_bytes - sum(region.bytes for region in self.memory.memory.regions)
        return free_bytes, self.memory.global_bytes

    def _missing(self, payload: bytes) -> None:
        self.problem(f"the program calls {payload.decode(errors='replace')}, which is not there")

    # -- modules
    def _module(self, kind: int, payload: bytes) -> Answer:
        return self.modules.load(kind == 0, payload)

    def _part(self, module: int, part: int) -> None:
        self.modules.join(module, part)

    def _parse(self, module: int) -> None:
        try:
            self.modules[module].module  # noqa: B018  parsed on first use
        except PtxError as error:
            raise CudaError(INVALID_PTX, f"the PTX of a module: {error}") from None
        except InputError as error:
            raise CudaError(NO_BINARY, str(error)) from None

    def _function(self, module: int, payload: bytes) -> Answer:
        loaded, name = self.modules[module], payload.decode(errors="replace")
        try:
            self._look_up(loaded, name, loaded.module.kernels)
            program = loaded.program(name)
            loaded.memory(self.memory)
        except InputError as error:
            number = INVALID_PTX if isinstance(error, PtxError) else NOT_FOUND
            raise CudaError(number, f"kernel '{name}': {error}") from None
        self._functions.append((loaded, program))
        return len(self._functions), b"".join(struct.pack("<II", p.offset, p.bytes) for p in program.parameters)

    def _variable(self, module: int, payload: bytes) -> Answer:
        loaded, name = self.modules[module], payload.decode(errors="replace")
        self._look_up(loaded, name, [variable.name for variable in loaded.module.variables])
        return loaded.variable(name, self.memory)

    @staticmethod
    def _look_up(loaded: LoadedModule, name: str, names: Container[str]) -> None:
        """Raises CudaError for a name that is not in a module of PTX alone: a program may ask whether it is."""
        if not loaded.machine_code and name not in names:
            raise CudaError(NOT_FOUND)

    def _program(self, function: int) -> tuple[LoadedModule, Program]:
        if not 1 <= function <= len(self._functions):
            raise CudaError(INVALID_FUNCTION)
        return self._functions[function - 1]

    def _attributes(self, function: int) -> Answer:
        loaded, program = self._program(function)
        registers = self.case.registers_of(program).count
        major, minor = compute_capability(self.clock.gpu, self.modules.architecture)
        threads = min(1024, self.clock.gpu.spec.registers_per_sm // max(1, registers) // 32 * 32)
        if "maxntid" in program.directives:
            x, y, z = (*program.directives["maxntid"], 1, 1)[:3]
            threads = min(threads, x * y * z)
        constants = len(loaded.memory(self.memory).const_arena)
        sizes = (static_bytes(program, "shared"), constants, static_bytes(program, "local"))
        return *sizes, threads, registers, loaded.architecture or 80, 10 * major + minor, self._dynamic_limit(function)

    def _let_share(self, function: int, bytes: int) -> None:
        _, program = self._program(function)
        if static_bytes(program, "shared") + bytes > most_shared_bytes(self.clock.gpu):
            raise CudaError(INVALID_VALUE)
        self._may_share[function] = bytes

    def _dynamic_limit(self, function: int) -> int:
        """Dynamic shared memory that a launch may ask for, bytes: what the program let it, else what 48 KiB leave."""
        static = static_bytes(self._program(function)[1], "shared")
        return max(self._may_share.get(function, 0), USUAL_SHARED_BYTES - static)

    def _occupancy(self, function: int, threads: int, shared_bytes: int) -> Answer:
        return self._blocks_per_sm(self._program(function)[1], threads, shared_bytes)

    def _blocks_per_sm(self, program: Program, threads: int, dynamic_shared_bytes: int) -> int:
        """0 for a thread block that no SM can hold."""
        spec = self.clock.gpu.spec
        shared = static_bytes(program, "shared") + dynamic_shared_bytes
        try:
            many = (spec.sm_count * spec.max_blocks_per_sm, 1, 1)
            registers = self.case.registers_of(program).count
            return occupancy(spec, many, (max(1, threads), 1, 1), registers, shared).blocks_per_sm
        except InputError:
            return 0

    # -- memory
    def _allocate(self, bytes: int, kind: int) -> Answer:
        try:
            address = self.memory.allocate(bytes)
        except InputError:
            raise CudaError(OUT_OF_MEMORY, f"device memory of {self.memory.global_bytes >> 30} GiB is full") from None
        if kind in _FROM_HOST:
            self._from_host[address] = kind
        return address

    def _inside(self, address: int, bytes: int) -> None:
        if not self.memory.holds(address, bytes):
            raise CudaError(INVALID_VALUE)

    def _release(self, address: int) -> None:
        if not self.memory.release(address):
            raise CudaError(INVALID_VALUE)
        self._from_host.pop(address, None)

    def _texture(
        self, address: int, width: int, height: int, depth: int, pitch: int, bits: int, kind: int, channels: int,
        linear: int, normalized: int, as_float: int, modes: int, border: int,
    ) -> Answer:  # fmt: skip
        region = self.memory.region_at(address)
        if region is None or kind not in _KINDS:
            raise CudaError(INVALID_VALUE)
        size = tuple(extent for extent in (width, height, depth) if extent)
        used = [_MODES[modes >> 8 * axis & 3] for axis in range(len(size))]
        if len(set(used)) > 1 or (border and used[0] == "border"):
            raise CudaError(NOT_SUPPORTED, "a texture whose axes have different address modes, or with a border colour")
        mode = used[0] if normalized or used[0] in ("clamp", "border") else "clamp"
        type_, at = f"{_KINDS[kind]}{bits}", address - region.address
        interpolates, unit, floats = (bool(n) for n in (linear, normalized, as_float))  # cudaReadModeNormalizedFloat: 1
        texture = Texture(region.name, size, type_, channels, interpolates, mode, unit, floats, at, pitch)
        texture.check("the program's texture", region.bytes)
        return self.memory.memory.texture_handle(texture)

    def _elapsed(self, start: int, end: int) -> Answer:
        return self.clock.elapsed(start, end) % (1 << 64)

    def _tensor_map(
        self, element: int, address: int, interleave: int, swizzle: int, fill_nan: int, pixels: int, payload: bytes
    ) -> Answer:
        """`pixels`: 0 for a map of tiles."""
        axes = [tuple(values) for values in np.frombuffer(payload, "<i8").reshape(-1, 6).T.tolist()]
        made = driver_map(element, address, interleave, swizzle, bool(fill_nan), pixels, axes)
        try:
            return made.encode()
        except InputError as error:
            raise CudaError(INVALID_VALUE, str(error)) from None

    # -- launches
    def _launch(
        self, function: int, grid_x: int, grid_y: int, grid_z: int, block_x: int, block_y: int, block_z: int,
        shared_bytes: int, stream: int, cooperative: int, cluster_x: int, cluster_y: int, cluster_z: int,
        programmatic: int, payload: bytes,
    ) -> Answer:  # fmt: skip
        loaded, program = self._program(function)
        if shared_bytes > self._dynamic_limit(function):
            raise CudaError(INVALID_VALUE)
        cluster = Dim3(cluster_x, cluster_y, cluster_z) if cluster_x else None
        given = Dim3(grid_x, grid_y, grid_z), Dim3(block_x, block_y, block_z)
        extents = cuda_shape(program, *given, shared_bytes)
        shape = Shape(*extents, shared_bytes, cluster, cooperative=bool(cooperative), programmatic=bool(programmatic))
        self._tell_what_is_from_host(payload)
        try:
            text = self.execute(loaded, program, shape, payload, stream)
        except PtxError as error:
            raise CudaError(NOT_SUPPORTED, f"kernel '{program.name}' is not executed: {error}") from None
        except BudgetSpent as error:
            raise CudaError(LAUNCH_TIMEOUT, str(error), lasting=True) from None
        except ExecutionError as error:
            note(f"abstim: {error}")
            number = next((number for words, number in _FAULTS.items() if words in str(error)), LAUNCH_FAILURE)
            raise CudaError(number, lasting=True) from None
        return 0, text.encode()

    def _tell_what_is_from_host(self, parameters: bytes) -> None:
        """Once of each kind that a kernel is given: nothing else says that its way to the device takes no time."""
        if self._told.issuperset(self._from_host.values()):
            return
        for (word,) in struct.iter_unpack("<Q", parameters[: len(parameters) // 8 * 8]):
            region = self.memory.region_at(word)
            kind = self._from_host.get(region.address, 0) if region else 0
            if kind and kind not in self._told:
                self._told.add(kind)
                note(f"abstim: {_FROM_HOST[kind]}")

    def execute(self, loaded: LoadedModule, program: Program, shape: Shape, parameters: bytes, stream: int) -> str:
        """Launch a kernel, and then what it launches itself, each grid when the one before has ended with all of its
        own. Returns what was printed. Raises CudaError for what a GPU would refuse, and what the executor raises."""
        self._check(program, shape)
        workspace = self._grid_workspace() if shape.cooperative else 0
        open_regions(program, self.memory.memory)
        memory, dynamic = loaded.memory(self.memory), shape.dynamic_shared_bytes
        launch = Launch(program, shape.grid, shape.block, parameters, dynamic, "", (), workspace, shape.cluster)
        timed = self.recorder.launch(launch, memory, self.clock.may_overlap or shape.programmatic)
        self.clock.kernel(stream, *timed, shape.programmatic)
        text = memory.printed.text()
        for child in DeviceLaunches(loaded.memory(self.memory)).take() if calls_any(program, LAUNCH_FUNCTIONS) else ():
            kernel = loaded.program_at(child.kernel)
            if (given := len(child.parameters)) < max((p.offset + p.bytes for p in kernel.parameters), default=0):
                raise ExecutionError(f"a kernel launches '{kernel.name}' with {given} bytes of parameters: too few")
            extents = cuda_shape(kernel, Dim3(*child.grid), Dim3(*child.block), child.dynamic_shared_bytes)
            text += self.execute(loaded, kernel, Shape(*extents, child.dynamic_shared_bytes), child.parameters, stream)
        return text

    def _grid_workspace(self) -> int:
        """Where the blocks of a cooperative launch count who has come: two words, the first of them its size."""
        if not self._workspace:
            self._workspace = self.memory.allocate(_WORKSPACE_BYTES)
        region = self.memory.region_at(self._workspace)
        assert region is not None
        self.memory.memory.bytes_of(region)[:] = np.array([_WORKSPACE_BYTES, 0], np.uint32).view(np.uint8)
        return self._workspace

    def _check(self, program: Program, shape: Shape) -> None:
        """What a GPU would refuse. Raises CudaError."""
        if (program.digest, program.name, shape) in self.allowed:
            return
        try:
            check_shape(program, shape.grid, shape.block, shape.dynamic_shared_bytes, shape.cluster)
        except InputError as error:
            note(f"abstim: {error}")  # the program's own mistake, as a GPU would find
            raise CudaError(INVALID_CONFIGURATION) from None
        if static_bytes(program, "shared") + shape.dynamic_shared_bytes > most_shared_bytes(self.clock.gpu):
            raise CudaError(INVALID_VALUE)
        held = self._blocks_per_sm(program, shape.block.total, shape.dynamic_shared_bytes)
        if not held:
            raise CudaError(OUT_OF_RESOURCES)
        if shape.cooperative and shape.grid.total > held * self.clock.gpu.spec.sm_count:
            raise CudaError(COOPERATIVE_TOO_LARGE)
        self.allowed.add((program.digest, program.name, shape))
