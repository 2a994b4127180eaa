"""The slots of a scheduler as bits of words: which are due, which need a unit that is busy, and which one issues next;
and the ways of a cache's set.

Eight slots, needs or ways are looked at together, as a vector of the processor."""

from typing import Any

import numpy as np

from abstim.engine.warp_slots import bit, first_after, lowest
from abstim.occupancy_vector.records import FAR_OFF, MOST_SLOTS, TOGETHER
from functional.jit.marked import Operation
from functional.jit.values import INT, SET, TRUTH, Word

_TIMES, _NEEDS = f"<{TOGETHER} x i64>", f"<{MOST_SLOTS} x i8>"


def _loaded(body: Any, array: Any, k: Any, vector: str) -> str:
    """Element `k` of an array and those behind it, as a vector."""
    place = body.element(array, [k])
    return body.new(f"load {vector}, ptr {place.name}, align {place.dtype.itemsize}")


@Operation
def by(body: Any, times: Any, k: Any, time: Any) -> Word:
    """Bits: which of the TOGETHER times from `k` on are not later than `time`."""
    ends, limit = _loaded(body, times, k, _TIMES), body.everywhere(_TIMES, body.number(time))
    bits = body.new(f"bitcast <{TOGETHER} x i1> {body.new(f'icmp sle {_TIMES} {ends}, {limit}')} to i{TOGETHER}")
    return Word(body.new(f"zext i{TOGETHER} {bits} to i64"), SET)


def _sooner(body: Any, those: str, times: str, least: Any) -> Word:
    """Each of TOGETHER `times` as far as it is one of `those`, or what of `least` (0: nothing) comes before it."""
    far, name = body.everywhere(_TIMES, str(FAR_OFF)), f"llvm.smin.v{TOGETHER}i64"
    own = body.new(f"select <{TOGETHER} x i1> {those}, {_TIMES} {times}, {_TIMES} {far}")
    body.unit.declarations.add(f"declare {_TIMES} @{name}({_TIMES}, {_TIMES})")
    before = far if isinstance(least, int) else least.name
    return Word(body.new(f"call {_TIMES} @{name}({_TIMES} {own}, {_TIMES} {before})"), _TIMES)


@Operation
def _beyond(body: Any, times: Any, k: Any, time: Any, least: Any) -> Word:
    """`_sooner` of the TOGETHER times from `k` on that are later than `time`."""
    ends = _loaded(body, times, k, _TIMES)
    later = body.new(f"icmp sgt {_TIMES} {ends}, {body.everywhere(_TIMES, body.number(time))}")
    return _sooner(body, later, ends, least)


@Operation
def _first_ones(body: Any, times: Any, k: Any, count: Any, least: Any) -> Word:
    """`_sooner` of `count` of the TOGETHER times from `k` on."""
    lanes = ", ".join(f"i64 {n}" for n in range(TOGETHER))
    those = body.new(f"icmp slt {_TIMES} <{lanes}>, {body.everywhere(_TIMES, body.number(count))}")
    return _sooner(body, those, _loaded(body, times, k, _TIMES), least)


@Operation
def _least(body: Any, times: Any) -> Word:
    """The least of TOGETHER times."""
    name = f"llvm.vector.reduce.smin.v{TOGETHER}i64"
    body.unit.declarations.add(f"declare i64 @{name}({_TIMES})")
    return Word(body.new(f"call i64 @{name}({_TIMES} {times.name})"), INT)


def split(times, k, count, time):
    """(bits: which of `count` times, a multiple of TOGETHER, from `k` on are not later than `time`, the least of the
    others)."""
    bits, least = by(times, k, time), _beyond(times, k, time, 0)
    for n in range(TOGETHER, count, TOGETHER):
        bits |= by(times, k + n, time) << np.uint64(n)
        least = _beyond(times, k + n, time, least)
    return bits, _least(least)


def _late(body: Any, bounds: Any, n: Any, time: Any) -> str:
    """Which of TOGETHER bounds, from `n` on, are later than `time`."""
    ends, limit = _loaded(body, bounds, n, _TIMES), body.everywhere(_TIMES, body.number(time))
    return str(body.new(f"bitcast <{TOGETHER} x i1> {body.new(f'icmp sgt {_TIMES} {ends}, {limit}')} to i{TOGETHER}"))


@Operation
def served(body: Any, needs: Any, k: Any, bounds: Any, n: Any, time: Any) -> Word:
    """The slots whose needs, from `k` on, have no bit of those of TOGETHER bounds, from `n` on, later than `time`."""
    word = body.new(f"zext i{TOGETHER} {_late(body, bounds, n, time)} to i64")
    word = body.new(f"mul i64 {word}, {0x0101010101010101}")
    busy = body.new(f"bitcast {_TIMES} {body.everywhere(_TIMES, word)} to {_NEEDS}")
    lacking = body.new(f"and {_NEEDS} {_loaded(body, needs, k, _NEEDS)}, {busy}")
    none = body.new(f"icmp eq {_NEEDS} {lacking}, zeroinitializer")
    return Word(body.new(f"bitcast <{MOST_SLOTS} x i1> {none} to i64"), SET)


@Operation
def is_served(body: Any, needs: Any, k: Any, bounds: Any, n: Any, time: Any) -> Word:
    """The same of slot `k` alone."""
    late = body.new(f"zext i{TOGETHER} {_late(body, bounds, n, time)} to i64")
    lacking = body.new(f"and i64 {late}, {body.number(body.load(body.element(needs, [k])))}")
    return Word(body.new(f"icmp eq i64 {lacking}, 0"), TRUTH)


@Operation
def prefetch(body: Any, array: Any, k: Any) -> None:
    """The processor may bring element `k` of an array into its cache; there need not be one, nor an array."""
    if hasattr(array, "sizes"):
        body.unit.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        body.do(f"call void @llvm.prefetch.p0(ptr {body.moved(array, k)}, i32 0, i32 3, i32 1)")


@Operation
def equal(body: Any, numbers: Any, k: Any, value: Any) -> Word:
    """Bits: which of TOGETHER whole numbers from `k` on are a value."""
    kind = f"i{8 * numbers.dtype.itemsize}"
    vector, own = f"<{TOGETHER} x {kind}>", body.number(value)
    own = own if kind == "i64" else body.new(f"trunc i64 {own} to {kind}")
    same = body.new(f"icmp eq {vector} {_loaded(body, numbers, k, vector)}, {body.everywhere(vector, own)}")
    bits = body.new(f"bitcast <{TOGETHER} x i1> {same} to i{TOGETHER}")
    return Word(body.new(f"zext i{TOGETHER} {bits} to i64"), SET)


def first_of_least(times, first, count, floor):
    """Which of `count` times, from `first` on, is the first of the least, all up to `floor` taken as equal; there are
    TOGETHER more."""
    least, n, found = _first_ones(times, first, 0, 0), 0, np.uint64(0)
    for k in range(0, count, TOGETHER):
        found = by(times, first + k, floor)
        if found and k + lowest(found) < count:
            return first + k + lowest(found)
        least = _first_ones(times, first + k, count - k, least)
    soonest, found = _least(least), np.uint64(0)
    while not found:
        found = by(times, first + n, soonest)
        n += TOGETHER
    return first + n - TOGETHER + lowest(found)


def ready_at(lane, shape, s, row, due):
    """A slot can issue from `due` on, as far as its warp goes."""
    own = lane.schedulers[s]
    lane.due[s * shape.rows + row] = due
    if due > own.horizon:
        own.first = min(own.first, due)
    else:
        own.ready |= bit(row)
        own.sure = 0
        if due < own.horizon and own.horizon > own.clock:  # it was looked at further ahead
            own.horizon, own.first = max(own.clock, due), 0


def turn_of(lane, shape, s, can):
    """The row that scheduler `s` issues, of those that can."""
    if not shape.priority:
        return first_after(can, lane.schedulers[s].last)
    row = 0
    while can:
        row = lowest(can)
        can &= lane.older[s * MOST_SLOTS + row]
    return row


def youngest(lane, shape, s, row):
    """A new warp is in a row: all others are older."""
    for k in range(s * MOST_SLOTS, s * MOST_SLOTS + shape.rows):
        lane.older[k] &= ~bit(row)
    lane.older[s * MOST_SLOTS + row] = ~bit(row)


def look(lane, shape, s, g):
    """SCHEDULER.horizon, the tick of a scheduler's next issue (FAR_OFF: it has none), and `picked`, its slot's row."""
    own = lane.schedulers[s]
    time = own.horizon
    while True:
        if time >= own.first:
            own.ready, own.first = split(lane.due, s * shape.rows, shape.rows, time)
        can = own.ready & served(lane.needs, s * MOST_SLOTS, lane.bounds, g * TOGETHER, time)
        if can or time >= FAR_OFF:
            break
        time = min(own.first, _least(_beyond(lane.bounds, g * TOGETHER, time, 0)) if own.ready else FAR_OFF)
    own.horizon, own.sure = time, 1
    own.picked = turn_of(lane, shape, s, can)


def next_issue(lane, shape):
    """The tick of the SM's next issue; SCHEDULER.horizon is that of each, `picked` the row of its slot."""
    now = FAR_OFF
    for s in range(shape.schedulers):
        if not lane.schedulers[s].sure:
            look(lane, shape, s, s if shape.sub_cores else 0)
        now = min(now, lane.schedulers[s].horizon)
    return now


def units_changed(lane, shape, s):
    """Scheduler `s` has issued: what it, and others of its group, may issue next has to be looked at. Units are free
    later than before, if at all: who was picked by another stays so, if what it needs is still free by then."""
    lane.schedulers[s].sure = 0
    for other in range(0 if shape.sub_cores else shape.schedulers):
        own = lane.schedulers[other]
        if own.sure and not is_served(lane.needs, other * MOST_SLOTS + own.picked, lane.bounds, 0, own.horizon):
            own.sure = 0
