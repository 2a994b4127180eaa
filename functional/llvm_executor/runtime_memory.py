"""Checked and recorded host addresses of any access: the search for a region, one routine a space, generic accesses
outside global memory, copies into shared memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from functional.isa.memory import WINDOWS
from functional.jit.native import I1, I8, I32, I64, LANES, Flags, Lanes64, Pointer, inlined, op, routine
from functional.llvm_executor import runtime_records as records
from functional.llvm_executor.context_layout import LOADED, STORED, Context
from functional.llvm_executor.undo import keep_lanes
from functional.traces.line_record import MORE, SHARED_PASS
from functional.traces.trace import LINE_BYTES, PARAM_WINDOW_LINE

# space -> the host address that its addresses count from. `stored`: global memory that is written to
BASES = {"global": "arena", "stored": "arena", "shared": "shared", "const": "const", "param": "param", "local": "local"}
_FOUND = {"global": ("last", LOADED), "stored": ("stored", STORED)}  # where the last region is kept, its note
_PARAM_BYTES = PARAM_WINDOW_LINE * LINE_BYTES


def _region(space: str) -> Any:
    """`within(ctx, first, stop)`: do the bytes lie in one region? It is noted that loads, or stores, have found it."""
    (last, touched) = _FOUND[space]
    last_start, last_end = f"{last}_start", f"{last}_end"

    @routine(f"find_region_{space}")
    def find_region(ctx: Context, first: I64, stop: I64) -> I1:
        low, high, starts = I64(0), ctx.regions, ctx.starts
        while low < high:
            middle = low + high >> 1
            right = starts[I64, middle] <= first
            low, high = op.where(right, middle + 1, low), op.where(right, high, middle)
        if low == 0:
            return False
        start, end = starts[I64, low - 1], ctx.ends[I64, low - 1]
        if (stop > end) | (first >= stop):
            return False
        ctx[last_start] = start
        ctx[last_end] = end
        flags = ctx.touched
        flags[I8, low - 1] = flags[I8, low - 1] | touched
        return True

    @inlined(f"within_{space}")
    def within(ctx: Context, first: I64, stop: I64) -> I1:
        if (first >= ctx[last_start]) & (stop <= ctx[last_end]) & (first < stop):
            return True
        return find_region(ctx, first, stop)

    return within


def _limited(space: str) -> Any:
    """`within(ctx, first, stop)` of a space that ends somewhere."""
    limit = f"{space}_limit"

    @inlined(f"within_{space}")
    def within(ctx: Context, first: I64, stop: I64) -> I1:
        return (stop <= ctx[limit]) & (first < stop)

    return within


def _all_within(space: str, within: Any) -> Any:
    """`all_within(ctx, address, mask, size)`: are the words of all active lanes valid?"""

    @routine(f"all_within_{space}")
    def all_within(ctx: Context, address: Lanes64, mask: I32, size: I64) -> I1:
        active = Flags(mask)
        high = op.reduce_umax(op.where(active, address, 0))
        if space not in _FOUND:
            return within(ctx, high, high + size)
        if within(ctx, op.reduce_umin(op.where(active, address, -1)), high + size):
            return True
        array, rest = op.room(Lanes64), mask
        array[Lanes64, 0] = address
        while rest != 0:
            word = array[I64, op.cttz(rest)]
            rest &= rest - 1
            if not within(ctx, word, word + size):
                return False
        return True

    return all_within


def _logging(space: str) -> tuple[Any, Any, Any]:
    """What logs accesses of lanes `(ctx, address, mask, size)`, of one address `(ctx, address)`, of no lane `(ctx)`."""

    @inlined(f"log_lanes_{space}")
    def log_lanes(ctx: Context, address: Lanes64, mask: I32, size: I64) -> None:
        if space == "shared":
            records.conflict_lanes(ctx, address, mask)
        elif space == "local":
            records.record_local(ctx, address, mask, size)
        elif space in ("const", "param"):
            records.record_constants(ctx, address + (_PARAM_BYTES if space == "param" else 0), mask)
        else:
            records.record_lanes(ctx, address, mask)

    @inlined(f"log_one_{space}")
    def log_one(ctx: Context, address: I64) -> None:
        if space == "shared":
            records.conflict(ctx, 1)
        else:
            records.record_one(ctx, address + (_PARAM_BYTES if space == "param" else 0))

    @inlined(f"log_none_{space}")
    def log_none(ctx: Context) -> None:
        if space == "shared":
            records.conflict(ctx, 0)
        else:
            records.record(ctx, 0)

    return log_lanes, log_one, log_none


@inlined
def fault(ctx: Context) -> I64:
    """The launch cannot go on; an address that does no harm."""
    ctx.fault = 1
    return ctx.scratch


class Space(NamedTuple):
    """The routines of a space: those above; `locate` and `check` (log and locate) yield host addresses of lanes."""

    base: str
    within: Any
    log_lanes: Any
    log_one: Any
    log_none: Any
    locate: Any
    check: Any


def _space(space: str) -> Space:
    base, within = BASES[space], _region(space) if space in _FOUND else _limited(space)
    all_within, (log_lanes, log_one, log_none) = _all_within(space, within), _logging(space)

    @routine(f"locate_{space}")
    def locate(ctx: Context, address: Lanes64, mask: I32, size: I64) -> Lanes64:
        """Of lanes of which one at least is active; those of the scratch area after a fault."""
        inside = all_within(ctx, address, mask, size)
        if not inside & (I32(address & size - 1 != 0) & mask == 0):
            return fault(ctx)
        if space == "stored":
            keep_lanes(ctx, address, mask)
        if space == "local":
            return address + Lanes64(ctx.local_stride) * LANES + ctx[base]
        return address + ctx[base]

    @routine(f"check_{space}")
    def check(ctx: Context, address: Lanes64, mask: I32, size: I64) -> Lanes64:
        if mask == 0:
            log_none(ctx)
            return ctx.scratch
        log_lanes(ctx, address, mask, size)
        return locate(ctx, address, mask, size)

    @routine(f"check_one_{space}")
    def check_one(ctx: Context, address: I64, mask: I32, size: I64) -> I64:
        """Of an address that all lanes share (not local memory)."""
        if mask == 0:
            log_none(ctx)
            return ctx.scratch
        log_one(ctx, address)
        if within(ctx, address, address + size) & (address & size - 1 == 0):
            return ctx[base] + address
        return fault(ctx)

    return Space(base, within, log_lanes, log_one, log_none, locate, check)


SPACES = {space: _space(space) for space in BASES}


def _locate_some(space: str) -> None:
    locate = SPACES[space].locate

    @routine(f"locate_some_{space}")
    def locate_some(ctx: Context, address: Lanes64, mask: I32, size: I64) -> Lanes64:
        if mask == 0:
            return ctx.scratch
        return locate(ctx, address, mask, size)


for _name in ("stored", "shared"):
    _locate_some(_name)


@routine
def log_passes(ctx: Context, passes: I8) -> None:
    """One record a pass of shared memory, of the window for generic accesses to it."""
    at = ctx.records
    while True:
        passes -= 1
        at[I32, 0] = I32(passes != 0) | SHARED_PASS
        at += 4
        if passes == 0:
            break
    ctx.records = at


@inlined
def passes_of(ctx: Context, address: Lanes64, mask: I32) -> I8:
    """Bank passes of shared addresses, not logged."""
    at = ctx.conflicts
    records.conflict_lanes(ctx, address, mask)
    ctx.conflicts = at
    return at[I8, 0]


@routine
def record_writes(ctx: Context, address: Lanes64, mask: I32) -> None:
    """The passes of what an instruction, whose last record has been made, writes to shared memory as well."""
    if mask == 0:
        return
    passes, last = passes_of(ctx, address, mask), ctx.records - 4
    if last[I32, 0] == 0:
        ctx.records = last
    else:
        last[I32, 0] = last[I32, 0] | MORE
    log_passes(ctx, passes)


_SHARED, _LOCAL = WINDOWS["shared"], WINDOWS["local"]


@routine
def note_words_elsewhere(ctx: Context, first: Pointer, address: Lanes64, mask: I32, size: I64) -> None:
    """Of a generic store to local memory."""
    if op.reduce_umin(op.where(Flags(mask), address, -1)) >= _LOCAL[0]:
        records.note_local_words(ctx, first, address - _LOCAL[0], mask, size)


_check_local, _locate_shared = SPACES["local"].check, SPACES["shared"].locate


@routine
def check_elsewhere(ctx: Context, address: Lanes64, mask: I32, size: I64) -> Lanes64:
    """Records and locates lanes (some are active) that are not all in global memory."""
    active = Flags(mask)
    low, high = op.reduce_umin(op.where(active, address, -1)), op.reduce_umax(op.where(active, address, 0))
    if (low >= _LOCAL[0]) & (high < _LOCAL[1]):
        return _check_local(ctx, address - _LOCAL[0], mask, size)
    if (low >= _SHARED[0]) & (high < _SHARED[1]):
        log_passes(ctx, passes_of(ctx, address - _SHARED[0], mask))
        return _locate_shared(ctx, address - _SHARED[0], mask, size)
    return fault(ctx)
