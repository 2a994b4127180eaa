"""Fit a GPU's latencies and service times to measured cycles: least squares by derivatives, then pattern search on the
model itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter

import numpy as np
from jaxtyping import Float64

from abstim.engine.rules import UNITS_A_CYCLE
from abstim.gpu.config import load_gpu
from abstim.gradient.parameter_vector import INDEX, bounds_of, check_names, is_whole, values_of
from abstim.progress import Progress, silent
from abstim.study.fit.data import Observations, gpus_of, kernels_of, split
from abstim.study.fit.fitted import ErrorSummary, Fit, FittedParameter, Knowledge, finite, knowledge
from abstim.study.validate import Measured
from functional.errors import InputError

STEPS = (0.16, 0.08, 0.04, 0.03, 0.02, 0.01)  # of the pattern search, in logarithms
OUTLIER = 0.02  # error in log cycles
EVALUATIONS = 12  # with derivatives, at most
REACH = 8  # grid steps to either side that are tried in the end: which request DRAM serves first turns with a single
# cycle, so cycles jitter, and the next step may look worse where the sixth is right

Bounds = tuple[Float64[np.ndarray, " name"], Float64[np.ndarray, " name"]]


def damped(
    errors: Float64[np.ndarray, " launch"],
) -> tuple[Float64[np.ndarray, " launch"], Float64[np.ndarray, " launch"]]:
    """Errors whose squares grow like the errors themselves beyond OUTLIER (soft L1), and their derivative: what the
    model cannot do at all shall not bend the parameters of what it can."""
    z = errors / OUTLIER
    root = np.sqrt(1 + z**2)
    size = np.abs(z) * np.sqrt(2 / (1 + root))  # sqrt(2 (root - 1)) without its cancellation
    slope = np.sqrt((1 + root) / 2) / root
    return OUTLIER * np.sign(z) * size, slope


class Problem:
    """Weighted, damped errors in log cycles as a function of the logarithms of the parameters."""

    def __init__(self, data: Observations, names: tuple[str, ...], bounds: Bounds, progress: Progress) -> None:
        self.data, self.names, self.bounds, self.progress = data, names, bounds, progress
        self.whole = np.array([is_whole(name) for name in names])
        self.evaluations = 0
        self._last: tuple[bytes, np.ndarray, np.ndarray] | None = None
        self._losses: dict[bytes, float] = {}

    def on_grid(self, values: np.ndarray) -> np.ndarray:
        """The nearest point the engine can take, within the bounds."""
        unit = np.where(self.whole, 1, UNITS_A_CYCLE)
        return np.clip(np.floor(values * unit + 0.5) / unit, *self.bounds)

    def linearized(self, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weighted errors and their Jacobian; the latest are kept, because a solver asks for one after the other."""
        key = logs.tobytes()
        if self._last is None or self._last[0] != key:
            self.evaluations += 1
            values = np.clip(np.exp(logs), *self.bounds)
            cycles, gradient = self.data.with_gradients(values, self.progress, f"fit, step {self.evaluations}")
            errors, slopes = damped(np.log(cycles / self.data.cycles))
            weights = self.data.weights
            self._last = key, weights * errors, (weights * slopes / cycles)[:, None] * gradient * values
        return self._last[1], self._last[2]

    def losses(self, points: list[np.ndarray]) -> list[float]:
        """Sums of squared weighted errors of the engine at some grid points, each computed once."""
        new = {p.tobytes(): p for p in points if p.tobytes() not in self._losses}
        if new:
            for key, cycles in zip(new, self.data.engine_cycles(list(new.values())), strict=True):
                errors, _ = damped(np.log(cycles / self.data.cycles))
                self._losses[key] = float(((self.data.weights * errors) ** 2).sum())
        return [self._losses[p.tobytes()] for p in points]


def least_squares(problem: Problem, start: np.ndarray, free: np.ndarray) -> np.ndarray:
    """The best grid point on the way of a trust-region least-squares solver from `start`; `free` parameters move."""
    from scipy import optimize

    seen: list[np.ndarray] = [problem.on_grid(start)]

    def logs(moving: np.ndarray) -> np.ndarray:
        whole = np.log(start)
        whole[free] = moving
        return whole

    def errors(moving: np.ndarray) -> np.ndarray:
        seen.append(problem.on_grid(np.exp(logs(moving))))
        return problem.linearized(logs(moving))[0]

    low, high = np.log(problem.bounds[0])[free], np.log(problem.bounds[1])[free]
    inside = np.clip(np.log(start)[free], low + 1e-9, high - 1e-9)
    optimize.least_squares(
        errors, inside, jac=lambda moving: problem.linearized(logs(moving))[1][:, free], bounds=(low, high),
        max_nfev=EVALUATIONS, xtol=1e-3, ftol=1e-5,
    )  # fmt: skip
    losses = problem.losses(seen)
    return seen[int(np.argmin(losses))]


def polish(
    problem: Problem,
    point: np.ndarray,
    free: np.ndarray,
    directions: Float64[np.ndarray, "direction name"],
    what: str,
) -> np.ndarray:
    """Pattern search on the engine: along each free parameter, and along `directions` of logarithms, up and down by
    ever smaller steps, and at last by a few grid steps of one parameter and single ones of two, while that helps."""
    best = problem.losses([point])[0]
    moving, still = np.concatenate([np.eye(len(point))[free], directions * free]), np.zeros(len(point))
    for place, step in enumerate(STEPS):
        problem.progress(what, place, len(STEPS) + 1)
        for direction in moving:
            point, best = _line(problem, point, best, step * direction, still)
            point, best = _line(problem, point, best, -step * direction, still)
    problem.progress(what, len(STEPS), len(STEPS) + 1)
    point, best = _scan(problem, point, best, free)
    for delta in _grid_steps(problem, free):
        point, best = _line(problem, point, best, still, delta)
    return point


def _line(
    problem: Problem, point: np.ndarray, best: float, growth: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, float]:
    """Go one way, by `growth` in logarithms and by `step`, for as long as that helps."""
    while best > 0:
        candidate = problem.on_grid(point * np.exp(growth) + step)
        loss = problem.losses([candidate])[0]
        if loss >= best:
            break
        point, best = candidate, loss
    return point, best


def _scan(problem: Problem, point: np.ndarray, best: float, free: np.ndarray) -> tuple[np.ndarray, float]:
    """The best of the nearest REACH grid points to either side, one free parameter after the other."""
    for k in np.flatnonzero(free):
        if best == 0:
            break
        steps = np.zeros((2 * REACH + 1, len(point)))
        steps[:, k] = np.arange(-REACH, REACH + 1) * (1.0 if problem.whole[k] else 1 / UNITS_A_CYCLE)
        around = [problem.on_grid(point + step) for step in steps]
        losses = problem.losses(around)
        if min(losses) < best:
            point, best = around[int(np.argmin(losses))], min(losses)
    return point, best


def _grid_steps(problem: Problem, free: np.ndarray) -> Iterator[np.ndarray]:
    """One step of the engine's grid in each parameter, up and down, and in each pair of them."""
    unit = np.diag(np.where(problem.whole, 1.0, 1 / UNITS_A_CYCLE))[free]
    for k in range(len(unit)):
        yield unit[k]
        yield -unit[k]
        for j in range(k):
            for one, other in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
                yield one * unit[k] + other * unit[j]


FACTOR = 4.0  # a parameter is searched for between start / FACTOR and start x FACTOR
POLISH_ROUNDS = 4


def fit(
    table: Sequence[Measured],
    names: Sequence[str],
    *,
    gpu: str | None = None,
    overrides: Sequence[str] = (),
    fraction: float = 1.0,
    seed: int = 0,
    factor: float = FACTOR,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    polish_rounds: int = POLISH_ROUNDS,
    reference: str = "a table of cycles",
    model: str = "detailed",
    progress: Progress = silent,
) -> Fit:
    """Values of some parameters of a GPU with which it takes the cycles of a table (`validate.read_reference`).

    `names`: keys of [params], [latency_cycles] or [initiation_cycles]. `gpu`: as for `load_gpu`; None: the variants'
    own. Parameters start at the GPU's values, `overrides` included, and stay within `factor` of there, or within
    `bounds`. `fraction` of the benchmarks are fitted, the others held out, chosen by `seed`. Same input, same result.
    `model`: detailed, occupancy or analytic, what predicts cycles. Raises InputError for unknown names, variants of
    several GPUs, or a benchmark that cannot run.
    """
    started = perf_counter()
    names = check_names(names)
    _check(table, factor)
    name, gpus = gpus_of(table, gpu, overrides)
    inside, outside = split(table, fraction, seed)
    everything = kernels_of(table, names, gpus, model, progress)
    data, held_out = everything.part(inside), everything.part(outside) if outside else None
    start, columns = everything.kernels[0].defaults(), [INDEX[each] for each in names]
    if (start <= 0).any():
        raise InputError(f"{names[int(start.argmin())]} is 0: a fit needs a start above 0; give one with --set")
    ranges = [(bounds or {}).get(n) or bounds_of(n, factor, v) for n, v in zip(names, start, strict=True)]
    problem = Problem(data, names, (np.array([r[0] for r in ranges]), np.array([r[1] for r in ranges])), progress)
    value, known = _solve(problem, start, polish_rounds)
    return Fit(
        gpu=name, variants=list(gpus), reference=reference,
        parameters=_parameters(names, start, value, known, ranges),
        errors=_errors(data, held_out, {"start": start, "file": values_of(load_gpu(name))[columns], "fit": value}),
        correlation=known.correlation.tolist(), singular_values=known.singular_values.tolist(),
        unidentified=known.unidentified,
        fitted_benchmarks=_benchmarks(data), held_out_benchmarks=_benchmarks(held_out) if held_out else [],
        split=fraction, seed=seed, wall_seconds=perf_counter() - started,
    )  # fmt: skip


def _check(table: Sequence[Measured], factor: float) -> None:
    if not table:
        raise InputError("the table has no cycles to fit")
    if factor <= 1:
        raise InputError(f"factor {factor:g}: parameters need room on both sides; choose a number above 1")


def _solve(problem: Problem, start: np.ndarray, rounds: int) -> tuple[np.ndarray, Knowledge]:
    """The solution, and what is known of it: least squares and pattern search in turn, for as long as that helps. What
    changes no cycles is held at the start."""
    free, value = ~_known(problem, start).unseen, problem.on_grid(start)
    if free.any():
        value = least_squares(problem, start, free)
    for number in range(rounds if free.any() else 0):
        before = value
        value = polish(problem, value, free, _known(problem, value).directions, f"polish, round {number + 1}")
        if number + 1 < rounds and problem.losses([value])[0] > 0 and not np.array_equal(value, before):
            value = least_squares(problem, value, free)
        if np.array_equal(value, before) or problem.losses([value])[0] == 0:
            break
    return value, _known(problem, value)


def _known(problem: Problem, value: np.ndarray) -> Knowledge:
    errors, jacobian = problem.linearized(np.log(value))
    return knowledge(problem.names, value, errors, jacobian, len(problem.data.kernels))


def _benchmarks(data: Observations) -> list[str]:
    return list(dict.fromkeys(entry.benchmark for entry in data.measured))


def _parameters(names, start, value, known: Knowledge, ranges) -> list[FittedParameter]:
    unclear = {name for direction in known.unidentified for name in direction}
    return [
        FittedParameter(
            name, float(start[k]), float(value[k]), finite(known.low[k]), finite(known.high[k]),
            identified=name not in unclear, at_bound=bool(value[k] in ranges[k]),
        )
        for k, name in enumerate(names)
    ]  # fmt: skip


def _errors(data: Observations, held_out: Observations | None, points: Mapping[str, np.ndarray]) -> list[ErrorSummary]:
    """Of the benchmarks that were fitted, and of those that were not, by each of some vectors of parameters."""
    found = []
    for part, own in (("fitted", data), ("held out", held_out)):
        if own is None:
            continue
        for values, cycles in zip(points, own.engine_cycles(list(points.values())), strict=True):
            errors = np.abs(own.errors(cycles))
            summary = (float(errors.mean()), float(np.median(errors)), float(errors.max()))
            worst = own.measured[int(errors.argmax())].benchmark
            found.append(ErrorSummary(part, values, len(errors), *summary, worst))
    return found
