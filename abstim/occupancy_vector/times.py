"""Times of the compiled lanes, kept in arrays: whole numbers of ticks, or those with their derivatives.

An array [time] of integers holds ticks, an array [time, DUAL_WIDTH] of floats *duals*: the tick, and how it changes
with each of some parameters (forward-mode differentiation: Griewank and Walther, Evaluating Derivatives, 2008). A dual
is one vector of the processor; what compares looks at ticks alone. Of two equal ticks the later one has the mean of
both derivatives."""

import ast
from typing import Any

from abstim.occupancy_vector.records import DUAL_WIDTH, PARTS
from functional.jit.layers import OPERATORS
from functional.jit.marked import Operation
from functional.jit.values import INT, REAL, Word

DUAL = f"<{DUAL_WIDTH} x double>"


@Operation
def has_slopes(body: Any, times: Any) -> bool:
    """Do the times of an array, or terms, carry derivatives?"""
    return not hasattr(times, "sizes") or len(times.sizes) == 2


@Operation
def _load(body: Any, times: Any, k: Any) -> Word:
    """Dual `k` of an array."""
    return Word(body.new(f"load {DUAL}, ptr {body.element(times, [k]).name}, align 8"), DUAL)


@Operation
def _store(body: Any, times: Any, k: Any, time: Any) -> None:
    body.do(f"store {DUAL} {_dual(body, time).name}, ptr {body.element(times, [k]).name}, align 8")


@Operation
def _with_tick(body: Any, slopes: Any, row: Any, tick: Any) -> Word:
    """A dual of a row of slopes."""
    found, time = _load.emit(body, slopes, row), body.converted(tick, Word("", REAL))
    return Word(body.new(f"insertelement {DUAL} {found.name}, double {time.name}, i32 0"), DUAL)


def _is_dual(time: Any) -> bool:
    return isinstance(time, Word) and time.kind == DUAL


def _real(body: Any, number: Any) -> str:
    """A whole number of ticks as a floating-point one."""
    return body.new(f"sitofp i64 {body.number(number)} to double")


def _dual(body: Any, time: Any) -> Word:
    """A time as a dual; nothing changes a whole number."""
    if _is_dual(time):
        return time  # type: ignore[no-any-return]
    return Word(body.new(f"insertelement {DUAL} zeroinitializer, double {_real(body, time)}, i32 0"), DUAL)


def _combined(body: Any, name: str, a: Any, b: Any) -> Word:
    """Sums and differences of duals and of ticks; a dual so many times."""
    if name == "mul":
        return Word(body.new(f"fmul {DUAL} {a.name}, {body.everywhere(DUAL, _real(body, b))}"), DUAL)
    left, right = _dual(body, a), _dual(body, b)
    return Word(body.new(f"f{name} {DUAL} {left.name}, {right.name}"), DUAL)


OPERATORS[DUAL] = _combined


def _tick(body: Any, time: Word) -> str:
    return body.new(f"extractelement {DUAL} {time.name}, i32 0")


def _floor(body: Any, number: str) -> str:
    body.unit.declarations.add("declare double @llvm.floor.f64(double)")
    return body.new(f"call double @llvm.floor.f64(double {number})")


def _nearest(body: Any, time: Word) -> str:
    """The whole tick: what little is beyond it, where differences are taken, decides nothing."""
    return _floor(body, body.new(f"fadd double {_tick(body, time)}, {body.converted(0.5, Word('', REAL)).name}"))


@Operation
def at(body: Any, time: Any) -> Any:
    """The tick of a time."""
    if not _is_dual(time):
        return time
    return Word(body.new(f"fptosi double {_nearest(body, time)} to i64"), INT)


@Operation
def later(body: Any, a: Any, b: Any) -> Any:
    """The later one of two times."""
    if not (_is_dual(a) or _is_dual(b)):
        return body.extreme(max, [a, b])
    a, b = _dual(body, a), _dual(body, b)
    one, other = _tick(body, a), _tick(body, b)
    half = body.everywhere(DUAL, body.converted(0.5, Word("", REAL)).name)
    mean = body.new(f"fmul {DUAL} {body.new(f'fadd {DUAL} {a.name}, {b.name}')}, {half}")
    larger = body.new(f"select i1 {body.new(f'fcmp ogt double {one}, {other}')}, {DUAL} {a.name}, {DUAL} {b.name}")
    return Word(
        body.new(f"select i1 {body.new(f'fcmp oeq double {one}, {other}')}, {DUAL} {mean}, {DUAL} {larger}"), DUAL
    )


@Operation
def portion(body: Any, time: Any, part: Any) -> Any:
    """`part` of PARTS of a stretch of time, in whole ticks."""
    if not _is_dual(time):
        return body.binary(ast.FloorDiv(), body.binary(ast.Mult(), time, part), PARTS)
    share = body.new(f"fmul double {_real(body, part)}, {body.converted(1 / PARTS, Word('', REAL)).name}")
    found = body.new(f"fmul {DUAL} {time.name}, {body.everywhere(DUAL, share)}")
    whole = body.new(f"fmul double {_nearest(body, time)}, {share}")
    beyond = body.new(f"fsub double {_tick(body, Word(found, DUAL))}, {whole}")
    tick = body.new(f"fadd double {_floor(body, whole)}, {beyond}")
    return Word(body.new(f"insertelement {DUAL} {found}, double {tick}, i32 0"), DUAL)


def get(times, k):
    """Time `k` of an array."""
    return _load(times, k) if has_slopes(times) else times[k]


def term(terms, k):
    """Term `k` of all items."""
    return _with_tick(terms.slopes, terms.rows[k], terms.ticks[k]) if has_slopes(terms) else terms[k]


def put(times, k, time):
    """Time `k` of an array becomes `time`, which may be a whole number of ticks that nothing changes."""
    if has_slopes(times):
        _store(times, k, time)
    else:
        times[k] = time


@Operation
def chosen(body: Any, if_not_zero: Any, a: Any, b: Any) -> Word:
    """`a` where a number is not zero, else `b`, without a branch that a processor could not foresee."""
    test = body.truth(if_not_zero)
    first, second = (body.converted(v, a) for v in (a, b))
    return Word(body.new(f"select i1 {test.name}, {a.type} {first.name}, {a.type} {second.name}"), a.kind)
