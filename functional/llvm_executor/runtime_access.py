"""Loads and stores: one routine a space and size with fast paths, and the general way. Among the fast paths of loads
are half warps that are regular: what thread blocks of 16 threads width do. Atomics: lane after lane, each sees what
the one before left."""

from __future__ import annotations

from typing import Any

from functional.jit.native import (
    I1,
    I8,
    I32,
    I64,
    LANES,
    LANES_OF,
    Flags,
    LanePointers,
    Lanes32,
    Lanes64,
    Pointer,
    Type,
    inlined,
    op,
    routine,
)
from functional.llvm_executor.context_layout import Context
from functional.llvm_executor.runtime_memory import SPACES
from functional.llvm_executor.runtime_records import conflict, record_range
from functional.llvm_executor.undo import keep_range, keep_span

SIZES = (8, 16, 32, 64)
_NEAR_BYTES = 2147483647
_HALVES = tuple(lane // 16 * 16 for lane in LANES)
_ONE_OF_BOTH = tuple(lane // 16 * 32 for lane in LANES)
_EVERY = (1 << 32) - 1


def _plain(bits: int) -> tuple[Any, Any]:
    """Gather and scatter at host addresses. Narrow words are gathered as 32 bits: every storage is padded."""
    Word: Any = LANES_OF[bits]
    Wide: Any = LANES_OF[max(bits, 32)]

    @routine(f"gather_{bits}")
    def gather(host: Lanes64, mask: I32) -> Word:
        return Word(op.gather(Wide, LanePointers(host), Flags(mask)))

    @routine(f"scatter_{bits}")
    def scatter(host: Lanes64, value: Word, mask: I32) -> None:
        op.scatter(LanePointers(host), value, Flags(mask))

    return gather, scatter


_PLAIN = {bits: _plain(bits) for bits in SIZES}


@inlined
def half_passes(first: I64, second: I64, width: I64) -> I8:
    """Bank passes of two words (width 0) or runs of 16 words (width 64): 2 if both use a bank for different words."""
    bank = second - first & 127
    span = op.smax(second - first, first - second)
    return op.where((span <= width) | op.where(width == 0, bank != 0, bank == 64), I8(1), I8(2))


def _row(space: str, bits: int) -> tuple[Any, Any]:
    """`in_row(address, mask, origin)`: does lane i name `origin` + i words? `log_row` logs lanes that do."""
    own, size, logs_run = SPACES[space], bits // 8, space != "const" and (space, bits) != ("shared", 64)
    log_lanes, steps = own.log_lanes, tuple(lane * size for lane in LANES)

    @inlined(f"in_row_{space}_{bits}")
    def in_row(address: Lanes64, mask: I32, origin: I64) -> I1:
        return I32(address != Lanes64(origin) + steps) & mask == 0

    @inlined(f"log_row_{space}_{bits}")
    def log_row(ctx: Context, address: Lanes64, mask: I32, first: I64, stop: I64) -> None:
        run = mask >> op.cttz(mask)
        if not logs_run or run & run + 1 != 0:  # gaps between active lanes
            log_lanes(ctx, address, mask, size)
        elif space == "shared":
            conflict(ctx, 1)
        else:
            record_range(ctx, first, stop)

    return in_row, log_row


def _together(space: str, region: str, bits: int) -> Any:
    """`together(ctx, named, low, mask)`: do all lanes name words of one region, from `low` on, that are near? These are
    logged: 32-bit offsets gather twice as fast. Lanes that are not active name what an active one names."""
    within, size, log_lanes = SPACES[region].within, bits // 8, SPACES[space].log_lanes

    @inlined(f"together_{region}_{bits}")
    def together(ctx: Context, named: Lanes64, low: I64, mask: I32) -> I1:
        high = op.reduce_umax(named)
        if not within(ctx, low, high + size) & (I32(named & size - 1 != 0) == 0) & (high - low < _NEAR_BYTES):
            return False
        if region == "stored":
            keep_span(ctx, low, high + size, named, mask)
        log_lanes(ctx, named, mask, size)
        return True

    return together


def _halves(space: str, bits: int) -> Any:
    """`log_halves(ctx, address, first, second, width)` of whole warps of which both halves are regular."""
    log_lanes, size, of_words = SPACES[space].log_lanes, bits // 8, (space, bits) == ("shared", 32)

    @inlined(f"log_halves_{space}_{bits}")
    def log_halves(ctx: Context, address: Lanes64, first: I64, second: I64, width: I64) -> None:
        if of_words:
            conflict(ctx, half_passes(first, second, width))
        else:
            log_lanes(ctx, address, _EVERY, size)

    return log_halves


def _load(space: str, bits: int) -> None:
    own, size, (gather, _) = SPACES[space], bits // 8, _PLAIN[bits]
    base, within, log_one, log_none, check = own.base, own.within, own.log_one, own.log_none, own.check
    (in_row, log_row), together, log_halves = _row(space, bits), _together(space, space, bits), _halves(space, bits)
    Wide, One = LANES_OF[max(bits, 32)], Type(f"i{bits}")
    Word: Any = LANES_OF[bits]
    Half: Any = Type(f"i{bits}", 16)
    half_steps = tuple(lane % 16 * size for lane in LANES)

    @routine(f"ld_{space}_{bits}")
    def load(ctx: Context, address: Lanes64, mask: I32) -> Word:
        if mask == 0:
            log_none(ctx)
            return 0
        lowest = I64(op.cttz(mask))
        first = address[lowest]
        origin, host, aligned = first - lowest * size, ctx[base], first & size - 1 == 0
        if in_row(address, mask, origin):
            stop = origin + (32 - I64(op.ctlz(mask))) * size
            if within(ctx, first, stop) & aligned:
                log_row(ctx, address, mask, first, stop)
                return Pointer(host + origin)[Word, 0]
        elif I32(address != first) & mask == 0:
            if within(ctx, first, first + size) & aligned:
                log_one(ctx, first)
                return Pointer(host + first)[One, 0]
        elif mask == _EVERY:
            second, behind = address[16], address - op.shuffle(address, address, _HALVES)
            flat = I32(behind != 0) == 0
            if flat | (I32(behind != half_steps) == 0):
                there = within(ctx, first, first + 16 * size) & within(ctx, second, second + 16 * size)
                if there & ((first | second) & size - 1 == 0):
                    one, two = Pointer(host + first), Pointer(host + second)
                    if flat:
                        log_halves(ctx, address, first, second, 0)
                        return op.shuffle(Word(one[One, 0]), Word(two[One, 0]), _ONE_OF_BOTH)
                    log_halves(ctx, address, first, second, 64)
                    return op.shuffle(one[Half, 0], two[Half, 0], LANES)
        named = op.where(Flags(mask), address, first)
        low = op.reduce_umin(named)
        if together(ctx, named, low, mask):
            return Word(op.gather(Wide, Pointer(host + low) + Lanes32(named - low), Flags(_EVERY)))
        return gather(check(ctx, address, mask, size), mask)


def _store(space: str, bits: int) -> None:
    region = "stored" if space == "global" else space
    own, size, (_, scatter) = SPACES[region], bits // 8, _PLAIN[bits]
    Word: Any = LANES_OF[bits]
    base, within, log_none, check = own.base, own.within, own.log_none, own.check
    (in_row, log_row), together = _row(space, bits), _together(space, region, bits)

    @routine(f"st_{space}_{bits}")
    def store(ctx: Context, address: Lanes64, value: Word, mask: I32) -> None:
        if mask == 0:
            log_none(ctx)
            return
        lowest = I64(op.cttz(mask))
        first = address[lowest]
        origin, host = first - lowest * size, ctx[base]
        if in_row(address, mask, origin):
            stop = origin + (32 - I64(op.ctlz(mask))) * size
            if within(ctx, first, stop) & (first & size - 1 == 0):
                log_row(ctx, address, mask, first, stop)
                if region == "stored":
                    keep_range(ctx, first, stop)
                op.put(Pointer(host + origin), value, Flags(mask))
                return
        named = op.where(Flags(mask), address, first)
        low = op.reduce_umin(named)
        if together(ctx, named, low, mask):
            op.scatter(Pointer(host + low) + Lanes32(named - low), value, Flags(mask))
        else:
            scatter(check(ctx, address, mask, size), value, mask)


for _space in ("global", "shared"):
    for _bits in SIZES:
        _load(_space, _bits)
        _store(_space, _bits)


_NAMES = ("add", "and", "or", "xor", "exch", "umin", "umax", "smin", "smax", "inc", "dec", "cas")


def _atomic(name: str, kind: str) -> None:
    One: Any = Type(kind)
    Word: Any = Type(kind, 32)
    chosen = getattr(op, name)

    @inlined(f"updated_{name}_{kind}")
    def updated(old: One, value: One, other: One) -> One:
        if name == "add":
            return old + value
        if name == "and":
            return old & value
        if name == "or":
            return old | value
        if name == "xor":
            return old ^ value
        if name == "exch":
            return value
        if name == "inc":
            return op.where(old >= value, One(0), old + 1)
        if name == "dec":
            return op.where((old == 0) | (old > value), value, old - 1)
        if name == "cas":
            return op.where(old == value, other, old)
        return chosen(value, old)

    @routine(f"atomic_{name}_{kind}")
    def atomic(host: Lanes64, value: Word, other: Word, mask: I32) -> Word:
        """What each lane of a mask found."""
        hosts, values, others, found = op.room(Lanes64), op.room(Word), op.room(Word), op.room(Word)
        hosts[Lanes64, 0], values[Word, 0], others[Word, 0], found[Word, 0] = host, value, other, Word(0)
        rest = mask
        while rest != 0:
            lane = op.cttz(rest)
            rest &= rest - 1
            at = Pointer(hosts[I64, lane])
            old = at[One, 0]
            at[One, 0] = updated(old, values[One, lane], others[One, lane])
            found[One, lane] = old
        return found[Word, 0]


for _kind in ("i32", "i64"):
    for _name in _NAMES:
        _atomic(_name, _kind)
for _kind in ("float", "double"):
    _atomic("add", _kind)
