"""A launch of equal thread blocks from its first waves and its end, and where that is not tried."""

import numpy as np
import pytest
from synthetic import SyntheticLaunch

from sampling.auto.segments import Batch
from sampling.auto.steady import FIRST_WAVES, LEAST, SteadySampling, equal_blocks

WAVE = 60


@pytest.mark.parametrize("seed", range(6))
def test_the_truth_is_inside_for_a_fraction_of_the_cost(seed):
    launch, done = SyntheticLaunch(seed, thread_blocks=100 * WAVE + 17, cold=0.05), list[Batch]()
    found = SteadySampling(error=0.05).launch(launch, float(launch.instructions.sum()), done)
    assert found is not None
    assert found.covers(launch.total())
    assert found.detailed_fraction < 0.2
    assert 0.8 * LEAST < found.relative_half_width <= 0.05
    again = SteadySampling(error=0.05).launch(Finished(launch), float(launch.instructions.sum()), done)
    assert again == found


class Finished:
    """A launch of which nothing can be simulated."""

    def __init__(self, launch: SyntheticLaunch) -> None:
        self.shape = launch.shape


def test_it_is_not_tried_below_what_it_can_state_or_where_it_saves_nothing():
    long, short = (SyntheticLaunch(0, thread_blocks=waves * WAVE).shape for waves in (100, 2 * FIRST_WAVES))
    assert SteadySampling(error=LEAST).worth_trying(long)
    assert not SteadySampling(error=0.02).worth_trying(long)
    assert not SteadySampling(error=0.05).worth_trying(short)


def test_a_pace_that_does_not_settle_is_given_up():
    phase = np.tile(np.repeat([1.0, 3.0], WAVE), 20)
    launch = SyntheticLaunch(0, thread_blocks=40 * WAVE, phase=phase)
    assert SteadySampling(error=0.05).launch(launch, 1.0, []) is None


def test_thread_blocks_are_equal_by_what_each_does_and_waves_by_their_lines():
    work, lines = np.full((100, 2), 7.0), np.tile([[4.0], [5.0]], (50, 1))
    assert equal_blocks(work, lines, 1)
    assert equal_blocks(work, lines, 10)
    assert not equal_blocks(np.append(work[:-1], [[7.0, 70.0]], 0), lines, 10)
    assert not equal_blocks(work, np.linspace(1, 2, 100)[:, None], 10)
