"""The small part of Python that the run time of compiled kernels is written in means what it says."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from functional.jit import native
from functional.jit.machine_code import engine_of
from functional.jit.native import (
    I1,
    I8,
    I32,
    I64,
    LANES,
    Double,
    Flags,
    Lanes32,
    Pointer,
    inlined,
    op,
    record_type,
    routine,
)
from functional.llvm_executor.emit import ATTRIBUTES
from functional.llvm_executor.object_code import _RUNTIME_PASSES, _object

NAMES = ("data", "count", "found")
Job = record_type(NAMES, frozenset({"data"}))
MASK = (1 << 64) - 1


@routine
def greatest_divisor(a: I64, b: I64) -> I64:
    while b != 0:
        a, b = b, a % b
    return a


@routine
def unsigned(a: I64, b: I64) -> I64:
    if a < b and a >> 1 != b:
        return (b - a) // 3
    if op.slt(a, b) or not a != 5:  # noqa: SIM202
        return a * b
    return a - b


@inlined
def is_even(word: I32) -> I1:
    return word & 1 == 0


@routine
def sum_of_evens(job: Job) -> I64:
    total = I64(0)
    for number in range(job.count):
        word = job.data[I32, number]
        if not is_even(word):
            continue
        if word == 1000:
            break
        total += I64(word)
    job.found = total
    return I64(job.found) + 1


@routine
def first_at_or_zero(data: Pointer, count: I64, word: I32) -> I64:
    at = I64(0)
    while at < count and data[I32, at] != word:  # nothing is read behind the end
        at += 1
    return op.where(at < count, at, 0)


@routine
def lanes_of(data: Pointer, least: I32, into: Pointer) -> I32:
    words = data[Lanes32, 0]
    chosen = Lanes32(LANES) + words
    array = op.room(Lanes32)
    array[Lanes32, 0] = chosen
    into[Lanes32, 0] = op.where(chosen >= least, chosen, 0)
    op.put(into, op.shuffle(chosen, chosen, tuple_of_lanes), Flags(1 << 31))
    return I32(chosen >= least) + array[I32, 3] + chosen[4] + I32(I8(op.reduce_umax(words)))


tuple_of_lanes = tuple(reversed(LANES))


@pytest.fixture(scope="module")
def compiled():
    engine = engine_of(_object(f"{native.text(__name__)}\n{ATTRIBUTES}\n", _RUNTIME_PASSES))

    def call(name, *arguments):
        kind = ctypes.c_uint64 if name != "lanes_of" else ctypes.c_uint32
        function = ctypes.CFUNCTYPE(kind, *[ctypes.c_uint64] * len(arguments))(engine.get_function_address(name))
        return function(*arguments)

    return call


@pytest.mark.parametrize(("a", "b"), [(12, 18), (MASK, 3), (7, 0), (1 << 63, 96)])
def test_loops_and_pairs(compiled, a, b):
    assert compiled("greatest_divisor", a, b) == int(np.gcd(np.uint64(a), np.uint64(b)))


def test_numbers_have_no_sign(compiled):
    def expected(a, b):
        if a < b and a >> 1 != b:
            return (b - a) // 3
        signed = [x - (x >> 63 << 64) for x in (a, b)]
        return (a * b if signed[0] < signed[1] or a == 5 else a - b) & MASK

    for a, b in [(1, MASK), (MASK, 1), (5, 2), (9, 9), (2, 1), (MASK - 5, 4)]:
        assert compiled("unsigned", a, b) == expected(a, b)


def test_fields_continue_and_break(compiled):
    data = np.array([2, 3, 4, 1, 1000, 6], np.uint32)
    job = np.array([data.ctypes.data, len(data), 0], np.int64)
    assert compiled("sum_of_evens", job.ctypes.data) == 7
    assert job[2] == 6


def test_and_looks_no_further(compiled):
    data = np.array([4, 5, 6], np.uint32)
    for word, place in ((5, 1), (6, 2), (7, 0)):
        assert compiled("first_at_or_zero", data.ctypes.data, len(data), word) == place
    assert compiled("first_at_or_zero", 0, 0, 1) == 0


def test_lanes(compiled):
    rng = np.random.default_rng(1)
    words = rng.integers(0, 1000, 32).astype(np.uint32)
    into, least = np.zeros(32, np.uint32), 500
    found = compiled("lanes_of", words.ctypes.data, least, into.ctypes.data)
    chosen = words + np.arange(32, dtype=np.uint32)
    bits = sum(1 << i for i in range(32) if chosen[i] >= least)
    assert found == (bits + int(chosen[3]) + int(chosen[4]) + int(words.max()) % 256) % (1 << 32)
    expected = np.where(chosen >= least, chosen, 0)
    expected[31] = chosen[0]
    assert np.array_equal(into, expected)


def test_a_number_that_no_literal_says_is_refused():
    @routine("half")
    def half(into: Pointer) -> I64:
        into[Double, 0] = 0.5
        return 0

    with pytest.raises(TypeError, match="there is 0 alone"):
        native.text(__name__)
    native.ROUTINES.pop("half")
