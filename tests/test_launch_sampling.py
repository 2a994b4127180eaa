"""Programs of many launches: profiles against whole executions, and estimates against whole simulations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abstim.gpu.config import load_gpu
from abstim.models import run as run_target
from abstim.study.sample import sampler as sampled
from abstim.study.sample.inside import full as in_full
from abstim.study.sample.inside import simulate as simulate_launches
from abstim.study.sample.methods import METHODS, Known
from abstim.study.sample.profiling import profile_of
from abstim.study.sample.sampler import opened, run_method
from functional import suite
from functional.errors import InputError
from functional.suite.workloads.long_programs import kernel_stream
from functional.suite.workloads.networks import resnet_network
from sampling import Stem

GPU = load_gpu("gtx480")


def few_of_the_stream():
    stream = kernel_stream(100_000)
    return replace(stream, launches=stream.launches[:16])


@pytest.mark.parametrize("make", [lambda: suite.case("bfs"), lambda: suite.case("pagerank"), few_of_the_stream])
def test_everything_chosen_gives_what_a_run_gives(make):
    """bfs is executed in order, the others launch by launch, each on the initial memory."""
    case = make()
    program = opened(case, GPU, online=True)
    assert program.launches.alone == (case.name != "bfs")
    found = simulate_launches(program, range(len(program)), in_full)
    run = run_target(case, GPU)
    assert [estimate.total for estimate in found] == [launch.cycles for launch in run.launches]


@pytest.mark.parametrize(
    "make", [lambda: suite.case("gaussian_elimination"), lambda: suite.case("bfs"), few_of_the_stream]
)
def test_profile_counts_what_executing_everything_counts(make):
    case = make()
    program = opened(case, GPU, online=False)
    found = profile_of(program)
    run = run_target(case)
    exact = np.array([launch.warp_instructions for launch in run.launches])
    if program.launches.given:
        assert found.instructions.tolist() == exact.tolist()
    np.testing.assert_allclose(found.instructions, exact, rtol=0.15)
    assert found.instructions.sum() == pytest.approx(exact.sum(), rel=0.01)


def test_a_profile_of_some_thread_blocks_is_near_that_of_all():
    """Streaming and tiled kernels: what 16 thread blocks tell of instructions, requests, basic blocks and lines."""
    for name in ("matmul_tiled", "nn_euclid", "hotspot"):
        case = suite.case(name)
        some, every = opened(case, GPU, online=False), opened(case, GPU, online=False)
        every.launches.signatures = None
        few, whole = profile_of(some), profile_of(every)
        assert 0 < some.launches.looked_instructions < whole.instructions.sum()
        for column in ("instructions", "thread_instructions", "memory_requests", "basic_blocks", "features"):
            np.testing.assert_allclose(
                getattr(few, column), getattr(whole, column), rtol=0.1, err_msg=f"{name} {column}"
            )
        # neighbours, which share lines in a stencil, are not both among the 16
        np.testing.assert_allclose(few.cycles, whole.cycles, rtol=0.4, err_msg=name)


def test_launches_of_one_shape_take_one_simulation():
    case = resnet_network(18, stages=1, size=32).case()
    known = Known(profile_of(opened(case, GPU, online=False)))
    by_shape = lambda known: Stem(by_shape=True, least=1).select(known.profile)  # noqa: E731
    shapes = replace(METHODS["stem"], select=by_shape)
    found = run_method(shapes, opened(case, GPU, online=False), known)
    full = run_target(case, GPU).totals["cycles"]
    assert found.estimate.detailed_fraction < 0.75
    assert found.estimate.relative_error(full) < 0.03


def test_the_command_takes_targets_that_are_executed_launch_by_launch():
    one = sampled.sample(few_of_the_stream, GPU)
    assert one.method == "auto" and 0 < one.estimate.detailed_fraction <= 1
    both = sampled.compare(few_of_the_stream, GPU, ["pks", "random", "photon"])
    assert [row.method for row in both.rows()] == ["full", "pks", "random", "photon"] and len(both.cycles) == 16
    assert both.rows()[0].error == 0 and both.true_cycles == sum(both.cycles)


def test_launches_that_were_chosen_are_sampled_themselves():
    """Selection and what is done inside a launch are orthogonal."""
    big = kernel_stream(40)
    case = replace(big, launches=big.launches[:24])
    plain, within = (sampled.sample(case, GPU, "stem", inside=inside).estimate for inside in ("", "pkp"))
    assert within.detailed_fraction <= plain.detailed_fraction
    full = run_target(case, GPU).totals["cycles"]
    assert within.relative_error(full) < 0.1 and plain.bounded and not within.bounded  # nobody has looked how far off


def test_auto_says_what_it_had_executed():
    case = resnet_network(18, stages=2, size=32).case()
    estimate = sampled.sample(case, GPU, "auto").estimate
    assert estimate.detailed_fraction <= estimate.functional_fraction < 1.0


@pytest.mark.parametrize(
    ("method", "inside", "message"),
    [
        ("photon", "pkp", "has its own way"),
        ("pka", "full", "has its own way"),
        ("stem", "foton", "did you mean photon"),
    ],
)
def test_a_way_inside_that_does_not_go(method, inside, message):
    with pytest.raises(InputError, match=message):
        sampled.sample("hotspot", GPU, method, inside=inside)


def test_ideal_baselines_are_left_out_where_they_cannot_be():
    """Before anything is simulated, and by name with a reason."""
    few = replace(kernel_stream(6), launches=kernel_stream(6).launches[:6])
    names = [row.method for row in sampled.compare(few, GPU).rows()]
    assert "photon" in names and not any(name.startswith("ideal") for name in names)
    with pytest.raises(InputError, match="made launch by launch"):
        sampled.compare(few, GPU, ["stem", "ideal-random"])
    with pytest.raises(InputError, match="leave out --warm-up"):
        sampled.sample("dct8x8", GPU, "ideal-random", warm_up="1")
