"""Sampled launches on caches that are kept between launches, and warmed up before those that are simulated."""

from __future__ import annotations

import numpy as np
import pytest
from nightly import of

from abstim.gpu.config import load_gpu
from abstim.models import run as run_target
from abstim.session.warm_up import Flushed, MemoryOf, MemoryOfAll, warm_up_named
from abstim.study.sample.inside import full
from abstim.study.sample.inside import simulate as simulate_launches
from abstim.study.sample.sampler import compare, opened, sample
from abstim.targets.resolve import open_target
from functional.errors import InputError

GPU = load_gpu("gtx480")


def cycles_of(target, warm_up, launches=None):
    case = open_target(target)
    program = opened(case, GPU, online=False, warm_up=warm_up)
    chosen = range(len(program)) if launches is None else launches
    return np.array([estimate.total for estimate in simulate_launches(program, chosen, full)])


def test_kept_caches_are_those_of_a_run_that_flushes_nothing():
    found = cycles_of("dct8x8", Flushed("none"))
    run = run_target("dct8x8", GPU, flush="none")
    assert found.tolist() == [launch.cycles for launch in run.launches]
    assert sample("dct8x8", GPU, "full", warm_up="perfect").estimate.total == found.sum()


@pytest.mark.parametrize("target", of(["dct8x8"], ["dct8x8", "bfs"]))
def test_warming_up_comes_nearer_to_kept_caches(target):
    """dct8x8 launches can be executed alone, those of bfs cannot."""
    kept = cycles_of(target, Flushed("none"))
    apart = [np.abs(cycles_of(target, w) / kept - 1).mean() for w in (Flushed("all"), MemoryOf(1), MemoryOfAll())]
    assert apart[0] > apart[1] and apart[0] > apart[2] and apart[2] < 0.1


def test_a_launch_does_not_depend_on_what_else_was_chosen():
    every = cycles_of("dct8x8", MemoryOf(2))
    assert cycles_of("dct8x8", MemoryOf(2), [3, 7, 8]).tolist() == every[[3, 7, 8]].tolist()
    walked = cycles_of("dct8x8", MemoryOfAll())
    assert cycles_of("dct8x8", MemoryOfAll(), [3, 7, 8]).tolist() == walked[[3, 7, 8]].tolist()


def test_no_launches_to_warm_up_with_is_as_good_as_empty_caches():
    assert cycles_of("dct8x8", MemoryOf(0)).tolist() == cycles_of("dct8x8", Flushed("all")).tolist()


def test_the_comparison_is_with_kept_caches():
    cold, warm = (compare("dct8x8", GPU, ["random"], warm_up=name).rows()[1] for name in ("0", "1"))
    assert cold.error > 0.2 > warm.error


def test_names():
    assert warm_up_named("").name == warm_up_named("empty").name == "empty"
    assert warm_up_named("3") == MemoryOf(3) and warm_up_named("all").in_order
    with pytest.raises(InputError, match="give a number of launches"):
        warm_up_named("some")


@pytest.mark.parametrize(
    ("gpu", "method", "message"),
    [
        ("gtx480_perfect", "random", "perfect memory"),
        (GPU, "random", "--method full"),
        (GPU, "photon", "--method full"),
    ],
)
def test_what_does_not_go_together_is_refused(gpu, method, message):
    with pytest.raises(InputError, match=message):
        sample("dct8x8", gpu, method, warm_up="perfect")
