"""What the pace of segments says of a launch that was simulated for longer than they were."""

import numpy as np
import pytest

from sampling.auto.segments import Batch, Beginning, ages, put_off

BEGUN = Beginning(waves=4, warm_waves=2, segment_waves=3)


def batch(*segments):
    return Batch(beginning=BEGUN, segments=list(segments), wave_cycles=[[1.0] * 3] * len(segments), stepped=0)


def simulated_before(segments):
    """Waves one by one, as they are dispatched: before the middle of each segment."""
    waves = set(range(BEGUN.waves))
    found = []
    for segment in segments:
        first = BEGUN.waves + segment * BEGUN.segment_waves
        waves |= set(range(first - BEGUN.warm_waves, first))
        found.append(len(waves) + BEGUN.segment_waves / 2)
        waves |= set(range(first, first + BEGUN.segment_waves))
    return found


@pytest.mark.parametrize("segments", [(0,), (0, 1, 5), (2, 3, 9, 10, 30)])
def test_ages_are_of_waves_that_were_simulated(segments):
    assert ages(batch(*segments)) == simulated_before(segments)


def test_a_pace_that_relaxes_is_read_off():
    used = [batch(1, 4, 9, 20), batch(3, 12)]
    age = np.log([x for each in used for x in ages(each)])
    whole = np.log([4 + 3 * k + 1.5 for k in range(30)])
    found = put_off(used, 0.2 - 0.01 * age, segments=30)
    assert found == pytest.approx(0.01 * (whole.mean() - age.mean()))


def test_a_slope_within_its_error_is_none():
    used = [batch(1, 4, 9, 20)]
    assert put_off(used, np.array([0.01, -0.02, 0.02, -0.01]), segments=30) == 0.0
    assert put_off([batch(1, 4)], np.array([0.0, 0.01]), segments=30) == 0.0  # no slope from two
