"""Times of the compiled lanes, kept in arrays: whole numbers of ticks, or those with their derivatives.

An array [time] of integers holds ticks, an array [time, DUAL_WIDTH] of floats *duals*: the tick, and how it changes
with each of some parameters (forward-mode differentiation: Griewank and Walther, Evaluating Derivatives, 2008). A dual
is one vector of the processor; what compares looks at ticks alone. Of two equal ticks the later one has the mean of
both derivatives.
"""

from __future__ import annotations

import operator

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from abstim.occupancy_vector.records import DUAL_WIDTH, PARTS
from functional.jit.compile import jit

_VECTOR = ir.VectorType(ir.DoubleType(), DUAL_WIDTH)


class Dual(numba.types.Type):
    """A tick and its derivatives."""

    def __init__(self) -> None:
        super().__init__("Dual")


dual = Dual()


@register_model(Dual)
class DualModel(models.PrimitiveModel):
    """One vector of floats."""

    def __init__(self, manager, kind) -> None:
        super().__init__(manager, kind, _VECTOR)


def _are_duals(times) -> bool:
    return isinstance(times, numba.types.Array) and times.ndim == 2


def _place(context, builder, kind, times, k):
    """Pointer to dual `k` of an array."""
    array = cgutils.create_struct_proxy(kind)(context, builder, times)
    address = builder.gep(array.data, [builder.mul(k, ir.Constant(k.type, DUAL_WIDTH))])
    return builder.bitcast(address, _VECTOR.as_pointer())


@intrinsic
def _load(typing, times, k):
    def code(context, builder, signature, arguments):
        place = _place(context, builder, signature.args[0], arguments[0], arguments[1])
        found = builder.load(place)
        found.align = 8
        return found

    return dual(times, numba.types.int64), code


@intrinsic
def _store(typing, times, k, time):
    def code(context, builder, signature, arguments):
        place = _place(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store(arguments[2], place).align = 8
        return context.get_dummy_value()

    return numba.types.none(times, numba.types.int64, dual), code


def _tick(builder, time):
    return builder.extract_element(time, ir.Constant(ir.IntType(32), 0))


def _floor(builder, number):
    return builder.call(builder.module.declare_intrinsic("llvm.floor", [ir.DoubleType()]), [number])


def _nearest(builder, tick):
    """The whole tick: what little is beyond it, where differences are taken, decides nothing."""
    return _floor(builder, builder.fadd(tick, ir.Constant(ir.DoubleType(), 0.5)))


@intrinsic
def _at(typing, time):
    def code(context, builder, signature, arguments):
        return builder.fptosi(_nearest(builder, _tick(builder, arguments[0])), ir.IntType(64))

    return numba.types.int64(dual), code


@intrinsic
def _later(typing, a, b):
    def code(context, builder, signature, arguments):
        first, second = arguments
        one, other = _tick(builder, first), _tick(builder, second)
        half = ir.Constant(_VECTOR, [0.5] * DUAL_WIDTH)
        mean = builder.fmul(builder.fadd(first, second), half)
        larger = builder.select(builder.fcmp_ordered(">", one, other), first, second)
        return builder.select(builder.fcmp_ordered("==", one, other), mean, larger)

    return dual(dual, dual), code


def _ticks(builder, number):
    """A whole number as a dual that nothing changes."""
    zero = ir.Constant(_VECTOR, [0.0] * DUAL_WIDTH)
    return builder.insert_element(zero, builder.sitofp(number, ir.DoubleType()), ir.Constant(ir.IntType(32), 0))


@intrinsic
def _whole(typing, number):
    def code(context, builder, signature, arguments):
        return _ticks(builder, arguments[0])

    return dual(numba.types.int64), code


def _of_both(operation):
    """Intrinsic: an operation of two duals."""

    @intrinsic
    def combined(typing, a, b):
        def code(context, builder, signature, arguments):
            return getattr(builder, operation)(*arguments)

        return dual(dual, dual), code

    return combined


def _with_number(operation):
    """Intrinsic: an operation of a dual and a whole number of ticks."""

    @intrinsic
    def combined(typing, a, b):
        def code(context, builder, signature, arguments):
            return getattr(builder, operation)(arguments[0], _ticks(builder, arguments[1]))

        return dual(dual, numba.types.int64), code

    return combined


def _everywhere(builder, number):
    """A vector of one number."""
    undefined, same = (
        ir.Constant(_VECTOR, ir.Undefined),
        ir.Constant(ir.VectorType(ir.IntType(32), DUAL_WIDTH), [0] * DUAL_WIDTH),
    )
    return builder.shuffle_vector(
        builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0)), undefined, same
    )


@intrinsic
def _scaled(typing, a, b):
    def code(context, builder, signature, arguments):
        return builder.fmul(arguments[0], _everywhere(builder, builder.sitofp(arguments[1], ir.DoubleType())))

    return dual(dual, numba.types.int64), code


@intrinsic
def _shared(typing, a, b):
    def code(context, builder, signature, arguments):
        share = builder.fmul(
            builder.sitofp(arguments[1], ir.DoubleType()), ir.Constant(ir.DoubleType(), 1 / PARTS)
        )  # fmt: skip
        found = builder.fmul(arguments[0], _everywhere(builder, share))
        whole = builder.fmul(_nearest(builder, _tick(builder, arguments[0])), share)
        tick = builder.fadd(_floor(builder, whole), builder.fsub(_tick(builder, found), whole))
        return builder.insert_element(found, tick, ir.Constant(ir.IntType(32), 0))

    return dual(dual, numba.types.int64), code


def _overloaded(operation, both, with_number):
    @overload(operation)
    def chosen(a, b):
        if isinstance(a, Dual) and isinstance(b, Dual) and both is not None:
            return lambda a, b: both(a, b)
        if isinstance(a, Dual) and isinstance(b, numba.types.Integer):
            return lambda a, b: with_number(a, b)
        return None


_overloaded(operator.add, _of_both("fadd"), _with_number("fadd"))
_overloaded(operator.sub, _of_both("fsub"), _with_number("fsub"))
_overloaded(operator.mul, None, _scaled)


def get(times, k):
    """Time `k` of an array."""
    return times[k]


def put(times, k, time):
    """Time `k` of an array becomes `time`, which may be a whole number of ticks that nothing changes."""
    times[k] = time


def has_slopes(times):
    """Do the times of an array carry derivatives?"""
    return times.ndim == 2


def at(time):
    """The tick of a time."""
    return time


def later(a, b):
    """The later one of two times."""
    return max(a, b)


def portion(time, part):
    """`part` of PARTS of a stretch of time, in whole ticks."""
    return time * part // PARTS


@overload(get, inline="always")
def _get(times, k):
    return (lambda times, k: _load(times, k)) if _are_duals(times) else (lambda times, k: times[np.uint64(k)])


@overload(put, inline="always")
def _put(times, k, time):
    if _are_duals(times) and isinstance(time, numba.types.Integer):
        return lambda times, k, time: _store(times, k, _whole(time))
    if _are_duals(times):
        return lambda times, k, time: _store(times, k, time)

    def plain(times, k, time):
        times[np.uint64(k)] = time  # without a sign, Numba does not look whether it counts from the end

    return plain


@overload(has_slopes, inline="always")
def _has_slopes(times):
    return (lambda times: True) if _are_duals(times) else (lambda times: False)


@overload(at, inline="always")
def _at_of(time):
    return (lambda time: _at(time)) if isinstance(time, Dual) else (lambda time: time)


@overload(later, inline="always")
def _later_of(a, b):
    return (lambda a, b: _later(a, b)) if isinstance(a, Dual) else (lambda a, b: max(a, b))


@overload(portion, inline="always")
def _portion(time, part):
    if isinstance(time, Dual):
        return lambda time, part: _shared(time, part)
    return lambda time, part: time * part // PARTS


@intrinsic
def chosen(typing, if_not_zero, a, b):
    """`a` where a number is not zero, else `b`, without a branch that a processor could not foresee."""

    def code(context, builder, signature, arguments):
        return builder.select(cgutils.is_not_null(builder, arguments[0]), *arguments[1:])

    return a(if_not_zero, a, a), code


@jit
def zero(times):
    """All times of an array become zero."""
    times[:] = 0
