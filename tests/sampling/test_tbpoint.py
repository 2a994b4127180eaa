"""TBPoint: features, regions and sampling units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import program
from synthetic import SyntheticLaunch

from sampling import InterLaunch, IntraLaunch, Profile, SamplingError
from sampling.tbpoint import NO_REGION, complete_linkage, identify, inter_features, nearest_to_centre, region_of


def test_paper_parameters_are_the_defaults() -> None:
    assert InterLaunch().sigma == 0.1
    intra = IntraLaunch()
    assert (intra.sigma, intra.variation_factor, intra.warming, intra.times) == (0.2, 0.3, 0.1, 1)


def test_equation_2() -> None:
    profile = Profile(
        instructions=np.array([100.0, 300.0]),
        thread_instructions=np.array([1000.0, 3000.0]),
        memory_requests=np.array([10.0, 10.0]),
        block_size_variation=np.array([0.0, 0.4]),
    )
    np.testing.assert_allclose(inter_features(profile, "m"), [[0.5, 0.5, 1, 0], [1.5, 1.5, 1, 0.4]])
    with pytest.raises(SamplingError, match="memory_requests"):
        InterLaunch().select(Profile(instructions=np.ones(2), thread_instructions=np.ones(2)))


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 80), st.floats(0.05, 0.5))
def test_no_two_points_of_a_cluster_are_further_apart_than_sigma(seed, count, sigma) -> None:
    points = np.random.default_rng(seed).random((count, 2)).round(2)
    labels = complete_linkage(points, sigma)
    for label in np.unique(labels):
        mine = points[labels == label]
        assert np.linalg.norm(mine[:, None] - mine, axis=2).max() <= sigma + 1e-9
    strata = np.unique(labels, return_inverse=True)[1]
    assert len(nearest_to_centre(points, strata)) == len(np.unique(labels))


def test_many_launches_fit_the_memory() -> None:
    points = np.random.default_rng(0).random((60_000, 2))
    labels = complete_linkage(points, 0.4)
    assert len(labels) == 60_000 and 4 <= len(np.unique(labels)) < 40


def test_figure_6() -> None:
    """Eight epochs of four thread blocks; outliers take the third and fourth out of their cluster."""
    probability = np.repeat([0.2, 0.2, 0.2, 0.2, 0.5, 0.5, 0.5, 0.5], 4)
    instructions = np.full(32, 1000.0)
    instructions[[9, 14]] = 6000.0
    table = identify(probability * instructions, instructions, occupancy=4)
    assert [(region.first, region.last) for region in table] == [(0, 7), (16, 31)]
    assert table[0].cluster != table[1].cluster
    regions = region_of(table, 32)
    assert regions[8:16].tolist() == [NO_REGION] * 8 and regions[31] == 1
    assert sum(region.last - region.first + 1 for region in table) == 24


@settings(max_examples=30)
@given(st.integers(0, 999), st.integers(1, 300), st.integers(1, 50))
def test_regions_are_disjoint_and_in_order(seed, blocks, occupancy) -> None:
    rng = np.random.default_rng(seed)
    table = identify(rng.uniform(1, 50, blocks), rng.uniform(90, 110, blocks), occupancy)
    ends = [-1, *(region.last for region in table)]
    assert all(region.first > before for region, before in zip(table, ends, strict=False))
    assert ends[-1] < blocks


def test_one_region() -> None:
    launch = SyntheticLaunch(thread_blocks=3000)
    estimate = IntraLaunch(times=3).launch(launch, launch.requests, launch.instructions)
    assert estimate.relative_error(launch.total()) < 0.06
    assert estimate.detailed_fraction < 0.2


def test_every_phase_is_sampled() -> None:
    phase = np.select([np.arange(3000) < 1200, np.arange(3000) < 2400], [1.0, 4.0], 1.5)
    launch = SyntheticLaunch(thread_blocks=3000, phase=phase)
    estimate = IntraLaunch(sigma=0.05).launch(launch, launch.requests, launch.instructions)
    assert len(estimate.parts) == 4 and estimate.detailed_fraction < 0.35
    assert estimate.relative_error(launch.total()) < 0.06 and estimate.covers(launch.total())


def test_outliers_are_simulated() -> None:
    """No two neighbouring thread blocks alike: nothing may be skipped."""
    launch = SyntheticLaunch(thread_blocks=600)
    wild = np.tile([1.0, 10.0], 300) * launch.instructions
    estimate = IntraLaunch().launch(launch, launch.requests, wild)
    assert estimate.basis == "exact" and estimate.total == pytest.approx(launch.total())


def test_both_levels() -> None:
    profile, _ = program(0, launches=40, kernels=2, noise=0.0)
    selection = InterLaunch().select(profile)
    opened = [SyntheticLaunch(unit, thread_blocks=1500) for unit in selection.units.tolist()]
    assert len(opened) < 40
    estimate = selection.estimate([IntraLaunch().launch(each, each.requests, each.instructions) for each in opened])
    assert 0 < estimate.detailed_fraction < 0.5 and estimate.basis == "model"
