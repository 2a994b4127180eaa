"""Fit a GPU's latencies and service times to what was measured: least squares by derivatives, then pattern search on
the model itself, both from what the values' sources say; kept if it helps on programs that were held out."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
from scipy import optimize

from abstim.gpu.config import Gpu, load_gpu
from abstim.gradient.timed_kernel import INDEX, bounds_of, check_names, step_of, values_of
from abstim.progress import Progress, silent
from abstim.study.fit.data import Observations, observations, of_table, of_times, programs_of, split
from abstim.study.fit.fitted import NEGLIGIBLE, ErrorSummary, Fit, FittedParameter, Knowledge, finite, knowledge
from abstim.study.silicon import MeasuredTime
from abstim.study.validate import Measured
from functional.arrays import Bool, Float64
from functional.errors import refuse

STEPS = (0.16, 0.08, 0.04, 0.03, 0.02, 0.01)  # of the pattern search, in logarithms
OUTLIER = 0.02  # error in log cycles; or half of a usual one, while they are larger
EVALUATIONS = 5  # with derivatives, at most, of one round
REACH = 8  # grid steps to either side that are tried in the end: which request DRAM serves first turns with a single
# cycle, so cycles jitter, and the next step may look worse where the sixth is right

# Standard deviation of the logarithm of a value, by the first word of its source; of others a figure that somebody
# measured or stated. What `--set` says is a start, not a source.
DEVIATIONS = {"choice": 1.0, "derived": 0.5, "code": 0.5, "fit": 0.5, "--set": np.inf}
STATED_DEVIATION = 0.2

Bounds = tuple[Float64[np.ndarray, " name"], Float64[np.ndarray, " name"]]


def deviations_of(gpu: Gpu, names: Sequence[str]) -> Float64[np.ndarray, " name"]:
    """How well the GPU's values are known from their sources."""
    words = [gpu.settings[name].source.split(" ")[0] for name in names]
    return np.array([DEVIATIONS.get(word, STATED_DEVIATION) for word in words])


def damped(
    errors: Float64[np.ndarray, "*point launch"], outlier: float = OUTLIER
) -> tuple[Float64[np.ndarray, "*point launch"], Float64[np.ndarray, "*point launch"]]:
    """Errors whose squares grow like the errors themselves beyond `outlier` (soft L1), and their derivative: what the
    model cannot do at all shall not bend the parameters of what it can."""
    z = errors / outlier
    root = np.sqrt(1 + z**2)
    size = np.abs(z) * np.sqrt(2 / (1 + root))  # sqrt(2 (root - 1)) without its cancellation
    slope = np.sqrt((1 + root) / 2) / root
    return outlier * np.sign(z) * size, slope


class Problem:
    """Weighted, damped errors in log cycles as a function of the logarithms of the parameters; and how far these are
    from `start`, in `deviations`, times the `noise`: the error that a kernel is left with. With noise 0 the start says
    nothing. `outlier`: from which error on it is damped, so that far from the solution not everything is one."""

    def __init__(
        self, data: Observations, start: np.ndarray, bounds: Bounds, deviations: np.ndarray, progress: Progress
    ) -> None:
        self.data, self.start, self.bounds, self.progress = data, start, bounds, progress
        self.names, self.deviations, self.noise = data.entries[0].kernel.names, deviations, 0.0
        self.outlier = OUTLIER
        self.unit = np.array([step_of(name) for name in self.names])
        self.evaluations = 0
        self._last: tuple[bytes, np.ndarray, np.ndarray] | None = None
        self._measured, self._weights = data.cycles, data.weights

    def on_grid(self, values: np.ndarray) -> np.ndarray:
        """The nearest point the engine can take, within the bounds."""
        return np.clip(np.floor(values / self.unit + 0.5) * self.unit, *self.bounds)

    def linearized(self, logs: np.ndarray, anew: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Weighted errors and their Jacobian; the latest are kept, because a solver asks for one after the other.
        `anew`: as of `Observed.with_gradient`."""
        key = logs.tobytes()
        if anew or self._last is None or self._last[0] != key:
            self.evaluations += 1
            values = np.clip(np.exp(logs), *self.bounds)
            cycles, gradient = self.data.with_gradients(values, anew, self.progress, f"fit, step {self.evaluations}")
            errors, slopes = damped(np.log(cycles / self._measured), self.outlier)
            jacobian = (self._weights * slopes / cycles)[:, None] * gradient * values
            self._last = key, self._weights * errors, jacobian
        return self._last[1], self._last[2]

    def with_start(self, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same, and below it, a row a parameter, how far that is from the start."""
        errors, jacobian = self.linearized(logs)
        away = self.noise * (logs - np.log(self.start)) / self.deviations
        return np.concatenate([errors, away]), np.concatenate([jacobian, np.diag(self.noise / self.deviations)])

    def losses(self, points: Sequence[np.ndarray]) -> list[float]:
        """Sums of squares, of the model at some grid points."""
        errors = np.log(self.data.engine_cycles(points) / self._measured)
        away = self.noise * np.log(np.array(points) / self.start) / self.deviations
        return (((self._weights * damped(errors, self.outlier)[0]) ** 2).sum(1) + (away**2).sum(1)).tolist()

    def look(self, value: np.ndarray) -> Knowledge:
        """What the data says of each parameter around a point. The noise is what linear errors would leave."""
        off = np.abs(np.log(self.data.engine_cycles([value], exactly=True)[0] / self._measured))
        self.outlier = max(OUTLIER, 0.5 * float(np.median(off)))
        errors, jacobian = self.linearized(np.log(value), anew=True)
        known = knowledge(self.names, value, errors, jacobian, len(self.data.entries))
        seen = known.directions[known.singular_values * np.log(2) > NEGLIGIBLE]
        left = errors - jacobian @ seen.T @ np.linalg.lstsq(jacobian @ seen.T, errors, rcond=None)[0]
        self.noise = float(np.sqrt((left**2).sum() / max(1, len(self.data.entries) - len(seen))))
        return known

    def spreads(self, value: np.ndarray) -> Float64[np.ndarray, " name"]:
        """How far off the logarithms may be for the errors that there are, around a point that was looked at."""
        errors, jacobian = self.with_start(np.log(value))
        inverse = np.linalg.pinv(jacobian.T @ jacobian, hermitian=True)
        return np.asarray(np.linalg.norm(errors) * np.sqrt(np.maximum(np.diag(inverse), 0.0) / len(self.data.entries)))


def least_squares(problem: Problem, start: np.ndarray, free: Bool[np.ndarray, " name"]) -> np.ndarray:
    """The best grid point on the way of a trust-region least-squares solver from `start`; `free` parameters move."""
    seen: list[np.ndarray] = [problem.on_grid(start)]

    def logs(moving: np.ndarray) -> np.ndarray:
        whole = np.log(start)
        whole[free] = moving
        return whole

    def errors(moving: np.ndarray) -> np.ndarray:
        seen.append(problem.on_grid(np.exp(logs(moving))))
        return problem.with_start(logs(moving))[0]

    low, high = np.log(problem.bounds[0])[free], np.log(problem.bounds[1])[free]
    inside = np.clip(np.log(start)[free], low + 1e-9, high - 1e-9)
    optimize.least_squares(
        errors, inside, jac=lambda moving: problem.with_start(logs(moving))[1][:, free], bounds=(low, high),
        max_nfev=EVALUATIONS, xtol=1e-3, ftol=1e-4,
    )  # fmt: skip
    return seen[int(np.argmin(problem.losses(seen)))]


def polish(
    problem: Problem, point: np.ndarray, free: Bool[np.ndarray, " name"],
    directions: Float64[np.ndarray, "direction name"], what: str,
) -> np.ndarray:  # fmt: skip
    """Pattern search on the engine: along each parameter, and along `directions` of logarithms, up and down by ever
    smaller steps, and at last by a few grid steps of one parameter and single ones of two, while that helps.

    No step is much larger or smaller than what the errors leave open: of a parameter that is not known to a few grid
    steps these are not tried."""
    spreads = problem.spreads(point)
    sharp = free & (spreads * point < REACH * problem.unit)
    best, still = problem.losses([point])[0], np.zeros(len(point))
    ways = np.concatenate([np.eye(len(point))[free], directions * free])
    open_by = [max(float(np.abs(way) @ spreads), STEPS[-1]) for way in ways]
    growths = [sign * step * way for step in STEPS for way, by in zip(ways, open_by, strict=True) for sign in (1, -1)
               if 0.25 * min(by, STEPS[0]) <= step <= 4 * by]  # fmt: skip
    own = np.diag(problem.unit)[sharp]
    pairs = [(own[k], own[j]) for k in range(len(own)) for j in range(k)]
    ends = [sign * one for one in own for sign in (1, -1)]
    ends += [a * one + b * other for one, other in pairs for a in (1, -1) for b in (1, -1)]
    count = len(growths) + len(ends) + int(sharp.sum())
    for done, growth in enumerate(growths):
        problem.progress(what, done, count)
        point, best = _line(problem, point, best, growth, still)
    for done, k in enumerate(np.flatnonzero(sharp), len(growths)):
        problem.progress(what, done, count)
        steps = min(REACH, int(np.ceil(3 * spreads[k] * point[k] / problem.unit[k])))
        point, best = _scan(problem, point, best, int(k), steps)
    for done, step in enumerate(ends, count - len(ends)):
        problem.progress(what, done, count)
        point, best = _line(problem, point, best, still, step)
    return point


def _line(
    problem: Problem, point: np.ndarray, best: float, growth: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, float]:
    """Go one way, by `growth` in logarithms and by `step`, for as long as that helps."""
    while best > 0:
        candidate = problem.on_grid(point * np.exp(growth) + step)
        loss = best if np.array_equal(candidate, point) else problem.losses([candidate])[0]
        if loss >= best:
            break
        point, best = candidate, loss
    return point, best


def _scan(problem: Problem, point: np.ndarray, best: float, k: int, reach: int) -> tuple[np.ndarray, float]:
    """The best of the nearest `reach` grid points to either side, of one parameter."""
    if best == 0:
        return point, best
    steps = np.zeros((2 * reach + 1, len(point)))
    steps[:, k] = np.arange(-reach, reach + 1) * problem.unit[k]
    around = [problem.on_grid(point + step) for step in steps]
    losses = problem.losses(around)
    return (around[int(np.argmin(losses))], min(losses)) if min(losses) < best else (point, best)


FACTOR = 4.0  # a parameter is searched for between start / FACTOR and start x FACTOR
POLISH_ROUNDS = 4
MOST_FACTOR = 4096  # as far as most keys may be apart
DESCENTS = 6  # of least squares, at most, one from where the last ended: each has its own noise


def fit(
    table: Sequence[Measured] | Sequence[MeasuredTime], names: Sequence[str], *, gpu: str | None = None,
    overrides: Sequence[str] = (), programs: Path = Path(), fraction: float = 1.0, seed: int = 0,
    factor: float = FACTOR, polish_rounds: int = POLISH_ROUNDS, reference: str = "a table of cycles",
    model: str = "detailed", progress: Progress = silent,
) -> Fit:  # fmt: skip
    """Values of some parameters of a GPU with which it takes the cycles of a table (`validate.read_reference`), or the
    times on hardware of one (`silicon.read_measured_times`), whose targets lie in `programs`.

    `names`: keys of [params], [time], [latency_cycles] or [initiation_cycles]. `gpu`: as for `load_gpu`; None: the
    variants' own. Parameters start at the GPU's values, `overrides` included, stay within `factor` of there, and near
    there as far as their sources are trusted (`DEVIATIONS`). `fraction` of the programs are fitted, the others held
    out, chosen by `seed`; if the error of these does not fall, the start is kept. `model`: what predicts cycles. Raises
    InputError for unknown names, variants of several GPUs, or a target that cannot run."""
    started, table = perf_counter(), cast(Any, list(table))
    refuse(not table, "the table has nothing to fit")
    room = f"factor {factor:g}: parameters need room on both sides; choose a number above 1, up to {MOST_FACTOR:,}"
    refuse(seed < 0, f"seed {seed} is below 0")
    refuse(not 1 < factor <= MOST_FACTOR, room)
    names = check_names(names)
    read: Any = partial(of_times, programs) if isinstance(table[0], MeasuredTime) else of_table
    name, gpus, found = read(table, gpu, overrides)
    everything = observations(found, names, gpus, model, progress)
    parts = split(programs_of(everything), fraction, seed)
    data, held_out = (Observations([everything.entries[k] for k in part]) for part in parts)
    start = everything.entries[0].kernel.defaults()
    refuse((start <= 0).any(), f"{names[int(start.argmin())]} is 0: a fit needs a start above 0; give one with --set")
    low, high = np.array([bounds_of(n, factor, v) for n, v in zip(names, start, strict=True)]).T
    problem = Problem(data, start, (low, high), deviations_of(next(iter(gpus.values())), names), progress)
    value, known = _solve(problem, polish_rounds)
    in_file = values_of(load_gpu(name))[[INDEX[each] for each in names]]
    errors = _errors({"fitted": data, "held out": held_out}, {"start": start, "file": in_file, "fit": value})
    kept = _no_better(errors)
    return Fit(
        gpu=name, variants=list(gpus), reference=reference, kept_start=kept,
        parameters=_parameters(problem, start if kept else value, value, known),
        errors=errors, correlation=known.correlation.tolist(), singular_values=known.singular_values.tolist(),
        unidentified=known.unidentified, fitted_benchmarks=data.benchmarks, held_out_benchmarks=held_out.benchmarks,
        split=fraction, seed=seed, wall_seconds=perf_counter() - started,
    )  # fmt: skip


def _no_better(errors: Sequence[ErrorSummary]) -> bool:
    """Was something held out, and its mean error does not fall, or its median rises? A mean may be one outlier's."""
    held_out = {each.values: each for each in errors if each.part == "held out"}
    if not held_out:
        return False
    start, found = held_out["start"], held_out["fit"]
    return found.mean_error >= start.mean_error or found.median_error > start.median_error


def _solve(problem: Problem, rounds: int) -> tuple[np.ndarray, Knowledge]:
    """The solution, and what is known of it: least squares and pattern search in turn, for as long as that helps. What
    changes no cycles is held at the start."""
    value = problem.on_grid(problem.start)
    known = problem.look(value)
    for number in range(1 + rounds):
        if not (free := ~known.unseen).any() or problem.losses([value])[0] == 0:
            break
        for _ in range(DESCENTS):
            found = least_squares(problem, value, ~known.unseen)
            if np.array_equal(found, value):
                break
            value, known = found, problem.look(found)
        if number == rounds:
            break
        better = polish(problem, value, free, known.directions, f"polish, round {number + 1}")
        if np.array_equal(better, value):
            break
        value, known = better, problem.look(better)
    return value, known


def _parameters(problem: Problem, values: np.ndarray, fitted: np.ndarray, known: Knowledge) -> list[FittedParameter]:
    unclear = {name for direction in known.unidentified for name in direction}
    low, high = problem.bounds
    return [
        FittedParameter(
            name, float(problem.start[k]), finite(np.exp(2 * problem.deviations[k])), float(fitted[k]),
            float(values[k]), finite(known.low[k]), finite(known.high[k]), identified=name not in unclear,
            at_bound=bool(fitted[k] in (low[k], high[k])),
        )
        for k, name in enumerate(problem.names)
    ]  # fmt: skip


def _errors(parts: Mapping[str, Observations], points: Mapping[str, np.ndarray]) -> list[ErrorSummary]:
    """Of the measurements that were fitted, and of those that were not, by each of some vectors of parameters."""
    found = []
    for part, own in parts.items():
        if not own.entries:
            continue
        for values, cycles in zip(points, own.engine_cycles(list(points.values()), exactly=True), strict=True):
            errors = np.abs(own.errors(cycles))
            summary = (float(errors.mean()), float(np.median(errors)), float(errors.max()))
            worst = own.entries[int(errors.argmax())].measurement.benchmark
            found.append(ErrorSummary(part, values, len(errors), *summary, worst))
    return found
