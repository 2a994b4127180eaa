"""Predicted against measured cycles, of any table with the columns benchmark, launch, variant and cycles; and a quick
model against the detailed one: does it put design points in the same order?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from math import log
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from abstim.brief import Brief, grouped
from abstim.gpu.config import Gpu, config_dir, load_gpu, nearest, read_toml
from abstim.models import DETAILED, model_named
from abstim.progress import Progress, silent
from abstim.session.detailed import engine_results
from abstim.session.session import open_session
from abstim.targets.resolve import Target
from functional.errors import InputError, refuse
from functional.files import table_rows
from sampling.statistics import spearman


@dataclass(frozen=True, slots=True)
class RelativeAccuracy:
    """Kendall's tau between predicted and measured speed-ups of one variant over another. `pooled` over all kernels and
    pairs of variants together; `mean` and `least` over the pairs, each over its kernels."""

    variants: int
    speed_ups: int
    pooled: float
    mean: float
    least: float
    least_pair: tuple[str, str]


def relative_accuracy(comparisons: Sequence[Comparison]) -> RelativeAccuracy | None:
    """Of every pair of variants that have three benchmarks or more in common; None if there is no such pair."""
    from scipy.stats import kendalltau

    cycles = {(c.variant, c.benchmark): (c.predicted_cycles, c.measured_cycles) for c in comparisons}
    variants = list(dict.fromkeys(c.variant for c in comparisons))
    found: dict[tuple[str, str], np.ndarray] = {}
    for pair in combinations(variants, 2):
        shared = [b for v, b in cycles if v == pair[0] and (pair[1], b) in cycles]
        if len(shared) > 2:
            first, second = (np.array([cycles[v, b] for b in shared], float) for v in pair)
            found[pair] = first / second
    if not found:
        return None
    taus = {pair: float(kendalltau(*ratios.T).statistic) for pair, ratios in found.items()}
    everything = np.concatenate(list(found.values()))
    least = min(taus, key=taus.__getitem__)
    pooled = float(kendalltau(*everything.T).statistic)
    mean = float(np.mean(list(taus.values())))
    return RelativeAccuracy(len(variants), len(everything), pooled, mean, taus[least], least)


def median_miss_errors(comparisons: Sequence[Comparison]) -> dict[str, tuple[float, int]]:
    """Counter -> (median relative error, benchmarks it is over), of those with misses to compare."""
    errors: dict[str, list[float]] = {}
    for c in comparisons:
        for name, measured in c.measured_misses.items():
            if measured:
                errors.setdefault(name, []).append(abs(c.predicted_misses[name] / measured - 1))
    return {name: (float(np.median(values)), len(values)) for name, values in errors.items()}


def scatter(points: Mapping[str, Sequence[tuple[float, float]]], path: Path, measured: str, predicted: str) -> None:
    """Points (measured, predicted) by group, a colour a group, on logarithmic axes with these names; the file's suffix
    says what it becomes. Raises InputError for a file that cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # text as text and nothing random or dated: the same points give the same small file
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "abstim"})
    figure, axes = pyplot.subplots(figsize=(6.5, 6))
    for name, group in points.items():
        across, up = zip(*group, strict=True)
        axes.scatter(across, up, s=14, alpha=0.7, label=name)
    values = [value for group in points.values() for point in group for value in point]
    ends = [min(values, default=1) / 1.5, max(values, default=10) * 1.5]
    axes.plot(ends, ends, color="black", linewidth=0.8, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=measured, ylabel=predicted)
    axes.legend()
    axes.set_aspect("equal")
    try:
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot write the plot: {error}") from None
    finally:
        pyplot.close(figure)


COLUMNS = ("benchmark", "launch", "variant", "cycles")
MISSES = ("l1d_misses", "l2_misses")
# What the column `flush` says, and which caches the run invalidates before each launch: GPGPU-Sim drops L1D even then.
TABLE_FLUSHES = {"all": "all", "none": "l1d"}


@dataclass(frozen=True, slots=True)
class Measured:
    """A benchmark on a variant of a GPU: cycles by launch."""

    benchmark: str
    variant: str
    group: str
    cycles: dict[int, int]
    misses: dict[str, int]  # of the launches together, by counter; those the table has columns for


@dataclass(frozen=True, slots=True)
class Comparison:
    """A benchmark on a variant, summed over the launches of the table. `error` = predicted / measured - 1."""

    benchmark: str
    group: str
    variant: str
    launches: int
    predicted_cycles: int
    measured_cycles: int
    predicted_misses: dict[str, int] = field(default_factory=dict)  # by counter
    measured_misses: dict[str, int] = field(default_factory=dict)
    memory_model: str = ""  # of the variant's GPU

    @property
    def error(self) -> float:
        """Signed, as a fraction of the measured cycles."""
        return self.predicted_cycles / self.measured_cycles - 1


@dataclass(frozen=True, slots=True)
class Summary:
    """A variant over benchmarks; errors are absolute values. `correlation` is Pearson's, of log cycles."""

    variant: str
    group: str
    benchmarks: int
    mean_error: float
    median_error: float
    max_error: float
    worst: str
    correlation: float | None
    memory_model: str


@dataclass(frozen=True, slots=True, repr=False)
class Validation(Brief):
    """Everything a validation found; `skipped` says what was left out and why."""

    comparisons: list[Comparison]
    skipped: list[str] = field(default_factory=list)

    def summaries(self) -> list[Summary]:
        """One a variant and group, and one a variant over all groups if it has several."""
        found = []
        for variant, own in grouped(self.comparisons, lambda c: c.variant).items():
            groups = grouped(own, lambda c: c.group)
            found += [_summary(variant, group, members) for group, members in groups.items()]
            if len(groups) > 1:
                found.append(_summary(variant, "all", own))
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        misses, relative = median_miss_errors(self.comparisons), relative_accuracy(self.comparisons)
        return {
            "kind": "validate",
            "benchmarks": [asdict(c) | {"error": c.error} for c in self.comparisons],
            "summaries": [asdict(s) for s in self.summaries()],
            "miss_errors": {n: {"median": e, "benchmarks": k} for n, (e, k) in misses.items()},
            "relative": asdict(relative) if relative else None,
            "skipped": self.skipped,
        }


def _summary(variant: str, group: str, comparisons: Sequence[Comparison]) -> Summary:
    errors = np.array([abs(c.error) for c in comparisons])
    worst = comparisons[int(errors.argmax())].benchmark
    logs = np.array([[log(c.predicted_cycles), log(c.measured_cycles)] for c in comparisons])
    spread = len(comparisons) > 1 and bool((logs.std(0) > 0).all())
    correlation = float(np.corrcoef(logs.T)[0, 1]) if spread else None
    mean, median, largest = float(errors.mean()), float(np.median(errors)), float(errors.max())
    memory = comparisons[0].memory_model
    return Summary(variant, group, len(comparisons), mean, median, largest, worst, correlation, memory)


def read_reference(path: Path, flush: str = "all") -> list[Measured]:
    """A table of measured cycles, in its own order. Optional columns: `group`; `flush`, of which the rows `all` (every
    cache invalidated before each launch) or `none` are read; MISSES. Raises InputError for a missing file or column, or
    a number that is none."""
    found: dict[tuple[str, str], Measured] = {}
    for where, row in table_rows(path, COLUMNS):
        own = row.get("flush") or "all"
        refuse(own not in TABLE_FLUSHES, f"{where}: flush = {own!r} is not one of {', '.join(TABLE_FLUSHES)}")
        if own != flush:
            continue
        key = (row["benchmark"], row["variant"])
        entry = found.setdefault(key, Measured(*key, row.get("group") or "all", {}, {}))
        launch, cycles = (_whole(where, row, column) for column in ("launch", "cycles"))
        refuse(launch in entry.cycles, f"{path}: {' on '.join(key)} has launch {launch} twice")
        entry.cycles[launch] = cycles
        for name in MISSES:
            given = bool(row.get(name))
            if len(entry.cycles) > 1 and given != (name in entry.misses):
                raise InputError(f"{where}: {name} of some launches of {' on '.join(key)} alone")
            if given:
                entry.misses[name] = entry.misses.get(name, 0) + _whole(where, row, name)
    return list(found.values())


def _whole(where: str, row: dict[str, str], column: str) -> int:
    text = row[column] or ""
    if not text.isdecimal() or (column == "cycles" and int(text) == 0):
        above = " above 0" * (column == "cycles")
        raise InputError(f"{where}: {column} = {text!r} is not a whole number{above}")
    return int(text)


def known_variants() -> dict[str, Gpu]:
    """Variant name -> GPU, as `configs/validation/variants.toml` says."""
    table = read_toml(config_dir() / "validation" / "variants.toml")
    return {name: load_gpu(entry["gpu"], entry["set"]) for name, entry in table.items()}


def choose(table: Sequence[Measured], *asked: Sequence[str]) -> list[Measured]:
    """The part of a table that is `asked` for by variants, groups, benchmarks (none: all). InputError for others."""
    wanted = dict(zip(("variant", "group", "benchmark"), map(list, asked), strict=True))
    for kind, names in wanted.items():
        present = {getattr(entry, kind) for entry in table}
        if unknown := [name for name in names if name not in present]:
            raise InputError(f"the table has no {kind} {unknown[0]!r}{nearest(unknown[0], present)}")
    return [e for e in table if all(not names or getattr(e, kind) in names for kind, names in wanted.items())]


def select(table: Sequence[Measured], *asked: Sequence[str]) -> tuple[list[Measured], list[str]]:
    """What of a table to validate (`choose`), and what is skipped and why."""
    chosen, known = choose(table, *asked), known_variants()
    unknown = dict.fromkeys(entry.variant for entry in chosen if entry.variant not in known)
    return [e for e in chosen if e.variant in known], [f"variant {v}: not supported yet" for v in unknown]


def validate(
    table: Sequence[Measured], progress: Progress = silent, model: str = DETAILED, flush: str = "all"
) -> Validation:
    """Predict every benchmark of a table on each of its variants; each is executed once.

    `model`: one of `abstim.models.MODELS`; `flush` is the table's, a key of TABLE_FLUSHES (the detailed model's alone).
    A benchmark that cannot run is skipped and named, as is a variant that the model cannot time, unless it is none of
    them: then InputError. Variants must be known (`select`)."""
    gpus, comparisons, chosen, table = known_variants(), [], model_named(model), list(table)
    refused: dict[str, InputError] = {}
    for variant in dict.fromkeys(entry.variant for entry in table):
        try:
            chosen.refuse([gpus[variant]], TABLE_FLUSHES[flush])
        except InputError as error:
            refused[variant] = error
    table, skipped = [e for e in table if e.variant not in refused], [f"variant {v}: {e}" for v, e in refused.items()]
    if refused and not table:
        raise next(iter(refused.values()))
    names = list(dict.fromkeys(entry.benchmark for entry in table))
    for number, name in enumerate(names):
        progress(f"validate {name}", number, len(names))
        entries = [entry for entry in table if entry.benchmark == name]
        try:
            found = open_session(name)
            results = chosen.time(found, [gpus[e.variant] for e in entries], TABLE_FLUSHES[flush], silent)
            comparisons += [_compare(e, r) for e, r in zip(entries, results, strict=True)]
        except InputError as error:
            skipped.append(f"{name}: {error}")
    progress("validate", len(names), len(names))
    return Validation(comparisons, skipped)


def _compare(entry: Measured, result: Any) -> Comparison:
    cycles = [launch.cycles for launch in result.launches]
    beyond = [launch for launch in entry.cycles if launch >= len(cycles)]
    if beyond:
        raise InputError(f"the table has launch {beyond[0]}, the benchmark only {len(cycles)} launches")
    predicted = sum(cycles[launch] for launch in entry.cycles)
    measured = sum(entry.cycles.values())
    counted = [name for name in entry.misses if name in result.launches[0].caches]  # the analytic model counts fewer
    missed = {name: sum(result.launches[k].caches[name] for k in entry.cycles) for name in counted}
    named, misses = (entry.benchmark, entry.group, entry.variant), {name: entry.misses[name] for name in counted}
    return Comparison(*named, len(entry.cycles), predicted, measured, missed, misses, result.memory_model)


def plot(validation: Validation, path: Path, measured_by: str = "reference") -> None:
    """Predicted cycles against those of `measured_by`, a point a benchmark and variant; the file's suffix says how."""
    groups = grouped(validation.comparisons, lambda c: c.variant)
    points = {variant: [(c.measured_cycles, c.predicted_cycles) for c in own] for variant, own in groups.items()}
    scatter(points, path, f"cycles, {measured_by}", "cycles, abstim")


@dataclass(frozen=True, slots=True)
class Ranking:
    """One target on many design points. Cycles are summed over launches; errors are of the predicted ones."""

    target: str
    model: str
    points: int
    correlation: float  # Spearman's
    mean_error: float  # of absolute values
    median_ratio: float  # predicted / detailed
    summary_seconds: float  # what is done once for all points
    point_seconds: float  # a design point, all launches, after the first call
    engine_point_seconds: float  # the same of the detailed engine
    engine_cycles: list[float]  # by point
    predicted_cycles: list[float]


def _rank(target: Target, gpus: Sequence[Gpu], model: str, progress: Progress) -> Ranking:
    session, base = open_session(target), load_gpu("gtx480")
    started = perf_counter()
    launches = [model_named(model).cycles_on(session, number, base) for number in range(len(session))]
    summarized = perf_counter()
    predicted = np.sum([launch(gpus) for launch in launches], 0)
    warm = perf_counter()
    for launch in launches:
        launch(gpus)
    predicted_again = perf_counter()
    engine = np.zeros(len(gpus))
    for results in engine_results(session, gpus, progress=progress):
        engine += [result.cycles for result in results]
    done = perf_counter()
    return Ranking(
        session.case.name, model, len(gpus), spearman(predicted, engine), float(np.abs(predicted / engine - 1).mean()),
        float(np.median(predicted / engine)), summarized - started, (predicted_again - warm) / len(gpus),
        (done - predicted_again) / len(gpus), engine.tolist(), predicted.tolist(),
    )  # fmt: skip


def rank_random(
    targets: Sequence[Target], count: int, seed: int = 0, model: str = "analytic", progress: Progress = silent
) -> list[Ranking]:
    """A model beside the detailed one: each target on the same `count` random design points."""
    from abstim.analytic.point import random_points

    gpus = random_points(count, seed)
    return [_rank(target, gpus, model, progress) for target in targets]


def pooled(rankings: Sequence[Ranking]) -> float:
    """Rank correlation over all targets and points together."""
    columns = zip(*((r.predicted_cycles, r.engine_cycles) for r in rankings), strict=True)
    return spearman(*map(np.concatenate, columns))
