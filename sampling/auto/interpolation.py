"""Cycles of launches on design points, of which only some pairs are timed: the rest is read off between them.

A formula says roughly what each launch takes on each point. The logarithm of what it lacks is a Gaussian process
(Rasmussen and Williams, Gaussian Processes for Machine Learning) over pairs of a point and a launch: sums and products
over the keys of functions of one key each (Duvenaud et al., Additive Gaussian Processes, 2011), where what the formula
says limits a pair counts as one key more. Two launches have it in common as far as they are alike. Its settings are
those of the largest likelihood; how far off it is, points that were timed say, each predicted from the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.auto.prediction import squared_distances
from sampling.statistics import numbered, one_thread, t_quantile

Pair = tuple[int, int]  # a point and a launch
# How alike launches of different kernels are; of one kernel it is more, the more alike the logarithms of their work
# (0.6 of it at `WORK_REACH`), but for what each has of its own: more, if its work differs by more than a few per cent
OTHER_KERNEL, OWN, SAME, WORK_REACH = 0.2, 0.4, 0.05, 1.0
OTHER_PLACE = 0.03  # of what two launches of the same work have not in common: their data lie elsewhere
HELD = 4_000_000  # numbers of a covariance that are held at a time


class Places(NamedTuple):
    """Some pairs, as indices."""

    points: Int64[np.ndarray, " pair"]
    launches: Int64[np.ndarray, " pair"]

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Places:
        """Pairs, in their order."""
        return cls(*np.array(pairs, np.int64).reshape(-1, 2).T)


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of some points and launches. `cycles` by a formula; `limits`: numbers that say what decides them by
    it; `features` of points, about -1 to 1, and the key each belongs to (`keys`); `kernels` the launches are of;
    `work`, columns by which they are alike; `multiples`: each launch stands for so many of its size; `seconds` that
    timing a launch takes, reckoned."""

    cycles: Float64[np.ndarray, "point launch"]
    limits: Float64[np.ndarray, "point launch limit"]
    features: Float64[np.ndarray, "point feature"]
    keys: Int64[np.ndarray, " feature"]
    kernels: Int64[np.ndarray, " launch"]
    work: Float64[np.ndarray, "launch work"]
    multiples: Float64[np.ndarray, " launch"]
    seconds: Float64[np.ndarray, " launch"]

    @cached_property
    def shares(self) -> Float64[np.ndarray, "point launch"]:
        """Of each launch in the cycles of a point."""
        sizes = self.cycles * self.multiples
        return np.asarray(sizes / sizes.sum(1, keepdims=True))

    @cached_property
    def logs(self) -> Float64[np.ndarray, "point launch"]:
        """Logarithms of the formula's cycles, around their mean."""
        logs = np.log(self.cycles)
        return np.asarray(logs - logs.mean(0))

    @cached_property
    def alike(self) -> Float64[np.ndarray, "launch launch"]:
        """What launches have in common, of 1."""
        work = np.log1p(self.work)
        same = self.kernels[:, None] == self.kernels
        unlike = np.where(same, squared_distances(work) / work.shape[1], np.inf)
        of_kernel, own = (np.exp(-unlike / reach**2 / 2.0) for reach in (WORK_REACH, SAME))
        common = OTHER_KERNEL + (1.0 - OTHER_KERNEL - OWN) * of_kernel + OWN * own
        return np.asarray(common * (1.0 - OTHER_PLACE) + OTHER_PLACE * np.eye(len(work)))

    @cached_property
    def kinds(self) -> tuple[Int64[np.ndarray, " kind"], Int64[np.ndarray, " launch"]]:
        """The first launch of each kind that the formula tells apart, and the kind of each launch."""
        rows = np.ascontiguousarray(np.concatenate([self.cycles[..., None], self.limits], 2).swapaxes(0, 1))
        kind = numbered(row.tobytes() for row in rows)
        return np.unique(kind, return_index=True)[1], kind

    def on(self, points: Sequence[int], launches: Sequence[int]) -> Places:
        """The pairs of some points with some launches, one point after the other."""
        return Places(*(each.reshape(-1) for each in np.meshgrid(points, launches, indexing="ij")))

    def apart(self, a: Places, b: Places) -> Apart:
        """How far pairs `a` are from pairs `b`."""
        columns = [self.features[:, self.keys == key] for key in np.unique(self.keys)]
        limits = np.concatenate([self.limits, self.logs[..., None]], 2)
        squares = [squared_distances(column[a.points], column[b.points]) for column in columns]
        squares.append(squared_distances(limits[a.points, a.launches], limits[b.points, b.launches]))
        logs = np.outer(self.logs[a.points, a.launches], self.logs[b.points, b.launches])
        return Apart(np.stack(squares), logs, self.alike[np.ix_(a.launches, b.launches)])


class Apart(NamedTuple):
    """`squares` of distances, by each key and by the limits; products of the logarithms of the formula's cycles; what
    the launches have in common."""

    squares: Float64[np.ndarray, "key a b"]
    logs: Float64[np.ndarray, "a b"]
    alike: Float64[np.ndarray, "a b"]


# Logarithms of settings: their means and deviations before anything is timed. One a key: the inverse square of its
# reach; then the variance of functions of one key, of two, of all, and of what neighbours differ by; and the share,
# as a logit, by which values of a key that are not the same differ however near they are.
REACH, REACH_DEVIATION = math.log(0.5), 2.0
BEFORE = np.array([-5.0, -7.0, -6.0, -11.0, -2.0])
DEVIATIONS = np.array([2.0, 2.0, 2.0, 2.0, 1.5])
CONSTANT, SLOPE = 1.0, 0.25  # variances of the mean, and of the power of the formula's cycles
FIRST_STEPS, STEPS = 40, 12  # of the search for settings: at first, and from those before
NO_STEPS, MOVED = 0, 1.3  # the settings stay until there are so many times the pairs that they are of
MANY = 300  # pairs, beyond which settings move less and take fewer steps


class Covariance(NamedTuple):
    """Of pairs (`total`), of pairs of one launch (`common`), and what its derivatives are made of."""

    total: Float64[np.ndarray, "a b"]
    common: Float64[np.ndarray, "a b"]
    smooth: Float64[np.ndarray, "key a b"]
    of_key: Float64[np.ndarray, "key a b"]
    parts: Float64[np.ndarray, "3 a b"]


@dataclass(frozen=True, eq=False)
class Setting:
    """Of the covariance: see BEFORE."""

    logs: Float64[np.ndarray, " setting"]

    @classmethod
    def first(cls, keys: int) -> Setting:
        """Before anything was timed."""
        return cls(np.concatenate([np.full(keys, REACH), BEFORE]))

    @property
    def nugget(self) -> float:
        """Variance by which neighbours differ."""
        return math.exp(self.logs[-2])

    @property
    def _share(self) -> float:
        return 1.0 / (1.0 + math.exp(-self.logs[-1]))

    @property
    def _matters(self) -> Float64[np.ndarray, " key"]:
        """How much each key matters, 0 to 1: one that does not has no jumps either."""
        return np.asarray(1.0 / (1.0 + np.exp(-self.logs[:-5])))

    def _variances(self) -> Float64[np.ndarray, " order"]:
        return np.exp(self.logs[-5:-2])

    def likelier(self, apart: Apart, lacking: Float64[np.ndarray, " pair"], steps: int) -> Setting:
        """After so many steps towards those of the largest posterior."""
        from scipy.optimize import minimize

        bounds = [(-8.0, 4.0)] * len(apart.squares) + [(-14.0, 1.0)] * 4 + [(-6.0, 3.0)]
        found = minimize(
            loss, self.logs, (apart, lacking), "L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": steps}
        )
        return Setting(found.x)

    def covariance(self, apart: Apart) -> Covariance:
        """Of pairs, but for what is each pair's own."""
        own = (self._share * self._matters)[:, None, None]
        smooth = np.exp(-0.5 * np.exp(self.logs[:-5])[:, None, None] * apart.squares)
        of_key = (1.0 - own) * smooth + own * (apart.squares < 1e-9)
        one = of_key.sum(0)
        parts = np.stack([one, 0.5 * (one**2 - (of_key**2).sum(0)), of_key.prod(0)])
        common = CONSTANT + SLOPE * apart.logs + np.tensordot(self._variances(), parts, 1)
        return Covariance(apart.alike * common, common, smooth, of_key, parts)

    def slopes(
        self, apart: Apart, found: Covariance, weight: Float64[np.ndarray, "a a"]
    ) -> Float64[np.ndarray, " setting"]:
        """Sum of `weight` times the derivative of the covariance, by each setting."""
        share, matters, variances = self._share, self._matters, self._variances()
        weight = weight * apart.alike
        one, rest = found.parts[0], found.parts[2] / np.maximum(found.of_key, 1e-300)
        by_key = weight * (variances[0] + variances[1] * (one - found.of_key) + variances[2] * rest)
        bend = -0.5 * np.exp(self.logs[:-5]) * (by_key * found.smooth * apart.squares).sum((1, 2))
        jumps = (by_key * ((apart.squares < 1e-9) - found.smooth)).sum((1, 2))
        reach = (1.0 - share * matters) * bend + share * matters * (1.0 - matters) * jumps
        jump = share * (1.0 - share) * float(matters @ jumps)
        of_variances = variances * np.tensordot(found.parts, weight, 2)
        return np.concatenate([reach, of_variances, [0.0, jump]])


def loss(
    logs: Float64[np.ndarray, " setting"], apart: Apart, lacking: Float64[np.ndarray, " pair"]
) -> tuple[float, Float64[np.ndarray, " setting"]]:
    """Less the logarithm of the posterior of settings, and its derivative (equation 5.9 of the book)."""
    setting = Setting(logs)
    found = setting.covariance(apart)
    inverse, root = inverted(found.total, setting.nugget)
    weights = inverse @ lacking
    deviation = np.concatenate([np.full(len(apart.squares), REACH_DEVIATION), DEVIATIONS])
    off = (logs - Setting.first(len(apart.squares)).logs) / deviation
    value = 0.5 * float(lacking @ weights) + root + 0.5 * float(off @ off)
    weight = 0.5 * (inverse - np.outer(weights, weights))
    slopes = setting.slopes(apart, found, weight)
    slopes[-2] += setting.nugget * float(np.trace(weight))
    return value, slopes + off / deviation


def inverted(covariance: Float64[np.ndarray, "n n"], nugget: float) -> tuple[Float64[np.ndarray, "n n"], float]:
    """The inverse with a nugget, and half of the logarithm of the determinant."""
    from scipy.linalg import lapack

    lower, info = lapack.dpotrf(covariance + nugget * np.eye(len(covariance)), lower=True)
    if info:  # two pairs that are all but the same
        return inverted(covariance, 10.0 * nugget)
    inverse = lapack.dpotri(lower, lower=True)[0]
    return np.tril(inverse) + np.tril(inverse, -1).T, float(np.log(np.diag(lower)).sum())


class Process:
    """On the pairs that were timed: logarithms of what the formula lacks there (`known`)."""

    def __init__(
        self, pairs: Pairs, known: Mapping[Pair, float], start: Setting | None = None, steps: int = FIRST_STEPS
    ) -> None:
        self.pairs, self.at = pairs, Places.of(list(known))
        lacking = np.array(list(known.values()))
        self.mean = float(lacking.mean())
        self.lacking = lacking - self.mean
        apart = pairs.apart(self.at, self.at)
        self.setting = start or Setting.first(len(apart.squares))
        if steps:
            self.setting = self.setting.likelier(apart, self.lacking, steps)
        self.inverse, _ = inverted(self.setting.covariance(apart).total, self.setting.nugget)
        self.weights = self.inverse @ self.lacking
        self.timed, self.left = np.full(pairs.cycles.shape, np.nan), pairs.shares.copy()
        self.timed[self.at], self.left[self.at] = self.lacking, 0.0

    def covariance(self, places: Places) -> Float64[np.ndarray, "pair timed"]:
        """Of pairs with those that were timed."""
        return self.setting.covariance(self.pairs.apart(places, self.at)).total

    def _across(self, points: Sequence[int]) -> Float64[np.ndarray, "point launch timed"]:
        """The covariance of all launches on some points with what was timed, looked at once a kind of launches."""
        first, kind = self.pairs.kinds
        apart = self.pairs.apart(self.pairs.on(points, first.tolist()), self.at)
        common = self.setting.covariance(apart).common.reshape(len(points), len(first), -1)
        return common[:, kind] * self.pairs.alike[:, self.at.launches]

    def read_off(
        self, points: Sequence[int]
    ) -> tuple[Float64[np.ndarray, "point launch"], Float64[np.ndarray, " point"]]:
        """What the formula lacks on some points, timed pairs as they are; and the variance of the weighted sum on each
        of them, nothing of what was timed."""
        keys, launches = self.pairs.features.shape[1] + 5, len(self.pairs.kernels)
        kinds = len(self.pairs.kinds[0])
        held = (launches + kinds * keys) * len(self.lacking) + kinds**2 * keys + launches**2  # of a point
        some = max(1, HELD // held)
        parts = [self._read_off(points[first : first + some]) for first in range(0, len(points), some)]
        return np.concatenate([off for off, _ in parts]), np.concatenate([variance for _, variance in parts])

    def _read_off(self, points: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        left, across, timed = self.left[points], self._across(points), self.timed[points]
        lacking = self.mean + np.where(np.isnan(timed), across @ self.weights, timed)
        told = np.einsum("pl,plk->pk", left, across)
        of_functions = self._own(points, left) - ((told @ self.inverse) * told).sum(1)  # below 0 by rounding alone
        of_sums = np.maximum(of_functions, 0.0) + self.setting.nugget * (left**2).sum(1)
        return lacking, of_sums

    def _own(self, points: Sequence[int], left: Float64[np.ndarray, "point launch"]) -> Float64[np.ndarray, " point"]:
        """The variance of weighted sums of the launches on each point, before anything was timed."""
        pairs, (first, kind) = self.pairs, self.pairs.kinds
        logs = pairs.logs[points][:, first]
        limits = np.concatenate([pairs.limits[points][:, first], logs[..., None]], 2)
        by_limits = ((limits[:, :, None] - limits[:, None]) ** 2).sum(3)
        squares = np.stack([*np.zeros((len(np.unique(pairs.keys)), *by_limits.shape)), by_limits])
        shape = len(squares), -1, len(first)
        both = (logs[:, :, None] * logs[:, None]).reshape(shape[1:])
        common = self.setting.covariance(Apart(squares.reshape(shape), both, np.ones(1))).common
        total = common.reshape(by_limits.shape)[:, kind][:, :, kind] * pairs.alike
        return np.asarray((np.matmul(left[:, None], total)[:, 0] * left).sum(1))

    def errors(self) -> Float64[np.ndarray, " timed_point"]:
        """Of each point that was timed: the weighted sum of its timed launches, predicted from the other points, less
        what it was, over the deviation expected (5.4.2 of the book, a point at a time)."""
        found = []
        for point in np.unique(self.at.points):
            here = np.flatnonzero(self.at.points == point)
            spread = np.linalg.inv(self.inverse[np.ix_(here, here)])
            share = self.pairs.shares[self.at.points[here], self.at.launches[here]]
            found.append(share @ spread @ self.weights[here] / math.sqrt(share @ spread @ share))
        return np.array(found)


FEW_POINTS = 6  # and as many more as there are features: of no more points all pairs are timed
FIRST_PAIRS = 24  # or one of each kernel, before anything is read off between them
# Of those added, so many are drawn by chance: they say how far off the others are, without a view of their own
LEAST, BY_CHANCE = 6, 0.34
AT_ONCE = 0.2  # of the pairs timed so far, how many are added between two looks at the error
LEAST_LATELY = 20  # of errors of pairs predicted before, the latter half is what counts, and no fewer
CANDIDATES = 200  # pairs among which is chosen
LOOKED = 512  # points of which half intervals are looked at, before it is done at all of them
# By what intervals are wider than errors of timed points say, since these stop when they look small
WIDER = 1.1
SEEN_WIDER = 1.05  # the same of errors of both kinds together
FACTORS = np.geomspace(1.0, 1000.0, 200)  # by which intervals can be too wide
# Intervals narrow with more pairs as these to a power of 0.8 to 1.4 on kernels of the suite, at least of `NARROWING`;
# where more than `WORTH` of all would be needed, few are saved
NARROWING, WORTH = 0.7, 0.5
OVERHEAD = 0.15  # of what timing all pairs takes, at most, goes into formula and looks


def steps_of(timed: int) -> int:
    """Towards the settings of so many pairs, from those of fewer."""
    return max(2, STEPS * MANY // max(timed, MANY))


def reckoned_look_seconds(pairs: Pairs, timed: int) -> float:
    """Of one fit, one look and one choice, on one core."""
    keys = pairs.features.shape[1] + 2
    fit = 1.3 * steps_of(timed) * (timed**3 * 3e-10 + timed**2 * keys * 1.5e-8 + 3e-4)
    kinds, launches = len(pairs.kinds[0]), len(pairs.kernels)
    looked = timed * (kinds * keys * 5e-9 + launches * 5e-9 + timed * 1e-10) + launches**2 * 1e-8
    return fit + min(LOOKED, len(pairs.cycles)) * looked + CANDIDATES**2 * keys * 2.5e-8


@dataclass(frozen=True, eq=False)
class PairCycles:
    """Cycles of each launch on each point. `timed` pairs were; relative standard errors of the weighted sum on each
    point (`of_sums`), 0 where all launches were timed; so many `degrees` of freedom tell them. `left`: why nothing is
    read off, if that was left; else `reading` did."""

    cycles: Float64[np.ndarray, "point launch"]
    timed: list[Pair]
    of_sums: Float64[np.ndarray, " point"]
    degrees: float
    left: str = ""
    reading: Reading | None = None

    def half_widths(self, confidence: float) -> Float64[np.ndarray, " point"]:
        """Half of each point's interval, relative."""
        return np.asarray(self.of_sums * t_quantile(self.degrees, confidence))

    @property
    def of_ratios(self) -> Float64[np.ndarray, " point"]:
        """Relative standard errors of the sum's ratio to that of the first point, as if the errors of the two had
        nothing in common; mostly the first point is timed, and has none."""
        found = np.hypot(self.of_sums, self.of_sums[0])
        found[0] = 0.0
        return found

    @property
    def counts(self) -> Int64[np.ndarray, " point"]:
        """Launches that were timed on each point."""
        return np.bincount(Places.of(self.timed).points, minlength=len(self.cycles))

    def with_timed(self, pairs: Sequence[Pair]) -> PairCycles:
        """After timing some pairs more, which tell of others, too."""
        return self.reading.told(pairs) if self.reading else self


Time = Callable[[Sequence[Pair]], "Float64[np.ndarray, ' pair']"]
# Of half-widths, and what part of them errors would stay within as far as was seen: by what factor these are too wide,
# 1 where they are narrow enough
TooWide = Callable[["Float64[np.ndarray, ' point']", float], float]


def all_within(error: float) -> TooWide:
    """No interval is wider."""
    return lambda halves, seen: max(1.0, float(halves.max(initial=0.0)) / error)


def most_within(error: float, share: float, confidence: float) -> TooWide:
    """As many points as `share` are within `error` of the truth, as normal errors like those seen would be."""
    from scipy.special import erf

    scale = error * t_quantile(math.inf, confidence) / math.sqrt(2.0)

    def too_wide(halves: Float64[np.ndarray, " point"], seen: float) -> float:
        within = erf(scale * FACTORS[:, None] / np.maximum(seen * halves, 1e-12)).mean(1)
        return float(FACTORS[min(int(np.searchsorted(within, share)), len(FACTORS) - 1)])

    return too_wide


def read_off(
    time: Time, pairs: Pairs, too_wide: TooWide, confidence: float, known: Mapping[Pair, float] | None = None,
    spent_seconds: float = 0.0,
) -> PairCycles:  # fmt: skip
    """`time` simulates pairs: their cycles, of which some are `known`. Pairs are added until the half intervals of the
    sums are what is asked for or all are timed. Where looking costs too much of what it can save (`spent_seconds`
    before), or intervals narrow so slowly that half of the pairs would not do, the others are timed."""
    reading = Reading(time, pairs, confidence, dict(known or {}))
    reading.looked_seconds = spent_seconds
    if len(pairs.features) <= FEW_POINTS + pairs.features.shape[1]:
        return all_timed(time, pairs.cycles.shape, "few points", reading.known)
    reading.begin()
    enough = math.ceil(confidence / (1.0 - confidence))  # errors, of which the largest is such a quantile
    needed = 0.0
    while reading.open and needed <= WORTH * pairs.cycles.size and not reading.too_dear():
        reading.learn()
        if len(reading.fresh) >= enough:
            wide = too_wide(reading.some_half_widths(), reading.seen)
            if wide == 1.0 and too_wide((found := reading.found()).half_widths(confidence), reading.seen) == 1.0:
                return found
            needed = reading.needed(wide)
        reading.go_on()
    why = "choosing costs more than it saves" if reading.open else "the error asked for takes all points"
    return all_timed(time, pairs.cycles.shape, why, reading.known)


def all_timed(time: Time, shape: tuple[int, ...], why: str, known: Mapping[Pair, float] | None = None) -> PairCycles:
    """Every pair of so many points and launches; `why`."""
    every = [(p, k) for p in range(shape[0]) for k in range(shape[1])]
    found = dict(known or {})
    if new := [pair for pair in every if pair not in found]:
        found |= dict(zip(new, time(new).tolist(), strict=True))
    nothing = np.zeros(shape[0])
    cycles = np.reshape([found[pair] for pair in every], shape)
    return PairCycles(cycles, every, nothing, math.inf, why)


class Reading:
    """Pairs timed so far, and what they say. `fresh`: errors of pairs that were predicted before they were timed, over
    the deviation expected."""

    def __init__(self, time: Time, pairs: Pairs, confidence: float, known: dict[Pair, float]) -> None:
        self.time, self.pairs, self.confidence, self.known = time, pairs, confidence, known
        self.rng, self.looked_seconds = np.random.default_rng(0), 0.0
        self.process: Process | None = None
        self.settled = 0  # pairs that its settings are of
        self.wider = math.inf  # half of an interval, over the deviation the process expects
        self.seen = 1.0  # the part of it that errors of both kinds together stay within
        self.least_wide = math.inf  # by what intervals were too wide at best
        self.fresh: list[float] = []

    @property
    def open(self) -> int:
        """Pairs that were not timed."""
        return self.pairs.cycles.size - len(self.known)

    def too_dear(self) -> bool:
        """Whether one more look makes all looks cost more than their part of what is saved at best."""
        self.looked_seconds += reckoned_look_seconds(self.pairs, len(self.known))
        return self.looked_seconds > OVERHEAD * float(self.pairs.seconds.sum()) * len(self.pairs.cycles)

    def begin(self) -> None:
        """Some pairs, of every kernel at least one: points that have all values of all keys equally often."""
        kernels, size = self.pairs.kernels, self.pairs.shares.sum(0)
        first = [int(np.argmax(np.where(kernels == k, size, -1.0))) for k in np.unique(kernels)]
        points = balanced(self.pairs.features, max(FIRST_PAIRS, len(first)), self.rng)
        base = [(0, launch) for launch in range(len(kernels))]  # over which speed-ups are
        self.add([*base, *((point, first[k % len(first)]) for k, point in enumerate(points))])

    def add(self, wanted: Sequence[Pair]) -> None:
        """Time these pairs."""
        if new := [pair for pair in dict.fromkeys(wanted) if pair not in self.known]:
            self.known |= dict(zip(new, self.time(new).tolist(), strict=True))

    def lacking(self, pairs: Iterable[Pair]) -> dict[Pair, float]:
        """The logarithm of what the formula lacks on pairs that were timed."""
        return {pair: math.log(self.known[pair] / self.pairs.cycles[pair]) for pair in pairs}

    @one_thread
    def learn(self) -> None:
        """What the pairs timed so far say of the others."""
        if not self.process or len(self.known) >= MOVED * self.settled:
            start = (self.process.setting, steps_of(len(self.known))) if self.process else ()
            self.settled = len(self.known)
        else:
            start = (self.process.setting, NO_STEPS)
        self.process = Process(self.pairs, self.lacking(self.known), *start)
        lately = np.array(self.fresh[-max(LEAST_LATELY, len(self.fresh) // 2) :])
        seen = [errors for errors in (self.process.errors(), lately) if len(errors)]
        self.wider = WIDER * max(quantile(errors, self.confidence) for errors in seen)
        self.seen = SEEN_WIDER * quantile(np.concatenate(seen), self.confidence) / max(self.wider, 1e-300)

    def needed(self, wide: float) -> float:
        """Pairs to be timed, at most, until intervals are narrow enough, which are too wide by a factor."""
        self.least_wide = min(self.least_wide, wide)
        return len(self.known) * float(self.least_wide ** (1.0 / NARROWING))

    def told(self, new: Sequence[Pair]) -> PairCycles:
        """All pairs after some more are timed, with the settings there are."""
        assert self.process is not None
        self.add(new)
        self.process = Process(self.pairs, self.lacking(self.known), self.process.setting, NO_STEPS)
        return self.found()

    @one_thread
    def some_half_widths(self) -> Float64[np.ndarray, " point"]:
        """Of some points, drawn once."""
        assert self.process is not None
        points = np.random.default_rng(0).permutation(len(self.pairs.cycles))[:LOOKED]
        return self.wider * np.sqrt(self.process.read_off(points.tolist())[1])

    @one_thread
    def found(self) -> PairCycles:
        """All pairs, as far as they are known."""
        assert self.process is not None
        off, variances = self.process.read_off(range(len(self.pairs.cycles)))
        of_sums = self.wider / t_quantile(math.inf, self.confidence) * np.sqrt(variances)
        cycles = self.pairs.cycles * np.exp(off)
        for pair, exactly in self.known.items():
            cycles[pair] = exactly
        return PairCycles(cycles, sorted(self.known), of_sums, math.inf, reading=self)

    @one_thread
    def go_on(self) -> None:
        """With those that tell most, of some that are drawn."""
        assert self.process is not None
        choice = Choice(self.process, self._drawn())
        count = min(max(LEAST, int(AT_ONCE * len(self.known))), len(choice.drawn))
        by_chance = int(BY_CHANCE * count)  # the first are as good as any, since they are drawn
        chosen = [choice.take(k) for k in range(by_chance)] + [choice.next() for _ in range(count - by_chance)]
        new = [choice.drawn[k] for k in chosen]
        shape = self.pairs.cycles.shape
        left = (pair for pair in np.ndindex(*shape) if pair not in self.known)
        self.add(new or [next(left)])
        off = np.array([*self.lacking(new).values()]) - choice.expected[chosen]
        self.fresh += (off / choice.deviations[chosen]).tolist()

    def _drawn(self) -> list[Pair]:
        """Pairs that were not timed: points as they come, launches by their shares."""
        points = np.resize(self.rng.permutation(len(self.pairs.cycles)), CANDIDATES)
        share = self.pairs.shares.mean(0)
        launches = self.rng.choice(len(share), CANDIDATES, p=share / share.sum())
        drawn = dict.fromkeys(zip(points.tolist(), launches.tolist(), strict=True))
        return [pair for pair in drawn if pair not in self.known]


class Choice:
    """Among pairs that were `drawn`, one after the other the one that takes most variance, for its seconds, off the
    sums on their points. `expected` are they and their `deviations` before."""

    def __init__(self, process: Process, drawn: list[Pair]) -> None:
        pairs, self.drawn, places = process.pairs, drawn, Places.of(drawn)
        across = process.covariance(places)
        self.own = process.setting.covariance(pairs.apart(places, places)).total - across @ process.inverse @ across.T
        self.nugget, self.seconds = process.setting.nugget, pairs.seconds[places.launches]
        self.expected = process.mean + across @ process.weights
        self.deviations = np.sqrt(np.maximum(np.diag(self.own), 0.0) + self.nugget)
        # a drawn pair stands for the sum on its point as far as the launches there are like its own
        common = (pairs.shares[places.points] @ pairs.alike)[np.arange(len(drawn)), places.launches]
        self.sums = self.own * common[:, None]
        self.open = np.ones(len(drawn), bool)

    def next(self) -> int:
        """The best one left."""
        own = np.maximum(np.diag(self.own), 0.0)
        gain = (self.sums**2).sum(0) / (own + self.nugget) / self.seconds
        return self.take(int(np.argmax(np.where(self.open, gain, -1.0))))

    def take(self, best: int) -> int:
        """One that is known from now on."""
        own = np.maximum(np.diag(self.own), 0.0)
        most = np.sqrt(own * own[best])  # that two can have in common, which rounding must not exceed
        told, of_sums = np.clip(self.own[best], -most, most), self.sums[:, best].copy()
        variance = float(own[best]) + self.nugget
        self.own -= np.outer(told / variance, told)
        self.sums -= np.outer(of_sums / variance, told)
        self.open[best] = False
        return best


def quantile(errors: Float64[np.ndarray, " point"], confidence: float) -> float:
    """Which a further error, over the deviation expected of it, stays within: split conformal prediction (Vovk et al.),
    and no less than Student's with their mean square; this alone of too few errors."""
    ordered, place = np.sort(np.abs(errors)), math.ceil((len(errors) + 1) * confidence)
    by_size = math.sqrt(float((errors**2).mean())) * t_quantile(max(len(errors) - 1.0, 1.0), confidence)
    return max(float(ordered[place - 1]), by_size) if place <= len(errors) else by_size


def balanced(features: Float64[np.ndarray, "point feature"], count: int, rng: np.random.Generator) -> list[int]:
    """So many points among which every feature has all its values about equally often: greedily, of points drawn."""
    drawn = rng.permutation(len(features))[: 16 * count]
    levels = [np.unique(column, return_inverse=True)[1] for column in features[drawn].T]
    often = [np.zeros(level.max() + 1) for level in levels]
    chosen: list[int] = []
    taken = np.zeros(len(drawn), bool)
    for _ in range(min(count, len(drawn))):
        seen = sum((own[level] * len(own) for own, level in zip(often, levels, strict=True)), np.zeros(len(drawn)))
        best = int(np.argmin(np.where(taken, np.inf, seen)))
        taken[best] = True
        for own, level in zip(often, levels, strict=True):
            own[level[best]] += 1
        chosen.append(int(drawn[best]))
    return chosen
