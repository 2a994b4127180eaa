"""Launches of a session with every issue logged: what a timeline is drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.flush import Flushed
from abstim.session.session import Session
from functional.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Int64

MOST_ISSUES = 20_000_000  # of a launch: a gigabyte of log


@dataclass(frozen=True)
class IssueLog:
    """Every warp instruction issued in a launch, ascending by cycle within an SM. `warp` counts those of the launch."""

    sm: Int64[np.ndarray, " issue"]
    cycle: Int64[np.ndarray, " issue"]
    slot: Int64[np.ndarray, " issue"]
    instruction: Int64[np.ndarray, " issue"]  # flat position in the program
    warp: Int64[np.ndarray, " issue"]
    scheduler: Int64[np.ndarray, " issue"]


@dataclass(frozen=True)
class LaunchLog:
    """A launch to be drawn. `block_start`: first instruction of every basic block, ascending."""

    name: str
    log: IssueLog
    block_start: Int64[np.ndarray, " basic_block"]
    cycles: int
    sm_count: int


def issue_logs(session: Session, gpu: Gpu, flush: str = "all", progress: Progress = silent) -> Iterator[LaunchLog]:
    """Time every launch in order, logging it. Raises InputError for a launch too long to log."""
    policy = Flushed(flush)
    for number, launch, trace in session.each():
        progress(f"log {session.case.name}", number, len(session))
        code = session.timed_code(number, gpu)
        count = int(trace.warp_instructions.sum()) if code is None else session.projected(trace, code).instructions
        if count > MOST_ISSUES:
            raise InputError(f"launch {number} issues {count:,} instructions; a timeline takes {MOST_ISSUES:,} at most")
        run = session.simulation(number, gpu, trace, policy.before(session, number, gpu))
        log = run.run(np.arange(len(trace.thread_blocks)), drain=True, log_rows=count)
        policy.after(run)
        log = log[np.lexsort((log["cycle"], log["sm"]))]
        sm, cycle, slot, instruction, warp = (
            np.ascontiguousarray(log[name]) for name in ("sm", "cycle", "slot", "instruction", "warp")
        )
        issues = IssueLog(sm, cycle, slot, instruction, warp, slot % gpu.spec.schedulers_per_sm)
        name = launch.program.name + (f" ({launch.label})" if launch.label else "")
        yield LaunchLog(name, issues, run.inputs.table.block_start, run.result().cycles, gpu.spec.sm_count)
