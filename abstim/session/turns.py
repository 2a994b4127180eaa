"""Launches whose outcome depends on the order of their thread blocks: how those take turns on a GPU.

A warp's turn comes by what the basic blocks take that it has run: first a lone warp's cycles, then, once more, what
they took on average when the detailed engine timed the execution that came of that."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from abstim.engine.simulation import Simulation
from abstim.gpu.config import Gpu
from abstim.targets.execution import Turns, is_ordered
from functional.arrays import Int64
from functional.execution.executor import PACE, Interleaving
from functional.keep.kept import Kept, key
from functional.launches.case import Case
from functional.launches.launch import Launch
from functional.programs.program import Program
from functional.traces.trace import Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind

_MODULES = ("abstim.session.turns", "abstim.engine.simulation")
_MOST_ISSUES = 4_000_000  # of a launch, that are looked at: 350 MB of log


class Launches(Protocol):
    """What is asked of a session."""

    @property
    def case(self) -> Case:
        """What it was opened of."""

    def __len__(self) -> int: ...

    def launch(self, number: int) -> Launch:
        """A launch."""

    def blocks_per_sm(self, number: int, gpu: Gpu) -> int:
        """Its occupancy."""

    def table(self, number: int, gpu: Gpu) -> LatencyTable:
        """Of its program."""

    def accessed(self, number: int, trace: Trace, table: LatencyTable, gpu: Gpu) -> Trace:
        """A trace of its program with what a GPU accesses of it."""

    def simulation(self, number: int, gpu: Gpu, trace: Trace) -> Simulation:
        """It, ready to be run."""


def order_note(case: Case, how: str = "by estimated times") -> str:
    """What to say of the launches of a case whose outcome depends on the order of their thread blocks."""
    program = next(launch.program for launch in case.launches if is_ordered(launch))
    point = program.order_points[0]
    where = f"'{program.name}', line {point.line}: '{point.name}'"
    return f"{where}: the order of thread blocks decides; they took turns {how}"


AS_TRACED = "as when the trace was made, by `abstim trace` one after the other"
BY_CLOCK, BY_ESTIMATE = "by the engine's clock", "by estimated times; --coupled: by the engine's clock"


def turns_of(session: Launches, gpu: Gpu) -> Turns:
    """How the thread blocks of a session's launches take turns on a GPU that nobody has timed them on."""

    def interleaving(number: int) -> Interleaving | None:
        if not is_ordered(session.launch(number)):
            return None
        resident = session.blocks_per_sm(number, gpu) * gpu.spec.sm_count
        apart = max(gpu.params.dispatch_interval_cycles, 1 / gpu.spec.sm_count)  # an SM takes one a cycle
        cycles = block_cycles(session.table(number, gpu), gpu)
        slow = np.zeros(len(session.launch(number).program.slow_paths), np.int64)  # of which a turn is no longer
        return Interleaving(resident, np.append(cycles, slow), apart)

    return interleaving


def timed_turns_of(session: Launches, gpu: Gpu, turns: Turns, trace_of: Callable[[int], Trace]) -> Turns:
    """The same, once traces, which `trace_of` knows by launch, have come of `turns`. Machine code stays as it was: its
    instructions are no basic blocks of the PTX."""
    if gpu.spec.timed_code != "ptx":
        return turns
    found: dict[int, Interleaving] = {}
    for number in range(len(session)):
        if before := turns(number):
            program, trace, blocks = session.launch(number).program, trace_of(number), len(before.block_cycles)
            of_trace = trace.blocks, trace.records, trace.conflicts, trace.partial_at, trace.partial_words
            of_launch = program.digest, program.name, *of_trace
            name = key(_MODULES, gpu.spec, gpu.params, gpu.pipeline.key, *before.parts(), *of_launch)
            make, decode = partial(_timed, session, number, gpu, trace, before), partial(np.frombuffer, dtype=np.int64)
            measured = Kept("turns").load_or_make(name, make, decode, np.ndarray.tobytes)
            found[number] = replace(before, block_cycles=measured[:blocks], paces=measured[blocks:])
    return found.get


def block_cycles(table: LatencyTable, gpu: Gpu) -> Int64[np.ndarray, " block"]:
    """What each basic block takes a lone warp: from issue to issue, and the way to L2 and back where it loads from
    there, or waits for its stores, once, because loads of one block overlap."""
    issues = np.add.reduceat(table.gap_cycles, table.block_start).astype(np.int64)
    far = np.isin(table.kind, (Kind.GLOBAL_LOAD, Kind.L2_LOAD, Kind.GLOBAL_ATOMIC, Kind.FENCE))
    loads = np.logical_or.reduceat(far, table.block_start)
    p = gpu.params
    way = p.atomic_latency_cycles if gpu.spec.perfect_memory else p.l2_request_cycles + p.l2_reply_cycles
    return issues + loads * (p.l1d_latency_cycles + way)


def _timed(
    session: Launches, number: int, gpu: Gpu, trace: Trace, before: Interleaving
) -> Int64[np.ndarray, " block_and_place"]:
    """Mean cycles of each basic block, from each of its issues to the warp's next one, as the engine times a trace; and
    the paces of the first resident thread blocks. What a warp waits at a barrier for others is left out; basic blocks
    that nobody ran stay as they were `before`."""
    simulation, program = session.simulation(number, gpu, trace), session.launch(number).program
    kind, total = simulation.inputs.table.kind, int(trace.warp_instructions.sum())
    log = simulation.run(np.arange(len(trace.thread_blocks)), drain=True, log_rows=min(total, _MOST_ISSUES))
    log = log[np.lexsort((log["cycle"], log["warp"]))]
    cycles = np.append(np.diff(log["cycle"]), 1)
    cycles[np.append(np.diff(log["warp"]) != 0, True) | (kind[log["instruction"]] == Kind.BARRIER)] = 1
    blocks = len(program.blocks)
    block_of = np.repeat(np.arange(blocks), [b.stop - b.start for b in program.blocks])[log["instruction"]]
    spent = np.bincount(block_of, weights=cycles, minlength=blocks)
    count = np.bincount(trace.blocks, minlength=blocks) * (len(log) / max(1, total))
    means = np.where(count < 1, before.block_cycles, spent / np.maximum(count, 1))
    places = min(before.resident_blocks, len(trace.thread_blocks))
    thread_block = log["warp"] // trace.warps_per_block
    issue_mean = spent / np.maximum(1, np.bincount(block_of, minlength=blocks))
    expected = np.bincount(thread_block, weights=issue_mean[block_of], minlength=places)[:places]
    paces = np.bincount(thread_block, weights=cycles, minlength=places)[:places] / np.maximum(expected, 1)
    return np.rint(np.append(means, np.where(expected < 1, 1, paces) * PACE)).astype(np.int64)


UNLIKE = 8  # times a thread block's work in the middle of all
MOST = 0.5  # of all work


def queue_notes(program: Program, trace: Trace) -> list[str]:
    """What is said of a launch in which one thread block did most of the work, and a loop takes from global memory by
    an atomic whose result is read."""
    work = trace.warp_instructions.reshape(-1, trace.warps_per_block).sum(1)
    first = int(work.argmax()) if len(work) > 1 else 0
    if len(work) < 2 or work[first] < MOST * work.sum() or work[first] < UNLIKE * np.median(work):
        return []
    loops = [(to, block.index) for block in program.blocks for to in block.successors if to <= block.index]
    looped = {k for first, last in loops for k in range(first, last + 1)}  # between a branch backwards and its target
    inside = [program.instructions[block.start : block.stop] for block in program.blocks if block.index in looped]
    taken = [i for own in inside for i in own if i.opcode == "atom" and i.space in ("global", "generic", "")]
    if not taken:
        return []
    return [
        f"thread blocks are executed one after another; the queue at PTX line {taken[0].line} (atom) was emptied by "
        f"block {first} of {len(work):,}, which did {work[first] / work.sum():.0%} of the work; on a GPU they share it "
        "and take less time"
    ]
