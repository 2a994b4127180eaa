"""Across the lanes of a warp: `shfl vote match redux activemask elect`; `mapa getctarank` of clusters, `setmaxnreg`,
and `mov` of vectors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.isa.emitter import Emitter, Value
from functional.isa.instructions import is_wide_move, mode_of
from functional.isa.memory import RANK_BYTES, SHARED_WINDOW, WINDOWS
from functional.isa.operation import DTYPES, RAW_BY_BYTES, Builder, Operation, Unsupported, flags_of, only_type, raw
from functional.isa.slots import Slots
from functional.numpy_executor.machine import Machine
from functional.numpy_executor.operands import Frame, Step, getter, guard_getter, setter
from functional.numpy_executor.stack import pack
from functional.ptx.ir import CLUSTER_SHARED, TYPE_BYTES, Immediate, Instruction, Vector


def _wide_move_step(slots: Slots, inst: Instruction) -> Step:
    source, destination = inst.sources[0], inst.destinations[0]
    if not isinstance(source, Vector) or not isinstance(destination, Vector) or None in source.elements:
        raise Unsupported
    guard = guard_getter(slots, inst.guard)
    getters = [getter(slots, e, inst.type) for e in source.elements if e is not None]
    setters = [setter(slots, e, inst.type, guard is not None) for e in destination.elements]
    if len(getters) != len(setters):
        raise Unsupported

    def step(frame: Frame) -> None:
        if guard is not None:
            frame.set_guard(guard)
        values = [np.copy(get(frame)) for get in getters]
        for write, value in zip(setters, values, strict=True):
            write(frame, value)

    return step


def vector_move_step(slots: Slots, inst: Instruction) -> Step:
    """Pack the elements of a vector into one register, the first in the lowest bits, or unpack."""
    source, destination = inst.sources[0], inst.destinations[0]
    if inst.type == "b128":
        raise Unsupported
    if is_wide_move(inst):
        return _wide_move_step(slots, inst)
    size, guard = TYPE_BYTES[inst.type], guard_getter(slots, inst.guard)
    inputs: tuple = source.elements if isinstance(source, Vector) else (source,)
    outputs: tuple = destination.elements if isinstance(destination, Vector) else (destination,)
    if size % len(inputs) or size % len(outputs) or None in inputs:
        raise Unsupported
    in_bits, out_bits = 8 * size // len(inputs), 8 * size // len(outputs)
    getters = [getter(slots, e, f"b{in_bits}") for e in inputs]
    setters = [setter(slots, e, f"b{out_bits}", guard is not None) for e in outputs]
    whole, part = RAW_BY_BYTES[size].type, RAW_BY_BYTES[out_bits // 8]

    def step(frame: Frame) -> None:
        if guard is not None:
            frame.set_guard(guard)
        packed: np.ndarray = sum(  # type: ignore[assignment]
            raw(get(frame)).astype(whole) << whole(in_bits * i) for i, get in enumerate(getters)
        )
        for i, write in enumerate(setters):
            write(frame, (packed >> whole(out_bits * i)).astype(part))

    return step


LaneFunction = Callable[..., object]  # of a frame and the sources, arrays that broadcast to [warp, 32]
_U32 = np.uint32
_LANES = np.arange(32, dtype=np.int32)[None, :]


def _members(frame: Frame, mask: np.ndarray | None) -> np.ndarray:
    """Active lanes as bits, u32 [row, 1 or 32]; of those only the ones in the member mask of the instruction, in which
    lanes may name different ones: groups of a warp that run it together."""
    active = frame.bits[:, None]
    return active if mask is None else active & mask


def _lanes(words: np.ndarray) -> np.ndarray:
    """Bits as bool [..., 32]."""
    return (words[..., None] >> _LANES[0].astype(_U32) & _U32(1)) != 0


def _shfl(inst: Instruction) -> LaneFunction:
    mode, pair = mode_of(inst), len(inst.destinations) == 2

    def function(frame: Frame, a: np.ndarray, b: np.ndarray, c: np.ndarray, *_: np.ndarray) -> object:
        a = frame.full(a)
        b, c = ((x & _U32(0x1F1F)).astype(np.int32) for x in (b, c))
        source, inside = _source_lane(mode, b & 31, c & 31, (c >> 8) & 31)
        source = np.where(inside, source, _LANES)
        value = np.take_along_axis(a, frame.full(source).astype(np.intp), axis=1)
        return (value, inside.copy()) if pair else value

    return function


def _source_lane(mode: str, b: np.ndarray, clamp: np.ndarray, segment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(lane to read, is it inside the segment), PTX ISA "shfl"."""
    last = (_LANES & segment) | (clamp & ~segment)
    first = _LANES & segment
    if mode == "up":
        source = _LANES - b
        return source, source >= last
    source = {"down": lambda: _LANES + b, "bfly": lambda: _LANES ^ b, "idx": lambda: first | (b & ~segment)}[mode]()
    return source, source <= last


def _vote(inst: Instruction) -> LaneFunction:
    mode = mode_of(inst)

    def function(frame: Frame, p: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        members = _members(frame, mask)
        true = members & pack(frame.full(p), frame.count)[:, None]
        if mode == "ballot":
            return true
        every, none = true == members, true == 0
        return {"all": every, "any": ~none, "uni": every | none}[mode]

    return function


def _match(inst: Instruction) -> LaneFunction:
    mode, pair = mode_of(inst), len(inst.destinations) == 2

    def function(frame: Frame, a: np.ndarray, mask: np.ndarray) -> object:
        members, a = _members(frame, mask), frame.full(a)
        equal = a[:, :, None] == a[:, None, :]
        same = np.packbits(equal, axis=2, bitorder="little").view(_U32)[..., 0] & members
        if mode == "any":
            return same
        agree = same == members
        value = np.where(agree, members, _U32(0))
        return (value, agree) if pair else value

    return function


_REDUCTIONS: dict[str, tuple[np.ufunc, int]] = {  # ufunc, neutral element as an integer of the type
    "add": (np.add, 0), "and": (np.bitwise_and, -1), "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0),
}  # fmt: skip


def _redux(inst: Instruction) -> LaneFunction:
    mode, dtype = mode_of(inst), DTYPES[inst.type]
    info = np.iinfo(dtype)
    if mode in _REDUCTIONS:
        ufunc, neutral = _REDUCTIONS[mode]
        start = np.array(neutral, np.int64).astype(dtype)
    else:
        ufunc = np.minimum if mode == "min" else np.maximum
        start = np.array(info.max if mode == "min" else info.min, dtype)

    def function(frame: Frame, a: np.ndarray, mask: np.ndarray) -> np.ndarray:
        chosen = np.where(_lanes(_members(frame, mask)), frame.full(a).view(dtype)[:, None, :], start)
        return ufunc.reduce(chosen, axis=2, dtype=dtype)

    return function


def _activemask(inst: Instruction) -> LaneFunction:
    return lambda frame: frame.bits[:, None].copy()


def _elect(inst: Instruction) -> LaneFunction:
    def function(frame: Frame, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        members = _members(frame, mask)
        below = (members & (~members + _U32(1))) - _U32(1)  # all lanes before the lowest member
        leader = np.bitwise_count(below).astype(_U32) & _U32(31)
        return leader, leader == _LANES

    return function


def _isspacep(inst: Instruction) -> LaneFunction | None:
    """Of the shared memory of the own thread block of a cluster; other spaces need no frame."""
    if "shared" not in inst.modifiers:
        return None
    start, stop = (np.uint64(a) for a in WINDOWS["shared"])

    def function(frame: Frame, a: np.ndarray) -> np.ndarray:
        machine = frame.machine
        first = machine.clusters.first_address[machine.block_of_row[frame.index]][:, None]
        return (a >= start + first) & (a < stop + first)

    return function


def _mapa(inst: Instruction) -> Operation:
    """`mapa[.shared::cluster]`: the address that a variable of the own thread block has in another one of the cluster.

    A generic address may also be of memory that is not shared: it stays as it is."""
    flags, type_ = flags_of(inst, {CLUSTER_SHARED}), only_type(inst, ("u32", "u64"))
    start, stop = (a - SHARED_WINDOW * bool(flags) for a in WINDOWS[CLUSTER_SHARED])

    def emit(e: Emitter, address: Value, rank: Value) -> Value:
        offset = e.op("sub", address, start)
        moved = e.op(
            "or", e.op("and", offset, RANK_BYTES - 1), e.op("mul", e.resize(rank, address.kind, False), RANK_BYTES)
        )
        return e.select(e.compare("ult", offset, stop - start), e.op("add", moved, start), address)

    return Operation(emit, (type_,), (type_, "u32"))


def _getctarank(inst: Instruction) -> Operation:
    """The rank of the thread block whose shared memory an address is in."""
    flags, type_ = flags_of(inst, {CLUSTER_SHARED}), only_type(inst, ("u32", "u64"))
    shift, first = RANK_BYTES.bit_length() - 1, 0 if flags else SHARED_WINDOW

    def emit(e: Emitter, a: Value) -> Value:
        return e.cast("trunc", e.op("ashr", e.op("sub", e.resize(a, "i64", False), first), shift), "i32")

    return Operation(emit, ("u32",), (type_,))


LANE_FUNCTIONS: dict[str, Callable[[Instruction], LaneFunction | None]] = {
    "shfl": _shfl, "vote": _vote, "match": _match, "redux": _redux, "activemask": _activemask, "elect": _elect,
    "isspacep": _isspacep,
}  # fmt: skip
TABLE: dict[str, Builder] = {"mapa": _mapa, "getctarank": _getctarank}


_LEAST, _MOST, _UNIT = 24, 256, 8  # registers a thread


def check_register_counts(machine: Machine) -> None:
    """Raises ExecutionError if the warps of a thread block have taken more registers than there are.

    An `inc` waits until enough are free; which warp comes first changes no result, so nobody waits here. What could
    never be had is refused: at the end the warps of a block have no more than it was launched with, which is known of
    kernels that say so (`.maxnreg`). Source: PTX ISA, "setmaxnreg".
    """
    counts = machine.register_counts
    if not counts.launched or counts.last is None:
        return
    taken = np.bincount(machine.block_of_row, counts.now).astype(int)
    there = counts.launched * machine.warps_per_block
    if int(taken.max()) > there:
        row = int(taken.argmax()) * machine.warps_per_block
        message = f"deadlock: warps of a block want {taken.max()} registers a lane, all together; it has {there}"
        raise machine.fault(counts.last, message, row)


def register_count_step(slots: Slots, inst: Instruction) -> Step:
    """`setmaxnreg.{inc,dec}.sync.aligned.u32 count`."""
    wanted, grows = inst.sources[0], inst.modifiers[:1] == ("inc",)
    if inst.modifiers[1:] != ("sync", "aligned", "u32") or inst.modifiers[0] not in ("inc", "dec") or inst.guard:
        raise Unsupported
    if not isinstance(wanted, Immediate) or wanted.value % _UNIT or not _LEAST <= wanted.value <= _MOST:
        raise Unsupported
    count = int(wanted.value)

    def step(frame: Frame) -> None:
        counts, rows = frame.machine.register_counts, frame.index
        before = counts.now[rows]
        wrong = (before > 0) & ((before > count) if grows else (before < count))
        if wrong.any():
            row = int(rows[int(np.argmax(wrong))])
            message = f"the warp has {counts.now[row]} registers a thread, to which {inst.modifiers[0]} does not fit"
            raise frame.machine.fault(inst, message, row)
        counts.now[rows], counts.last = count, inst

    return step
