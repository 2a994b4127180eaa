"""The hard sets as programs, what is counted of them, and sampling that aims at an error on some of them."""

import numpy as np
import pytest
from bench_sampling import reliability
from hard_set import FIRST, GROUPS, MAKERS, known_programs  # noqa: F401

from abstim.cli import main
from abstim.gpu.config import load_gpu
from abstim.study.sample.automatic import Aim
from abstim.study.sample.sample_result import Row
from abstim.study.sample.sampler import compare, sample
from abstim.study.sample.work import (
    BANK_PASSES,
    COLUMNS,
    L1D_MISSES,
    L2_MISSES,
    NEW_LINES,
    OWN_LINES,
    REQUESTS,
    ROWS,
    SECTORS,
    SPECIAL,
    WORK,
    block_work,
    slow_code,
)
from abstim.targets.resolve import names_in, open_target
from functional.errors import InputError
from functional.keep.kept import Kept
from functional.llvm_executor.run import LlvmExecutor
from functional.suite import workloads
from functional.traces.line_record import is_data, line_of, sectors_of

REAL = load_gpu("gtx480")


def test_the_sets_are_listed_and_named():
    assert len(FIRST) >= 20
    assert set(name for group in GROUPS for name in names_in(group)) == set(MAKERS)
    assert set(MAKERS) <= set(workloads.names())
    assert workloads.is_name("hard_growing:12")
    assert not workloads.is_name("hard_growing:x")
    assert not workloads.is_name("hard_")


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_makes_one_program(name):
    first, again, other = (open_target(f"{name}:{seed}") for seed in (1, 1, 2))
    assert [launch.parameters for launch in first.launches] == [launch.parameters for launch in again.launches]
    contents = [{buffer: case.buffer(buffer).tobytes() for buffer in case.dtypes} for case in (first, again, other)]
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]


def executed(name: str, launch: int = 0):
    """(trace, program) of a launch."""
    case = open_target(name)
    memory = case.memory.copy()
    traces = [LlvmExecutor().run(case.launches[k], memory) for k in range(launch + 1)]
    return traces[-1], case.launches[launch].program


def test_work_is_what_the_trace_says():
    trace, kernel = executed("hard_changing_data")
    work = block_work([trace], REAL, slow_code(kernel, False), 1)[0]
    lines, data = line_of(trace.records), is_data(line_of(trace.records))
    ends = trace.record_offsets[:: trace.warps_per_block]
    before: set[int] = set()
    for block in range(len(trace.thread_blocks)):
        own = slice(ends[block], ends[block + 1])
        touched = set(lines[own][data[own]].tolist())
        bits = sum(int(sectors).bit_count() for sectors in sectors_of(trace.records[own])[data[own]].tolist())
        counts = work.counts[block]
        assert counts[REQUESTS] == data[own].sum()
        assert counts[SECTORS] == bits
        assert counts[OWN_LINES] == len(touched)
        assert counts[NEW_LINES] == len(touched - before)
        assert counts[NEW_LINES] <= counts[L2_MISSES] <= counts[OWN_LINES] <= counts[L1D_MISSES] <= counts[REQUESTS]
        assert counts[ROWS] <= counts[L2_MISSES]
        before |= touched
    assert work.columns.shape == (len(trace.thread_blocks), 1 + COLUMNS)
    assert len(WORK) == 1 + 1 + COLUMNS + 2


def test_what_an_argument_decides_is_counted():
    """Launches of one code, grid and number of accesses, that differ in what makes them long."""

    def totals(name, launch=0):
        trace, kernel = executed(name, launch)
        return block_work([trace], REAL, slow_code(kernel, False), 8)[0].counts.sum(0)

    strides = [next(a for a in x.arguments if isinstance(a, int)) for x in open_target("hard_bank_strides").launches]
    one, many = (totals("hard_bank_strides", strides.index(stride)) for stride in (1, 16))
    assert np.delete(one, BANK_PASSES).tolist() == np.delete(many, BANK_PASSES).tolist()
    assert many[BANK_PASSES] > 5 * one[BANK_PASSES]
    special = {totals("hard_unit_mixes", k)[SPECIAL] > 0 for k in range(12)}
    assert special == {False, True}


@pytest.fixture(scope="module")
def strides():
    return compare("hard_strides", REAL, ["auto", "photon", "sieve"])


def test_auto_keeps_its_promise_where_code_does_not_tell(strides):
    auto, photon, sieve = (result.estimate for result in strides.results)
    assert auto.covers(strides.true_cycles)
    assert auto.relative_half_width <= 0.02
    assert auto.detailed_fraction < 0.6
    assert photon.relative_error(strides.true_cycles) < 0.05  # launches match by their requests, not by code alone
    assert sieve.relative_error(strides.true_cycles) > 0.1  # which looks at instructions: the error is real ...
    assert sieve.covers(strides.true_cycles)  # ... and no longer silent


def test_reliability_counts_silent_rows():
    def row(**changed) -> Row:
        known = {"target": "t", "method": "m", "cycles": 1.0, "error": 0.2, "covered": False, "basis": "model",
                 "half_width": 0.1, "own_half_width": 0.1, "detailed_fraction": 0.5, "functional_fraction": 1.0,
                 "seconds": 1.0, "speed_up": 1.0, "timing_speed_up": 1.0, "instruction_speed_up": 1.0}  # fmt: skip
        return Row(**(known | changed))

    rows = [row(), row(covered=True), row(half_width=None), row(error=0.05), row(detailed_fraction=1.0, basis="exact")]
    (found,) = reliability(rows)
    assert (found.rows, found.unbounded, found.silent) == (4, 1, 1)
    assert found.covered == pytest.approx(1 / 3)


def test_less_error_reuses_what_was_timed(tmp_path, monkeypatch):
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    coarse = sample("hard_hot_bins", REAL, aim=Aim(error=0.2))
    fine = sample("hard_hot_bins", REAL, aim=Aim(error=0.05))
    assert fine.method == coarse.method == "auto"
    assert coarse.estimate.detailed_fraction < fine.estimate.detailed_fraction
    assert np.isclose(fine.estimate.total, coarse.estimate.total, rtol=0.3)


def test_parts_of_launches_are_simulated_once(tmp_path, monkeypatch):
    """Shares of the iterations, and what PKP found."""

    def here(kind: str) -> Kept:
        kept = Kept(kind)
        kept.folder = tmp_path
        return kept

    monkeypatch.setattr("abstim.study.sample.sampled_program.Kept", here)
    for options in ({"aim": Aim(error=0.3)}, {"method": "pkp"}):
        first = sample("hard_persistent_falling", REAL, **options)
        with monkeypatch.context() as patch:  # nothing can be simulated
            patch.setattr("abstim.session.session.Session.simulate", None)
            patch.setattr("abstim.study.sample.sampled_program.SampledProgram.simulator", None)
            again = sample("hard_persistent_falling", REAL, **options)
        assert again.estimate == first.estimate and again.stability == first.stability


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--error", "2", "--method", "photon"], "photon aims at no error"),
        (["--error", "0"], "cannot be aimed at"),
        (["--error", "much"], "give a percentage"),
        (["--confidence", "100%"], "none to aim at"),
        (["--error", "1%", "--compare"], "--error"),
        (["--method", "auto", "--inside", "pkp"], "leave out --inside"),
        (["--method", "auto", "--warm-up", "all"], "must come in turn"),
    ],
)
def test_aims_that_cannot_be(options, says, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["sample", "hard_hot_bins", *options])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_an_aim_is_checked():
    with pytest.raises(InputError):
        Aim(error=1.5)
