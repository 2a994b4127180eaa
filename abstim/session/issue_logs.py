"""Launches of a session with every issue logged: what a timeline is drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from abstim.engine.stalls import STALLS, add_stalls
from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.flush import Flushed
from abstim.session.session import Session
from functional.errors import InputError
from functional.ptx.source import shown_name

if TYPE_CHECKING:
    from jaxtyping import Int64

    from functional.programs.program import Program
    from functional.traces.trace import Trace
    from precharacterize.table import LatencyTable
    from precharacterize.timed_code import TimedCode

MOST_ISSUES = 20_000_000  # of a launch: a gigabyte of log


@dataclass(frozen=True)
class IssueLog:
    """Every warp instruction issued in a launch, ascending by cycle within an SM. `warp` counts those of the launch.

    `stalls`: cycles that the warp waited before it, by STALLS; `l2_sectors`, `dram_sectors`: of 32 B, that it
    waited for from L2, and from DRAM; several may wait for one sector of what is read-only.
    """

    sm: Int64[np.ndarray, " issue"]
    cycle: Int64[np.ndarray, " issue"]
    slot: Int64[np.ndarray, " issue"]
    instruction: Int64[np.ndarray, " issue"]  # flat position in the program
    warp: Int64[np.ndarray, " issue"]
    scheduler: Int64[np.ndarray, " issue"]
    stalls: Int64[np.ndarray, "issue reason"]
    l2_sectors: Int64[np.ndarray, " issue"]
    dram_sectors: Int64[np.ndarray, " issue"]

    def where(self, chosen: np.ndarray) -> IssueLog:
        """Some of them."""
        return IssueLog(*(getattr(self, column.name)[chosen] for column in fields(self)))


@dataclass(frozen=True)
class LaunchLog:
    """A launch to be drawn. `block_start`: first instruction of every basic block, ascending; `block_line`: the line of
    the PTX where it begins (of machine code: where the PTX block begins that it was made of)."""

    name: str
    log: IssueLog
    block_start: Int64[np.ndarray, " basic_block"]
    block_line: Int64[np.ndarray, " basic_block"]
    cycles: int
    sm_count: int


def issue_logs(session: Session, gpu: Gpu, flush: str = "all", progress: Progress = silent) -> Iterator[LaunchLog]:
    """Time every launch in order, logging it. Raises InputError for a launch too long to log."""
    policy = Flushed(flush)
    for number, launch, trace in session.each():
        progress(f"log {session.case.name}", number, len(session))
        code = session.timed_code(number, gpu)
        count = issue_count(session, trace, code)
        if count > MOST_ISSUES:
            raise InputError(f"launch {number} issues {count:,} instructions; a timeline takes {MOST_ISSUES:,} at most")
        run = session.simulation(number, gpu, trace, policy.before(session, number, gpu))
        log = run.run(np.arange(len(trace.thread_blocks)), drain=True, log_rows=count)
        policy.after(run)
        name = shown_name(launch.program.name) + (f" ({launch.label})" if launch.label else "")
        issues, table = _issue_log(log, run.inputs.table, gpu), run.inputs.table
        lines = _block_lines(launch.program, code, len(table.block_start))
        yield LaunchLog(name, issues, table.block_start, lines, run.result().cycles, gpu.spec.sm_count)


def issue_count(session: Session, trace: Trace, code: TimedCode | None) -> int:
    """Warp instructions that a launch issues, of what is timed in place of its PTX if that is not what is timed."""
    return int(trace.warp_instructions.sum()) if code is None else session.projected(trace, code).instructions


def _issue_log(log: np.ndarray, table: LatencyTable, gpu: Gpu) -> IssueLog:
    log = log[np.lexsort((log["cycle"], log["warp"]))]
    stalls = np.zeros((len(log), len(STALLS)), np.int64)
    add_stalls(log, table, np.arange(len(log)), stalls)
    order = np.lexsort((log["cycle"], log["sm"]))
    log = log[order]
    names = ("sm", "cycle", "slot", "instruction", "warp", "l2_accesses", "dram_reads")
    sm, cycle, slot, instruction, warp, l2, dram = (np.ascontiguousarray(log[name]) for name in names)
    return IssueLog(sm, cycle, slot, instruction, warp, slot % gpu.spec.schedulers_per_sm, stalls[order], l2, dram)


def _block_lines(program: Program, code: TimedCode | None, count: int) -> Int64[np.ndarray, " basic_block"]:
    blocks = range(count) if code is None else code.numbers[:, 0].tolist()
    return np.array([program.line_of(block) for block in blocks], np.int64)
