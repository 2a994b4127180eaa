"""Launch by launch: executed here, timed in other threads, dropped. What a StreamedCase needs instead of a Workload."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.result import LaunchResult, RunResult
from abstim.target.execution import default_budget, latency_table
from abstim.target.workloads.lazy_launches import execute_launch
from functional.case import Case
from functional.default_executor import default_executor

if TYPE_CHECKING:
    from abstim.engine import Caches, LaunchInputs
    from functional.executor import Executor
    from functional.launch import Launch
    from functional.resources import Registers
    from functional.trace import Trace


class LaunchTimer:
    """Times single launches on several GPUs."""

    def __init__(self, case: Case, gpus: Sequence[Gpu]) -> None:
        from abstim.engine import Caches

        self.case, self.gpus = case, gpus
        self.caches = [Caches() for _ in gpus]
        self._tables: dict = {}
        self._registers: dict[str, Registers] = {}

    def inputs(self, launch: Launch, trace: Trace, gpu: Gpu) -> LaunchInputs:
        """What the engine needs of a launch; characterises its program on first use of a pipeline."""
        from abstim.engine import LaunchInputs

        key = (launch.program.name, gpu.pipeline)
        if key not in self._tables:
            self._tables[key] = latency_table(launch.program, gpu)
        return LaunchInputs(self._tables[key], trace, launch.shared_bytes)

    def registers(self, launch: Launch) -> Registers:
        """Registers a thread; each program is looked at once."""
        name = launch.program.name
        if name not in self._registers:
            self._registers[name] = self.case.registers(launch)
        return self._registers[name]

    def time(self, number: int, launch: Launch, trace: Trace, flush: str) -> list[LaunchResult]:
        """One launch on every GPU. Issue slots an SM are left out: 100,000 launches would need gigabytes of them."""
        from abstim.engine.simulate import simulate_point
        from abstim.session.run import launch_occupancy, launch_result

        found, used = [], self.registers(launch)
        for gpu, caches in zip(self.gpus, self.caches, strict=True):
            limit = launch_occupancy(launch, number, used, gpu)
            caches.flush(flush)
            kept: Caches | None = None if flush == "all" else caches
            timed = simulate_point(self.inputs(launch, trace, gpu), gpu, limit.blocks_per_sm, kept)
            result = launch_result(launch, trace, number, gpu, limit, used, timed)
            found.append(replace(result, issue_slots_per_sm={}))
        return found


def run_streamed(
    case: Case,
    gpus: Sequence[Gpu],
    executor: Executor | None = None,
    instruction_budget: int | None = None,
    flush: str = "all",
    progress: Progress = silent,
    parse_seconds: float = 0.0,
) -> list[RunResult]:
    """Every launch of a case on every GPU. Raises InputError for a block that an SM cannot hold.

    `wall_seconds`: executing and timing overlap; `time` is what timing took beyond executing.
    """
    started, executing = perf_counter(), 0.0
    timer, memory = LaunchTimer(case, gpus), case.memory.copy()
    executor = executor or default_executor()

    def jobs() -> Iterator[tuple[int, Launch, Trace, str]]:
        nonlocal executing
        for number, launch in enumerate(case.launches):
            begun = perf_counter()
            trace = execute_launch(executor, launch, memory, instruction_budget or default_budget(launch))
            for gpu in gpus:
                timer.inputs(launch, trace, gpu)
            executing += perf_counter() - begun
            progress(f"run {case.name}", number, len(case.launches))
            yield number, launch, trace, flush

    threads = (os.cpu_count() or 1) if flush == "all" else 1
    rows = list(overlapped(timer, jobs(), threads))
    wall = {"parse": parse_seconds, "execute": executing, "time": perf_counter() - started - executing}
    return [
        RunResult(
            target=case.name,
            gpu=gpu.name,
            launches=[row[k] for row in rows],
            wall_seconds=wall,
            printf=memory.printed.text(),
        )
        for k, gpu in enumerate(gpus)
    ]


def overlapped(
    timer: LaunchTimer, jobs: Iterator[tuple[int, Launch, Trace, str]], threads: int
) -> Iterator[list[LaunchResult]]:
    """Time jobs in order, at most `threads` traces waiting at once."""
    waiting: deque[Future[list[LaunchResult]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for job in jobs:
                waiting.append(pool.submit(timer.time, *job))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
