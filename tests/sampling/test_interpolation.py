"""Design points that are read off between those that were timed, with errors that hold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from sampling.auto import interpolation
from sampling.auto.interpolation import (
    BY_CHANCE,
    ENOUGH,
    EXPECTED,
    FIRST,
    LAST,
    LEAST,
    NUGGET,
    OVERHEAD,
    STEP_SECONDS,
    STEPS,
    Covariance,
    Process,
    Reading,
    Rough,
    Timed,
    all_within,
    before,
    few_points,
    half_interval,
    most_within,
    read_off,
    slopes_of_loss,
)

GRID = np.array([(x, y) for x in np.linspace(-1, 1, 20) for y in np.linspace(-1, 1, 16)])
COUNT = len(GRID)
ROUGH = Rough(
    cycles=np.ones(COUNT), limits=np.zeros((COUNT, 1)), more=np.zeros((COUNT, 0)), features=GRID, keys=np.arange(2)
)


def part(at) -> Rough:
    return replace(
        ROUGH, cycles=ROUGH.cycles[at], limits=ROUGH.limits[at], more=ROUGH.more[at], features=ROUGH.features[at]
    )


def surface(seed: int, noise: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    slopes, bends = rng.normal(0, 0.1, 2), rng.normal(0, 0.05, 2)
    return np.exp(GRID @ slopes + GRID**2 @ bends + rng.normal(0, noise, COUNT))


def found(true: np.ndarray, error: float = 0.03, rough: Rough = ROUGH, **how):
    asked = []

    def time(points):
        assert not set(points) & set(asked) and len(set(points)) == len(points)  # each is timed once
        asked.extend(points)
        return true[np.array(points)]

    return read_off(time, rough, most_within(error, 0.95, 0.95), 0.95, **how)


def test_what_is_smooth_is_read_off_and_what_was_timed_is_as_it_was():
    true = surface(0)
    of = found(true)
    assert FIRST < of.timed.sum() < 0.2 * COUNT and of.timed[0] and not of.left
    assert np.array_equal(of.cycles[of.timed], true[of.timed]) and not of.half_widths[of.timed].any()
    assert np.mean(np.abs(of.cycles / true - 1) < 0.03) > 0.95


def test_the_same_is_found_again():
    true = surface(4, 0.01)
    a, b = found(true), found(true)
    assert all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("timed", "cycles", "half_widths"))


def test_few_points_for_the_settings_are_believed_of_errors_far_smaller_alone():
    true, enough = surface(2, 0.01), ENOUGH * len(before(len(ROUGH.places))[0])
    assert FIRST < found(true, 0.2).timed.sum() < enough  # the error is below that by more than the square of points
    few, share = FIRST + 1, most_within(0.03, 0.95, 0.95).too_wide
    reading = Reading(lambda points: true[np.array(points)], ROUGH, 0.95)
    reading.go_on()
    wide = share(reading.half_widths(range(COUNT)))
    assert len(reading.known) == few and 1.0 < (enough / few) ** 2 < 3.0
    assert found(true, 0.03 * wide * 1.01).timed.sum() > few  # where more points would be done
    assert found(true, 0.03 * wide * 1.01 * (enough / few) ** 2).timed.sum() == few


def test_what_is_begun_with_is_timed():
    first = [0, 17, 200]
    of = found(surface(0), first=first)
    assert of.timed[first].all() and of.timed.sum() < 0.2 * COUNT


def test_an_interval_for_all_is_narrow_everywhere():
    true = surface(0, 0.002)
    of = read_off(lambda points: true[np.array(points)], ROUGH, all_within(0.03), 0.95)
    assert not of.left and of.half_widths.max() <= 0.03 and np.abs(of.cycles / true - 1).max() < 0.03


def test_what_is_timed_less_exactly_tells_less_and_is_no_point_that_was_timed():
    true, rng, off, asked = surface(2), np.random.default_rng(7), 0.01, []

    def quick(points):
        asked.extend(points)
        exact = np.array(points) % 4 == 0
        return Timed(true[points] * np.exp(rng.normal(0, np.where(exact, 0.0, off))), np.where(exact, 0.0, off))

    of = found(true, 0.03, quick=quick)
    assert 0 < of.timed.sum() < 0.1 * COUNT and np.array_equal(of.cycles[of.timed], true[of.timed])
    rough = np.array(asked)[~of.timed[asked]]
    assert len(rough) and (of.half_widths[rough] > off).all() and (of.cycles[rough] != true[rough]).all()
    assert np.mean(np.abs(of.cycles / true - 1) <= of.half_widths) >= 0.94


def test_where_nothing_can_be_read_off_all_is_timed():
    true = np.exp(np.random.default_rng(1).normal(0, 1.0, COUNT))
    of = found(true, 0.01)
    assert of.timed.all() and of.left == "the error asked for takes all points"
    assert np.array_equal(of.cycles, true) and not of.half_widths.any()


def test_where_looking_costs_more_than_timing_all_is_timed():
    true = surface(0, 0.02)
    of = found(true, seconds=1e-3)
    assert of.timed.all() and np.array_equal(of.cycles, true) and "costs more" in of.left


@pytest.fixture
def searches(monkeypatch):
    """Of each search for settings: points, settings it began with, steps, and what it found."""
    made, search = [], interpolation.likeliest

    def likeliest(apart, lacking, begun, steps):
        made.append((len(lacking), begun, steps, search(apart, lacking, begun, steps)))
        return made[-1][-1]

    monkeypatch.setattr(interpolation, "likeliest", likeliest)
    return made


def test_settings_stay_where_another_search_would_cost_more_than_it_saves(searches):
    true, first = surface(0, 0.007), STEP_SECONDS * STEPS * 3 * (FIRST + 1) ** 2
    of = found(true, 0.02, seconds=1.5 * first / OVERHEAD)
    assert len(searches) == 1 and searches[0][0] == FIRST + 1
    assert 1.3 * (FIRST + 1) < of.timed.sum() < 0.3 * COUNT and not of.left
    found(true, 0.02)
    assert len(searches) > 2


def test_a_search_begins_with_the_settings_of_many_points_and_is_shorter(searches, monkeypatch):
    monkeypatch.setattr(interpolation, "MANY", 33)
    found(surface(0, 0.012), 0.02)
    first, second, third = searches[:3]
    expected = before(len(ROUGH.places))[0]
    assert first[0] < second[0] == 33 and (first[1] == expected).all() and (second[1] == expected).all()
    assert third[1] is second[3] and (second[2], third[2]) == (STEPS, STEPS // 3)


def test_few_points_are_all_timed():
    of = found(surface(0)[:40], 0.5, part(slice(40)))
    assert of.timed.all() and not of.half_widths.any() and of.left == "few points"
    assert few_points(127, 6) and not few_points(128, 6) and few_points(49, 0)  # 16 settings of six keys and the limits


def test_a_formula_that_knows_the_jumps_leaves_less_to_time():
    jumps = np.exp(0.3 * np.random.default_rng(2).integers(0, 2, COUNT))
    true = surface(2) * jumps
    assert found(true, 0.08, replace(ROUGH, cycles=jumps)).timed.sum() < 0.5 * found(true, 0.08).timed.sum()


def test_what_goes_by_the_limits_is_read_off_by_them():
    """A formula that is short where one thing decides, which changes from point to point without any order."""
    limited = np.random.default_rng(3).uniform(0, 1, COUNT)
    true = np.exp(0.5 * limited**2)
    of = found(true, 0.03, replace(ROUGH, limits=limited[:, None]))
    assert of.timed.sum() < 0.5 * found(true, 0.03).timed.sum()
    assert np.mean(np.abs(of.cycles / true - 1) < 0.03) > 0.95


@pytest.mark.parametrize("noise", [0.002, 0.015])
def test_intervals_hold(noise):
    inside = []
    for seed in range(16):
        order = np.random.default_rng(seed).permutation(COUNT)  # by which other points are drawn
        true = surface(seed, noise)[order]
        of = found(true, error=0.05, rough=part(order))
        assert not of.left
        inside.append(np.abs(true / of.cycles - 1) <= of.half_widths)
    assert np.mean(inside) >= 0.94


def test_points_timed_later_are_as_they_were_timed_and_the_others_as_they_were():
    true = surface(1, 0.01)
    of = found(true, 0.05)
    new = np.flatnonzero(~of.timed)[:20]
    told = of.with_timed(new, true[new])
    assert np.array_equal(told.cycles[new], true[new]) and told.timed.sum() == of.timed.sum() + 20
    assert not told.half_widths[new].any() and np.array_equal(told.cycles[~told.timed], of.cycles[~told.timed])


def test_with_a_formula_that_is_exact_nothing_is_off():
    true = surface(3)
    of = found(true, rough=replace(ROUGH, cycles=true / 2.0))
    assert np.abs(of.cycles / true - 1).max() < 1e-6 and of.timed.sum() < 0.2 * COUNT


FEW = replace(part(slice(0, 320, 40)), limits=np.linspace(0, 1, 8)[:, None] ** 2, cycles=np.exp(np.linspace(0, 1, 8)))
SETTINGS = np.array([0.3, -0.4, 0.1, -0.5, 0.2, 0.8, -3.0, -1.0])
AT, LACKING, OFF = [0, 2, 3, 7], np.array([0.1, -0.2, 0.05, 0.15]), np.array([0.0, 0.1, 0.0, 0.15])


def test_slopes_of_the_likelihood_are_its_differences():
    apart, (means, deviations, _) = FEW.apart(AT, AT), before(len(FEW.places))

    def loss(settings):
        total, off = Covariance(settings, apart).total, (settings - means) / deviations
        fit = LACKING @ np.linalg.solve(total, LACKING) + np.linalg.slogdet(total)[1]
        return 0.5 * (fit + off @ off)

    assert slopes_of_loss(SETTINGS, apart, LACKING) == pytest.approx(approx_fprime(SETTINGS, loss, 1e-6), abs=1e-4)


def test_a_covariance_is_one_however_near_points_are():
    """Nothing is below what each point has for itself, be they near by some and not by other neighbours."""
    near = Rough(np.ones(40), np.linspace(0, 1e-3, 40)[:, None], np.zeros((40, 0)), np.zeros((40, 0)), np.zeros(0, int))
    settings = np.array([0.0, 5.0, 0.0, 1.0])
    assert np.linalg.eigvalsh(Covariance(settings, near.apart(range(40), range(40))).total).min() > -1e-9


def prior() -> np.ndarray:
    of = Covariance(SETTINGS, FEW.apart(range(8), range(8)))
    return of.total + NUGGET * np.eye(8)


def test_what_is_read_off_is_the_posterior():
    """The textbook's: all points in one covariance, conditioned on those known."""
    off, variances = Process(FEW, AT, LACKING, OFF, SETTINGS).read_off(range(8))
    full, rest = prior(), np.setdiff1d(np.arange(8), AT)
    told = np.linalg.solve(full[np.ix_(AT, AT)] + np.diag(OFF**2), full[np.ix_(AT, rest)])
    assert off[rest] == pytest.approx(LACKING.mean() + (LACKING - LACKING.mean()) @ told)
    assert variances[rest] == pytest.approx(np.diag(full[np.ix_(rest, rest)] - full[np.ix_(rest, AT)] @ told))


def test_errors_are_those_of_points_left_out():
    of, full = Process(FEW, AT, LACKING, OFF, SETTINGS), prior()
    full[AT, AT] += OFF**2
    for place, error in enumerate(of.errors()):
        others = [point for point in AT if point != AT[place]]
        told = np.linalg.solve(full[np.ix_(others, others)], full[others, AT[place]])
        off = np.delete(LACKING - LACKING.mean(), place)
        spread = full[AT[place], AT[place]] - told @ full[others, AT[place]]
        assert error == pytest.approx((LACKING[place] - LACKING.mean() - told @ off) / math.sqrt(spread))


@pytest.mark.parametrize(
    ("wanted", "then"),
    [  # what is to be least, of variances on points that were not timed, the last of which is looked at
        (most_within(0.03, 0.95, 0.95), lambda before, after, point: after.sum()),
        (all_within(0.03), lambda before, after, point: -before[point]),
    ],
)
def test_the_next_points_are_those_that_what_is_asked_for_needs(wanted, then):
    rest, chosen = [point for point in range(8) if point not in AT], list[int]()

    def variances(more: list[int]) -> np.ndarray:
        none = np.zeros(len(more))
        own = Process(FEW, [*AT, *more], np.append(LACKING, none), np.append(OFF, none), SETTINGS)
        return own.read_off(rest)[1]

    for _ in range(2):
        before = dict(zip(rest, variances(chosen), strict=True))
        chosen.append(min(set(rest) - set(chosen), key=lambda p: then(before, variances([*chosen, p]), p)))
    of = Process(FEW, AT, LACKING, OFF, SETTINGS)
    assert of.next_best(rest, 2, wanted.choice) == chosen
    assert sorted(of.next_best(rest, 9, wanted.choice)) == rest


def test_intervals_are_wider_where_points_were_further_off_of_late_before_they_were_timed():
    true = surface(2, 0.01)
    reading = Reading(lambda points: true[np.array(points)], ROUGH, 0.95)
    for _ in range(3):
        reading.go_on()
    assert len(reading._foreseen) == 2 * math.ceil(LEAST * BY_CHANCE)  # of points by chance after the first
    count, reading.process.errors = len(reading.known), lambda: np.zeros(25)
    reading._foreseen = [(int(LAST * count) - 1, 10.0)] * 4
    assert reading._spread() == pytest.approx(EXPECTED)
    reading._foreseen = [(count, 10.0)] * 4
    assert reading._spread() == pytest.approx(math.sqrt((10 * EXPECTED**2 + 400) / 14))


def test_intervals_are_no_narrower_than_errors_of_points_left_out():
    reading = Reading(lambda points: surface(2, 0.01)[np.array(points)], ROUGH, 0.95)
    reading.go_on()
    count, errors = len(reading.known), 3.0 * np.ones(len(reading.known))
    reading.process.errors = lambda: errors
    assert reading._spread() == pytest.approx(3.0 * math.sqrt(count / (count - len(reading.settings))))


def test_what_no_key_tells_is_in_intervals_of_all_points_and_no_other_is_known_by_it():
    true = surface(2)
    exactly = Reading(lambda points: true[np.array(points)], ROUGH, 0.95)
    roughly = Reading(exactly._time, ROUGH, 0.95, quick=lambda points: Timed(true[points], np.zeros(len(points)), 0.02))
    for reading in (exactly, roughly):
        reading.go_on()
    halves = exactly.half_widths(range(COUNT)) / exactly.wider, roughly.half_widths(range(COUNT)) / roughly.wider
    assert halves[0].min() < 0.02 / EXPECTED < halves[1].min()


def test_most_points_are_within_an_error():
    too_wide, half = most_within(0.03, 0.95, 0.95).too_wide, half_interval(0.95) / 1.96
    assert too_wide(np.full(100, 0.03 * half)) == pytest.approx(1.0, abs=0.02)
    assert too_wide(np.full(100, 0.06 * half)) == pytest.approx(2.0, abs=0.04)
    assert too_wide(np.concatenate([np.zeros(50), np.full(50, 0.0357 * half)])) == pytest.approx(1.0, abs=0.03)
