"""The analytic model: every launch of a session by a formula, on every GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from abstim.analytic.kept_programs import kept_programs
from abstim.analytic.model import BOUNDS, SECTOR_BYTES, Prediction, predict
from abstim.analytic.point import Point, points_of
from abstim.analytic.summary import EVERYWHERE, Summary, nodes_near, summarize
from abstim.engine.design_point import touching
from abstim.gpu.config import Gpu, refuse_unread
from abstim.gpu.spec import Params, Spec
from abstim.progress import Progress, silent
from abstim.session.result import LaunchResult, RunResult, launch_facts, run_result
from abstim.session.session import Session
from functional.errors import InputError
from functional.traces.line_record import without_phases
from functional.traces.trace import Trace
from precharacterize.tensor_work import refuse_commits

if TYPE_CHECKING:
    from jaxtyping import Float64

_READ_BESIDE = {  # a point: by the summary, or where blocks are dealt
    "instructions_per_fetch", "instruction_bytes", "register_banks", "l1i_line_bytes", "const_line_bytes",
    "l1d_dense_banks", "shared_bytes_per_cycle", "coalescing", "architecture",
}  # fmt: skip
UNREAD = frozenset(f.name for of in (Spec, Params) for f in fields(of)) - set(Point._fields) - _READ_BESIDE
CHUNK = 4096  # design points a call: long runs use the same few compiled shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticLaunch(LaunchResult):
    """As of the engine, without issue slots. `limit` is what takes longest by itself, one of model.BOUNDS; hit rates
    are those of loads, and of the sectors they ask L2 for."""

    bounds_cycles: dict[str, float]


def summaries(session: Session, gpu: Gpu) -> list[Summary]:
    """One a launch. `gpu` says how the trace is read (see `summarize`); a screen around it needs no other."""
    return [summary_of(session, number, gpu, trace) for number, _, trace in session.each()]


def summary_of(session: Session, number: int, gpu: Gpu, trace: Trace | None = None, near: Gpu | None = None) -> Summary:
    """The summary of one launch. `trace`: its own, without what is done at `mbarrier`s, where it is at hand; `near`:
    the GPU that it is for (None: any)."""
    own = without_phases(session.traces.trace(number)) if trace is None else trace
    registers, table = session.registers(number).count, session.table(number, gpu)
    refuse_commits(table, "analytic")
    nodes = EVERYWHERE if near is None else nodes_near(near.spec.sm_count, session.blocks_per_sm(number, near))
    return summarize(session.launch(number), table, own, registers, gpu, nodes)


def predict_points(summary: Summary, points: Point) -> Prediction:
    """`predict` for any number of points, CHUNK at a time; fields are NumPy arrays."""
    count = len(points.sm_count)
    size = min(CHUNK, 1 << (count - 1).bit_length())
    parts = []
    for first in range(0, count, size):
        rows = np.minimum(np.arange(first, first + size), count - 1)
        with kept_programs():
            part = predict(summary, Point(*(column[rows] for column in points)))
        parts.append([np.asarray(column)[: count - first] for column in part])
    return Prediction(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


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
    summarizing, predicting = 0.0, 0.0
    found: list[list[LaunchResult]] = [[] for _ in gpus]
    for number, _, trace in session.each():
        progress(f"summarize {session.case.name}", number, len(session))
        started, before = perf_counter(), session.prepared_seconds
        by_reading = _by_reading(session, number, trace, gpus)
        summarized = perf_counter()
        for k, row in enumerate(_rows(session, number, trace, gpus, by_reading)):
            found[k].append(row)
        summarizing += summarized - started - (session.prepared_seconds - before)
        predicting += perf_counter() - summarized
    return [
        run_result(session, gpu, rows, predicting, model="analytic", summarize=summarizing)
        for gpu, rows in zip(gpus, found, strict=True)
    ]


def launch_on(session: Session, number: int, gpus: Sequence[Gpu]) -> list[AnalyticLaunch]:
    """One launch on every GPU."""
    trace = without_phases(session.traces.trace(number))
    return _rows(session, number, trace, gpus, _by_reading(session, number, trace, gpus))


def cycles_on(session: Session, number: int, around: Gpu) -> Callable[[Sequence[Gpu]], Float64[np.ndarray, " gpu"]]:
    """Cycles of one launch as a function of GPUs, whose summary is that of `around`; not rounded."""
    summary = summary_of(session, number, around)
    return lambda gpus: np.asarray(predict_points(summary, points_of(gpus)).cycles, float)


def _by_reading(session: Session, number: int, trace: Trace, gpus: Sequence[Gpu]) -> dict[tuple, Summary]:
    read: dict[tuple, list[Gpu]] = {}
    for gpu in gpus:
        read.setdefault(_reading(gpu), []).append(gpu)
    return {
        reading: summary_of(session, number, own[0], trace, own[0] if len(own) == 1 else None)
        for reading, own in read.items()
    }


def _rows(
    session: Session, number: int, trace: Trace, gpus: Sequence[Gpu], by_reading: dict[tuple, Summary]
) -> list[AnalyticLaunch]:
    rows: dict[int, AnalyticLaunch] = {}
    for reading, summary in by_reading.items():
        own = [k for k, gpu in enumerate(gpus) if _reading(gpu) == reading]
        columns = zip(*predict_points(summary, points_of([gpus[k] for k in own])), strict=True)
        rows |= {
            k: _launch(session, number, trace, gpus[k], summary, Prediction(*column))
            for k, column in zip(own, columns, strict=True)
        }
    return [rows[k] for k in range(len(gpus))]


def _reading(gpu: Gpu) -> tuple:
    """What of a GPU a summary depends on."""
    return (*touching(gpu), gpu.pipeline, gpu.params.l1d_latency_cycles, gpu.params.atomic_latency_cycles)


def _launch(session: Session, number: int, trace: Trace, gpu: Gpu, summary: Summary, p: Prediction) -> AnalyticLaunch:
    spec = gpu.spec
    cycles = int(whole_cycles(np.asarray(p.cycles, float)))
    resident = session.blocks_per_sm(number, gpu) * trace.warps_per_block
    work, real = summary.work, not spec.perfect_memory
    missed = float(p.l1d_misses) - work.stores
    sectors, read = int(p.l2_sectors) if real else 0, int(p.dram_sectors) if real else 0
    asked = sectors - work.store_sectors - work.atomics
    return AnalyticLaunch(
        **launch_facts(session, number, session.launch(number), trace, gpu, cycles),
        occupancy=min(1.0, resident / spec.max_warps_per_sm),
        issue_slots={},
        issue_slots_per_sm={},
        caches={
            "l1d_accesses": int(work.lookups + work.stores), "l1d_misses": int(p.l1d_misses), "l2_accesses": sectors,
            "dram_reads": read,
        },
        memory=_memory(1 - missed / work.lookups if work.lookups else None,
                       1 - read / asked if real and asked >= 0.5 else None, sectors, read),
        windows={},
        limit=BOUNDS[int(p.bounds_cycles.argmax())],
        bounds_cycles={name: float(v) for name, v in zip(BOUNDS, p.bounds_cycles, strict=True)},
    )  # fmt: skip


def _memory(l1d: float | None, l2: float | None, sectors: int, read: int) -> dict[str, float]:
    """Named as abstim.session.limits.memory_use names them."""
    rates = {name: rate for name, rate in (("l1d_hit_rate", l1d), ("l2_hit_rate", l2)) if rate is not None}
    return rates | {"l2_bytes": SECTOR_BYTES * sectors, "dram_read_bytes": SECTOR_BYTES * read}
