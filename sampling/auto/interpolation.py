"""Cycles on design points of which only some are timed: the rest is read off between them.

A formula says roughly what a program takes on each point. The logarithm of what it lacks is a Gaussian process
(Rasmussen and Williams, Gaussian Processes for Machine Learning) over the points. Its covariance is a product over the
keys, where what the formula says limits a point counts as one key more; how much a key matters, and how far it reaches,
are those of the largest posterior. Timed next are the points that tell most of all others, or, where none may be far
off, those of which it knows least. How far off it is, points by chance say, each before it was timed, with those of
other sweeps; and those that were timed, each from the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from sampling.arrays import Bool, Float64, Int64
from sampling.auto.prediction import squared_distances
from sampling.statistics import one_thread, t_quantile

Some = Sequence[int] | Int64[np.ndarray, " point"]  # points, by number


@dataclass(frozen=True, eq=False)
class Rough:
    """All points, of which the first is the GPU that is varied. `cycles` by a formula; `limits`: what each of its
    bounds takes alone, over these; `more`: other numbers that decide; `features`, about -1 to 1, and the key each
    belongs to (`keys`)."""

    cycles: Float64[np.ndarray, " point"]
    limits: Float64[np.ndarray, "point limit"]
    more: Float64[np.ndarray, "point number"]
    features: Float64[np.ndarray, "point feature"]
    keys: Int64[np.ndarray, " feature"]

    @cached_property
    def logs(self) -> Float64[np.ndarray, " point"]:
        """Logarithms of the formula's cycles, around their mean."""
        logs = np.log(self.cycles)
        return np.asarray(logs - logs.mean())

    @cached_property
    def lines(self) -> Float64[np.ndarray, "point line"]:
        """What the formula may lack everywhere, a power of its cycles, and factors of its bounds, each where this one
        decides; all times the deviations that are expected."""
        sharp = self.limits**SHARPNESS
        shares = sharp / np.maximum(sharp.sum(1, keepdims=True), 1e-300)
        return np.column_stack([np.full(len(sharp), CONSTANT), SLOPE * self.logs, FACTOR * shares])

    @cached_property
    def places(self) -> list[tuple[Float64[np.ndarray, "place column"], Int64[np.ndarray, " point"]]]:
        """Different places by each key and by the limits, and which of them each point is at."""
        keys = [self.features[:, self.keys == key] for key in np.unique(self.keys)]
        keys.append(np.column_stack([self.limits, self.more, self.logs]))
        found = [np.unique(columns.round(DECIMALS), axis=0, return_inverse=True) for columns in keys]
        return [(places, at.reshape(-1)) for places, at in found]

    def apart(self, a: Some, b: Some) -> Apart:
        """How far points `a` are from points `b`."""
        squares, same, cells = [], [], []
        for places, at in self.places:
            (rows, row), (columns, column) = (np.unique(at[some], return_inverse=True) for some in (a, b))
            squares.append(squared_distances(places[rows], places[columns]))
            same.append(rows[:, None] == columns)
            cells.append(row[:, None] * len(columns) + column)
        return Apart(squares, same, cells, self.lines[a] @ self.lines[b].T)


class Apart(NamedTuple):
    """`squares` of distances between different places, by each key, whether they are the `same`, and which of them lies
    between two points (`cells`); `fixed`: what of the covariance no setting decides."""

    squares: list[Float64[np.ndarray, "place place"]]
    same: list[Bool[np.ndarray, "place place"]]
    cells: list[Int64[np.ndarray, "a b"]]
    fixed: Float64[np.ndarray, "a b"]


# Logarithms of settings before anything is timed, their deviations, and bounds. Of each key: the inverse square of its
# reach, and the weight of what goes by it. Of all together: the variance, and, as a logit, the share by which values of
# a key that are not the same differ however near they are.
REACH, WEIGHT = (-0.7, 2.0, (-8.0, 5.0)), (-1.0, 2.0, (-8.0, 5.0))
VARIANCE, JUMP = (-5.0, 2.0, (-14.0, 2.0)), (-2.0, 1.5, (-6.0, 3.0))
NUGGET = 6e-6  # variance of what no key tells
CONSTANT, SLOPE, FACTOR = 1.0, 0.5, 0.3  # deviations of the mean, of the power of the formula's cycles, of bounds
SHARPNESS = 4  # of what a bound decides: of two of which one is half of the other it is a sixteenth
STEPS, FIRST_STRIDE, LARGEST_STRIDE = 60, 0.2, 1.0  # of the search for settings
DECIMALS = 4  # of places: those as near as that are one, whatever lies between others


def before(keys: int) -> tuple[Float64[np.ndarray, "... setting"], ...]:
    """Means, deviations and bounds (lowest, highest) of the settings of so many keys."""
    means, deviations, bounds = zip(*[REACH] * keys, *[WEIGHT] * keys, VARIANCE, JUMP, strict=True)
    return np.array(means), np.array(deviations), np.array(bounds).T


class Covariance:
    """Of points that are `apart`, by settings (see `before`)."""

    def __init__(self, settings: Float64[np.ndarray, " setting"], apart: Apart) -> None:
        self.apart, keys = apart, len(apart.squares)
        self.reaches, self.weights = np.exp(np.split(settings[: 2 * keys], 2))
        self.variance, self.jump = np.exp(settings[-2]), 1.0 / (1.0 + np.exp(-settings[-1]))
        self.smooth = [np.exp(-0.5 * reach * own) for reach, own in zip(self.reaches, apart.squares, strict=True)]
        self.of_key = [own + self.jump * (same - own) for own, same in zip(self.smooth, apart.same, strict=True)]
        self.product = np.full(apart.fixed.shape, self.variance)
        for weight, own, cells in zip(self.weights, self.of_key, apart.cells, strict=True):
            self.product *= ((1.0 + weight * own) / (1.0 + weight)).take(cells)
        self.total = apart.fixed + self.product

    def slopes(self, weight: Float64[np.ndarray, "a a"]) -> Float64[np.ndarray, " setting"]:
        """Sum of `weight` times the derivative of the covariance, by each setting."""
        product, reaches, weights, jump = weight * self.product, [], [], 0.0
        for k, squares in enumerate(self.apart.squares):
            summed = np.bincount(self.apart.cells[k].ravel(), product.ravel(), squares.size).reshape(squares.shape)
            by_key = summed * self.weights[k] / (1.0 + self.weights[k] * self.of_key[k])
            reaches.append(-0.5 * (1.0 - self.jump) * self.reaches[k] * (by_key * self.smooth[k] * squares).sum())
            weights.append((by_key * self.of_key[k]).sum() - product.sum() * self.weights[k] / (1.0 + self.weights[k]))
            jump += self.jump * (1.0 - self.jump) * (by_key * (self.apart.same[k] - self.smooth[k])).sum()
        return np.array([*reaches, *weights, product.sum(), jump])


def slopes_of_loss(
    settings: Float64[np.ndarray, " setting"], apart: Apart, lacking: Float64[np.ndarray, " timed"]
) -> Float64[np.ndarray, " setting"]:
    """Derivative of less the logarithm of the posterior of settings (equation 5.9 of the book)."""
    found, (means, deviations, _) = Covariance(settings, apart), before(len(apart.squares))
    inverse = np.linalg.inv(found.total)
    weights = inverse @ lacking
    return found.slopes(0.5 * (inverse - np.outer(weights, weights))) + (settings - means) / deviations**2


def likeliest(
    apart: Apart, lacking: Float64[np.ndarray, " timed"], settings: Float64[np.ndarray, " setting"], steps: int
) -> Float64[np.ndarray, " setting"]:
    """Settings of the largest posterior, about, from others. Each goes by a stride of its own, which grows while its
    slope keeps its sign (Igel and Huesken's iRprop-, 2003; SciPy's searches take half a second to load)."""
    _, _, (lowest, highest) = before(len(apart.squares))
    strides, last = np.full(len(settings), FIRST_STRIDE), np.zeros(len(settings))
    for _ in range(steps):
        slopes = slopes_of_loss(settings, apart, lacking)
        turned = slopes * last
        strides = np.minimum(strides * np.where(turned > 0, 1.2, np.where(turned < 0, 0.5, 1.0)), LARGEST_STRIDE)
        last = np.where(turned < 0, 0.0, slopes)
        settings = np.clip(settings - np.sign(last) * strides, lowest, highest)
    return settings


class Process:
    """Of what the formula lacks, in logarithms: on points `at` that are `off`, and all `own` from what keys tell."""

    def __init__(
        self, rough: Rough, at: Sequence[int], lacking: Float64[np.ndarray, " timed"],
        off: Float64[np.ndarray, " timed"], settings: Float64[np.ndarray, " setting"], own: float = 0.0,
    ) -> None:  # fmt: skip
        self.rough, self.at, self.settings, self.mean = rough, at, settings, float(lacking.mean())
        self.nugget = NUGGET + (own / EXPECTED) ** 2  # by EXPECTED intervals are wider, and this is seen
        self.lacking, apart = lacking - self.mean, rough.apart(at, at)
        self.apart = apart._replace(fixed=apart.fixed + np.diag(self.nugget + off**2))
        self.known = Covariance(settings, self.apart)
        self.inverse = np.linalg.inv(self.known.total)
        self.weights = self.inverse @ self.lacking

    def read_off(self, points: Some) -> tuple[Float64[np.ndarray, " point"], Float64[np.ndarray, " point"]]:
        """What the formula lacks on some points, and its variance; so few at once that caches hold what is between."""
        parts = [self._read_off(points[first : first + LOOKED]) for first in range(0, len(points), LOOKED)]
        return np.concatenate([logs for logs, _ in parts]), np.concatenate([variances for _, variances in parts])

    def _posterior(self, points: Some) -> tuple[Float64[np.ndarray, "point timed"], ...]:
        """Covariance with points that were timed, the same by these, and the variance that they leave."""
        across = Covariance(self.settings, self.rough.apart(points, self.at)).total
        told, own = across @ self.inverse, (self.rough.lines[points] ** 2).sum(1) + self.known.variance
        return across, told, np.maximum(own - (told * across).sum(1), 0.0)  # below 0 by rounding alone

    def _read_off(self, points: Some) -> tuple[Float64[np.ndarray, " point"], Float64[np.ndarray, " point"]]:
        across, _, left = self._posterior(points)
        return self.mean + across @ self.weights, left + self.nugget

    def errors(self) -> Float64[np.ndarray, " timed"]:
        """Of each point that was timed, predicted from the others, over the deviation expected (equation 5.12)."""
        return np.asarray(self.weights / np.sqrt(np.diag(self.inverse)))

    def next_best(self, points: Sequence[int], count: int, how: Choice) -> list[int]:
        """One after the other the point that then tells most of all these."""
        across, told, _ = self._posterior(points)
        left = Covariance(self.settings, self.rough.apart(points, points)).total - told @ across.T
        chosen: list[int] = []
        for _ in range(min(count, len(points))):
            gains = how.tells(left, left.diagonal() + self.nugget)
            gains[chosen] = -math.inf
            best = int(np.argmax(gains))
            chosen.append(best)
            left -= np.outer(left[best], left[best]) / (left[best, best] + self.nugget)
        return [points[k] for k in chosen]


class Choice(NamedTuple):
    """How points are chosen that are timed next. `tells`: what each of some does, by the covariance of what is left of
    all, and its own variance with what no key tells; `candidates`: so many at a time."""

    tells: Callable[[Float64[np.ndarray, "point point"], Float64[np.ndarray, " point"]], Float64[np.ndarray, " point"]]
    candidates: int


# By how much all their variances together fall (Cohn, Ghahramani and Jordan, 1996), or how little is known of one
OF_ALL = Choice(lambda left, own: (left**2).sum(0) / own, 200)
OF_ITSELF = Choice(lambda left, own: own, 400)


FIRST = 24  # points before anything is read off
ENOUGH = 4  # points for each setting: half of the fewest that are tried; timed before errors are believed
LEAST, AT_ONCE = 8, 0.15  # added between two looks at the error: of the points timed so far, and at least
BY_CHANCE = 1 / 3  # of those added: they say how far off the others are
# Settings stay until there are so many times the points that they are of; from MANY points' the next search begins, in
MOVED, MANY = 1.3, 200  # place of those expected: from fewer points' it may not find what is likeliest
LOOKED = 300  # points of which half intervals are looked at, before it is done at all of them
# Errors over the deviations that the process expects, of other sweeps, and of how many points these count as; part of
# the points timed, which are the last: of these by chance errors are as now
EXPECTED, BELIEVED, LAST = 1.3, 10, 0.5
WIDER = 1.4  # by what intervals are wider than such errors: by as much some kernels' are
NORMAL = np.array([NormalDist().inv_cdf(0.5 + (k + 0.5) / 128) for k in range(64)])  # as many below each as above it
WORTH = 0.5  # of all points: where more would be needed, of which intervals narrow as their inverse, few are saved
OVERHEAD = 0.1  # of what timing all points takes, at most, goes into looks
STEP_SECONDS = 2e-8  # a key and two timed points, reckoned, so that the same is timed on every machine


@dataclass(frozen=True, eq=False)
class ReadOff:
    """Cycles of each point, of which `timed` were, and half of each interval, relative: 0 of these. `left`: why nothing
    is read off, if that was left."""

    cycles: Float64[np.ndarray, " point"]
    timed: Bool[np.ndarray, " point"]
    half_widths: Float64[np.ndarray, " point"]
    left: str = ""

    def with_timed(self, points: Some, cycles: Float64[np.ndarray, " chosen"]) -> ReadOff:
        """After timing some points more. The others stay as they were: what so few tell of them is not worth a look."""
        every, timed, halves = self.cycles.copy(), self.timed.copy(), self.half_widths.copy()
        every[points], timed[points], halves[points] = cycles, True, 0.0
        return replace(self, cycles=every, timed=timed, half_widths=halves)


class Timed(NamedTuple):
    """Cycles of points, and how far off each is, as a relative deviation: 0 where it was timed in full; and how far off
    all points are from what keys tell (`own`), as far as timing less exactly says that."""

    cycles: Float64[np.ndarray, " point"]
    off: Float64[np.ndarray, " point"]
    own: float = 0.0


Time = Callable[[Sequence[int]], "Float64[np.ndarray, ' point']"]
Quick = Callable[[Sequence[int]], Timed]


class Wanted(NamedTuple):
    """By what factor half intervals are too wide (1 or less: narrow enough), and what makes them narrower soonest."""

    too_wide: Callable[[Float64[np.ndarray, " point"]], float]
    choice: Choice


def half_interval(confidence: float) -> float:
    """Over the deviation of errors."""
    return WIDER * t_quantile(math.inf, confidence)


def all_within(error: float) -> Wanted:
    """No interval is wider."""
    return Wanted(lambda halves: float(halves.max(initial=0.0)) / error, OF_ITSELF)


def most_within(error: float, share: float, confidence: float) -> Wanted:
    """As many points as `share` are within `error` of the truth, their intervals being of this confidence."""
    errors = NORMAL / half_interval(confidence)
    return Wanted(lambda halves: float(np.quantile(np.outer(halves, errors), share)) / error, OF_ALL)


def few_points(count: int, keys: int) -> bool:
    """Whether settings for so many keys, and for what limits a point, need too large a part of so many points."""
    return max(FIRST + 1, ENOUGH * len(before(keys + 1)[0])) > WORTH * count


def read_off(
    time: Time, rough: Rough, wanted: Wanted, confidence: float, seconds: float = math.inf,
    first: Sequence[int] = (0,), quick: Quick | None = None,
) -> ReadOff:  # fmt: skip
    """`time` says the cycles of points, which takes `seconds` of all; `quick` does so sooner and less exactly. Points
    are added to the `first` until the half intervals are what is asked for; or all of them, where half would not do, or
    looking costs too much of what it can save. The first point of all, over which speed-ups are, is timed."""
    count = len(rough.cycles)
    if few_points(count, len(rough.places) - 1):
        return all_timed(time, count, "few points")
    reading = Reading(time, rough, confidence, first, quick, OVERHEAD * seconds, wanted.choice)
    while reading.needed <= WORTH * count and reading.looked_seconds <= reading.most_seconds:
        reading.go_on()
        wide, doubt = wanted.too_wide(reading.half_widths(reading.some)), max(1.0, reading.too_few) ** 2
        if doubt * wide <= 1.0 and doubt * wanted.too_wide((found := reading.found()).half_widths) <= 1.0:
            return found
        reading.narrow(wide)
    dear = reading.needed <= WORTH * count
    why = "choosing costs more than it saves" if dear else "the error asked for takes all points"
    return all_timed(reading.timed, count, why)


def all_timed(time: Time, count: int, why: str) -> ReadOff:
    """Every one of so many points; `why`."""
    return ReadOff(time(range(count)), np.ones(count, bool), np.zeros(count), why)


class Reading:
    """Points timed so far (`known`: cycles of each, and how far off), and what they say. `needed`: points to be timed,
    at most; `wider`: half of an interval, over the deviation that the process expects; `own`: of all points from what
    keys tell. Settings are searched for once, and again where that takes `most_seconds` together."""

    def __init__(
        self, time: Time, rough: Rough, confidence: float, first: Sequence[int] = (0,), quick: Quick | None = None,
        most_seconds: float = math.inf, choice: Choice = OF_ALL,
    ) -> None:  # fmt: skip
        self._time, self.rough, self.confidence, self.most_seconds = time, rough, confidence, most_seconds
        self._quick, self._choice = quick or self._exactly, choice
        self.known: dict[int, tuple[float, float]] = {}
        self.rng, self.needed, self.looked_seconds, self._least_wide = np.random.default_rng(0), 0.0, 0.0, math.inf
        self.some = self.rng.permutation(len(rough.cycles))[:LOOKED]
        self.settings, self._settled, self.own = before(len(rough.places))[0], 0, 0.0
        self._foreseen: list[tuple[int, float]] = []  # of points by chance: how many were known, and the error
        self.timed(first)
        self._condition()

    def timed(self, points: Sequence[int]) -> Float64[np.ndarray, " point"]:
        """Cycles of points, timed in full, each once."""
        self._keep([point for point in points if point not in self.known or self.known[point][1]], self._exactly)
        return np.array([self.known[point][0] for point in points])

    def _exactly(self, points: Sequence[int]) -> Timed:
        return Timed(self._time(points), np.zeros(len(points)))

    def _keep(self, points: Sequence[int], how: Quick) -> None:
        if points:
            cycles, off, own = how(points)
            self.known |= dict(zip(points, zip(cycles.tolist(), off.tolist(), strict=True), strict=True))
            self.own = own or self.own

    @property
    def too_few(self) -> float:
        """By what factor the points timed are too few for so many settings."""
        return ENOUGH * len(self.settings) / len(self.known)

    def _condition(self) -> None:
        at, (cycles, off) = list(self.known), np.array(list(self.known.values())).T
        self.process = Process(self.rough, at, np.log(cycles / self.rough.cycles[at]), off, self.settings, self.own)

    @one_thread
    def learn(self) -> None:
        """What the points timed so far say of the others, and how far off that is."""
        self._condition()
        count, keys = len(self.known), len(self.rough.places)
        begun, steps = (self.settings, STEPS // 3) if self._settled >= MANY else (before(keys)[0], STEPS)
        looked_seconds = self.looked_seconds + STEP_SECONDS * steps * keys * count**2
        if count >= MOVED * self._settled and (looked_seconds <= self.most_seconds or not self._settled):
            self.settings = likeliest(self.process.apart, self.process.lacking, begun, steps)
            self.looked_seconds, self._settled = looked_seconds, count
            self._condition()
        self.wider = half_interval(self.confidence) * self._spread()

    def _spread(self) -> float:
        """Of errors, over the deviations that the process expects: of points by chance of late, with other sweeps', and
        no less than of those left out, with degrees of freedom that settings of the same points take."""
        count, left_out = len(self.known), np.square(self.process.errors())
        late = [error for known, error in self._foreseen if known >= LAST * count]
        square = (BELIEVED * EXPECTED**2 + np.square(late).sum()) / (BELIEVED + len(late))
        return math.sqrt(max(square, left_out.sum() / max(1, count - len(self.settings))))

    @one_thread
    def go_on(self) -> None:
        """With some that are drawn, and of others those that tell most."""
        open_points = np.setdiff1d(np.arange(len(self.rough.cycles)), list(self.known))
        count = max(FIRST + 1 - len(self.known), LEAST, int(AT_ONCE * len(self.known)))
        chance = math.ceil(BY_CHANCE * count)
        drawn = self.rng.permutation(open_points)[: chance + self._choice.candidates].tolist()
        begun = len(self.known) > FIRST  # settings were searched for
        chosen = self.process.next_best(drawn[chance:], count - chance, self._choice)
        self._keep(drawn[:chance] + chosen, self._quick)
        self._foreseen += [(len(self.known), error) for error in self._errors(drawn[:chance])] if begun else []
        self.learn()

    def _errors(self, points: list[int]) -> list[float]:
        """Of new points as they were predicted before, over the deviations expected."""
        off, variances = self.process.read_off(points)
        cycles, less = np.array([self.known[point] for point in points]).T
        return ((np.log(cycles / self.rough.cycles[points]) - off) / np.sqrt(variances + less**2)).tolist()

    @one_thread
    def half_widths(self, points: Some) -> Float64[np.ndarray, " point"]:
        """Half of the intervals of points that were not timed, relative."""
        return np.asarray(self.wider * np.sqrt(self.process.read_off(points)[1]))

    def narrow(self, wide: float) -> None:
        """Intervals are too wide by a factor, which few points do not tell."""
        if self.too_few <= 1.0:
            self._least_wide = min(self._least_wide, wide)
            self.needed = len(self.known) * max(1.0, self._least_wide)

    @one_thread
    def found(self) -> ReadOff:
        """All points, as far as they are known."""
        every, at = np.arange(len(self.rough.cycles)), list(self.known)
        off, variances = self.process.read_off(every)
        cycles, halves = self.rough.cycles * np.exp(off), self.wider * np.sqrt(variances)
        timed = np.zeros(len(every), bool)
        cycles[at], deviations = np.array(list(self.known.values())).T
        halves[at], timed[at] = self.wider * deviations, deviations == 0.0
        return ReadOff(cycles, timed, halves)
