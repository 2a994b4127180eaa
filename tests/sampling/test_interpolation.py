"""Pairs of a launch and a design point that are read off between those that were timed, with errors that hold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from sampling.auto.interpolation import (
    FIRST_PAIRS,
    Choice,
    Pairs,
    Places,
    Process,
    Setting,
    all_within,
    balanced,
    loss,
    most_within,
    quantile,
    read_off,
)

GRID = np.array([(x, y) for x in np.linspace(-1, 1, 8) for y in np.linspace(-1, 1, 6)])
SIZES = np.array([9.0, 10.0, 11.0, 3.0, 3.2])
PAIRS = Pairs(
    cycles=np.ones((len(GRID), 5)),
    limits=np.zeros((len(GRID), 5, 1)),
    features=GRID,
    keys=np.arange(2),
    kernels=np.array([0, 0, 0, 4, 4]),
    work=np.stack([SIZES * 1e5, SIZES * 1e4], 1),
    multiples=np.array([0.3, 0.3, 0.2, 0.1, 0.1]),
    seconds=np.full(5, 1e3),
)


def part(at, pairs: Pairs = PAIRS) -> Pairs:
    return replace(pairs, cycles=pairs.cycles[at], limits=pairs.limits[at], features=pairs.features[at])


def surface(rng: np.random.Generator, noise: float = 0.0) -> np.ndarray:
    """Cycles of launches that follow the keys, each kernel in its own way."""
    slopes, bends = rng.normal(0, 0.1, (2, 2)), rng.normal(0, 0.05, (2, 2))
    of_kernel = GRID @ slopes + GRID**2 @ bends
    return np.exp(of_kernel[:, [0, 0, 0, 1, 1]] + rng.normal(0, noise, (len(GRID), len(SIZES))))


def found(true: np.ndarray, error: float = 0.03, pairs: Pairs = PAIRS, known: dict | None = None):
    def time(asked):
        assert len(set(asked)) == len(asked) and not set(asked) & set(known or {})  # each is simulated once
        return np.array([true[pair] for pair in asked])

    return read_off(time, pairs, all_within(error), 0.95, known)


def off(of, true: np.ndarray) -> np.ndarray:
    return np.log((of.cycles @ PAIRS.multiples) / (true @ PAIRS.multiples))


def test_what_is_smooth_is_read_off_and_what_was_timed_is_as_it_was():
    true = surface(np.random.default_rng(0))
    of = found(true)
    at = tuple(np.array(of.timed).T)
    assert FIRST_PAIRS <= len(of.timed) < 0.5 * true.size and not of.left
    assert np.array_equal(of.cycles[at], true[at])
    assert np.abs(off(of, true)).max() < 0.03
    assert of.half_widths(0.95).max() <= 0.03
    assert {PAIRS.kernels[launch] for _, launch in of.timed} == {0, 4}


def test_the_same_is_found_again():
    true = surface(np.random.default_rng(4), 0.01)
    a, b = found(true), found(true)
    assert a.timed == b.timed and np.array_equal(a.cycles, b.cycles) and np.array_equal(a.of_sums, b.of_sums)


def test_what_is_known_before_is_not_timed_again():
    true = surface(np.random.default_rng(0))
    known = {(3, 1): true[3, 1], (40, 4): true[40, 4]}
    assert set(known) < set(found(true, known=known).timed)


def test_where_nothing_can_be_read_off_all_is_timed():
    pairs = part(slice(None, None, 4))
    true = np.exp(np.random.default_rng(1).normal(0, 1.0, pairs.cycles.shape))
    of = found(true, 0.01, pairs)
    assert len(of.timed) == true.size and of.left == "choosing costs more than it saves"
    assert np.array_equal(of.cycles, true) and not of.of_sums.any() and not of.of_ratios.any()


def test_where_looking_costs_more_than_timing_all_is_timed_at_once():
    true = surface(np.random.default_rng(0))
    of = found(true, pairs=replace(PAIRS, seconds=np.full(5, 1e-4)))
    assert len(of.timed) == true.size and np.array_equal(of.cycles, true) and "costs more" in of.left


def test_of_few_points_all_pairs_are_timed():
    of = read_off(lambda asked: np.arange(1.0, 1 + len(asked)), part(slice(8)), all_within(0.5), 0.95)
    assert len(of.timed) == 40 and not of.of_sums.any() and of.cycles[2, 1] == 12.0 and of.left == "few points"


def test_a_formula_that_knows_the_jumps_leaves_less_to_time():
    rng = np.random.default_rng(2)
    jumps = np.exp(0.3 * rng.integers(0, 2, (len(GRID), 1)) * np.ones(len(SIZES)))
    true = surface(rng) * jumps
    assert len(found(true, 0.08, replace(PAIRS, cycles=jumps)).timed) < len(found(true, 0.08).timed)


def test_what_goes_by_the_limits_is_read_off_by_them():
    """A formula that is short where one thing decides, which changes from point to point without any order."""
    limited = np.random.default_rng(3).uniform(0, 1, PAIRS.cycles.shape)
    true = np.exp(0.5 * limited**2)
    of = found(true, 0.03, replace(PAIRS, limits=limited[:, :, None]))
    assert len(of.timed) < 0.7 * len(found(true, 0.03).timed)
    assert np.abs(off(of, true)).max() < 0.03


@pytest.mark.parametrize("noise", [0.002, 0.03])
def test_intervals_of_points_and_of_ratios_hold(noise):
    inside, ratios, points = 0, 0, 0
    for seed in range(8):
        true = surface(np.random.default_rng(seed), noise)
        of = found(true, error=0.05)
        errors = off(of, true)
        inside += int((np.abs(errors) <= of.half_widths(0.95)).sum())
        ratios += int((np.abs(errors - errors[0]) <= 1.96 * of.of_ratios).sum())
        points += len(GRID)
    assert inside / points >= 0.92 and ratios / points >= 0.92


SETTING = Setting(np.array([0.3, -0.4, 0.1, -3.0, -4.0, -3.5, -6.0, -1.0]))
KNOWN = {(0, 1): 0.1, (3, 4): -0.2, (6, 0): 0.05, (6, 3): 0.15, (2, 2): 0.0}


def test_slopes_of_the_likelihood_are_its_differences():
    pairs = replace(
        PAIRS, cycles=np.exp(0.3 * GRID @ np.ones((2, 5))), limits=np.abs(GRID[:, :1, None]) + SIZES[:, None]
    )
    at = Places.of(list(KNOWN))
    apart, lacking = pairs.apart(at, at), np.array(list(KNOWN.values()))
    value, slopes = loss(SETTING.logs, apart, lacking)
    assert np.isfinite(value)
    assert slopes == pytest.approx(approx_fprime(SETTING.logs, lambda x: loss(x, apart, lacking)[0], 1e-6), abs=1e-4)


def process(pairs: Pairs, known: dict) -> Process:
    return Process(pairs, known, SETTING)


def posterior(of: Process, count: int) -> np.ndarray:
    """The textbook's: all pairs in one covariance, conditioned on those known."""
    every = Places.of([(p, k) for p in range(count) for k in range(5)])
    prior = of.setting.covariance(of.pairs.apart(every, every)).total + of.setting.nugget * np.eye(5 * count)
    at = of.at.points * 5 + of.at.launches
    rest = np.setdiff1d(np.arange(5 * count), at)
    across, full = prior[np.ix_(rest, at)], np.zeros_like(prior)
    full[np.ix_(rest, rest)] = prior[np.ix_(rest, rest)] - across @ np.linalg.solve(prior[np.ix_(at, at)], across.T)
    return full


def test_variances_of_sums_are_those_of_the_posterior():
    """Where launches of a point have the same limits."""
    few = part(slice(7))
    of = process(few, KNOWN)
    sums = np.kron(np.eye(7), few.shares[0])
    assert of.read_off(range(7))[1] == pytest.approx(np.diag(sums @ posterior(of, 7) @ sums.T), rel=1e-6)


def test_errors_are_those_of_points_left_out():
    few = part(slice(7))
    of = process(few, KNOWN)
    for point, error in zip(np.unique(of.at.points), of.errors(), strict=True):
        keep, left = np.flatnonzero(of.at.points != point), np.flatnonzero(of.at.points == point)
        all_of = of.setting.covariance(few.apart(of.at, of.at)).total + of.setting.nugget * np.eye(len(KNOWN))
        told = np.linalg.solve(all_of[np.ix_(keep, keep)], all_of[np.ix_(keep, left)])
        share = few.shares[point, of.at.launches[left]]
        expected = of.lacking[left] - told.T @ of.lacking[keep]
        spread = all_of[np.ix_(left, left)] - all_of[np.ix_(left, keep)] @ told
        assert error == pytest.approx(share @ expected / math.sqrt(share @ spread @ share))


def test_the_next_pair_takes_most_variance_off():
    """Against every pair tried one after the other, of a program of one launch."""
    one = replace(part(slice(0, 48, 4)), kernels=np.zeros(1, int), work=PAIRS.work[:1], multiples=np.ones(1),
                  seconds=np.ones(1), cycles=np.ones((12, 1)), limits=np.zeros((12, 1, 1)))  # fmt: skip
    known = {(0, 0): 0.1, (5, 0): -0.1, (9, 0): 0.2}
    of = process(one, known)
    drawn = [(p, 0) for p in range(12) if (p, 0) not in known]
    every = one.on(range(12), [0])
    prior = of.setting.covariance(one.apart(every, every)).total + of.setting.nugget * np.eye(12)

    def left(at):
        told = np.linalg.solve(prior[np.ix_(at, at)], prior[at])
        open_points = [p for p, _ in drawn]
        return float((np.diag(prior) - (prior[:, at] * told.T).sum(1))[open_points].sum())

    gains = [left([*of.at.points, p]) - of.setting.nugget * (len(drawn) - 1) for p, _ in drawn]
    chosen = Choice(of, drawn).next()
    assert gains[chosen] <= np.partition(gains, 1)[1] + 1e-6


def test_most_points_are_within_an_error():
    too_wide = most_within(0.03, 0.95, 0.95)
    assert too_wide(np.full(100, 0.0299), 1.0) == 1.0 < too_wide(np.full(100, 0.031), 1.0) < too_wide(np.ones(10), 1.0)
    assert too_wide(np.concatenate([np.zeros(50), np.full(50, 0.0356)]), 1.0) == 1.0
    assert too_wide(np.full(100, 0.0299), 1.1) > 1.0  # errors seen are larger than expected


def test_quantiles_are_those_of_errors_left_out_or_of_students_t():
    assert quantile(np.repeat([0.0, 3.0], [90, 10]), 0.95) == 3.0
    assert quantile(np.linspace(-1, 1, 199), 0.95) == pytest.approx(1.972 * math.sqrt(1 / 3), abs=0.02)
    assert quantile(np.ones(5), 0.95) == pytest.approx(2.776, abs=0.01)


def test_first_points_have_all_values_equally_often():
    chosen = balanced(GRID, 24, np.random.default_rng(0))
    assert len(set(chosen)) == 24
    for column, most in zip(GRID[chosen].T, (3, 4), strict=True):
        assert np.unique(column, return_counts=True)[1].max() <= most + 1
