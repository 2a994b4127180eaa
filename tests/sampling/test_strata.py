"""Sieve, STEM + ROOT and SimPoint: strata, sample sizes, representatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import program

from sampling import Profile, SamplingError, Sieve, SimPoint, Stem
from sampling.sieve import dominant, valleys
from sampling.simpoint import bic, projected
from sampling.statistics import coefficient_of_variation


def test_sieve_tiers() -> None:
    sieve, rng = Sieve(), np.random.default_rng(0)
    assert sieve.theta == 0.4
    assert len(np.unique(sieve.tiers(np.full(9, 100.0)))) == 1
    assert len(np.unique(sieve.tiers(rng.normal(100, 10, 200)))) == 1
    two = np.concatenate([rng.normal(100, 5, 200), rng.normal(1000, 50, 200)])
    strata = sieve.tiers(two)
    assert len(np.unique(strata)) == 2 and len(np.unique(strata[:200])) == 1
    assert 150 < valleys(two)[0] < 900


def test_kinds_that_meet_the_bound_alone_take_what_each_would_by_itself() -> None:
    rng = np.random.default_rng(3)
    times, kinds = rng.lognormal(3, 0.3, 4000), np.repeat(np.arange(4), 1000)
    each = Stem(alone=True).select(Profile(instructions=times, kernels=kinds, cycles=times))
    single = [Stem().select(Profile(instructions=t, kernels=np.zeros(1000, int), cycles=t)) for t in np.split(times, 4)]
    assert len(each.units) == sum(len(selection.units) for selection in single)
    assert len(each.units) > len(Stem().select(Profile(instructions=times, kernels=kinds, cycles=times)).units)


@settings(max_examples=60)
@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=80))
def test_every_stratum_of_sieve_is_below_theta(counts) -> None:
    values = np.array(counts)
    strata = Sieve().tiers(values)
    assert all(coefficient_of_variation(values[strata == label]) < 0.4 for label in np.unique(strata))


def test_sieve_takes_the_first_of_the_dominant_block_size() -> None:
    strata, threads = np.array([0, 0, 0, 1, 1]), np.array([64, 128, 128, 32, 64])
    assert dominant(strata, threads).tolist() == [1, 3]


def test_sieve_is_a_weighted_harmonic_mean_of_ipc() -> None:
    profile = Profile(
        instructions=np.array([100.0, 100.0, 300.0, 300.0]),
        kernels=np.array([0, 0, 1, 1]),
        threads_per_block=np.full(4, 64),
    )
    selection = Sieve().select(profile)
    assert selection.units.tolist() == [0, 2]
    ipcs, shares = np.array([2.0, 0.5]), np.array([0.25, 0.75])
    estimate = selection.estimate([100 / 2.0, 300 / 0.5])
    assert 800 / estimate.total == pytest.approx(1 / np.sum(shares / ipcs))


def test_stem_sizes_meet_the_bound_at_least_cost() -> None:
    rng = np.random.default_rng(2)
    times = np.concatenate([rng.normal(10, 3, 4000), rng.normal(500, 100, 2000)]).clip(1)
    strata = np.repeat([0, 1], [4000, 2000])
    stem = Stem(error=0.01)
    ideal = stem.ideal_sizes(times, strata, stem.error)

    def error_of(sizes):
        parts = [times[strata == h] for h in (0, 1)]
        variance = sum(len(p) ** 2 * p.var() / m for p, m in zip(parts, sizes, strict=True))
        return 1.959964 * math.sqrt(variance) / times.sum()

    def cost(sizes):
        return sum(m * times[strata == h].mean() for h, m in enumerate(sizes))

    assert error_of(ideal) == pytest.approx(0.01, rel=1e-6)
    for tilt in (0.7, 1.4):  # any other division that meets the bound costs more
        other = ideal * [tilt, 1.0]
        other *= (error_of(other) / 0.01) ** 2
        assert error_of(other) == pytest.approx(0.01, rel=1e-6) and cost(other) > cost(ideal)


def test_one_cluster_is_the_textbook_sample_size() -> None:
    times = np.random.default_rng(0).normal(100, 20, 5000)
    wanted = (1.959964 / 0.05 * times.std() / times.mean()) ** 2
    assert Stem().sizes(times, np.zeros(5000, int))[0] == math.ceil(wanted)


def test_root_separates_two_speeds_of_one_kernel() -> None:
    rng = np.random.default_rng(1)
    times = np.concatenate([rng.normal(100, 1, 500), rng.normal(900, 9, 500)])
    profile = Profile(instructions=np.ones(1000), kernels=np.zeros(1000, int), cycles=times)
    selection = Stem().select(profile)
    assert selection.strata.max() >= 1
    assert len(np.unique(selection.strata[:500])) + len(np.unique(selection.strata[500:])) == selection.strata.max() + 1
    assert len(selection.units) < 20
    with pytest.raises(SamplingError, match="cycles"):
        Stem().select(Profile(instructions=np.ones(2), kernels=np.zeros(2, int)))


@settings(max_examples=20)
@given(st.integers(0, 500), st.sampled_from([0.01, 0.05, 0.2]))
def test_stem_samples_every_cluster(seed, error) -> None:
    profile, _ = program(seed, launches=150)
    selection = Stem(error=error, seed=seed).select(profile)
    chosen = np.bincount(selection.strata[selection.units])
    assert (chosen >= np.minimum(2, np.bincount(selection.strata))).all()
    assert len(np.unique(selection.units)) == len(selection.units)
    assert selection.multipliers.sum() == pytest.approx(150)


def test_stem_bound_on_a_long_program() -> None:
    profile, true = program(0, launches=20_000, kernels=20)
    for method in (Stem(), Stem(ratio=True)):
        selection = method.select(profile)
        estimate = selection.estimate(list(true[selection.units]))
        assert estimate.relative_error(true.sum()) < 0.05 and estimate.detailed_fraction < 0.03


def test_simpoint_finds_the_phases() -> None:
    rng = np.random.default_rng(0)
    phase = np.repeat([0, 1, 2, 0], 50)
    vectors = np.eye(3, 40)[phase] * 1000 + rng.random((200, 40))
    selection = SimPoint().select(Profile(instructions=np.ones(200), basic_blocks=vectors))
    assert len(selection.units) == 3
    assert selection.strata[0] == selection.strata[199] != selection.strata[60]
    cpi = np.array([1.0, 2.0, 4.0])[phase]
    assert selection.estimate(list(cpi[selection.units])).total == pytest.approx(cpi.sum())


def test_projection_and_bic() -> None:
    counts = np.random.default_rng(0).random((10, 40))
    assert projected(counts, 15, 0).shape == (10, 15) and projected(counts[:, :4], 15, 0).sum() == pytest.approx(10)
    points = np.concatenate([np.zeros((20, 2)), np.ones((20, 2))]) + np.random.default_rng(1).normal(0, 0.01, (40, 2))
    split, whole = np.repeat([0, 1], 20), np.zeros(40, int)
    centres = np.array([points[:20].mean(0), points[20:].mean(0)])
    assert bic(points, split, centres) > bic(points, whole, points.mean(0)[None])


def test_two_samples_that_agree_by_luck_are_not_taken_for_certainty() -> None:
    times = np.random.default_rng(3).lognormal(0, 0.1, 50)
    profile = Profile(instructions=np.ones(50), kernels=np.zeros(50, np.int64), cycles=times)
    for ratio in (False, True):
        selection = Stem(error=0.2, ratio=ratio).select(profile)
        assert 1 < len(selection.units) < 10
        equal = selection.size[selection.units]  # every sample says the same of its stratum
        assert selection.estimate(list(equal)).relative_half_width > 0.02


def test_simpoint_takes_a_launch_of_typical_size_where_all_do_the_same() -> None:
    sizes = np.array([1.0, 1.0, 1.0, 100.0, 100.0, 1.0])
    profile = Profile(instructions=sizes, basic_blocks=np.outer(sizes, [1.0, 3.0]))
    assert sizes[SimPoint().select(profile).units].tolist() == [100.0]
