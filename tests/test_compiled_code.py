"""Machine code of the compiled engine: kept on disk, found again, loaded without the compiler."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from functional.jit import machine_code
from functional.jit.machine_code import CAN_LOAD, QUICKLY, Native, Staged, assembled, compiled, engine_of
from functional.jit.marked import INT, Array, Known, outlined, words_of

RECORD = np.dtype([("divisor", np.int64), ("sum", np.int64)])


class Pair(NamedTuple):
    small: np.ndarray
    wide: np.ndarray


@compiled
def accumulate(records, pair, one, scale, more):
    for k in range(len(pair.small)):
        for j in range(pair.wide.shape[1]):
            records[0].sum += pair.small[k] * pair.wide[k, j] * scale // one.divisor
    if more:
        one.sum = records[0].sum


@compiled
def mix(pair, numbers, records, found):
    """Numbers that are not whole, parts of arrays, columns of records, tuples."""
    small, wide = pair
    found[:] = 0
    found[1:][:2] = -1
    for k in range(len(records.sum)):
        share = records.sum[k] / records.divisor[k] if k else 0.25
        numbers[k] = max(share, numbers[k]) * 2 - 0.5
        found[3] += np.int64(numbers[k] >= 1)
        found[0] += abs(small[k] - wide[0, k]) + np.int64(numbers[k])


class Tables(NamedTuple):
    numbers: np.ndarray = Array("row number")
    totals: np.ndarray = Array("row")


def quotient(total, one, known):
    if known:
        return total // one, total % one
    return NOT_COMPILED, 0  # noqa: F821


@outlined
def add_up(tables, one, row, k):
    """Adds up row `k`, and divides the sum."""
    total = 0
    for j in range(tables.numbers.shape[1]):
        total += tables.numbers[k, j]
    row[0], row[1] = quotient(total, one.divisor, one.sum == 3)
    tables.totals[k] = total


TABLES = (Tables, Array("", RECORD), Array("two"), INT)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))


def arguments(divisor=2, more=True):
    pair = Pair(np.arange(3, dtype=np.uint16), np.arange(6, dtype=np.int64).reshape(3, 2))
    records = np.zeros(2, RECORD)
    records["divisor"] = divisor
    return records, pair, records[1], np.int64(4), more


def refuse(*_):
    raise AssertionError("compiled again")


def fresh():
    return Native(__name__, "accumulate")


def test_numbers_parts_columns_and_tuples():
    numbers, records, found = np.array([3.0, 0.1, 0.2]), np.zeros(3, RECORD), np.full(4, 7)
    records["divisor"], records["sum"] = 4, (9, -2, 3)
    pair = (np.array([1, 5, 9], np.uint8), np.array([[4, 4, 4]], np.int32))
    mix(pair, numbers, records, found)
    assert numbers.tolist() == [5.5, 2 * 0.1 - 0.5, 1.0]
    assert found.tolist() == [3 + 1 + 5 + 5 + 0 + 1, -1, -1, 2]


def test_code_is_kept_and_found_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    given = arguments()
    Native(__name__, "accumulate", "this takes a moment")(*given)
    assert given[0]["sum"].tolist() == [2 * (1 * (2 + 3) + 2 * (4 + 5))] * 2
    assert capsys.readouterr().err == "this takes a moment\n"
    assert len(list((tmp_path / "objects").iterdir())) == 1

    monkeypatch.setattr(machine_code, "assembled", refuse)
    again = arguments(divisor=1, more=False)
    Native(__name__, "accumulate", "this takes a moment")(*again)
    assert again[0]["sum"].tolist() == [4 * 23, 0]
    assert capsys.readouterr().err == ""

    monkeypatch.setattr(machine_code, "key", lambda *parts: "other sources")
    with pytest.raises(AssertionError, match="compiled again"):
        fresh()(*again)


def test_damaged_code_is_compiled_again(tmp_path):
    given = arguments()
    fresh()(*given)
    (path,) = (tmp_path / "objects").iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:-9] + b"x" * 9)
    again = arguments()
    fresh()(*again)
    assert np.array_equal(given[0], again[0])
    assert path.read_bytes()[-9:] != b"x" * 9


def test_other_types_are_other_code(tmp_path):
    function = fresh()
    records, pair, one, scale, more = arguments()
    function(records, pair, one, scale, more)
    wider = Pair(pair.small.astype(np.uint32), pair.wide)
    function(records, wider, one, scale, more)
    assert records["sum"].tolist() == [2 * 2 * 23] * 2
    assert len(list((tmp_path / "objects").iterdir())) == 2


def test_code_that_is_compiled_quickly_is_other_code_that_does_the_same(tmp_path):
    given, again = arguments(), arguments()
    fresh()(*given)
    Native(__name__, "accumulate", how=QUICKLY)(*again)
    assert np.array_equal(given[0], again[0]) and len(list((tmp_path / "objects").iterdir())) == 2


def test_arrays_that_cannot_be_written_need_no_code_of_their_own(tmp_path):
    function, given = fresh(), arguments()
    given[1].small.flags.writeable = False
    function(*given)
    function(*arguments())
    assert len(list((tmp_path / "objects").iterdir())) == 1


def staged_call(known, k, divisor=4, function=None):
    numbers = np.array([[1, 2, 3], [-7, -8, 1]])
    tables, one, row = Tables(numbers, np.zeros(2, np.int64)), np.zeros((), RECORD), np.zeros(2, np.int64)
    one["divisor"] = divisor
    words = np.array(words_of(tables))
    (function or Staged(__name__, "add_up", TABLES))(known, words.ctypes.data, one, row, k)
    return tables.totals.tolist(), row.tolist()


def test_code_is_compiled_for_what_is_known_and_kept_for_each(tmp_path, monkeypatch):
    three = Known("three", {RECORD: {"sum": 3}})
    assert staged_call(three, 1) == ([0, -14], [-4, 2])  # towards less
    assert staged_call(Known("both", {RECORD: {"sum": 3, "divisor": 8}}), 1) == ([0, -14], [-2, 2])
    assert staged_call(Known("two", {RECORD: {"sum": 3}}, sizes={"number": 2}), 0) == ([3, 0], [0, 3])  # of three
    assert len(list((tmp_path / "objects").iterdir())) == 3
    with pytest.raises(AttributeError, match="NOT_COMPILED"):  # a branch that is known not to be taken is not compiled
        staged_call(Known("four", {RECORD: {"sum": 4}}), 1)
    monkeypatch.setattr(machine_code, "assembled", refuse)
    assert staged_call(three, 0) == ([6, 0], [1, 2])


def fill(numbers, count):
    numbers[1:count] = 0


@pytest.mark.parametrize("call", [
    "staged_call(Known('x', {RECORD: {'sum': 3}}, checked=True), 2)",
    "Staged('test_compiled_code', 'fill', (Array('two'), INT))(Known('x', checked=True), np.zeros(2, np.int64), 3)",
])  # fmt: skip
def test_checked_code_stops_at_an_index_out_of_range(call):
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    code = f"from test_compiled_code import *; {call}"
    end = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert end.returncode == -signal.SIGILL


def test_staged_code_takes_no_number_that_is_not_whole():
    with pytest.raises(TypeError):
        staged_call(Known("three", {RECORD: {"sum": 3}}), 0.5)


def test_what_it_cannot_take():
    function, (records, pair, one, scale, more) = fresh(), arguments()
    with pytest.raises(ValueError, match="not contiguous"):
        function(records, Pair(pair.small, pair.wide[:, ::2]), one, scale, more)
    with pytest.raises(TypeError):
        function(records, pair, one, 0.5, more)


def test_importing_the_engine_imports_no_compiler():
    code = "import sys, abstim.engine.simulation; sys.exit('functional.jit.staged' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


CALLS = """
@table = internal constant [3 x i64] [i64 5, i64 7, i64 11]
declare i64 @given(i64)
declare i64 @labs(i64)
define i64 @nth(i64 %k) {
  %place = getelementptr [3 x i64], ptr @table, i64 0, i64 %k
  %value = load i64, ptr %place
  ret i64 %value
}
define i64 @entry(i64 %k) {
  %value = call i64 @nth(i64 %k)
  %less = sub i64 0, %value
  %more = call i64 @labs(i64 %less)
  %all = call i64 @given(i64 %more)
  ret i64 %all
}"""


def test_object_files_find_constants_and_functions_of_each_other_and_of_the_process():
    given = assembled("define i64 @given(i64 %x) {\n %y = mul i64 %x, 3\n ret i64 %y\n}")
    engine = engine_of(given, assembled(CALLS))
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("entry"))
    assert [call(k) for k in range(3)] == [15, 21, 33]


@pytest.mark.skipif(not CAN_LOAD, reason="LLVM loads object files here")
def test_object_files_of_another_kind_are_refused():
    with pytest.raises(AttributeError, match="nobody_has_this"):
        engine_of(
            assembled(
                "declare void @nobody_has_this()\ndefine void @f() {\n call void @nobody_has_this()\n ret void\n}"
            )
        )
    with pytest.raises(ValueError, match="variables"):
        engine_of(assembled("@v = global i64 3\ndefine ptr @f() {\n ret ptr @v\n}"))
    with pytest.raises(ValueError, match="relocations"):
        engine_of(assembled("declare i64 @labs(i64)\ndefine ptr @f() {\n ret ptr @labs\n}"))
