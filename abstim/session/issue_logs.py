"""Launches of a target with every issue logged: what a timeline is drawn from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from abstim.engine.kept_caches import Caches
from abstim.engine.simulation import Simulation
from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.run import occupancies, registers_of
from abstim.show.timeline import IssueLog, LaunchLog
from abstim.target.execution import Workload
from functional.errors import InputError

MOST_ISSUES = 20_000_000  # of a launch: a gigabyte of log


def watch(workload: Workload, gpu: Gpu, flush: str = "all", progress: Progress = silent) -> Iterator[LaunchLog]:
    """Time every launch once more, logging it. Raises InputError for a launch too long to log."""
    case, caches = workload.case, Caches()
    limits = occupancies(case, registers_of(case), gpu)
    for number, (launch, limit) in enumerate(zip(case.launches, limits, strict=True)):
        progress(f"watch {case.name}", number, len(case.launches))
        inputs = workload.inputs(number, gpu)
        count = int(inputs.trace.warp_instructions.sum())
        if count > MOST_ISSUES:
            raise InputError(f"launch {number} issues {count:,} instructions; a timeline takes {MOST_ISSUES:,} at most")
        caches.flush(flush)
        run = Simulation(inputs, gpu, limit.blocks_per_sm, caches=caches)
        log = run.run(np.arange(len(inputs.trace.thread_blocks)), drain=True, log_rows=count)
        run.leave(caches)
        log = log[np.lexsort((log["cycle"], log["sm"]))]
        sm, cycle, slot, instruction, warp = (
            np.ascontiguousarray(log[name]) for name in ("sm", "cycle", "slot", "instruction", "warp")
        )
        issues = IssueLog(sm, cycle, slot, instruction, warp, slot % gpu.spec.schedulers_per_sm)
        name = launch.program.name + (f" ({launch.label})" if launch.label else "")
        yield LaunchLog(name, issues, inputs.table.block_start, run.result().cycles, gpu.spec.sm_count)
