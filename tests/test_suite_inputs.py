"""The suite: names, inputs that are the same every time, expected outputs, and export to files."""

from __future__ import annotations

import numpy as np
import pytest

from functional import suite
from functional.errors import InputError
from functional.launches.case import Expected, compare
from functional.launches.launches_json import load_case
from functional.suite.export import export

SMALL = ("hotspot", "bfs", "gemm_mma", "micro_block_launch", "micro_const_load")


def test_names_and_groups():
    assert len(suite.names()) == len(set(suite.names())) == 58
    assert [len(suite.names(group)) for group in suite.GROUPS] == [15, 25, 18]
    assert suite.group_of("micro_divergence:ways_8") == "micro"
    assert suite.is_name("hotspot") and suite.is_name("micro_sfu:x") and not suite.is_name("k.ptx")


def test_unknown_names_give_the_nearest():
    with pytest.raises(InputError, match="no benchmark 'hotspt' in the suite; did you mean hotspot"):
        suite.case("hotspt")
    with pytest.raises(InputError, match="no launch 'ways_3'; it has ways_1, ways_2"):
        suite.case("micro_divergence:ways_3")
    with pytest.raises(InputError, match="its launches depend on each other"):
        suite.case("hotspot:x")
    with pytest.raises(InputError, match="no group 'app' in the suite"):
        suite.names("app")


def test_every_benchmark_makes_a_case():
    for name in suite.names():
        case = suite.case(name)
        counts = suite.instruction_counts(name)
        assert len(case.launches) == len(counts["issued"]) == len(counts["active"])
        assert case.expected and case.group in suite.GROUPS
        for launch in case.launches:
            assert case.registers(launch).source == "resources.json"
        differ = {m.buffer for m in case.compare(case.memory)}
        assert differ, f"{name}: the initial memory already is the expected result"
        for buffer, expected in case.expected.items():
            assert expected.values.nbytes == case.memory.buffers[buffer].bytes
            assert expected.values.dtype == case.dtypes[buffer]
            case.memory.bytes_of(case.memory.buffers[buffer])[:] = expected.values.reshape(-1).view(np.uint8)
        assert case.compare(case.memory) == []


@pytest.mark.parametrize("name", SMALL)
def test_inputs_are_the_same_every_time(name):
    first, second = suite.case(name), suite.case(name)
    assert np.array_equal(first.memory.arena, second.memory.arena)
    assert [launch.parameters for launch in first.launches] == [launch.parameters for launch in second.launches]


def test_one_launch_of_a_benchmark():
    labels = suite.labels("micro_divergence")
    assert "ways_8" in labels and suite.labels("hotspot") == ()
    case = suite.case("micro_divergence:ways_8")
    assert [launch.label for launch in case.launches] == ["ways_8"]
    assert set(case.memory.buffers) == {"in", "out_8"} == {"in", *case.expected}


def test_dynamic_shared_memory_is_kept():
    launch = suite.case("micro_block_launch:smem_48KB").launches[0]
    assert launch.dynamic_shared_bytes == launch.shared_bytes == 48 << 10


@pytest.mark.parametrize("name", [*SMALL, "micro_smem_conflict:dep_4way"])
def test_exported_files_give_the_same_case(name, tmp_path):
    from_files, own = load_case(export(name, tmp_path / "x")), suite.case(name)
    assert np.array_equal(from_files.memory.arena, own.memory.arena)
    assert np.array_equal(from_files.memory.const_arena, own.memory.const_arena)
    for a, b in zip(from_files.launches, own.launches, strict=True):
        assert (a.grid, a.block, a.parameters, a.label) == (b.grid, b.block, b.parameters, b.label)
        assert a.dynamic_shared_bytes == b.dynamic_shared_bytes and a.program.name == b.program.name
    assert from_files.resources == own.resources and from_files.dtypes == own.dtypes
    assert [m.buffer for m in from_files.compare(own.memory)] == [m.buffer for m in own.compare(own.memory)]


def test_comparison_rules():
    values = np.array([1.0, 2.0, -4.0], np.float32)
    expected = Expected(values, rtol=0.1, atol=0.5)
    assert compare("b", values + np.float32(0.55), expected) is None
    wrong = compare("b", np.array([1, 2.8, np.nan], np.float32), expected)
    assert wrong is not None and (wrong.elements, wrong.of, wrong.first) == (2, 3, 1) and wrong.error == np.inf
    assert str(wrong).startswith("b: 2 of 3 elements differ, first [1] is 2.79")
    assert compare("b", values, Expected(values)) is None
    off = compare("i", np.array([1, 2], np.int32), Expected(np.array([1, 3], np.int32)))
    assert off is not None and (off.got, off.expected) == (2, 3)
