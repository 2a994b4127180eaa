"""Pairs of a launch and a design point that are read off between those that were timed, with errors that hold."""

from __future__ import annotations

import numpy as np
import pytest

from sampling.auto import Parts, few_points, read_off
from sampling.auto.interpolation import FIRST_PAIRS, spread_out

GRID = np.array([(x, y) for x in np.linspace(-1, 1, 8) for y in np.linspace(-1, 1, 6)])
SIZES = np.array([9.0, 10.0, 11.0, 3.0, 3.2])
PARTS = Parts(
    kernels=np.array([0, 0, 0, 4, 4]),
    work=np.stack([SIZES * 1e5, SIZES * 1e4], 1),
    weights=np.array([0.3, 0.3, 0.2, 0.1, 0.1]),
)


def surface(rng: np.random.Generator, noise: float = 0.0) -> np.ndarray:
    """Factors of parts that follow the keys, each kernel in its own way."""
    slopes, bends = rng.normal(0, 0.3, (2, 2)), rng.normal(0, 0.1, (2, 2))
    of_kernel = GRID @ slopes + GRID**2 @ bends
    return np.exp(of_kernel[:, [0, 0, 0, 1, 1]] + rng.normal(0, noise, (len(GRID), len(SIZES))))


def found(true: np.ndarray, error: float = 0.03, formula: np.ndarray | None = None, known: dict | None = None):
    def time(pairs):
        assert len(set(pairs)) == len(pairs) and not set(pairs) & set(known or {})  # each is simulated once
        return np.array([true[pair] for pair in pairs])

    rough = np.ones_like(true) if formula is None else formula
    return read_off(time, rough, GRID, PARTS, error, 0.95, known)


def test_what_is_smooth_is_read_off_and_what_was_timed_is_as_it_was():
    true = surface(np.random.default_rng(0))
    of = found(true)
    at = tuple(np.array(of.timed).T)
    assert 2 * FIRST_PAIRS <= len(of.timed) < 0.5 * true.size
    assert np.allclose(of.factors[at], true[at], rtol=1e-12)
    assert np.abs((of.factors @ PARTS.weights) / (true @ PARTS.weights) - 1).max() < 0.03
    assert of.half_widths(0.95).max() <= 0.03


def test_what_is_known_before_is_not_timed_again():
    true = surface(np.random.default_rng(0))
    known = {(3, 1): true[3, 1], (40, 4): true[40, 4]}
    assert set(known) < set(found(true, known=known).timed)


def test_where_nothing_can_be_read_off_all_is_timed():
    points = GRID[::4]
    true = np.exp(np.random.default_rng(1).normal(0, 1.0, (len(points), len(SIZES))))
    of = read_off(lambda pairs: np.array([true[p] for p in pairs]), np.ones_like(true), points, PARTS, 0.01, 0.95)
    assert len(of.timed) == true.size
    assert np.allclose(of.factors, true, rtol=1e-12) and not of.errors.any()


def test_of_few_points_all_pairs_are_timed():
    assert few_points(GRID[:8]) and not few_points(GRID[:9])
    of = read_off(lambda pairs: np.ones(len(pairs)), np.ones((8, 5)), GRID[:8], PARTS, 0.5, 0.95)
    assert len(of.timed) == 40 and not of.errors.any()


def test_a_formula_that_knows_the_jumps_leaves_less_to_time():
    rng = np.random.default_rng(2)
    jumps = np.exp(0.3 * rng.integers(0, 2, (len(GRID), 1)) * np.ones(len(SIZES)))
    true = surface(rng) * jumps
    assert len(found(true, 0.08, formula=jumps).timed) < len(found(true, 0.08).timed)


@pytest.mark.parametrize("noise", [0.002, 0.03])
def test_intervals_of_points_hold(noise):
    inside, points = 0, 0
    for seed in range(8):
        true = surface(np.random.default_rng(seed), noise)
        of = found(true, error=0.05)
        off = np.abs(np.log((of.factors @ PARTS.weights) / (true @ PARTS.weights)))
        left = of.errors > 0
        inside += int((off <= of.half_widths(0.95))[left].sum())
        points += int(left.sum())
    assert points > 100 and inside / points >= 0.93


def test_points_are_spread_out_and_go_on_from_fewer():
    ten = spread_out(GRID, 10)
    assert len(set(ten)) == 10 and spread_out(GRID, 4) == ten[:4]
    assert np.ptp(GRID[ten], axis=0).min() == 2.0  # from one end to the other
    assert sorted(spread_out(GRID[:3], 3)) == [0, 1, 2]
