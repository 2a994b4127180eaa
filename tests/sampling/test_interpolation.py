"""Design points that are read off between those that were timed, with errors that hold."""

from __future__ import annotations

import numpy as np
import pytest

from sampling.auto import first_points, read_off
from sampling.auto.interpolation import spread_out
from sampling.statistics import t_quantile

GRID = np.array([(x, y) for x in np.linspace(-1, 1, 8) for y in np.linspace(-1, 1, 6)])
WEIGHTS = np.array([0.6, 0.3, 0.1])


def surface(rng: np.random.Generator, noise: float = 0.0) -> np.ndarray:
    """Factors of three parts that follow the keys, each in its own way."""
    slopes, bends = rng.normal(0, 0.5, (2, 3)), rng.normal(0, 0.1, (2, 3))
    return np.exp(GRID @ slopes + GRID**2 @ bends + rng.normal(0, noise, (len(GRID), 3)))


def found(true: np.ndarray, error: float = 0.01, formula: np.ndarray | None = None):
    rough = np.ones_like(true) if formula is None else formula
    return read_off(lambda rows: true[rows], rough, GRID, WEIGHTS, error, 0.95, [5, 40])


def test_what_is_smooth_is_read_off_and_what_was_timed_is_as_it_was():
    true = surface(np.random.default_rng(0))
    of = found(true)
    assert of.timed[:2] == [5, 40] and first_points(GRID) <= len(of.timed) < 0.7 * len(GRID)
    assert np.allclose(of.factors[of.timed], true[of.timed], rtol=1e-12) and not of.errors[of.timed].any()
    assert np.abs((of.factors @ WEIGHTS) / (true @ WEIGHTS) - 1).max() < 0.02


def test_where_nothing_can_be_read_off_all_is_timed():
    true = np.exp(np.random.default_rng(1).normal(0, 0.5, (len(GRID), 3)))
    of = found(true)
    assert sorted(of.timed) == list(range(len(GRID)))
    assert np.allclose(of.factors, true, rtol=1e-12) and not of.errors.any()


def test_a_formula_that_knows_the_jumps_leaves_less_to_time():
    rng = np.random.default_rng(2)
    jumps = np.exp(0.3 * rng.integers(0, 2, (len(GRID), 1)) * np.ones(3))
    true = surface(rng) * jumps
    assert len(found(true, formula=jumps).timed) < len(found(true).timed)


@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_intervals_of_points_hold(noise):
    inside, points = 0, 0
    for seed in range(12):
        true = surface(np.random.default_rng(seed), noise)
        of = found(true, error=0.04)
        off = np.abs(np.log((of.factors @ WEIGHTS) / (true @ WEIGHTS)))
        left = of.errors > 0
        inside += int((off[left] <= t_quantile(of.degrees) * of.errors[left]).sum())
        points += int(left.sum())
    assert points > 100 and inside / points >= 0.93


def test_points_are_spread_out_and_go_on_from_fewer():
    ten = spread_out(GRID, 10, [])
    assert len(set(ten)) == 10 and spread_out(GRID, 10, ten[:4]) == ten
    assert np.ptp(GRID[ten], axis=0).min() == 2.0  # from one end to the other
    assert sorted(spread_out(GRID[:3], 10, [])) == [0, 1, 2]
