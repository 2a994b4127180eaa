"""The detailed model: every launch of a session through the timing engine, on every GPU."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from abstim.engine import EngineResult, LaunchInputs
from abstim.engine.simulation import Simulation
from abstim.gpu.config import Gpu
from abstim.progress import Progress, in_parallel, pipelined, silent
from abstim.session import limits
from abstim.session.result import SLOT_REASONS, LaunchResult, RunResult, again, launch_facts, run_result, timed_facts
from abstim.session.session import Session
from abstim.session.warm_up import Flushed, check_flush
from functional.arrays import Float64
from functional.execution.computer import default_threads
from functional.launches.case import StreamedCase
from functional.launches.launch import Launch
from functional.traces.trace import Trace


class RetiredBlocks:
    """Counts the thread blocks of a session's launches on some GPUs, and tells `progress` of them.

    Of launches that are made when it is their turn nobody knows the thread blocks: launches are counted there."""

    def __init__(self, session: Session, gpus: Sequence[Gpu], what: str, progress: Progress) -> None:
        self._what, self._progress, launches = what, progress, session.case.launches
        self._by_launch = isinstance(session.case, StreamedCase)
        each = len(launches) if self._by_launch else sum(launch.thread_blocks for launch in launches)
        self._gpus, self._total, self._done = len(gpus), each * len(gpus), 0
        self._running: deque[np.ndarray] = deque()  # whose ends several threads may take and give

    def watch(self, simulation: Simulation) -> None:
        """A launch on a GPU that is about to run, in any thread."""
        self._running.append(simulation.blocks)

    def pass_over(self, launch: Launch) -> None:
        """What it takes is known: it does not run."""
        self._done += self._gpus * (1 if self._by_launch else launch.thread_blocks)

    def tell(self) -> None:
        """In one thread: how many have retired by now."""
        part = 0
        for _ in range(len(self._running)):
            blocks = self._running.popleft()
            retired = int(np.count_nonzero(blocks["retire_cycle"] >= 0))
            if retired == len(blocks):
                self._done += 1 if self._by_launch else retired
            else:
                self._running.append(blocks)
                part += 0 if self._by_launch else retired
        self._progress(self._what, self._done + part, self._total)


MOST_LAUNCHES_BY_SM = 4096  # whose issue slots are kept by SM: those of 100,000 would need gigabytes


def refuse(gpus: Sequence[Gpu], flush: str) -> None:
    """Raises InputError for what this model cannot do. What it has no unit for is refused launch by launch."""
    check_flush(flush)


def launch_on(session: Session, number: int, gpus: Sequence[Gpu]) -> list[LaunchResult]:
    """One launch on every GPU, from empty caches."""
    launch, trace = session.launch(number), session.traces.trace(number)
    return [launch_result(session, number, launch, trace, g, session.simulate(number, g, trace)) for g in gpus]


def cycles_on(session: Session, number: int, around: Gpu) -> Callable[[Sequence[Gpu]], Float64[np.ndarray, " gpu"]]:
    """Cycles of one launch as a function of GPUs, any of them."""
    trace = session.traces.trace(number)
    return lambda gpus: np.array([session.simulate(number, gpu, trace).cycles for gpu in gpus], float)


def time(session: Session, gpus: Sequence[Gpu], flush: str = "all", progress: Progress = silent) -> list[RunResult]:
    """Time every launch on every GPU. Raises InputError for a thread block that an SM cannot hold."""
    started, before = perf_counter(), session.prepared_seconds
    found: list[list[LaunchResult]] = [[] for _ in gpus]
    for number, first, trace, results in timed(session, gpus, flush, progress):
        launch, pairs = session.launch(number), zip(gpus, results, strict=False)  # results: none if it is timed already
        own = [again(rows[first], launch, number) for rows in found if first < number]
        own += [launch_result(session, number, launch, trace, gpu, result) for gpu, result in pairs]
        for rows, row in zip(found, own, strict=True):
            rows.append(row if len(session) <= MOST_LAUNCHES_BY_SM else replace(row, issue_slots_per_sm={}))
    alone = [[launch.cycles for launch in launches] for launches in found]
    overlaps: list[Any] = [None] * len(gpus)
    if session.overlaps:
        from abstim.session.side_by_side import overlap_of

        overlaps = [overlap_of(session, gpu, flush, cycles) for gpu, cycles in zip(gpus, alone, strict=True)]
    seconds = perf_counter() - started - (session.prepared_seconds - before)
    return [
        run_result(session, gpu, launches, seconds, overlap=overlap, flush=flush)
        for gpu, launches, overlap in zip(gpus, found, overlaps, strict=True)
    ]


def timed(
    session: Session, gpus: Sequence[Gpu], flush: str = "all", progress: Progress = silent
) -> Iterator[tuple[int, int, Trace, list[EngineResult]]]:
    """The engine's own results, in order: launch by number, the first that does the same, trace, and one result a GPU,
    or none if that is an earlier one. No more launches than there are threads are under way at once, and a launch is
    dropped with its trace once its results are out.

    Flushed, launches share no state, and the engine releases the interpreter: one GPU's launches can fill the CPUs.
    Threads that have no launch and no GPU of their own share the SMs of one."""
    threads = default_threads()
    policies = [Flushed(flush) for _ in gpus]
    kept = any(policy.in_order for policy in policies)
    in_turn = len(gpus) > 1 or kept
    each = max(1, threads // max(1, len(gpus) if in_turn else len(session)))
    blocks = RetiredBlocks(session, gpus, f"time {session.case.name}, thread blocks", progress)

    def one(number: int, trace: Trace, k: int) -> EngineResult:
        caches = policies[k].before(session, number, gpus[k])
        return session.simulate(number, gpus[k], trace, caches, each, blocks.watch)

    def row(number: int, first: int, trace: Trace) -> tuple[int, int, Trace, list[EngineResult]]:
        count = 0 if first < number else len(gpus)
        return number, first, trace, in_parallel(lambda k: one(number, trace, k), count, threads=threads)

    def jobs():
        for number, _, trace in session.each():
            for gpu in gpus:
                session.table(number, gpu)  # characterised here, not in several threads
            first = number if kept else session.first_alike(number, trace)
            yield partial(row, number, first, trace)

    for found in pipelined(jobs(), 1 if in_turn else threads, blocks.tell):
        if found[1] < found[0]:
            blocks.pass_over(session.launch(found[0]))
        blocks.tell()
        yield found


def engine_results(
    session: Session, gpus: Sequence[Gpu], flush: str = "all", progress: Progress = silent
) -> list[list[EngineResult]]:
    """The engine's own results, `[launch][gpu]`."""
    found: list[list[EngineResult]] = []
    for number, first, _, results in timed(session, gpus, flush, progress):
        found.append(found[first] if first < number else results)
    return found


def launch_result(
    session: Session, number: int, launch: Launch, trace: Trace, gpu: Gpu, result: EngineResult
) -> LaunchResult:
    """One launch on one GPU, in the terms of `--json`."""
    cycles, spec = result.cycles, gpu.spec
    worked = result.resident_warp_cycles > 0
    active_cycles = int(result.sm_cycles[worked].sum())
    slots = dict(zip(SLOT_REASONS, result.issue_slots.sum(0).tolist(), strict=True))
    memory = limits.memory_use(result.counters, cycles, spec, gpu.params)
    inputs = session.inputs(number, gpu, trace)
    memory["atomic_use"] = limits.atomic_use(inputs, gpu, cycles)
    gains = limits.estimated_gains(_observed(session, number, inputs, gpu, result, memory))
    return LaunchResult(
        **launch_facts(session, number, launch, trace, gpu, cycles),
        occupancy=int(result.resident_warp_cycles.sum()) / max(1, spec.max_warps_per_sm * active_cycles),
        issue_slots=slots,
        issue_slots_per_sm=dict(zip(SLOT_REASONS, result.issue_slots.T.tolist(), strict=True)),
        caches={name: int(value) for name, value in result.counters.items()},
        memory=memory,
        windows=result.history,
        **timed_facts(session, number, trace, gpu),
        limit=limits.limit_of(gains),
        estimated_gains=gains,
        shared_accesses=int(np.count_nonzero(inputs.trace.conflicts)),
        active_sms=(active_cycles - int(np.count_nonzero(worked)) * gpu.params.launch_latency_cycles) / result.cycles,
    )


def _lasting(waves: float) -> float:
    """How many waves the thread blocks' time is: the mean of the waves, and of whole ones, since the thread blocks of
    the last wave have an SM with fewer others and end sooner."""
    return max(1.0, (waves + ceil(waves)) / 2)


def _observed(
    session: Session, number: int, inputs: LaunchInputs, gpu: Gpu, result: EngineResult, memory: Mapping[str, float]
) -> limits.Observed:
    resident, slots = int(result.resident_warp_cycles.sum()), result.issue_slots.sum(0)
    active_cycles = int(result.sm_cycles[result.resident_warp_cycles > 0].sum())
    code_waits = result.counters["l1i_misses"] * resident / max(1, active_cycles)
    rest, places = max(0.01, 1 - memory["launch_latency_share"]), SLOT_REASONS.index
    shared = {"atomics": "atomic_use", "DRAM bandwidth": "dram_use", "L2 bandwidth": "l2_use"}
    busy = limits.unit_use(inputs, gpu, active_cycles)
    busy |= {name: min(1.0, memory[use] / rest) for name, use in shared.items()}
    busy["L1D size"] = limits.waiting_lines(inputs, gpu, result.counters, active_cycles)
    busy[limits.ISSUE] = int(slots[places("issued")]) / max(1, int(slots.sum() - slots[places("empty")]))
    limit = session.occupancy(number, gpu)
    waves = session.launch(number).thread_blocks / (gpu.spec.sm_count * limit.blocks_per_sm)
    fewer = 1.0 if limit.limiter == "grid" else _lasting(waves / 2) / _lasting(waves)
    alone = limits.lone_warp(inputs, gpu, result.counters, code_waits)
    lifetime = resident / (len(inputs.trace.block_offsets) - 1)
    return limits.Observed(lifetime, alone, busy, memory["launch_latency_share"], fewer, limits.halved_share(inputs))
