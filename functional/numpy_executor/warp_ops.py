"""Operations across the lanes of a warp: `shfl vote match redux activemask`, and `elect`."""

from __future__ import annotations

import numpy as np

from functional.numpy_executor.clusters import RANK_BYTES
from functional.numpy_executor.frame import Frame, pack
from functional.numpy_executor.operation import DTYPES, Builder, Operation, Unsupported, flags_of, only_type
from functional.numpy_executor.spaces import SHARED_WINDOW, WINDOWS
from functional.ptx.ir import CLUSTER_SHARED, Instruction

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


def _shfl(inst: Instruction) -> Operation:
    flags = flags_of(inst, {"sync", "up", "down", "bfly", "idx"})
    modes = flags - {"sync"}
    only_type(inst, ("b32",))
    if len(modes) != 1:
        raise Unsupported
    mode, pair = next(iter(modes)), len(inst.destinations) == 2

    def function(frame: Frame, a: np.ndarray, b: np.ndarray, c: np.ndarray, *_: np.ndarray) -> object:
        a = frame.full(a)
        b, c = ((x & _U32(0x1F1F)).astype(np.int32) for x in (b, c))
        source, inside = _source_lane(mode, b & 31, c & 31, (c >> 8) & 31)
        source = np.where(inside, source, _LANES)
        value = np.take_along_axis(a, frame.full(source).astype(np.intp), axis=1)
        return (value, inside.copy()) if pair else value

    destinations = ("b32", "pred") if pair else ("b32",)
    return Operation(function, destinations, ("b32", "u32", "u32", *(["u32"] if "sync" in flags else [])), True)


def _source_lane(mode: str, b: np.ndarray, clamp: np.ndarray, segment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(lane to read, is it inside the segment), PTX ISA "shfl"."""
    last = (_LANES & segment) | (clamp & ~segment)
    first = _LANES & segment
    if mode == "up":
        source = _LANES - b
        return source, source >= last
    source = {"down": lambda: _LANES + b, "bfly": lambda: _LANES ^ b, "idx": lambda: first | (b & ~segment)}[mode]()
    return source, source <= last


def _vote(inst: Instruction) -> Operation:
    flags = flags_of(inst, {"sync", "all", "any", "uni", "ballot"})
    mode = flags - {"sync"}
    if len(mode) != 1 or inst.type != ("b32" if mode == {"ballot"} else "pred"):
        raise Unsupported
    (kind,) = mode

    def function(frame: Frame, p: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        members = _members(frame, mask)
        true = members & pack(frame.full(p), frame.count)[:, None]
        if kind == "ballot":
            return true
        every, none = true == members, true == 0
        return {"all": every, "any": ~none, "uni": every | none}[kind]

    return Operation(function, (inst.type,), ("pred", *(["u32"] if "sync" in flags else [])), True)


def _match(inst: Instruction) -> Operation:
    flags, type_ = flags_of(inst, {"sync", "any", "all"}), only_type(inst, ("b32", "b64"))
    pair = len(inst.destinations) == 2

    def function(frame: Frame, a: np.ndarray, mask: np.ndarray) -> object:
        members, a = _members(frame, mask), frame.full(a)
        equal = a[:, :, None] == a[:, None, :]
        same = np.packbits(equal, axis=2, bitorder="little").view(_U32)[..., 0] & members
        if "any" in flags:
            return same
        agree = same == members
        value = np.where(agree, members, _U32(0))
        return (value, agree) if pair else value

    return Operation(function, ("b32", "pred") if pair else ("b32",), (type_, "u32"), True)


_REDUCTIONS: dict[str, tuple[np.ufunc, int]] = {  # ufunc, neutral element as an integer of the type
    "add": (np.add, 0), "and": (np.bitwise_and, -1), "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0),
}  # fmt: skip


def _redux(inst: Instruction) -> Operation:
    flags, type_ = flags_of(inst, {"sync", "add", "min", "max", "and", "or", "xor"}), inst.type
    mode = next(iter(flags - {"sync"}), "")
    if type_ not in (("b32",) if mode in ("and", "or", "xor") else ("u32", "s32")):
        raise Unsupported
    dtype = DTYPES[type_]
    info = np.iinfo(dtype)
    if mode in _REDUCTIONS:
        ufunc, neutral = _REDUCTIONS[mode]
        start = np.array(neutral, np.int64).astype(dtype)
    else:
        ufunc = np.minimum if mode == "min" else np.maximum
        start = np.array(info.max if mode == "min" else info.min, dtype)

    def function(frame: Frame, a: np.ndarray, mask: np.ndarray) -> np.ndarray:
        chosen = np.where(_lanes(_members(frame, mask)), frame.full(a)[:, None, :], start)
        return ufunc.reduce(chosen, axis=2, dtype=dtype)

    return Operation(function, (type_,), (type_, "u32"), True)


def _activemask(inst: Instruction) -> Operation:
    only_type(inst, ("b32",))
    return Operation(lambda frame: frame.bits[:, None].copy(), ("b32",), (), True)


def _elect(inst: Instruction) -> Operation:
    flags_of(inst, {"sync"})

    def function(frame: Frame, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        members = _members(frame, mask)
        below = (members & (~members + _U32(1))) - _U32(1)  # all lanes before the lowest member
        leader = np.bitwise_count(below).astype(_U32) & _U32(31)
        return leader, leader == _LANES

    return Operation(function, ("b32", "pred"), ("u32",), True)


def _mapa(inst: Instruction) -> Operation:
    """`mapa[.shared::cluster]`: the address that a variable of the own thread block has in another one of the cluster.

    A generic address may also be of memory that is not shared: it stays as it is."""
    flags, type_ = flags_of(inst, {CLUSTER_SHARED}), only_type(inst, ("u32", "u64"))
    dtype, first = DTYPES[type_].type, 0 if flags else SHARED_WINDOW

    def function(address: np.ndarray, rank: np.ndarray) -> np.ndarray:
        start, stop = (dtype(a - SHARED_WINDOW + first) for a in WINDOWS[CLUSTER_SHARED])
        shared, inside = (address >= start) & (address < stop), (address - start) % dtype(RANK_BYTES)
        return np.where(shared, inside + start + rank.astype(dtype) * dtype(RANK_BYTES), address)

    return Operation(function, (type_,), (type_, "u32"))


def _getctarank(inst: Instruction) -> Operation:
    """The rank of the thread block whose shared memory an address is in."""
    flags, type_ = flags_of(inst, {CLUSTER_SHARED}), only_type(inst, ("u32", "u64"))
    first = 0 if flags else SHARED_WINDOW

    return Operation(lambda a: ((a.astype(np.int64) - first) // RANK_BYTES).astype(_U32), ("u32",), (type_,))


TABLE: dict[str, Builder] = {
    "mapa": _mapa,
    "getctarank": _getctarank,
    "shfl": _shfl,
    "vote": _vote,
    "match": _match,
    "redux": _redux,
    "activemask": _activemask,
    "elect": _elect,
}
