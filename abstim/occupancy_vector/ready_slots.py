"""The slots of a scheduler as bits of words: which are due, which need a unit that is busy, and which one issues next.

Eight slots, or eight needs, are looked at together, as a vector of the processor.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

from abstim.occupancy_vector.records import FAR_OFF, MOST_SLOTS, TOGETHER
from functional.jit.compile import jit

ONE, SHIFT = np.uint64(1), TOGETHER.bit_length() - 1
_WORD, _BYTE, _SLOTS = ir.IntType(64), ir.IntType(8), ir.IntType(MOST_SLOTS)
_TIMES = ir.VectorType(_WORD, TOGETHER)
_NEEDS = ir.VectorType(_BYTE, MOST_SLOTS)


def _loaded(context, builder, kind, array, k, vector):
    """Element `k` of an array and those behind it, as a vector."""
    data = cgutils.create_struct_proxy(kind)(context, builder, array).data
    found = builder.load(builder.bitcast(builder.gep(data, [k]), vector.as_pointer()))
    found.align = vector.element.width // 8
    return found


def _each(builder, number, vector):
    """A vector of one number."""
    undefined, first = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    same = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(builder.insert_element(undefined, number, first), undefined, same)


@jit
def first_beyond(times, k, count, time):
    """The least of `count` times, a multiple of TOGETHER, from `k` on that are later than `time`."""
    found = FAR_OFF
    for n in range(np.uint64(k), np.uint64(k + count)):
        found = min(found, times[n] if times[n] > time else FAR_OFF)
    return found


@intrinsic
def those_by(typing, times, k, count, time):
    """Bits: which of `count` times, a multiple of TOGETHER, from `k` on are not later than `time`."""

    def code(context, builder, signature, arguments):
        array, first, count, time = arguments
        bits, groups = cgutils.alloca_once_value(builder, _WORD(0)), builder.lshr(count, _WORD(SHIFT))
        with cgutils.for_range(builder, groups) as loop:
            ahead = builder.shl(loop.index, _WORD(SHIFT))
            found = _loaded(context, builder, signature.args[0], array, builder.add(first, ahead), _TIMES)
            by = builder.icmp_signed("<=", found, _each(builder, time, _TIMES))
            own = builder.shl(builder.zext(builder.bitcast(by, _BYTE), _WORD), ahead)
            builder.store(builder.or_(builder.load(bits), own), bits)
        return builder.load(bits)

    return types.uint64(times, types.int64, types.int64, types.int64), code


@intrinsic
def served(typing, needs, k, bounds, n, time):
    """The slots whose needs, from `k` on, have no bit of those of TOGETHER bounds, from `n` on, later than `time`."""

    def code(context, builder, signature, arguments):
        ends = _loaded(context, builder, signature.args[2], arguments[2], arguments[3], _TIMES)
        busy = builder.bitcast(builder.icmp_signed(">", ends, _each(builder, arguments[4], _TIMES)), _BYTE)
        found = _loaded(context, builder, signature.args[0], arguments[0], arguments[1], _NEEDS)
        word = builder.mul(builder.zext(busy, _WORD), _WORD(0x0101010101010101))
        lacking = builder.and_(found, builder.bitcast(_each(builder, word, _TIMES), _NEEDS))
        return builder.bitcast(builder.icmp_unsigned("==", lacking, ir.Constant(_NEEDS, [0] * MOST_SLOTS)), _WORD)

    return types.uint64(needs, types.int64, bounds, types.int64, types.int64), code


@intrinsic
def prefetch(typing, array, k):
    """The processor may bring element `k` of an array into its cache; there need not be one."""

    def code(context, builder, signature, arguments):
        data = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0]).data
        pointer = ir.IntType(8).as_pointer()
        address = builder.bitcast(builder.gep(data, [arguments[1]]), pointer)
        kind = ir.FunctionType(ir.VoidType(), [pointer, *[ir.IntType(32)] * 3])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, *(ir.Constant(ir.IntType(32), n) for n in (0, 3, 1))])
        return context.get_dummy_value()

    return types.none(array, types.int64), code


@jit
def lowest(slots):
    """The lowest of a set that is not empty."""
    return np.int64(trailing_zeros(slots))


@jit
def first_after(slots, k):
    """The first of a set after slot `k` in cyclic order; the set is not empty."""
    higher = slots & ~(((ONE << np.uint64(k)) << ONE) - ONE)
    return lowest(higher if higher else slots)


@jit
def ready_at(lane, shape, s, row, due):
    """A slot can issue from `due` on, as far as its warp goes."""
    own = lane.schedulers[s]
    lane.due[s * shape.rows + row] = due
    if due > own.horizon:
        own.first = min(own.first, due)
    else:
        own.ready |= ONE << np.uint64(row)
        own.sure = 0
        if due < own.horizon and own.horizon > own.clock:  # it was looked at further ahead
            own.horizon, own.first = max(own.clock, due), 0


@jit
def look(lane, shape, s, g):
    """SCHEDULER.horizon, the tick of a scheduler's next issue (FAR_OFF: it has none), and `picked`, its slot's row."""
    own = lane.schedulers[s]
    time = own.horizon
    while True:
        if time >= own.first:
            own.ready = those_by(lane.due, s * shape.rows, shape.rows, time)
            own.first = first_beyond(lane.due, s * shape.rows, shape.rows, time)
        can = own.ready & served(lane.needs, s * MOST_SLOTS, lane.bounds, g * TOGETHER, time)
        if can or time >= FAR_OFF:
            break
        time = min(own.first, first_beyond(lane.bounds, g * TOGETHER, TOGETHER, time) if own.ready else FAR_OFF)
    own.horizon, own.sure = time, 1
    own.picked = lowest(can) if shape.priority else first_after(can, own.last)


@jit
def next_issue(lane, shape):
    """The tick of the SM's next issue; SCHEDULER.horizon is that of each, `picked` the row of its slot."""
    now = FAR_OFF
    for s in range(shape.schedulers):
        if not lane.schedulers[s].sure:
            look(lane, shape, s, s if shape.sub_cores else 0)
        now = min(now, lane.schedulers[s].horizon)
    return now


@jit
def units_changed(lane, shape, s):
    """Scheduler `s` has issued: what others of its group may issue next has to be looked at."""
    lane.schedulers[s].sure = 0
    if not shape.sub_cores:
        for other in range(shape.schedulers):
            lane.schedulers[other].sure = 0
