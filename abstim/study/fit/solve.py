"""Fit a GPU's latencies and service times to measured cycles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from abstim.gpu.config import load_gpu
from abstim.gradient.parameter_vector import INDEX, bounds_of, check_names, values_of
from abstim.progress import Progress, silent
from abstim.study.fit.data import Observations, gpus_of, kernels_of, split
from abstim.study.fit.fitted import Fit, FittedParameter, finite, summaries
from abstim.study.fit.identifiability import Knowledge, knowledge
from abstim.study.fit.search import Problem, least_squares, polish
from abstim.study.validate import Measured
from functional.errors import InputError

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

    `model`: detailed or occupancy, what predicts cycles.

    Raises InputError for unknown names, variants of several GPUs, or a benchmark that cannot run.
    """
    started = perf_counter()
    names = check_names(names)
    if not table:
        raise InputError("the table has no cycles to fit")
    if factor <= 1:
        raise InputError(f"factor {factor:g}: parameters need room on both sides; choose a number above 1")
    name, gpus = gpus_of(table, gpu, overrides)
    inside, outside = split(table, fraction, seed)
    everything = kernels_of(table, names, gpus, model, progress)
    data, held_out = everything.part(inside), everything.part(outside) if outside else None
    start = everything.kernels[0].defaults()
    if (start <= 0).any():
        raise InputError(f"{names[int(start.argmin())]} is 0: a fit needs a start above 0; give one with --set")
    ranges = [(bounds or {}).get(n) or bounds_of(n, factor, v) for n, v in zip(names, start, strict=True)]
    problem = Problem(data, names, (np.array([r[0] for r in ranges]), np.array([r[1] for r in ranges])), progress)
    value, known = _solve(problem, start, polish_rounds)
    return Fit(
        gpu=name, variants=list(gpus), reference=reference,
        parameters=_parameters(names, start, value, known, ranges),
        errors=_errors(data, held_out, {"start": start, "file": _file_values(name, names), "fit": value}),
        correlation=known.correlation.tolist(), singular_values=known.singular_values.tolist(),
        unidentified=known.unidentified,
        fitted_benchmarks=_benchmarks(data), held_out_benchmarks=_benchmarks(held_out) if held_out else [],
        split=fraction, seed=seed, wall_seconds=perf_counter() - started,
    )  # fmt: skip


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


def _file_values(gpu: str, names: Sequence[str]) -> np.ndarray:
    """The parameters as the GPU's description has them."""
    return values_of(load_gpu(gpu))[[INDEX[name] for name in names]]


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


def _errors(data: Observations, held_out: Observations | None, points: Mapping[str, np.ndarray]):
    parts = []
    for part, own in (("fitted", data), ("held out", held_out)):
        if own is None:
            continue
        cycles = own.engine_cycles(list(points.values()))
        names = [entry.benchmark for entry in own.measured]
        parts += [(part, label, names, own.errors(row)) for label, row in zip(points, cycles, strict=True)]
    return summaries(parts)
