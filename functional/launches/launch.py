"""A launch: a program on a grid of thread blocks, with its parameters; which launches wait for which others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from functional.arrays import Int64
from functional.errors import InputError, refuse
from functional.launches.memory import DTYPES, HEAP, LAUNCHES, Memory
from functional.launches.views import TensorMap, Texture, placed
from functional.programs.link import HEAP_FUNCTIONS, LAUNCH_FUNCTIONS, calls_any
from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES, Parameter

ThreadBlocks: TypeAlias = 'Sequence[int] | Int64[np.ndarray, " tb"]'  # linear ids, x fastest
WARP_THREADS = 32
_MAX_THREADS = 1024  # a block, every compute capability since 2.0
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_MAX_WARPS = 1 << 27  # a launch: what is kept of each takes some 50 bytes
_MAX_LOCAL_BYTES = 512 << 10  # a thread, every compute capability
_COUNTS_CLUSTERS = "blocksareclusters"
_MAX_CLUSTER = 16  # thread blocks, where a kernel asks for more than the 8 that all GPUs with clusters have
_MAX_SHARED_BYTES = 1 << 24  # addressable; what a GPU really has is checked by the occupancy limits


class Dim3(NamedTuple):
    """Extents in x, y and z."""

    x: int
    y: int = 1
    z: int = 1

    @classmethod
    def of(cls, value: int | Sequence[int], what: str = "size") -> Dim3:
        """1, 2 or 3 integers, or a single one. Raises InputError for anything else."""
        values = list(value) if hasattr(value, "__iter__") else [value]
        if not 1 <= len(values) <= 3 or not all(isinstance(v, (int, np.integer)) for v in values):
            raise InputError(f"{what} {value!r} is not one to three integers")
        return cls(*(int(v) for v in values))

    @property
    def total(self) -> int:
        """Product of the extents."""
        return prod(self)

    def __str__(self) -> str:
        return f"{self.x}x{self.y}x{self.z}"


class Pointer(msgspec.Struct, frozen=True):
    """An argument that points `offset` bytes into a buffer."""

    buffer: str
    offset: int = 0


class Scalar(msgspec.Struct, frozen=True):
    """An argument of a stated type (`i32`, `u32`, `f32`, `i64`, `u64`, `f64`, ... or a PTX type)."""

    type: str
    value: int | float


class Struct(msgspec.Struct, frozen=True):
    """A structure passed by value: its members one after the other, each aligned as C aligns it."""

    members: tuple[Argument, ...]


# bytes: a structure, laid out already
Argument = Pointer | Scalar | Texture | TensorMap | Struct | int | float | bytes | np.generic


@dataclass(frozen=True)
class Order:
    """When a launch may begin: `after` launches before it, by number (events, a graph's edges), and the one before it
    on its stream; a `programmatic` one is launched while that runs. Of several the lowest priority begins."""

    stream: str = ""
    after: tuple[int, ...] = ()
    priority: int = 0
    programmatic: bool = False


@dataclass(frozen=True)
class Launch:
    """One kernel launch. Checked when made: see `check_shape` and `pack_parameters`."""

    program: Program
    grid: Dim3
    block: Dim3
    parameters: bytes  # the parameter block, in PTX layout
    dynamic_shared_bytes: int = 0
    label: str = ""
    arguments: tuple[Argument, ...] = field(default=(), repr=False)
    # Of a cooperative launch, whose thread blocks may wait for each other: the address where they count who has come
    grid_workspace: int = 0
    requested_cluster: Dim3 | None = None
    order: Order = Order()

    def __repr__(self) -> str:
        grid, block = ("x".join(map(str, extents)) for extents in (self.grid, self.block))
        return f"<launch of {self.program.name}, grid {grid}, block {block}>"

    @cached_property
    def cluster(self) -> Dim3:
        """Thread blocks of a cluster along each axis: what was asked for, else what the kernel says."""
        return self.requested_cluster or _own_cluster(self.program)

    @property
    def asks_for_cluster(self) -> bool:
        """Does it, or its kernel, say how many thread blocks there are in a cluster?"""
        return self.requested_cluster is not None or "reqnctapercluster" in self.program.directives

    @property
    def threads_per_block(self) -> int:
        """Threads of a thread block."""
        return self.block.total

    @property
    def warps_per_block(self) -> int:
        """Warps of a thread block, the last of which may not be full."""
        return -(-self.block.total // WARP_THREADS)

    @cached_property
    def thread_blocks(self) -> int:
        """Thread blocks of the grid."""
        return self.grid.total

    @cached_property
    def shared_bytes(self) -> int:
        """Shared memory of a thread block, static and dynamic."""
        return static_bytes(self.program, "shared") + self.dynamic_shared_bytes


def places(
    launch: Launch, thread_blocks: Int64[np.ndarray, " block"]
) -> tuple[Int64[np.ndarray, " block"], Int64[np.ndarray, " block"]]:
    """(the linear number of its cluster in the grid, its rank in it) of each thread block."""
    number, rank = np.zeros_like(thread_blocks), np.zeros_like(thread_blocks)
    left, before, below = thread_blocks, 1, 1
    for extent, own in zip(launch.grid, launch.cluster, strict=True):
        along, left = left % extent, left // extent
        number, before = number + along // own * before, before * (extent // own)
        rank, below = rank + along % own * below, below * own
    return number, rank


def checked_blocks(launch: Launch, thread_blocks: ThreadBlocks | None) -> Int64[np.ndarray, " block"]:
    """The linear ids as an array, all of them if None. Raises InputError for one outside the grid, and if some but not
    all blocks of a cluster are there: they run together."""
    if thread_blocks is None:
        return np.arange(launch.thread_blocks)
    blocks, name = np.asarray(thread_blocks, np.int64).reshape(-1), launch.program.name
    if blocks.size and (blocks.min() < 0 or blocks.max() >= launch.thread_blocks):
        raise InputError(f"kernel '{name}' has thread blocks 0 to {launch.thread_blocks - 1}")
    _, counts = np.unique(places(launch, blocks)[0], return_counts=True)
    if counts.size and counts.min() < launch.cluster.total:
        clusters = f"clusters of {launch.cluster} thread blocks"
        raise InputError(f"kernel '{name}' runs in {clusters}: none of a cluster can be left out")
    return blocks


def make_launch(
    program: Program, grid: int | Sequence[int], block: int | Sequence[int], arguments: Sequence[Argument],
    memory: Memory, dynamic_shared_bytes: int = 0, label: str = "", cluster: int | Sequence[int] | None = None,
) -> Launch:  # fmt: skip
    """A launch whose pointers lead into `memory`. `cluster`: thread blocks of a cluster; None: what the kernel says.
    `grid` counts thread blocks; of a kernel that is `.blocksareclusters`, clusters. Raises InputError for what a GPU
    would refuse."""
    grid, block = Dim3.of(grid, "grid"), Dim3.of(block, "block")
    wanted = None if cluster is None else Dim3.of(cluster, "cluster")
    grid = _in_blocks(program, grid)
    if not isinstance(dynamic_shared_bytes, int | np.integer):
        raise InputError(f"{dynamic_shared_bytes!r} bytes of dynamic shared memory: expected an integer")
    check_shape(program, grid, block, shared_bytes := int(dynamic_shared_bytes), wanted)
    if calls_any(program, LAUNCH_FUNCTIONS):
        raise InputError(f"kernel '{program.name}' launches kernels: `abstim app` runs the program that it is of")
    open_regions(program, memory)
    packed = pack_parameters(program, arguments, memory)
    return Launch(program, grid, block, packed, shared_bytes, label, tuple(arguments), requested_cluster=wanted)


def check_after(after: Sequence[int], number: int) -> None:
    """Raises InputError for a launch that a launch waits for, and that does not come before it."""
    if wrong := [other for other in after if not 0 <= other < number]:
        raise InputError(f"'after' names launch {wrong[0]}; a launch waits for launches before it, by number from 0")


def open_regions(program: Program, memory: Memory) -> None:
    """Make room for what calls of a program keep in memory: `malloc`, launches. Raises InputError without."""
    for region, functions in ((HEAP, HEAP_FUNCTIONS), (LAUNCHES, LAUNCH_FUNCTIONS)):
        if calls_any(program, functions):
            memory.opened(region)


def _in_blocks(program: Program, grid: Dim3) -> Dim3:
    """A grid in thread blocks; that of a kernel that is `.blocksareclusters` counts clusters."""
    if _COUNTS_CLUSTERS not in program.directives:
        return grid
    return Dim3(*(count * own for count, own in zip(grid, _own_cluster(program), strict=True)))


def cuda_shape(program: Program, grid: Dim3, block: Dim3, dynamic_shared_bytes: int) -> tuple[Dim3, Dim3]:
    """The grid in thread blocks, and the thread block, that CUDA's launch calls mean. Where a kernel's grid counts
    clusters (`__block_size__`), its blocks are what it says itself, and the call has 1 and 0 in place of block and
    dynamic shared memory.

    Raises InputError for other values there. Source: CUDA C++ Programming Guide, "Thread Block Clusters"."""
    if not {_COUNTS_CLUSTERS, "reqntid"} <= program.directives.keys():
        return grid, block
    if block.total != 1 or dynamic_shared_bytes:
        given = f"blocks of {block} and {dynamic_shared_bytes} bytes"
        wanted = "for which CUDA defines 1 and 0 alone: <<<clusters, 1, 0, stream>>>"
        raise InputError(f"kernel '{program.name}': {given} for a grid of clusters (.blocksareclusters), {wanted}")
    return _in_blocks(program, grid), Dim3(*program.directives["reqntid"][:3])


def check_shape(
    program: Program, grid: Dim3, block: Dim3, dynamic_shared_bytes: int, cluster: Dim3 | None = None
) -> None:
    """Raise InputError if no GPU could launch this grid of thread blocks: CUDA's limits, the kernel's directives."""
    where, threads = f"kernel '{program.name}'", block.total
    for what, extents, limits in (("grid", grid, _MAX_GRID), ("block", block, _MAX_BLOCK)):
        for axis, extent, limit in zip("xyz", extents, limits, strict=True):
            refuse(extent <= 0, f"{where}: {what} {extents} must be positive in {axis}")
            refuse(extent > limit, f"{where}: {what} {extents} is over the limit of {limit} in {axis}")
    refuse(threads > _MAX_THREADS, f"{where}: block {block} has {threads} threads, the limit is {_MAX_THREADS}")
    required, most = (program.directives.get(name) for name in ("reqntid", "maxntid"))
    own, allowed = Dim3(*(required or block)[:3]), prod(most or (threads,))
    refuse(block != own, f"{where} requires blocks of {own} (.reqntid), not {block}")
    refuse(threads > allowed, f"{where} allows {allowed} threads a block (.maxntid), not {threads}")
    _check_cluster(program, where, grid, cluster)
    warps, local = grid.total * -(-threads // WARP_THREADS), static_bytes(program, "local")
    refuse(warps > _MAX_WARPS, f"{where}: grid {grid} has {warps:,} warps; {_MAX_WARPS:,} can be held")
    refuse(local > _MAX_LOCAL_BYTES, f"{where}: {local:,} bytes of local memory; a thread has {_MAX_LOCAL_BYTES:,}")
    dynamic, inside = dynamic_shared_bytes, 0 <= dynamic_shared_bytes <= _MAX_SHARED_BYTES
    refuse(not inside, f"{where}: {dynamic} bytes of dynamic shared memory is outside 0 to {_MAX_SHARED_BYTES}")


def _own_cluster(program: Program) -> Dim3:
    return Dim3(*(program.directives.get("reqnctapercluster") or (1,))[:3])


def _check_cluster(program: Program, where: str, grid: Dim3, asked: Dim3 | None) -> None:
    own, says = _own_cluster(program), program.directives.keys()
    wrong = _COUNTS_CLUSTERS in says and not {"reqntid", "reqnctapercluster"} <= says
    refuse(wrong, f"{where}: .blocksareclusters goes with .reqntid and .reqnctapercluster")
    wrong = asked is None and "explicitcluster" in says and "reqnctapercluster" not in says
    refuse(wrong, f"{where} must be launched in clusters (.explicitcluster); say of how many thread blocks")
    wrong = asked not in (None, own) and "reqnctapercluster" in says
    refuse(wrong, f"{where} requires clusters of {own} (.reqnctapercluster), not {asked}")
    cluster = asked or own
    wrong = min(cluster) < 1 or cluster.total > _MAX_CLUSTER
    refuse(wrong, f"{where}: clusters of {cluster} thread blocks; a cluster has 1 to {_MAX_CLUSTER}")
    (most,) = program.directives.get("maxclusterrank", (_MAX_CLUSTER,))
    wrong = cluster.total > most
    refuse(wrong, f"{where} allows {most} thread blocks a cluster (.maxclusterrank), not {cluster.total}")
    wrong = any(extent % own for extent, own in zip(grid, cluster, strict=True))
    refuse(wrong, f"{where}: grid {grid} is not made of whole clusters of {cluster}")


def pack_parameters(program: Program, arguments: Sequence[Argument], memory: Memory) -> bytes:
    """The parameter block of a launch. Raises InputError for a missing, superfluous or ill-fitting argument."""
    parameters = program.parameters
    if len(arguments) != len(parameters):
        expected = ", ".join(f"{p.name} ({_type_name(p)})" for p in parameters) or "no arguments"
        raise InputError(f"{program.takes(len(arguments))}: {expected}")
    block = bytearray(max((p.offset + p.bytes for p in parameters), default=0))
    for position, (parameter, argument) in enumerate(zip(parameters, arguments, strict=True)):
        where = f"kernel '{program.name}', argument {position} ({parameter.name}, {_type_name(parameter)})"
        data = _encode(program, parameter, argument, memory, where)
        block[parameter.offset : parameter.offset + parameter.bytes] = data
    return bytes(block)


def _type_name(parameter: Parameter) -> str:
    if parameter.bytes != TYPE_BYTES.get(parameter.type):
        return f"{parameter.bytes} bytes"
    return f".{parameter.type}"


def _encode(program: Program, parameter: Parameter, argument: Argument, memory: Memory, where: str) -> bytes:
    match argument:
        case Pointer():
            (bits,), size = program.directives.get("address_size", (64,)), 8 * parameter.bytes
            if argument.buffer in memory.buffers and (size not in (bits, 64) or parameter.type.startswith("f")):
                raise InputError(f"{where}: buffer '{argument.buffer}' needs a {bits}-bit parameter")
            address = device_address(argument, memory, where)
            if any(address[parameter.bytes :]):
                raise InputError(f"{where}: buffer '{argument.buffer}' lies beyond the reach of 32 bits")
            return address[: parameter.bytes]
        case TensorMap(buffer=name):
            base = int.from_bytes(device_address(Pointer(name), memory, where), "little") if name else 0
            data = placed(argument, base).encode()
        case bytes():
            data = argument
        case Struct(members=members):
            data, _ = _encode_struct(members, memory, where)
        case bool() | int() | float() if not isinstance(argument, np.generic):
            data = _encode_scalar(parameter.type, argument, where)
        case _:
            if (typed := encode_typed(argument, memory, where)) is None:
                raise InputError(f"{where}: a {type(argument).__name__} cannot be passed to a kernel")
            data = typed
    refuse(len(data) != parameter.bytes, f"{where}: expected {parameter.bytes} bytes, the argument has {len(data)}")
    refuse(message := _wrong_kind(parameter, argument), f"{where}: {message}")
    return data


def _wrong_kind(parameter: Parameter, argument: Argument) -> str:
    """Is a typed argument an integer where a float is declared, or the reverse? Untyped .bN parameters take both."""
    if not isinstance(argument, (Scalar, np.generic)):
        return ""
    floating = argument.type.startswith("f") if isinstance(argument, Scalar) else isinstance(argument, np.floating)
    if floating and parameter.type[:1] in ("s", "u"):
        return "a floating-point argument does not fit an integer parameter"
    if not floating and parameter.type[:1] == "f":
        return "an integer argument does not fit a floating-point parameter"
    return ""


def _encode_struct(members: Sequence[Argument], memory: Memory, where: str) -> tuple[bytes, int]:
    """Bytes of a structure, padded to its alignment, and that."""
    data, alignment = bytearray(), 1
    for position, member in enumerate(members):
        inside = f"{where}, member {position}"
        if isinstance(member, Struct):
            piece, own = _encode_struct(member.members, memory, inside)
        else:
            if (typed := encode_typed(member, memory, inside)) is None:
                example = "{'f32': 1.0} or np.float32(1.0)"
                raise InputError(f"{inside}: give a type, as {example}; a structure declares none")
            piece, own = typed, len(typed)
        data += bytes(-len(data) % own) + piece
        alignment = max(alignment, own)
    return bytes(data) + bytes(-len(data) % alignment), alignment


def encode_typed(value: Argument, memory: Memory, where: str) -> bytes | None:
    """Bytes of what says itself how large it is: a pointer, a texture, or a number of a stated type; None of all else.
    Raises InputError for what is not there, or does not fit."""
    match value:
        case Pointer():
            return device_address(value, memory, where)
        case Texture():
            refuse(value.buffer not in memory.buffers, f"{where}: there is no buffer '{value.buffer}'")
            value.check(where, memory.buffers[value.buffer].bytes)
            return memory.texture_handle(value).to_bytes(8, "little")
        case Scalar(type=type_, value=number):
            return _encode_scalar(type_, number, where)
        case np.generic():
            return value.tobytes()
    return None


def device_address(pointer: Pointer, memory: Memory, where: str) -> bytes:
    """Where a pointer leads, as it lies in memory. Raises InputError for no such buffer, or beyond its end."""
    name, offset = pointer.buffer, pointer.offset
    refuse(name not in memory.buffers, f"{where}: there is no buffer '{name}'")
    region = memory.buffers[name]
    if not 0 <= offset <= region.bytes:
        raise InputError(f"{where}: offset {offset} is outside buffer '{name}' of {region.bytes} bytes")
    return (region.address + offset).to_bytes(8, "little")


def _encode_scalar(type_: str, value: int | float, where: str) -> bytes:
    """Little-endian bytes of a value. `type_` is a PTX type or i8 ... i64; raises InputError if it does not fit."""
    code = DTYPES.get({"s": "i", "b": "u"}.get(type_[:1], type_[:1]) + type_[1:])
    refuse(code is None, f"{where}: a value of type '{type_}' cannot be passed")
    dtype = np.dtype(code)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.array(value, dtype).tobytes()
    if isinstance(value, float):
        raise InputError(f"{where}: {value} is not an integer")
    bits = 8 * dtype.itemsize
    low = -(1 << (bits - 1))  # -1 is accepted for an unsigned parameter: hosts pass what C converts
    refuse(not low <= value < 1 << bits, f"{where}: {value} does not fit in {bits} bits")
    return (value & ((1 << bits) - 1)).to_bytes(dtype.itemsize, "little")


def layout(program: Program, space: str) -> dict[str, int]:
    """Byte offset of every variable of `space` ("shared" or "local"); the dynamic shared array comes last."""
    offsets, used = {}, 0
    own = [v for v in program.variables if v.space == space]
    for variable in sorted(own, key=lambda v: v.external):
        start = -(-used // variable.align) * variable.align
        offsets[variable.name] = start
        used = start + variable.bytes if not variable.external else used
    return offsets


def static_bytes(program: Program, space: str) -> int:
    """Bytes the variables of `space` take, alignment gaps included; a dynamic array counts as empty."""
    offsets = layout(program, space)
    return max((offsets[v.name] + v.bytes for v in program.variables if v.space == space), default=0)


Awaits = Sequence[Sequence[int]]  # of each launch those before it, by number, that must have ended


def awaits_of(launches: Sequence[Launch]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Of each launch the one before it on its stream, and those that it names; and the former again where it is
    launched while that runs, -1 elsewhere."""
    latest: dict[str, int] = {}
    awaits, programmatic = [], []
    for number, order in enumerate(launch.order for launch in launches):
        before = latest.get(order.stream, -1)
        awaits.append(tuple(sorted({before, *order.after} - {-1})))
        programmatic.append(before if order.programmatic else -1)
        latest[order.stream] = number
    return awaits, programmatic


def stretches(awaits: Awaits, programmatic: Sequence[int]) -> list[range]:
    """Launches cut where all that follow wait, directly or not, for all before: those of a stretch may run side by
    side, at least some of them, or are launched while others of it run (`programmatic`)."""
    before: list[int] = []  # sets of launches
    for waits in awaits:
        before.append(0)
        for other in waits:
            before[-1] |= before[other] | 1 << other
    cuts, needed = [len(awaits)], (1 << len(awaits)) - 1
    for number in reversed(range(len(awaits))):
        needed &= before[number]
        if needed & (1 << number) - 1 == (1 << number) - 1 and programmatic[number] < 0:
            cuts.append(number)
    cuts.reverse()
    return [range(*pair) for pair in pairwise(cuts)]


def may_overlap(launches: Sequence[Launch]) -> bool:
    """May any two run side by side?"""
    if len({launch.order.stream for launch in launches}) < 2 and not any(x.order.programmatic for x in launches):
        return False
    return any(len(stretch) > 1 for stretch in stretches(*awaits_of(launches)))
