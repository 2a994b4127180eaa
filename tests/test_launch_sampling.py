"""Sampling launches: profiles against whole executions, and estimates against whole simulations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abstim import launch_sampling, sampled, simulate
from abstim.config import load_gpu
from abstim.workloads.kernel_stream import kernel_stream
from abstim.workloads.resnet import resnet_network
from functional import suite
from functional.errors import InputError
from sampling import Full, Stem

GPU = load_gpu("gtx480", ["perfect_memory=false"])


def few_of_the_stream():
    stream = kernel_stream(100_000)
    return replace(stream, launches=stream.launches[:24])


@pytest.mark.parametrize("make", [lambda: suite.case("bfs"), lambda: suite.case("pagerank"), few_of_the_stream])
def test_everything_chosen_gives_what_a_run_gives(make):
    """bfs is executed in order, the others launch by launch, each on the initial memory."""
    case = make()
    known = launch_sampling.profile(case, GPU)
    assert (known.shapes is None) == (case.name == "bfs")
    found = launch_sampling.sample(case, GPU, known, Full())
    run = simulate.run(case, GPU)
    assert found.cycles.tolist() == [launch.cycles for launch in run.launches]
    assert found.estimate.total == run.totals["cycles"] and found.estimate.basis == "exact"


@pytest.mark.parametrize(
    "make", [lambda: suite.case("gaussian_elimination"), lambda: suite.case("bfs"), few_of_the_stream]
)
def test_profile_counts_what_executing_everything_counts(make):
    case = make()
    known = launch_sampling.profile(case, GPU)
    run = simulate.run(case)
    exact = np.array([launch.warp_instructions for launch in run.launches])
    if known.shapes is None:
        assert known.profile.instructions.tolist() == exact.tolist()
    np.testing.assert_allclose(known.profile.instructions, exact, rtol=0.15)
    assert known.profile.instructions.sum() == pytest.approx(exact.sum(), rel=0.01)


def test_launches_of_one_shape_take_one_simulation():
    case = resnet_network(18, stages=1, size=32).case()
    known = launch_sampling.profile(case, GPU)
    found = launch_sampling.sample(case, GPU, known, Stem(by_shape=True, least=1))
    full = simulate.run(case, GPU).totals["cycles"]
    assert len(found.selection.units) < 0.75 * len(case.launches)
    assert found.estimate.relative_error(full) < 0.03


def test_the_command_takes_targets_that_are_executed_launch_by_launch():
    one = sampled.sample(few_of_the_stream, GPU)
    assert one.method == "stem" and 0 < one.estimate.detailed_fraction <= 1
    both = sampled.compare(few_of_the_stream, GPU, ["pks", "random"])
    assert [row.method for row in both.rows()] == ["full", "pks", "random"] and len(both.cycles) == 24
    assert both.rows()[0].error == 0 and both.true_cycles == sum(both.cycles)
    with pytest.raises(InputError, match="'photon' does not choose whole launches; there are stem"):
        sampled.sample(few_of_the_stream, GPU, "photon")
