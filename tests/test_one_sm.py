"""What one SM tells of launches, and what auto makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from abstim.gpu.config import load_gpu
from abstim.models import run as run_target
from abstim.session.warm_up import warm_up_named
from abstim.study.sample import automatic
from abstim.study.sample import sampler as sampled
from abstim.study.sample.automatic import LARGE_INSTRUCTIONS, with_one_sm, work_of
from abstim.study.sample.profiling import kinds_of_launches
from abstim.study.sample.sampler import opened
from functional import suite
from functional.suite.workloads.networks import resnet_network
from functional.traces.trace import concatenate

GPU = load_gpu("gtx480")


@pytest.fixture(scope="module")
def case():
    """Convolutions of many kinds, small ones too."""
    return resnet_network(50, size=32).case()


@pytest.fixture(scope="module")
def known(case):
    program = opened(case, GPU, online=True)
    return program, *with_one_sm(program, work_of(program))


def test_one_sm_runs_the_thread_blocks_that_it_would_get(known):
    program, work, parts = known
    share = sum(part.instructions for part in parts) / work.instructions.sum()
    assert 0.0 < share < automatic.MOST_COST and {part.how for part in parts} == {"one SM"}
    number = int(np.flatnonzero(work.one_sm)[0])
    trace = program.launches.trace(number)
    order = np.argsort(trace.thread_blocks)[:: GPU.spec.sm_count]
    own = concatenate([trace.part(place, place + 1) for place in order], trace.warps_per_block)
    alone = program.session.simulate(number, load_gpu("gtx480", ["sm_count=1"]), own)
    assert work.one_sm[number] == alone.cycles


def test_convolutions_are_predicted_from_each_other_and_small_launches_are_not(known):
    program, work, _ = known
    names = np.array(program.kernels)
    told = work.one_sm > 0
    assert np.char.startswith(names[told], "conv2d").all()
    assert len(set(work.kernels[told])) == 1 and not set(work.kernels[told]) & set(work.kernels[~told])
    assert told.sum() > 40


def test_what_one_sm_told_is_asked_once(known, monkeypatch):
    program, work, parts = known
    monkeypatch.setattr(program.session, "simulate", None)
    again, same = with_one_sm(program, work_of(program))
    assert np.array_equal(again.one_sm, work.one_sm) and same == parts


def test_what_memory_decides_is_not_told_by_one_sm(case):
    """A fortieth of the bandwidth: DRAM takes longer than any SM."""
    program = opened(case, load_gpu("gtx480", ["dram_sector_cycles=64"]), online=True)
    work, parts = with_one_sm(program, work_of(program))
    names = np.array(program.kernels)
    assert parts and (work.one_sm[np.char.startswith(names, "conv2d")] == 0.0).any()


@pytest.mark.parametrize(
    "change",
    [{"MOST_COST": 1e-6}, {"FEWEST": 1000}, {"large": lambda program, instructions: instructions < 0}],
    ids=lambda each: next(iter(each)),
)
def test_where_it_does_not_pay_nothing_is_simulated(case, change, monkeypatch):
    program = opened(case, GPU, online=True)
    monkeypatch.setattr(program.session, "simulate", None)
    for name, value in change.items():
        monkeypatch.setattr(automatic, name, value)
    work = work_of(program)
    assert with_one_sm(program, work) == (work, ())


def test_programs_whose_data_decide_are_left_alone():
    program = opened(suite.case("pagerank"), GPU, online=True)
    work = work_of(program)
    assert with_one_sm(program, work) == (work, ())


def test_auto_holds_the_truth_and_counts_what_one_sm_took():
    case = resnet_network(18, stages=3, size=32).case()
    program = opened(case, GPU, online=True)
    work, _ = with_one_sm(program, work_of(program))
    found = sampled.sample(case, GPU)
    truth = run_target(case, GPU).totals["cycles"]
    assert found.estimate.covers(truth) and found.estimate.relative_half_width <= 0.02
    assert "one SM" in {part.how for part in found.estimate.parts}
    of_all = work.instructions.sum()
    simulated = sum(part.instructions for part in found.estimate.parts if part.how in ("detailed", "one SM"))
    assert found.estimate.detailed_fraction == pytest.approx(simulated / of_all, rel=1e-3)
    assert sum(part.cycles for part in found.estimate.parts) == pytest.approx(found.estimate.total)
    assert found.estimate.detailed_fraction < 0.5


def test_only_large_launches_that_do_the_same_last_as_long(case):
    """Small ones of equal traces were up to 6 % apart, by where their data lie."""
    program = opened(case, GPU, online=True)
    work = work_of(program)
    counts = np.bincount(work.kinds)[work.kinds]
    assert (work.instructions[counts > 1] >= GPU.spec.sm_count * LARGE_INSTRUCTIONS).all() and (counts > 1).any()
    assert len(set(kinds_of_launches(program))) < len(set(work.kinds)) < len(case.launches)


def test_launches_that_find_something_in_the_caches_are_each_their_own_kind(case):
    """Which is of the launch before, so that neither one SM nor a launch that does the same tells of them."""
    program = opened(case, GPU, online=True, warm_up=warm_up_named("1"))
    work = work_of(program)
    assert len(set(work.kinds)) == len(case.launches)
    assert with_one_sm(program, work) == (work, ())
