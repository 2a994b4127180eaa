"""Pairs of a launch and a design point that are read off between those that were timed, with errors that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sampling.auto.interpolation import (
    BEFORE,
    FIRST_PAIRS,
    SETTINGS,
    Choice,
    Conditioned,
    Pairs,
    Places,
    few_points,
    largest,
    read_off,
    spread_out,
)
from sampling.statistics import t_quantile

GRID = np.array([(x, y) for x in np.linspace(-1, 1, 8) for y in np.linspace(-1, 1, 6)])
SIZES = np.array([9.0, 10.0, 11.0, 3.0, 3.2])
PAIRS = Pairs(
    cycles=np.ones((len(GRID), 5)),
    limits=np.zeros((len(GRID), 5, 1)),
    features=GRID,
    kernels=np.array([0, 0, 0, 4, 4]),
    work=np.stack([SIZES * 1e5, SIZES * 1e4], 1),
    multiples=np.array([0.3, 0.3, 0.2, 0.1, 0.1]),
)


def surface(rng: np.random.Generator, noise: float = 0.0) -> np.ndarray:
    """Cycles of launches that follow the keys, each kernel in its own way."""
    slopes, bends = rng.normal(0, 0.1, (2, 2)), rng.normal(0, 0.05, (2, 2))
    of_kernel = GRID @ slopes + GRID**2 @ bends
    return np.exp(of_kernel[:, [0, 0, 0, 1, 1]] + rng.normal(0, noise, (len(GRID), len(SIZES))))


def found(true: np.ndarray, error: float = 0.03, formula: np.ndarray | None = None, known: dict | None = None):
    def time(pairs):
        assert len(set(pairs)) == len(pairs) and not set(pairs) & set(known or {})  # each is simulated once
        return np.array([true[pair] for pair in pairs])

    pairs = PAIRS if formula is None else replace(PAIRS, cycles=formula)
    return read_off(time, pairs, error, 0.95, known)


def test_what_is_smooth_is_read_off_and_what_was_timed_is_as_it_was():
    true = surface(np.random.default_rng(0))
    of = found(true)
    at = tuple(np.array(of.timed).T)
    assert FIRST_PAIRS <= len(of.timed) < 0.5 * true.size
    assert np.allclose(of.cycles[at], true[at], rtol=1e-12)
    assert np.abs((of.cycles @ PAIRS.multiples) / (true @ PAIRS.multiples) - 1).max() < 0.03
    assert of.half_widths(0.95).max() <= 0.03
    assert {PAIRS.kernels[launch] for _, launch in of.timed} == {0, 4}


def test_what_is_known_before_is_not_timed_again():
    true = surface(np.random.default_rng(0))
    known = {(3, 1): true[3, 1], (40, 4): true[40, 4]}
    assert set(known) < set(found(true, known=known).timed)


def test_where_nothing_can_be_read_off_all_is_timed():
    at = slice(None, None, 4)
    pairs = replace(PAIRS, cycles=PAIRS.cycles[at], limits=PAIRS.limits[at], features=GRID[at])
    true = np.exp(np.random.default_rng(1).normal(0, 1.0, pairs.cycles.shape))
    of = read_off(lambda pairs: np.array([true[p] for p in pairs]), pairs, 0.01, 0.95)
    assert len(of.timed) == true.size
    assert np.array_equal(of.cycles, true) and not of.of_sums.any() and not of.of_ratios.any()


def test_of_few_points_all_pairs_are_timed():
    assert few_points(GRID[:8]) and not few_points(GRID[:9])
    few = replace(PAIRS, cycles=PAIRS.cycles[:8], limits=PAIRS.limits[:8], features=GRID[:8])
    of = read_off(lambda pairs: np.arange(1.0, 1 + len(pairs)), few, 0.5, 0.95)
    assert len(of.timed) == 40 and not of.of_sums.any() and of.cycles[2, 1] == 12.0


def test_a_formula_that_knows_the_jumps_leaves_less_to_time():
    rng = np.random.default_rng(2)
    jumps = np.exp(0.3 * rng.integers(0, 2, (len(GRID), 1)) * np.ones(len(SIZES)))
    true = surface(rng) * jumps
    assert len(found(true, 0.08, formula=jumps).timed) < len(found(true, 0.08).timed)


def test_what_goes_by_the_limits_is_read_off_by_them():
    """A formula that is short where one thing decides, which changes from point to point without any order."""
    rng = np.random.default_rng(3)
    limited = rng.uniform(0, 1, PAIRS.cycles.shape)
    true = np.exp(0.5 * limited**2)
    told = replace(PAIRS, limits=limited[:, :, None])
    of = read_off(lambda pairs: np.array([true[p] for p in pairs]), told, 0.03, 0.95)
    assert len(of.timed) < 0.5 * len(found(true, 0.03).timed)
    assert np.abs((of.cycles @ PAIRS.multiples) / (true @ PAIRS.multiples) - 1).max() < 0.03


@pytest.mark.parametrize("noise", [0.002, 0.03])
def test_intervals_of_points_and_of_ratios_hold(noise):
    inside, ratios, points = 0, 0, 0
    for seed in range(8):
        true = surface(np.random.default_rng(seed), noise)
        of = found(true, error=0.05)
        off = np.log((of.cycles @ PAIRS.multiples) / (true @ PAIRS.multiples))
        quantile = t_quantile(of.degrees)
        inside += int((np.abs(off) <= of.half_widths(0.95)).sum())
        ratios += int((np.abs(off - off[0]) <= quantile * of.of_ratios).sum())
        points += len(GRID)
    assert inside / points >= 0.93 and ratios / points >= 0.93


def test_variances_of_sums_are_those_of_the_posterior():
    """Against the textbook: all pairs in one covariance, conditioned on those known."""
    few = replace(PAIRS, cycles=np.exp(GRID[:7] @ np.ones((2, 5))), limits=PAIRS.limits[:7], features=GRID[:7])
    known = {(0, 1): 0.1, (3, 4): -0.2, (6, 0): 0.05}
    every = Places.of([(p, k) for p in range(7) for k in range(5)])
    for setting in SETTINGS[::5]:
        fit = Conditioned(few, setting, known)
        prior = few.covariance(setting, every, every) + setting.nugget * np.eye(35)
        at = [p * 5 + k for p, k in known]
        rest = np.setdiff1d(np.arange(35), at)
        across = prior[np.ix_(rest, at)]
        posterior = np.zeros((35, 35))
        posterior[np.ix_(rest, rest)] = prior[np.ix_(rest, rest)] - across @ np.linalg.solve(
            prior[np.ix_(at, at)], across.T
        )
        sums = np.zeros((7, 35))
        for p in range(7):
            sums[p, 5 * p : 5 * p + 5] = few.shares[p]
        of_sums, of_ratios = fit.variances() / fit.square
        assert of_sums == pytest.approx(np.diag(sums @ posterior @ sums.T))
        apart = sums - sums[0]
        assert of_ratios == pytest.approx(np.diag(apart @ posterior @ apart.T))


def test_the_next_pair_takes_most_variance_off():
    """Against every pair tried one after the other."""
    few = replace(PAIRS, cycles=PAIRS.cycles[:7], limits=PAIRS.limits[:7], features=GRID[:7])
    known = {(0, 1): 0.0, (3, 4): 0.0}

    def left(pairs):
        fit = Conditioned(few, BEFORE, dict.fromkeys(pairs, 0.0))
        told = np.array([few.shares[p] @ few.covariance(BEFORE, few.on([p]), fit.at) for p in range(7)])
        told = np.concatenate([told, told - told[0]])
        return -np.einsum("pk,kj,pj->", told, fit.inverse, told)

    tried = {(p, k): left([*known, (p, k)]) for p in range(7) for k in range(5) if (p, k) not in known}
    chosen = Choice(few, range(7), range(5), BEFORE, known).next()
    assert tried[chosen] == pytest.approx(min(tried.values()))


def test_of_many_launches_the_largest_are_looked_at_and_one_of_each_kernel():
    assert largest(PAIRS, 2) == [0, 1, 3] and largest(PAIRS, 9) == [0, 1, 2, 3, 4]


def test_points_are_spread_out_and_go_on_from_fewer():
    ten = spread_out(GRID, 10)
    assert len(set(ten)) == 10 and spread_out(GRID, 4) == ten[:4] and ten[0] == 0
    assert np.ptp(GRID[ten], axis=0).min() == 2.0  # from one end to the other
    assert sorted(spread_out(GRID[:3], 3)) == [0, 1, 2]
