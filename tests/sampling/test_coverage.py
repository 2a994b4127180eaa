"""The true total lies inside the stated 95 % interval in at least 90 % of synthetic streams, method by method.

Streams satisfy what the methods assume (units of equal work for random and systematic samples, thread blocks that go on
as they began for the online ones); where they do not, test_photon and test_tbpoint look at what happens.
"""

from __future__ import annotations

import numpy as np
import pytest
from nightly import of
from programs import program
from synthetic import SyntheticLaunch

from sampling import (
    FirstInstructions,
    InterLaunch,
    IntraLaunch,
    Photon,
    Pkp,
    Pks,
    Profile,
    RandomUnits,
    Sieve,
    SimPoint,
    Stem,
    Systematic,
)
from sampling.photon import BlockSampling, WarpSampling

STREAMS = of(60, 200)


def share_covered(pairs) -> float:
    return float(np.mean([estimate.covers(true) for estimate, true in pairs]))


def equal_units(seed: int, units: int = 300):
    """Sampling units of one million instructions; CPI has phases, neighbours are alike, and tails are heavy."""
    rng = np.random.default_rng([4, seed])
    level = rng.uniform(0.5, 2.0, 6)[np.sort(rng.integers(6, size=units))]
    cycles = level * 1e6 * rng.lognormal(0.0, 0.2, units)
    return Profile(instructions=np.full(units, 1e6), cycles=cycles), cycles


@pytest.mark.parametrize("method", [RandomUnits, Systematic])
def test_samples_of_equal_units(method) -> None:
    def one(seed):
        profile, cycles = equal_units(seed)
        selection = method(seed=seed).select(profile)
        return selection.estimate(list(cycles[selection.units])), cycles.sum()

    assert share_covered(map(one, range(STREAMS))) >= 0.9


def test_first_instructions_of_a_steady_stream() -> None:
    def one(seed):
        cycles = 1e6 * np.random.default_rng([5, seed]).lognormal(0.0, 0.3, 300)
        selection = FirstInstructions(30e6).select(Profile(instructions=np.full(300, 1e6)))
        return selection.estimate(list(cycles[selection.units])), cycles.sum()

    assert share_covered(map(one, range(STREAMS))) >= 0.9


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: Stem(seed=seed),
        lambda seed: Stem(error=0.02, seed=seed),
        lambda seed: Stem(ratio=True, seed=seed),
        lambda seed: Sieve(),
        lambda seed: InterLaunch(),
    ],
    ids=["stem", "stem-2%", "stem-ratio", "sieve", "tbpoint-inter"],
)
def test_programs_of_many_launches(make) -> None:
    def one(seed):
        profile, true = program(seed)
        selection = make(seed).select(profile)
        return selection.estimate(list(true[selection.units])), true.sum()

    assert share_covered(map(one, range(STREAMS))) >= 0.9


@pytest.mark.parametrize("method", [Pks(most_clusters=3), SimPoint(most_clusters=4)], ids=["pks", "simpoint"])
def test_clusterings(method) -> None:
    def one(seed):
        profile, true = program(seed, launches=50, kernels=2)
        selection = method.select(profile)
        return selection.estimate(list(true[selection.units])), true.sum()

    assert share_covered(map(one, range(STREAMS))) >= 0.9


IRREGULAR = ((0, 1, 1, 1, 2), (0, 1, 2), (0, 2), (0, 1, 1, 1, 1, 1, 1, 2))


@pytest.mark.parametrize(
    ("sequences", "run"),
    [
        (IRREGULAR[:1], lambda launch: Photon(warp=WarpSampling(window=160), block=None).launch(launch, launch)),
        (IRREGULAR, lambda launch: Photon(block=BlockSampling(window=320), pays=1).launch(launch, launch)),
        (IRREGULAR[:1], lambda launch: Pkp().launch(launch)),
        (IRREGULAR, lambda launch: Pkp().launch(launch)),
        (IRREGULAR[:1], lambda launch: IntraLaunch().launch(launch, launch.requests, launch.instructions)),
    ],
    ids=["photon-warp", "photon-block", "pkp", "pkp-irregular", "tbpoint-intra"],
)
def test_inside_a_launch(sequences, run) -> None:
    sampled = []

    def one(seed):
        launch = SyntheticLaunch(seed, thread_blocks=600, wave_blocks=24, sequences=sequences)
        estimate = run(launch)
        sampled.append(estimate.detailed_fraction < 1)
        return estimate, launch.total()

    assert share_covered(map(one, range(STREAMS))) >= 0.9
    assert np.mean(sampled) > 0.9  # an interval of zero width because all was simulated proves nothing
