"""The analytic model: every launch of a session by a formula, on every GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from abstim.analytic.model import BOUNDS, COUNTERS, HIT_RATES, PREDICTION, Summary, look_and_predict, predict_all
from abstim.analytic.point import POINT, points_of
from abstim.analytic.reuse_distance import miss_matrix
from abstim.analytic.summary import Asking, given_of, kept, nodes_around, scratch_for
from abstim.brief import grouped
from abstim.engine.design_point import refuse_without_units, touching
from abstim.gpu.config import Gpu, refuse_unread
from abstim.gpu.spec import HARDWARE_CLASSES, Params, Spec
from abstim.progress import Progress, silent
from abstim.session.result import LaunchResult, RunResult, launch_facts, run_result
from abstim.session.session import Session
from functional.arrays import Float64
from functional.errors import InputError
from functional.jit.machine_code import QUICKLY, Native
from functional.traces.trace import SECTOR_BYTES, Trace

_READ_BESIDE = {  # a point: by the summary, or where blocks are dealt
    "instructions_per_fetch", "instruction_bytes", "register_banks", "l1i_line_bytes", "l1i_prefetch_lines",
    "const_line_bytes", "const_access_cycles", "const_address_cycles", "l1d_banks",
    "l1d_bypass", "l1d_dense_banks", "l1d_sectored", "l1d_write", "load_store_lanes",
    "shared_bytes_per_cycle", "coalescing", "architecture", "l2_mshr_merges", "l2_coalesces", "posted_stores",
    "slice_interleave_bytes",
}  # fmt: skip
_SEARCHED_AT = "l1d_latency_cycles", "atomic_latency_cycles", "shared_latency_cycles", "const_latency_cycles"
UNREAD = frozenset(f.name for of in (Spec, Params) for f in fields(of)) - set(POINT.names or ()) - _READ_BESIDE
UNREAD |= {
    f"{section}.{name}" for section in ("latency_cycles", "initiation_cycles", "unit") for name in HARDWARE_CLASSES
}
look_once = Native("abstim.analytic.model", "look_and_predict", how=QUICKLY)  # for a few launches, on some points


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticLaunch(LaunchResult):
    """As of the engine, without issue slots. `limit` is what takes longest by itself, one of model.BOUNDS; hit rates
    are those of loads, and of the sectors they ask L2 for."""

    bounds_cycles: dict[str, float]


def summaries(session: Session, gpu: Gpu, points: np.ndarray | None = None) -> list[Summary]:
    """One a launch. `gpu` says how the trace is read (see `timed_code`); `points`: those that it is for (None: any)."""
    asking = Asking(points_of([gpu]), nodes_around) if points is None else Asking(points)
    return [kept(look_at(session, number, gpu, trace, asking)[0]) for number, _, trace in session.each()]


def summary_of(session: Session, number: int, gpu: Gpu) -> Summary:
    """That of one launch, for any GPU that reads traces as this one does."""
    return look_at(session, number, gpu, session.traces.trace(number), Asking(points_of([gpu]), nodes_around))[0]


def look_at(
    session: Session, number: int, gpu: Gpu, trace: Trace, asking: Asking, look: Native = look_and_predict
) -> tuple[Summary, np.ndarray]:
    """Look at a launch, whose trace this is, once: a Summary, and a PREDICTION of it on each point. They are kept until
    the next launch is looked at. Deterministic."""
    given = session.once_of(number, trace, ("formula", number, gpu), lambda: given_of(session, number, gpu, trace))
    asked, is_filled = asking.of(given)
    if not is_filled:
        look(given.code, given.launch, given.reading, scratch_for(*given.sizes), asked)
    return Summary(*asked.value[:2]), asked.value.found


def predict(summary: Summary, points: np.ndarray) -> np.ndarray:
    """PREDICTION [point] of one launch on POINTs, each of which does not depend on the others."""
    found = np.empty(len(points), PREDICTION)
    predict_all(*summary, points, miss_matrix(), found)
    return found


def whole_cycles(cycles: np.ndarray) -> np.ndarray:
    """Cycles of launches as every command says them."""
    return np.maximum(1, np.rint(cycles))


def refuse(gpus: Sequence[Gpu], flush: str) -> None:
    """Raises InputError for what this model cannot do."""
    if flush != "all":
        raise InputError("the analytic model starts each launch with empty caches; use --model detailed")
    refuse_unread("analytic", UNREAD - {"timed_code"}, gpus)
    if asked := [gpu for gpu in gpus if gpu.code_asked]:
        raise InputError(f"{asked[0].name}: the analytic model times PTX; leave out {asked[0].code_asked}")


def time(session: Session, gpus: Sequence[Gpu], flush: str = "all", progress: Progress = silent) -> list[RunResult]:
    """Predict every launch of a session on every GPU. Raises InputError for a thread block an SM cannot hold."""
    refuse(gpus, flush)
    predicting, readings, started, before = 0.0, by_reading(gpus), perf_counter(), session.prepared_seconds
    found: list[list[LaunchResult]] = [[] for _ in gpus]
    for number, _, trace in session.each():
        progress(f"summarize {session.case.name}", number, len(session))
        looks = [look_at(session, number, r.gpus[0], trace, r.asking)[1] for r in readings]
        summarized = perf_counter()
        for rows, row in zip(found, _rows(session, number, trace, readings, looks), strict=True):
            rows.append(row)
        predicting += perf_counter() - summarized
    summarizing = perf_counter() - started - predicting - (session.prepared_seconds - before)
    return [
        run_result(session, gpu, rows, predicting, model="analytic", summarize=summarizing)
        for gpu, rows in zip(gpus, found, strict=True)
    ]


def launch_on(session: Session, number: int, gpus: Sequence[Gpu]) -> list[AnalyticLaunch]:
    """One launch on every GPU."""
    trace, readings = session.traces.trace(number), by_reading(gpus)
    looks = [look_at(session, number, r.gpus[0], trace, r.asking)[1] for r in readings]
    return _rows(session, number, trace, readings, looks)


def cycles_on(session: Session, number: int, around: Gpu) -> Callable[[Sequence[Gpu]], Float64[np.ndarray, " gpu"]]:
    """Cycles of one launch as a function of GPUs, whose summary is that of `around`; not rounded."""
    summary = summary_of(session, number, around)
    return lambda gpus: predict(summary, points_of(gpus))["cycles"]


class SameReading(NamedTuple):
    """GPUs that take a trace alike, which are at some places of a list."""

    gpus: list[Gpu]
    places: list[int]
    asking: Asking


def by_reading(gpus: Sequence[Gpu]) -> list[SameReading]:
    """All that agree in what a summary depends on together."""
    found = grouped(range(len(gpus)), lambda k: reading(gpus[k])).values()
    alike = [[gpus[k] for k in places] for places in found]
    return [SameReading(own, list(places), Asking(points_of(own))) for own, places in zip(alike, found, strict=True)]


def reading(gpu: Gpu) -> tuple:
    """What of a GPU a summary depends on."""
    spec, params = gpu.spec, gpu.params
    cached = spec.l1d_sectored, spec.l1d_bypass, spec.l1d_write, spec.posted_stores
    shared = spec.l1i_prefetch_lines, spec.l2_mshr_merges, spec.l2_coalesces, spec.slice_interleave_bytes
    return (*touching(gpu), *cached, *shared, gpu.pipeline, *(getattr(params, key) for key in _SEARCHED_AT))


def is_reading(key: str) -> bool:
    """May a key change how a GPU takes a trace?"""
    return "." in key or key in _READ_BESIDE or key in _SEARCHED_AT


def _rows(
    session: Session, number: int, trace: Trace, readings: Sequence[SameReading], looks: Sequence[np.ndarray]
) -> list[AnalyticLaunch]:
    """Of a launch on every GPU, in their order."""
    found = {}
    for own, predictions in zip(readings, looks, strict=True):
        table = session.table(number, own.gpus[0])  # that of all of them
        for k, gpu, prediction in zip(own.places, own.gpus, predictions.tolist(), strict=True):
            refuse_without_units(gpu.spec, table)
            found[k] = _launch(session, number, trace, gpu, prediction)
    return [found[k] for k in range(len(found))]


def _launch(session: Session, number: int, trace: Trace, gpu: Gpu, found: tuple[Any, ...]) -> AnalyticLaunch:
    """What a PREDICTION says, in the terms of `--json`."""
    cycles, bounds, _, _, l1d, l2, *rest = found
    facts = launch_facts(session, number, session.launch(number), trace, gpu, max(1, round(cycles)))
    caches = dict(zip(COUNTERS, map(int, rest[: len(COUNTERS)]), strict=True))
    moved = {"l2_bytes": SECTOR_BYTES * caches["l2_accesses"], "dram_read_bytes": SECTOR_BYTES * caches["dram_reads"]}
    bounds_cycles = dict(zip(BOUNDS, bounds.tolist(), strict=True))
    return AnalyticLaunch(
        **facts,
        occupancy=min(1.0, facts["blocks_per_sm"] * trace.warps_per_block / gpu.spec.max_warps_per_sm),
        issue_slots={},
        issue_slots_per_sm={},
        caches=caches,
        memory={name: rate for name, rate in zip(HIT_RATES, (l1d, l2), strict=True) if rate >= 0} | moved,
        windows={},
        limit=max(bounds_cycles, key=bounds_cycles.__getitem__),
        bounds_cycles=bounds_cycles,
    )
