"""Persistent kernels: thread blocks are executed one after another, so the first may empty a queue meant for all."""

from __future__ import annotations

import numpy as np

from functional.programs.program import Program
from functional.traces.trace import Trace

UNLIKE = 8  # times a thread block's work in the middle of all
MOST = 0.5  # of all work


def queue_notes(program: Program, trace: Trace) -> list[str]:
    """What is said of a launch in which one thread block did most of the work, and a loop takes from global memory by
    an atomic whose result is read."""
    work = trace.warp_instructions.reshape(-1, trace.warps_per_block).sum(1)
    first = int(work.argmax()) if len(work) > 1 else 0
    if len(work) < 2 or work[first] < UNLIKE * np.median(work) or work[first] < MOST * work.sum():
        return []
    lines = _taken_in_loops(program)
    if not lines:
        return []
    return [
        f"thread blocks are executed one after another; the queue at PTX line {lines[0]} (atom) was emptied by block "
        f"{first} of {len(work):,}, which did {work[first] / work.sum():.0%} of the work; on a GPU they share it "
        "and take less time"
    ]


def _taken_in_loops(program: Program) -> list[int]:
    """Lines of atomics on global memory, with a result, that lie between a branch backwards and where it leads."""
    loops = [(to, block.index) for block in program.blocks for to in block.successors if to <= block.index]
    looped = {k for first, last in loops for k in range(first, last + 1)}
    return [
        i.line
        for block in program.blocks
        if block.index in looped
        for i in program.instructions[block.start : block.stop]
        if i.opcode == "atom" and i.space in ("global", "generic", "")
    ]
