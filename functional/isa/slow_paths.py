"""Operands for which hardware leaves the fast path of an instruction. It divides, and takes roots, by a short sequence
that tests what it is given, and calls a subroutine for the rest: zeros, subnormal and extreme numbers. The tests are
those of the code that ptxas 13.0 makes for sm_75 to sm_90; that of f32 division is one instruction (FCHK), whose ranges
are taken to be those in which no step leaves normal numbers."""

from collections.abc import Callable

from functional.isa.emitter import Emitter, Value
from functional.ptx.ir import Instruction

Test = Callable[..., Value]


def _exponent(e: Emitter, x: Value) -> Value:
    shift, mask = {32: (23, 0xFF), 64: (52, 0x7FF)}[x.bits]
    return e.op("and", e.op("lshr", e.raw_bits(x), shift), mask)


def _outside(e: Emitter, x: Value, first: int, last: int) -> Value:
    """Is a number, which may be negative, below `first` or above `last`?"""
    return e.compare("ugt", e.op("sub", x, first), last - first)


def _quotient(numerators: tuple[int, int], denominators: tuple[int, int], quotients: tuple[int, int]) -> Test:
    """Is an exponent not in its range? That of the quotient is the difference of the other two."""

    def test(e: Emitter, a: Value, b: Value) -> Value:
        a, b = _exponent(e, a), _exponent(e, b)
        extreme = e.op("or", _outside(e, a, *numerators), _outside(e, b, *denominators))
        return e.op("or", extreme, _outside(e, e.op("sub", a, b), *quotients))

    return test


def _of_exponents(first: int, last: int) -> Test:
    return lambda e, x: _outside(e, _exponent(e, x), first, last)


def _root(e: Emitter, x: Value) -> Value:
    """Negative, infinite, no number, or so small that its residue would be subnormal."""
    first, infinite = {32: (0x0D000000, 0x7F800000), 64: (0x03500000 << 32, 0x7FF00000 << 32)}[x.bits]
    return _outside(e, e.raw_bits(x), first, infinite - 1)


_TESTS: dict[tuple[str, str], Test] = {
    ("div", "f32"): _quotient((25, 254), (1, 252), (-125, 125)),
    ("div", "f64"): _quotient((54, 2046), (1, 2046), (-1021, 1016)),
    ("rcp", "f32"): _of_exponents(1, 252),
    ("rcp", "f64"): _of_exponents(1, 0x7FC),
    ("sqrt", "f32"): _root,
    ("sqrt", "f64"): _root,
}


def test_of(inst: Instruction) -> Test | None:
    """Which of an instruction's operands take its slow path, in each lane; None if it has no such path."""
    return _TESTS.get((inst.opcode, inst.type)) if "rn" in inst.modifiers else None
