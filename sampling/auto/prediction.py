"""Cycles of launches that were not simulated, from those of others that were, and how far off that may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sampling.arrays import Bool, Float64, Int64
from sampling.statistics import numbered, pooled_error

PerSample = Float64[np.ndarray, " sample"]
SampleWork = Float64[np.ndarray, "sample work"]
PerLaunch = Float64[np.ndarray, " launch"]
SampleKinds = Int64[np.ndarray, " sample"]
LaunchKinds = Int64[np.ndarray, " launch"]
LaunchWork = Float64[np.ndarray, "launch work"]
Apart = Float64[np.ndarray, "launch sample"]
PerRow = Float64[np.ndarray, " n"]
RowWork = Float64[np.ndarray, "n work"]


class Work(NamedTuple):
    """Of launches, or of segments of one: `columns`, non-negative, that cycles may grow with; `given`: equal where they
    were given the same numbers; `same`: and where no column tells them apart, so that they are off by the same."""

    columns: RowWork
    given: Int64[np.ndarray, " n"]
    same: Int64[np.ndarray, " n"]

    def of(self, rows: Any) -> Work:
        """Some of them."""
        return Work(self.columns[rows], self.given[rows], self.same[rows])


def segment_work(columns: RowWork) -> Work:
    """Of parts of one launch, each off by its own."""
    return Work(columns, np.zeros(len(columns), np.int64), np.arange(len(columns)))


def launch_work(columns: RowWork, given: Int64[np.ndarray, " n"]) -> Work:
    """Of launches: those whose columns differ by less than TOLD are the same."""
    rows = np.column_stack([given, np.rint(np.log1p(columns) / TOLD)])
    return Work(columns, given, np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1))


def distances(a: Work, b: Work) -> Float64[np.ndarray, "n m"]:
    """How different launches are: the largest difference of a column's logarithms, and OTHER_NUMBERS for what no column
    shows."""
    found = np.zeros((len(a.given), len(b.given)))
    for x, y in zip(np.log1p(a.columns).T, np.log1p(b.columns).T, strict=True):
        np.maximum(found, np.abs(x[:, None] - y), out=found)
    return found + OTHER_NUMBERS * (a.given[:, None] != b.given)


def squared_distances(
    a: Float64[np.ndarray, "n column"], b: Float64[np.ndarray, "m column"] | None = None
) -> Float64[np.ndarray, "n m"]:
    """Of rows of `a` to rows of `b`, or to each other."""
    b = a if b is None else b
    found = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2.0 * a @ b.T
    return np.asarray(np.maximum(found, 0.0))


# What launches are apart that were given other numbers, if by their work they are equal: strides that just fill a set
# of L1D, or do not, are 3 % apart and more
OTHER_NUMBERS = 0.05
TOLD = 0.02
FARTHEST = 10.0  # distances beyond are one
CANDIDATES = 256  # that are looked at for how much of the whole is like them


def choose_unlike(work: Work, size: PerRow, sample: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """At most `count` that are not in `sample`: those that much is like, and unlike all that were chosen; every other
    one at random, in proportion to the root of its size (STEM's allocation), because they may differ in what no column
    shows."""
    left = np.ones(len(size), bool)
    chosen: list[int] = []
    left[list(sample)] = False
    nearest = np.full(len(size), FARTHEST)
    if len(sample):
        nearest = np.minimum(distances(work, work.of(list(sample))).min(1), FARTHEST)
    for _ in range(min(count, int(left.sum()))):
        places = np.flatnonzero(left)
        if (len(sample) + len(chosen)) % 2 == 0 and (size[places] * nearest[places]).max() > 0:
            place = _nearest_to_most(work, size, nearest, places)
        else:
            root = np.sqrt(size[places]) + 1e-300
            place = int(rng.choice(places, p=root / root.sum()))
        chosen.append(place)
        left[place] = False
        nearest = np.minimum(nearest, distances(work, work.of([place]))[:, 0])
    return chosen


def choose_heavy(size: PerRow, cost: PerRow, sample: Sequence[int], count: int) -> list[int]:
    """At most `count` that are not in `sample`: those that for their cost take most off the variance of the whole, if
    all are off by as much, relatively and independently."""
    gain = size**2 / cost
    gain[list(sample)] = 0.0
    most = np.argsort(-gain, kind="stable")[:count]
    return [int(place) for place in most if gain[place] > 0.0]


def _nearest_to_most(work: Work, size: PerRow, nearest: PerRow, places: Int64[np.ndarray, " left"]) -> int:
    """The one that brings everything nearest to what is chosen, each by its size: greedy facility location (Nemhauser,
    Wolsey and Fisher, Mathematical Programming 1978). Of many, those unlike the others and large are looked at."""
    tried = places[np.argsort(-(size * nearest)[places], kind="stable")[:CANDIDATES]]
    closer = nearest[:, None] - np.minimum(distances(work, work.of(tried)), nearest[:, None])
    return int(tried[np.argmax(np.round(size @ closer, 9))])


MOST_FOLDS = 24  # of a cross-validation; beyond, several launches are left out at a time
# What is assumed of a launch at a distance (`distances`) from all that were simulated, before errors have been seen;
# it counts as much as one observed error. Equal launches differ by where their buffers lie
EQUAL_ERROR, ERROR_A_DISTANCE = 0.007, 0.2
KIND_ERROR, KIND_DEGREES = 0.01, 10.0  # of large launches that do the same, one told by another, and what tells it
# The same where one SM has told, and as how many observed errors it counts: cycles over those of one SM spread by 2 %
# over the 23 convolutions of ResNet-50 on the GTX 480, by 6 % on the RTX 3070
ONE_SM_ERROR, ONE_SM_COUNTS = 0.03, 3.0


class Sampled(NamedTuple):
    """Launches that were simulated: their work, their cycles, and `shares`, by `told_shares`."""

    work: SampleWork
    cycles: PerSample
    shares: Float64[np.ndarray, " work"]

    @classmethod
    def of(cls, work: SampleWork, cycles: PerSample) -> Sampled:
        """With what they tell of shares."""
        return cls(work, cycles, told_shares(work, cycles))


def shares_of_work(work: LaunchWork, known: Sampled, apart: Apart) -> PerLaunch:
    """A sum of shares of the columns, with the least relative squares."""
    return np.maximum(work @ known.shares, 1.0)


def told_shares(known: SampleWork, measured: PerSample) -> Float64[np.ndarray, " work"]:
    """Cycles a unit of each column."""
    from scipy.optimize import nnls  # takes 0.3 s to import

    scale = np.maximum(known.max(0), 1e-300)
    return nnls((known / scale) / measured[:, None], np.ones(len(measured)))[0] / scale


def as_neighbours(work: LaunchWork, known: Sampled, apart: Apart) -> PerLaunch:
    """`shares_of_work`, times what the launches around lie above it, the nearest most."""
    both = shares_of_work(np.concatenate([work, known.work]), known, apart)
    off = np.log(known.cycles / both[len(work) :])
    weights = 1.0 / (apart + 1e-6) ** 2
    return both[: len(work)] * np.exp(weights @ off / weights.sum(1))


def in_proportion(work: LaunchWork, known: Sampled, apart: Apart) -> PerLaunch:
    """To the last column, times what those known lie above it: the geometric mean, which no launch outweighs."""
    return np.asarray(work[:, -1] * np.exp(np.log(known.cycles / known.work[:, -1]).mean()))


Rule = Callable[[np.ndarray, Sampled, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Fit:
    """A way to predict launches from the columns of their work from `first` on. `most`: what is assumed at most of the
    relative error of one, however far it is from those that were simulated; it counts as so many observed errors."""

    rule: Rule
    first: int = 0
    most: float = 2.0
    counts: float = 1.0

    def of(self, work: Float64[np.ndarray, "*n work"]) -> Float64[np.ndarray, "*n used"]:
        """The columns it looks at."""
        return work[..., self.first :]

    def assumed_error(self, distance: PerRow) -> PerRow:
        """Relative error of a launch predicted from others so far away, before any has been seen."""
        return EQUAL_ERROR + np.minimum(ERROR_A_DISTANCE * distance, self.most)


BY_WORK = (Fit(as_neighbours), Fit(shares_of_work))
# Where the last column is what a launch takes on one SM
BY_ONE_SM = (*BY_WORK, Fit(in_proportion, -1, ONE_SM_ERROR, ONE_SM_COUNTS))


def off_shares(work: Work, measured: PerSample) -> PerSample:
    """Logarithms of what shares of the work say of each, told by the others, over what was measured."""
    return _cross_validated([shares_of_work], work.columns, measured, distances(work, work))[0]


def _cross_validated(
    rules: Sequence[Rule], known: SampleWork, measured: PerSample, apart: Float64[np.ndarray, "sample sample"]
) -> Float64[np.ndarray, "rule sample"]:
    """Relative errors of launches that were simulated, each predicted without it; nothing of a single one."""
    count = len(measured)
    found = np.zeros((len(rules), count))
    if count == 1:
        return found
    folds = np.arange(count) % min(count, MOST_FOLDS)
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        others, far = Sampled.of(known[~out], measured[~out]), apart[out][:, ~out]
        for k, rule in enumerate(rules):
            found[k, out] = np.log(rule(known[out], others, far) / measured[out])
    return found


class Tried(NamedTuple):
    """A fit held against what was simulated: `residuals`, what was `assumed` of them, the `mean_square` of one over the
    other, what was assumed counted in, and the logarithm of the error that is `expected` of a launch."""

    fit: Fit
    residuals: PerSample
    assumed: PerSample
    mean_square: float
    expected: float


def tried(
    fits: Sequence[Fit], known: SampleWork, measured: PerSample, apart: Float64[np.ndarray, "sample sample"]
) -> list[Tried]:
    """Each that was simulated predicted without it, by each fit."""
    nearest = (apart + np.diag(np.full(len(apart), np.inf))).min(1)
    found = []
    for fit, residuals in zip(fits, _cross_validated([fit.rule for fit in fits], known, measured, apart), strict=True):
        assumed = fit.assumed_error(nearest)
        square = (float(np.sum((residuals / assumed) ** 2)) + fit.counts) / (len(measured) + fit.counts - 1.0)
        expected = float(np.log(assumed).mean() + 0.5 * np.log(square))
        found.append(Tried(fit, residuals, assumed, square, expected))
    return found


@dataclass(frozen=True, eq=False)
class Prediction:
    """Of all launches of a kernel: `cycles` (of those simulated, their own), `errors` relative and of one launch,
    0 where it was simulated, which those of equal `kinds` share; `unseen`: no launch of the kind was simulated;
    `common_cycles`: the error of the sum that these share, because few kinds were. `residuals`: relative errors of
    those simulated, each predicted without its kind; `assumed`, `assumed_of_sample`: what was assumed of the errors;
    `reach`: `common_cycles` over the sum of all errors."""

    cycles: PerLaunch
    errors: PerLaunch
    common_cycles: float
    degrees: float
    scale: float  # mean square of the errors seen, each over what was assumed of it
    residuals: PerSample
    assumed: PerLaunch
    assumed_of_sample: PerSample
    reach: float
    kinds: LaunchKinds
    unseen: Bool[np.ndarray, " launch"]

    @property
    def variance(self) -> float:
        """Of the sum of all cycles."""
        return self.variance_of(self.cycles * self.errors) + self.common_cycles**2

    def variance_of(self, errors_cycles: PerLaunch) -> float:
        """Of the sum of such errors, of which launches of one kind have the same."""
        return float(np.sum(np.bincount(self.kinds, errors_cycles) ** 2))


def predict(
    work: Work, sample: np.ndarray, measured: PerSample,
    kinds: LaunchKinds | None = None, fits: Sequence[Fit] | None = None,
) -> Prediction:  # fmt: skip
    """`sample`: which launches have `measured` cycles; `kinds`, from 0 on: equal where launches do the same but for
    where their data lie; each does something else unless told. A launch lasts as long as those of its kind, and what is
    known of other kinds counts once a kind. Of the `fits` (BY_WORK unless told) the one that predicts best what was
    simulated is taken."""
    fits = fits or BY_WORK
    if kinds is None:
        return _of_kinds(work, sample, measured, np.ones(len(work.given)), fits)
    first, counts = np.unique(kinds, return_index=True, return_counts=True)[1:]
    of_sample = numbered(kinds[sample].tolist())
    known = kinds[sample][np.unique(of_sample, return_index=True)[1]]
    means = np.bincount(of_sample, measured) / np.bincount(of_sample)
    found = _of_kinds(work.of(first), known, means, counts.astype(float), fits)
    return _of_launches(found, kinds, sample, measured, of_sample)


def _of_launches(
    found: Prediction, kinds: LaunchKinds, sample: np.ndarray, measured: PerSample, of_sample: SampleKinds
) -> Prediction:
    """What is known of kinds, of each of their launches."""
    simulated = np.bincount(kinds[sample], minlength=len(found.cycles))[kinds]
    one, degrees = _kind_error(measured, of_sample)
    equal = np.where(simulated > 0, one / np.sqrt(np.maximum(simulated, 1)), 0.0)
    equal[sample] = 0.0
    cycles = found.cycles[kinds]
    cycles[sample] = measured
    unlike = found.variance_of(found.cycles * found.errors * np.bincount(kinds)) + found.common_cycles**2
    of_equal = found.variance_of(np.bincount(kinds, cycles * equal))
    return replace(
        found,
        cycles=cycles,
        degrees=pooled_error(np.array([unlike, of_equal]), np.array([found.degrees, degrees]))[1],
        errors=found.errors[kinds] + equal,
        assumed=found.assumed[kinds] + equal,
        residuals=found.residuals[of_sample],
        assumed_of_sample=found.assumed_of_sample[of_sample],
        kinds=found.kinds[kinds],
        unseen=found.unseen[kinds],
    )


def _kind_error(measured: PerSample, of_sample: SampleKinds) -> tuple[float, float]:
    """Relative error of a launch told by one that does the same, and its degrees of freedom: what is assumed, and what
    those of one kind that were simulated differ by."""
    apart = measured / (np.bincount(of_sample, measured) / np.bincount(of_sample))[of_sample] - 1.0
    degrees = KIND_DEGREES + len(measured) - int(of_sample.max()) - 1
    return float(np.sqrt((KIND_DEGREES * KIND_ERROR**2 + float(apart @ apart)) / degrees)), degrees


def _of_kinds(
    work: Work, sample: np.ndarray, measured: PerSample,
    launches: Float64[np.ndarray, " kind"], fits: Sequence[Fit],
) -> Prediction:  # fmt: skip
    """Each of so many `launches`."""
    columns, apart = work.columns, distances(work, work.of(sample))
    all_of = tried(fits, columns[sample], measured, apart[sample])
    fit, seen, scale, mean_square = min(all_of, key=lambda each: each.expected)[:4]
    known = Sampled.of(columns[sample], measured)
    cycles = fit.rule(columns, known, apart)
    assumed = fit.assumed_error(apart.min(1))
    assumed[sample], cycles[sample] = 0.0, measured
    errors = assumed * np.sqrt(np.maximum(mean_square, _around(seen / scale, apart, fit.counts)))
    left = launches * (errors > 0)
    of_left = float(left @ cycles)
    reach = _leverage(left @ fit.of(columns), fit.of(columns[sample]), measured, of_left) / max(of_left, 1e-300)
    common = reach * float((left * cycles) @ errors)
    return Prediction(
        cycles, errors, common, max(len(sample) + fit.counts - 2.0, 1.0), mean_square, seen, assumed, scale, reach,
        work.same, errors > 0,
    )  # fmt: skip


NEAR = 0.3  # distance from a launch whose error tells as much of it as one that is equal tells, half


def _around(ratios: PerSample, apart: Apart, counts: float) -> PerLaunch:
    """Mean square of errors over what was assumed, of samples near each launch: where one is far off, others are."""
    weights = 1.0 / (1.0 + (apart / NEAR) ** 2)
    return np.asarray((weights @ ratios**2 + counts) / (weights.sum(1) + counts))


def _leverage(left: Float64[np.ndarray, " work"], known: SampleWork, measured: PerSample, cycles: float) -> float:
    """Cycles that the sum of all `left` work is off by, if launches are off by all of theirs, independently: by their
    number, or by how many shares of work they were to tell."""
    shares = told_shares(known, measured)
    used = shares > 0
    rows, wanted = known[:, used] / measured[:, None], left[used]
    scale = np.maximum(rows.max(0, initial=0.0), 1e-300)
    told = np.linalg.pinv(rows / scale)
    return float(max(np.linalg.norm((wanted / scale) @ told), cycles / np.sqrt(len(measured))))
