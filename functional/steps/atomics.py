"""`atom` and `red`: each address sees its updates one after the other, in block, warp, lane order. And reductions of
copied elements: add, min, max, inc, dec, and, or, xor."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from functional.isa.matrices import from_bf16
from functional.isa.memory import ATOMIC_TYPES, SHARED, atomic_name, operands_of
from functional.isa.operation import DTYPES, Unsupported, as_address, raw, refuse_if
from functional.isa.slots import Slots
from functional.ptx.ir import Address, Instruction, Register, Vector
from functional.steps.machine import Bytes, Frame, Step, getter, setter
from functional.steps.memory_ops import Lanes, Place, log_records, record
from functional.traces.line_record import atomic_records

Update = Callable[..., np.ndarray]  # (old, operand[, second operand]) -> new
_UPDATES: dict[str, Update] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": lambda old, value: value,
    "inc": lambda old, limit: np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)),
    "cas": lambda old, compare, value: np.where(old == compare, value, old),  # type: ignore[dict-item, return-value]
}  # fmt: skip
_ASSOCIATIVE = frozenset({"add", "min", "max", "and", "or", "xor", "exch"})


def atomic_step(slots: Slots, inst: Instruction, records: bool = True) -> Step:
    """`atom` (yields the value before) and `red` (yields none). Without `records`: a further element of a vector."""
    name, type_, operands = atomic_name(inst), inst.type, operands_of(inst)
    update = update_of(name, type_)
    if isinstance(operands[0], Vector):
        return _vector_step(slots, inst, operands[0])
    refuse_if(len(operands) != (2 if name == "cas" else 1) or inst.space not in ("global", "shared", "generic"))
    place = Place(slots, inst, inst.sources[0])
    getters = [getter(slots, o, type_) for o in operands]
    returns = bool(inst.destinations) and isinstance(inst.destinations[0], Register)
    write = setter(slots, inst.destinations[0] if returns else None, type_)
    dtype, size = DTYPES[type_], DTYPES[type_].itemsize
    associative = name in _ASSOCIATIVE and dtype.kind != "f" and update is _UPDATES[name]
    every_old = returns or not associative

    def step(frame: Frame) -> None:
        old = np.zeros((frame.count, 32), dtype)
        parts = place.parts(frame)
        for part in parts:
            at, chosen = frame.full(part.places("updates", size)), part.lanes
            words = part.words(size).view(dtype)
            values = [frame.full(get(frame))[chosen] for get in getters]
            if name == "add" and not returns and update is np.add:
                np.add.at(words, at[chosen], values[0])
            elif associative:
                old[chosen] = _scan(words, at[chosen], values[0], update, every_old)
            else:
                old[chosen] = in_turn(words, at[chosen], values, update)
        if returns:
            write(frame, raw(old))
        if records:
            record_atomic(frame, place.space, size, parts)

    return step


def update_of(name: str, type_: str) -> Update:
    """The operation of a name on words of a type. Raises Unsupported."""
    refuse_if(type_ not in ATOMIC_TYPES[name])
    return _PACKED_ADDS.get(type_, _UPDATES[name]) if name == "add" else _UPDATES[name]


def _add_bf16(old: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Bits of bfloat16, rounded to the nearest even; NaN stays one."""
    total = from_bf16(old) + from_bf16(value)
    bits = total.view(np.uint32)
    high, low = bits >> 16, bits & 0xFFFF
    rounded = np.where(np.isnan(total), high | (low != 0), high + (low + (high & 1) > 0x8000))
    return rounded.astype(np.uint16)


_PACKED_ADDS: dict[str, Update] = {
    "bf16": _add_bf16, "f16x2": lambda old, value: (old.view(np.float16) + value.view(np.float16)).view(np.uint32),
    "bf16x2": lambda old, value: _add_bf16(old.view(np.uint16), value.view(np.uint16)).view(np.uint32),
}  # fmt: skip


def _vector_step(slots: Slots, inst: Instruction, vector: Vector) -> Step:
    """`atom.global.v4.f32.add` and `red`: each element on its own; one access for the trace."""
    count = len(vector.elements)
    modifiers = tuple(m for m in inst.modifiers if m != f"v{count}")
    address, targets = as_address(inst.sources[0]), inst.destinations[0] if inst.destinations else None
    refuse_if(len(modifiers) == len(inst.modifiers) or inst.space != "global")
    elements = targets.elements if isinstance(targets, Vector) else (None,) * count
    size = DTYPES[inst.type].itemsize
    steps = []
    for i, (value, target) in enumerate(zip(vector.elements, elements, strict=True)):
        at = Address(address.base, address.offset + i * size)
        if value is None:
            raise Unsupported
        part = replace(inst, modifiers=modifiers, sources=(at, value), destinations=(target,) if target else ())
        steps.append(atomic_step(slots, part, records=not i))
    place = Place(slots, inst, address, "global")

    def step(frame: Frame) -> None:
        for part in place.parts(frame):
            part.space.check_alignment(frame, inst, part.addresses, size * count)
        for one in steps:
            one(frame)

    return step


def in_turn(words: np.ndarray, at: np.ndarray, values: list[np.ndarray], update: Update) -> np.ndarray:
    """Apply the updates of each address one after the other; yields what each found. One step a rank of contention."""
    order = np.argsort(at, kind="stable")
    rank = _rank(at[order])
    by_rank = order[np.argsort(rank, kind="stable")]
    old = np.empty(len(at), words.dtype)
    start = 0
    for count in np.bincount(rank):
        turn = by_rank[start : start + count]
        old[turn] = words[at[turn]]
        words[at[turn]] = update(old[turn], *(v[turn] for v in values))
        start += count
    return old


def _rank(ordered: np.ndarray) -> np.ndarray:
    """Position of each element within its run of equal ones."""
    positions = np.arange(len(ordered))
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return positions - np.maximum.accumulate(np.where(first, positions, 0))


def _scan(words: np.ndarray, at: np.ndarray, values: np.ndarray, update: Update, every_old: bool) -> np.ndarray:
    """As `in_turn`, for an associative update: a segmented prefix by doubling, log2(contention) steps."""
    order = np.argsort(at, kind="stable")
    where, total = at[order], values[order].copy()
    rank = _rank(where)
    reach = 1
    while reach <= int(rank.max(initial=0)):
        joined = np.flatnonzero(rank >= reach)
        total[joined] = update(total[joined - reach], total[joined])
        reach *= 2
    before = words[where]
    after = update(before, total)
    last = np.ones(len(where), bool)
    np.not_equal(where[1:], where[:-1], out=last[:-1])
    words[where[last]] = after[last]
    old = np.empty(len(at), words.dtype)
    if every_old:
        old[order] = np.where(rank == 0, before, np.concatenate([before[:1], after[:-1]]))
    return old


def record_atomic(frame: Frame, space: str, size: int, parts: list[Lanes]) -> None:
    """Log the accesses of an atomic: in global memory by rounds, in each of which a word is named once."""
    if space in SHARED or len(parts) != 1 or parts[0].space.name != "global":
        record(frame, space in SHARED, size, parts)
        return
    (part,) = parts
    log_records(frame, atomic_records(frame.full(part.addresses), part.lanes, size), part.some)


OPERATIONS = frozenset({"add", "min", "max", "inc", "dec", "and", "or", "xor"})
_HALVES = ("f16", "bf16")


def reduction_of(modifiers: Sequence[str]) -> tuple[str, Update]:
    """`add.noftz.f16`, `min.u64`, `or.b32`, ...: the type of elements, and what joins them. Raises Unsupported."""
    name, *rest = modifiers
    type_ = rest[-1] if rest else ""
    refuse_if(rest[:-1] != (["noftz"] if name == "add" and type_ in _HALVES else []))
    return type_, reduction(name, type_)


def reduction(name: str, type_: str) -> Update:
    """Raises Unsupported if elements of the type have no such operation."""
    if name in ("min", "max") and type_ in _HALVES:
        return partial(_chosen, choose=np.fmin if name == "min" else np.fmax)
    refuse_if(name not in OPERATIONS or type_ not in DTYPES)
    return update_of(name, type_)


def reduce_into(into: Bytes, type_: str, update: Update, offsets: np.ndarray, data: np.ndarray) -> None:
    """Join bytes [copy, byte] with what lies at the offsets [copy] of a storage, one after the other."""
    dtype = DTYPES[type_]
    values = data.view(dtype)
    at = (offsets // dtype.itemsize)[:, None] + np.arange(values.shape[1])
    in_turn(into.words[dtype.itemsize].view(dtype), at.reshape(-1), [values.reshape(-1)], update)


def _chosen(old: np.ndarray, value: np.ndarray, choose: np.ufunc) -> np.ndarray:
    """Of halves; those of bfloat16 come as bits."""
    if old.dtype.kind == "f":
        return choose(old, value)
    first, second = from_bf16(old), from_bf16(value)
    return np.where(choose(first, second) == first, old, value)
