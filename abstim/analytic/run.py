"""A target on any number of GPUs by the analytic model: what `abstim.session.run.run_many` is for the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import jax
import numpy as np

from abstim.analytic.model import BOUNDS, SECTOR_BYTES, Prediction, predict
from abstim.analytic.point import Point, points_of
from abstim.analytic.summary import Summary, summarize
from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.result import LaunchResult, RunResult
from abstim.session.run import occupancies, registers_of
from abstim.target.execution import Workload, execute
from abstim.target.resolve import open_target
from functional.disk.folder import cache_dir, make_folder

if TYPE_CHECKING:
    from abstim.target.resolve import Target

CHUNK = 4096  # design points a call: long runs use the same few compiled shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticLaunch(LaunchResult):
    """As of the engine, without issue slots. `limit` is what takes longest by itself, one of model.BOUNDS; hit rates
    are those of loads, and of the sectors they ask L2 for."""

    bounds_cycles: dict[str, float]


def summaries(workload: Workload, gpu: Gpu, progress: Progress = silent) -> list[Summary]:
    """One a launch. `gpu` says how the trace is read (see `summarize`); a screen around it needs no other."""
    registers, found = registers_of(workload.case), []
    for number, launch in enumerate(workload.case.launches):
        progress(f"summarize {workload.case.name}", number, len(workload.case.launches))
        table, trace = workload.inputs(number, gpu).table, workload.execution.traces[number]
        found.append(summarize(launch, table, trace, registers[number].count, gpu))
    return found


def predict_points(summary: Summary, points: Point) -> Prediction:
    """`predict` for any number of points, CHUNK at a time; fields are NumPy arrays."""
    count = len(points.sm_count)
    size = min(CHUNK, 1 << (count - 1).bit_length())
    parts = []
    for first in range(0, count, size):
        rows = np.minimum(np.arange(first, first + size), count - 1)
        with _kept_programs():
            part = predict(summary, Point(*(column[rows] for column in points)))
        parts.append([np.asarray(column)[: count - first] for column in part])
    return Prediction(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@contextmanager
def _kept_programs() -> Iterator[None]:
    """JAX keeps compiled programs on disk, in its own way; what the caller has configured stays."""
    folder = cache_dir("jax")
    with suppress(OSError):  # one that cannot be made costs time
        make_folder(folder)
    wanted = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 1.0,
        "jax_enable_x64": False,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    try:
        for name, value in wanted.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def run_many(target: Target, gpus: Sequence[Gpu], progress: Progress = silent, **execution) -> list[RunResult]:
    """Every launch of a target on several GPUs: executed and summarised once. `execution`: see `workload.execute`.

    Raises InputError for anything a user got wrong, as `simulate.run_many` does.
    """
    case = open_target(target)
    registers = registers_of(case)
    limits = [occupancies(case, registers, gpu) for gpu in gpus]
    workload = execute(case, progress=progress, **execution)
    return time(workload, gpus, limits, progress)


def time(workload: Workload, gpus: Sequence[Gpu], limits=None, progress: Progress = silent) -> list[RunResult]:
    """Predict every launch of a workload on every GPU."""
    registers = registers_of(workload.case)
    limits = limits or [occupancies(workload.case, registers, gpu) for gpu in gpus]
    started = perf_counter()
    by_reading: dict[tuple, list[Summary]] = {}
    for gpu in gpus:
        if _reading(gpu) not in by_reading:
            by_reading[_reading(gpu)] = summaries(workload, gpu, progress)
    wall = workload.wall_seconds | {"summarize": perf_counter() - started}
    started = perf_counter()
    launches: list[list[LaunchResult]] = [[] for _ in gpus]
    for k, gpu in enumerate(gpus):
        point = points_of([gpu])
        for number, summary in enumerate(by_reading[_reading(gpu)]):
            prediction = Prediction(*(column[0] for column in predict_points(summary, point)))
            limit = limits[k][number]
            launches[k].append(_launch(workload, number, gpu, summary, prediction, limit, registers[number]))
    wall["time"] = perf_counter() - started
    execution = workload.execution
    outputs, printf = list(execution.outputs) or None, execution.printed
    return [
        RunResult(
            target=workload.case.name, gpu=gpu.name, launches=rows, wall_seconds=wall, outputs=outputs, printf=printf
        )
        for gpu, rows in zip(gpus, launches, strict=True)
    ]


def _reading(gpu: Gpu) -> tuple:
    """What of a GPU a summary depends on."""
    return (gpu.spec.coalescing, gpu.pipeline, gpu.params.l1d_latency_cycles, gpu.params.atomic_latency_cycles)


def _launch(workload: Workload, number: int, gpu: Gpu, summary: Summary, p: Prediction, limit, registers):
    launch, trace, spec = workload.case.launches[number], workload.execution.traces[number], gpu.spec
    cycles = max(1, round(float(p.cycles)))
    threads, warps = int(trace.thread_instructions.sum()), int(trace.warp_instructions.sum())
    work, real = summary.work, not spec.perfect_memory
    missed = float(p.l1d_misses) - work.stores
    sectors, read = int(p.l2_sectors) if real else 0, int(p.dram_sectors) if real else 0
    return AnalyticLaunch(
        kernel=launch.program.name,
        launch=number,
        label=launch.label,
        grid=launch.grid[:],
        block=launch.block[:],
        cycles=cycles,
        seconds=cycles / spec.core_clock_hz,
        thread_instructions=threads,
        warp_instructions=warps,
        ipc=threads / cycles,
        warp_ipc=warps / cycles,
        occupancy=min(1.0, limit.blocks_per_sm * trace.warps_per_block / spec.max_warps_per_sm),
        blocks_per_sm=limit.blocks_per_sm,
        occupancy_limiter=limit.limiter,
        registers_per_thread=registers.count,
        registers_source=registers.source,
        shared_bytes=launch.shared_bytes,
        issue_slots={},
        issue_slots_per_sm={},
        caches={
            "l1d_accesses": int(work.lookups + work.stores), "l1d_misses": int(p.l1d_misses), "l2_accesses": sectors,
            "dram_reads": read,
        },
        memory=_memory(1 - missed / work.lookups if work.lookups else None,
                       1 - read / (4 * missed) if real and missed >= 0.5 else None, sectors, read),
        windows={},
        limit=BOUNDS[int(p.bounds_cycles.argmax())],
        bounds_cycles={name: float(v) for name, v in zip(BOUNDS, p.bounds_cycles, strict=True)},
    )  # fmt: skip


def _memory(l1d: float | None, l2: float | None, sectors: int, read: int) -> dict[str, float]:
    """Named as abstim.session.limits.memory_use names them."""
    rates = {name: rate for name, rate in (("l1d_hit_rate", l1d), ("l2_hit_rate", l2)) if rate is not None}
    return rates | {"l2_bytes": SECTOR_BYTES * sectors, "dram_read_bytes": SECTOR_BYTES * read}
