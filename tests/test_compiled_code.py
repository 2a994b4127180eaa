"""Machine code of the compiled engine: kept on disk, found again, loaded without the compiler."""

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from functional.jit import machine_code
from functional.jit.compile import apart, indexed_from_zero, reference
from functional.jit.machine_code import Native, Part, compiled

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


def count_up(words, k):
    words[k] += 1


@indexed_from_zero
def count_up_from_zero(words, k):
    words[k] += 1


@apart
def add_up(pair, k):
    for j in range(pair.wide.shape[1]):
        pair.wide[k, 0] //= pair.small[0]
        pair.wide[k, 0] += pair.wide[k, j]


def with_a_part(pair, k):
    add_up(reference(pair), k)


def with_a_part_too(pair):
    add_up(reference(pair), 1)


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


@pytest.mark.parametrize("name, place", [("count_up", 4), ("count_up_from_zero", 0), ("count_up", 4)])
def test_an_index_counts_from_the_end_but_where_a_function_says_that_none_does(name, place):
    words = np.zeros(5, np.int64)
    Native(__name__, name)(words[1:], 2)
    Native(__name__, name)(words[1:], -1)
    assert words.nonzero()[0].tolist() == sorted([3, place])


def test_code_is_kept_and_found_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    given = arguments()
    Native(__name__, "accumulate", "this takes a moment")(*given)
    assert given[0]["sum"].tolist() == [2 * (1 * (2 + 3) + 2 * (4 + 5))] * 2
    assert capsys.readouterr().err == "this takes a moment\n"
    assert len(list((tmp_path / "objects").iterdir())) == 1

    import functional.jit.compile

    monkeypatch.setattr(functional.jit.compile, "object_code", refuse)
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


def test_arrays_that_cannot_be_written_need_no_code_of_their_own(tmp_path):
    function, given = fresh(), arguments()
    given[1].small.flags.writeable = False
    function(*given)
    function(*arguments())
    assert len(list((tmp_path / "objects").iterdir())) == 1


def no_process(*_, **__):
    raise OSError("no more processes")


def dying_process(*_, **__):
    return START([sys.executable, "-c", "raise SystemExit(1)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


START = subprocess.Popen


@pytest.mark.parametrize("start", [START, no_process, dying_process])
def test_a_part_has_code_of_its_own_which_all_share_who_call_it(tmp_path, monkeypatch, start):
    monkeypatch.setattr(subprocess, "Popen", start)
    pair, part = Pair(np.ones(1, np.uint16), np.arange(6, dtype=np.int64).reshape(3, 2)), Part(__name__, "add_up")
    Native(__name__, "with_a_part", parts=(part,))(pair, 1)
    assert pair.wide.tolist() == [[0, 1], [7, 3], [4, 5]]
    kept = set((tmp_path / "objects").iterdir())
    assert len(kept) == 2
    monkeypatch.setattr(subprocess, "Popen", no_process)
    monkeypatch.setattr(Part, "make", refuse)
    Native(__name__, "with_a_part_too", parts=(part,))(pair)
    assert pair.wide[1].tolist() == [17, 3]
    assert len(set((tmp_path / "objects").iterdir()) - kept) == 1
    with pytest.raises(ZeroDivisionError):
        Native(__name__, "with_a_part_too", parts=(part,))(Pair(pair.small * 0, pair.wide))


def test_a_file_in_the_users_folder_is_no_module_of_the_process_that_makes_a_part(tmp_path, monkeypatch):
    (tmp_path / "numba.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Part, "make", refuse)  # what this process would do if the other failed
    pair = Pair(np.ones(1, np.uint16), np.arange(6, dtype=np.int64).reshape(3, 2))
    Native(__name__, "with_a_part", parts=(Part(__name__, "add_up"),))(pair, 1)
    assert pair.wide[1].tolist() == [7, 3]


def test_what_it_cannot_take():
    function, (records, pair, one, scale, more) = fresh(), arguments()
    with pytest.raises(ValueError, match="not contiguous"):
        function(records, Pair(pair.small, pair.wide[:, ::2]), one, scale, more)
    with pytest.raises(TypeError):
        function(records, pair, one, 0.5, more)
    with pytest.raises(ZeroDivisionError):
        function(*arguments(divisor=0))


def test_importing_the_engine_imports_no_compiler():
    code = "import sys, abstim.engine.simulation; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
