"""The driver: a target through every stage, on any number of GPUs.

target --open_target--> Case --execute--> Workload --time--> RunResult (one a GPU)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from abstim.gpu.config import Gpu, load_gpu
from abstim.gpu.occupancy import Occupancy, occupancy
from abstim.progress import Progress, silent
from abstim.session.limits import limit_of, memory_use
from abstim.session.result import SLOT_REASONS, LaunchResult, RunResult
from abstim.target.execution import Workload, execute
from abstim.target.resolve import open_target
from abstim.target.workloads.lazy_launches import StreamedCase
from functional.case import Case
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.engine import EngineResult
    from abstim.target.resolve import Target
    from functional.executor import Executor
    from functional.launch import Launch
    from functional.resources import Registers
    from functional.trace import Trace
    from precharacterize import PipelineParameters

T = TypeVar("T")
FLUSHES = ("all", "l1", "l1d", "none")  # caches invalidated before each launch; abstim.engine.kept_caches


def run(
    target: Target,
    gpu: str | Gpu = "gtx480",
    overrides: Sequence[str] = (),
    *,
    executor: Executor | None = None,
    instruction_budget: int | None = None,
    flush: str = FLUSHES[0],
    progress: Progress = silent,
) -> RunResult:
    """Every launch of a target on one GPU.

    `target` is a suite benchmark's name, the path of a launches.json, a Case, or a function that makes one. Raises
    InputError for anything a user got wrong; then there is no result.
    """
    points = [_gpu(gpu, overrides)]
    return run_many(
        target, points, executor=executor, instruction_budget=instruction_budget, flush=flush, progress=progress,
    )[0]  # fmt: skip


def check_flush(flush: str) -> None:
    """Raises InputError for a way to flush caches that is not there."""
    if flush not in FLUSHES:
        raise InputError(f"caches cannot be flushed {flush!r}; there are {', '.join(FLUSHES)}")


def run_many(
    target: Target,
    gpus: Sequence[Gpu],
    *,
    executor: Executor | None = None,
    instruction_budget: int | None = None,
    flush: str = FLUSHES[0],
    progress: Progress = silent,
) -> list[RunResult]:
    """Every launch of a target on several GPUs: executed once, timed on each."""
    check_flush(flush)
    started = perf_counter()
    case = open_target(target)
    parse_seconds = perf_counter() - started
    if isinstance(case, StreamedCase):
        from abstim.session.streamed import run_streamed

        return run_streamed(case, gpus, executor, instruction_budget, flush, progress, parse_seconds)
    registers = registers_of(case)
    for gpu in gpus:
        occupancies(case, registers, gpu)  # a block over a limit is refused before minutes of execution
    workload = execute(case, executor, instruction_budget, progress)
    workload.wall_seconds["parse"] = parse_seconds
    return time(workload, gpus, flush, progress)


def _gpu(gpu: str | Gpu, overrides: Sequence[str]) -> Gpu:
    if isinstance(gpu, str):
        return load_gpu(gpu, overrides)
    if overrides:
        raise InputError("overrides need a GPU by name; use load_gpu(name, overrides)")
    return gpu


def registers_of(case: Case) -> list[Registers]:
    """Registers a thread of every launch, each program looked at once."""
    found = {launch.program.name: launch for launch in case.launches}
    registers = {name: case.registers(launch) for name, launch in found.items()}
    return [registers[launch.program.name] for launch in case.launches]


def occupancies(case: Case, registers: Sequence[Registers], gpu: Gpu) -> list[Occupancy]:
    """Thread blocks an SM of every launch. Raises InputError for a block that an SM cannot hold."""
    found = []
    for number, (launch, used) in enumerate(zip(case.launches, registers, strict=True)):
        found.append(launch_occupancy(launch, number, used, gpu))
    return found


def launch_occupancy(launch: Launch, number: int, registers: Registers, gpu: Gpu) -> Occupancy:
    """Thread blocks an SM of one launch. Raises InputError for a block that an SM cannot hold."""
    try:
        return occupancy(gpu.spec, launch.grid, launch.block, registers.count, launch.shared_bytes)
    except InputError as error:
        name = launch.program.name
        raise InputError(f"kernel '{name}' (launch {number}) does not fit {gpu.name}: {error}") from None


def time(
    workload: Workload,
    gpus: Sequence[Gpu],
    flush: str = FLUSHES[0],
    progress: Progress = silent,
) -> list[RunResult]:
    """Time every launch of a workload on every GPU. Raises InputError for a block that an SM cannot hold."""
    wall = {"parse": 0.0, "characterize": 0.0, "execute": 0.0} | workload.wall_seconds
    started = perf_counter()
    for gpu in gpus:
        for number in range(len(workload.case.launches)):
            workload.inputs(number, gpu)
    wall["characterize"] = perf_counter() - started
    started = perf_counter()
    timed = engine_results(workload, gpus, flush, progress)
    wall["time"] = perf_counter() - started
    registers, outputs = registers_of(workload.case), list(workload.execution.outputs) or None
    found = []
    for k, gpu in enumerate(gpus):
        limits = occupancies(workload.case, registers, gpu)
        launches = [
            launch_result(launch, trace, number, gpu, limits[number], registers[number], results[k])
            for number, (launch, trace, results) in enumerate(
                zip(workload.case.launches, workload.execution.traces, timed, strict=True)
            )
        ]
        found.append(
            RunResult(
                target=workload.case.name,
                gpu=gpu.name,
                launches=launches,
                wall_seconds=wall,
                outputs=outputs,
                printf=workload.execution.printed,
                gpu_values=asdict(gpu.spec) | asdict(gpu.params),
            )
        )
    return found


def engine_results(
    workload: Workload,
    gpus: Sequence[Gpu],
    flush: str = FLUSHES[0],
    progress: Progress = silent,
) -> list[list[EngineResult]]:
    """The engine's own results, `[launch][gpu]`. GPUs that share a latency table go to the engine in one call."""
    from abstim.engine import Caches, simulate

    registers = registers_of(workload.case)
    limits = [occupancies(workload.case, registers, gpu) for gpu in gpus]
    groups, caches = _by_pipeline(gpus), [Caches() for _ in gpus]

    def one(number: int) -> list[EngineResult]:
        results: dict[int, EngineResult] = {}
        for k in range(len(gpus)):
            caches[k].flush(flush)
        for same in groups:
            inputs = workload.inputs(number, gpus[same[0]])
            blocks = [limits[k][number].blocks_per_sm for k in same]
            kept = [caches[k] for k in same] if flush != FLUSHES[0] else None
            points = [gpus[k] for k in same]
            results |= zip(same, simulate(inputs, points, blocks, caches=kept), strict=True)
        return [results[k] for k in range(len(gpus))]

    count = len(workload.case.launches)
    report = partial(progress, f"time {workload.case.name}")
    # Flushed, launches share no state, and the compiled engine releases the interpreter: one point can fill the CPUs.
    alone = len(gpus) > 1 or flush != FLUSHES[0]
    return in_parallel(one, count, 1 if alone else os.cpu_count() or 1, report)


def in_parallel(work: Callable[[int], T], count: int, threads: int, report: Callable[[int, int], None]) -> list[T]:
    """`[work(0), ..., work(count - 1)]`. After an exception or an interrupt nothing new is started."""
    found = []
    with ThreadPoolExecutor(threads) as pool:
        try:
            for number, result in enumerate(pool.map(work, range(count))):
                report(number, count)
                found.append(result)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _by_pipeline(gpus: Sequence[Gpu]) -> list[list[int]]:
    """Positions of the GPUs, those that share a latency table together."""
    groups: dict[PipelineParameters, list[int]] = {}
    for k, gpu in enumerate(gpus):
        groups.setdefault(gpu.pipeline, []).append(k)
    return list(groups.values())


def launch_result(
    launch: Launch, trace: Trace, number: int, gpu: Gpu, limit: Occupancy, registers: Registers, result: EngineResult
) -> LaunchResult:
    """One launch on one GPU, in the terms of `--json`."""
    cycles, spec = result.cycles, gpu.spec
    threads, warps = int(trace.thread_instructions.sum()), int(trace.warp_instructions.sum())
    active_cycles = int(result.sm_cycles[result.resident_warp_cycles > 0].sum())
    slots = dict(zip(SLOT_REASONS, result.issue_slots.sum(0).tolist(), strict=True))
    memory = memory_use(result.counters, cycles, spec, gpu.params)
    return LaunchResult(
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
        occupancy=int(result.resident_warp_cycles.sum()) / max(1, spec.max_warps_per_sm * active_cycles),
        blocks_per_sm=limit.blocks_per_sm,
        occupancy_limiter=limit.limiter,
        registers_per_thread=registers.count,
        registers_source=registers.source,
        shared_bytes=launch.shared_bytes,
        issue_slots=slots,
        issue_slots_per_sm=dict(zip(SLOT_REASONS, result.issue_slots.T.tolist(), strict=True)),
        caches={name: int(value) for name, value in result.counters.items()},
        memory=memory,
        windows=result.history,
        limit=limit_of(slots, memory),
    )
