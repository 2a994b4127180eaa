"""A launch whose warps do only a share of their iterations: the same grid, waves and phases in less time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from abstim.study.sample.launch_features import ON_LINES, kinds_of
from functional.programs.program import Program
from functional.traces.line_record import in_phases, more_follow
from functional.traces.trace import Trace
from precharacterize.classify import Kind
from precharacterize.synchronisation import NONE, barriers_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64

MOST_RUNS = 8  # stretches of a warp's life that are kept: it may have phases
SHORTEST_RUN = 4  # iterations of the shortest of them, at the smallest share
BARRIER = "bar"


@dataclass(frozen=True, eq=False)
class Iterations:
    """Of every event of a trace: which iteration of its warp's loop it belongs to, of how many.

    Where there are barriers, an iteration begins with the one that is passed most often: warps of a thread block must
    go on meeting at the same ones. 0 is what comes before the first, the last one includes what comes after it.
    Elsewhere each event is one: nothing else need stay together.
    """

    number: Int64[np.ndarray, " event"]
    count: Int64[np.ndarray, " event"]

    def kept(self, share: float, smallest: float) -> Bool[np.ndarray, " event"]:
        """Events of about `share` of the iterations: first, last, and as many runs as for the `smallest` share."""
        runs = np.clip((smallest * self.count / SHORTEST_RUN).astype(np.int64), 1, MOST_RUNS)
        inside = (self.number * runs) % self.count < share * self.count
        return inside | (self.number == 0) | (self.number == self.count - 1)


def iterations_of(program: Program, trace: Trace) -> Iterations:
    """See `Iterations`."""
    lengths = np.diff(trace.block_offsets)
    passed = np.bincount(trace.blocks, minlength=len(program.blocks)) * (_in_blocks(program, _barriers(program)) > 0)
    if not passed.any():
        place = np.arange(len(trace.blocks)) - np.repeat(trace.block_offsets[:-1], lengths)
        return Iterations(place, np.repeat(lengths, lengths))
    begun = np.cumsum(trace.blocks == int(np.argmax(passed)))
    before = np.concatenate([np.zeros(1, np.int64), begun])[trace.block_offsets]
    return Iterations(begun - np.repeat(before[:-1], lengths), np.repeat(np.diff(before) + 1, lengths))


def thinned(program: Program, trace: Trace, kept: Bool[np.ndarray, " event"]) -> Trace | None:
    """The trace of these events alone. None where warps of a thread block would wait at different barriers, and for
    programs whose barriers are not for all warps of a thread block, or for more, or are `mbarrier`s."""
    kinds = kinds_of(program)
    of_block = set(barriers_of(program.instructions, [Kind(kind) for kind in kinds])) <= {NONE, 0}
    if not (of_block and _meet(program, trace, kept)) or in_phases(trace.records).any():
        return None
    accesses = np.repeat(kept, _in_blocks(program, np.isin(kinds, list(ON_LINES)))[trace.blocks])
    conflicts = np.repeat(kept, _in_blocks(program, np.isin(kinds, list(_SHARED)))[trace.blocks])
    records = np.repeat(accesses, _lengths(more_follow(trace.records) == 0))
    issued = np.array([block.stop - block.start for block in program.blocks])[trace.blocks] * kept
    counts = np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(issued)])[trace.block_offsets])
    share = counts / np.maximum(trace.warp_instructions, 1)
    return replace(
        trace,
        blocks=trace.blocks[kept],
        masks=trace.masks[kept],
        records=trace.records[records],
        conflicts=trace.conflicts[conflicts],
        block_offsets=_offsets(kept, trace.block_offsets),
        record_offsets=_offsets(records, trace.record_offsets),
        conflict_offsets=_offsets(conflicts, trace.conflict_offsets),
        warp_instructions=counts,
        thread_instructions=np.rint(trace.thread_instructions * share).astype(np.int64),
    )


_SHARED = frozenset(kind for kind in Kind if kind.name.startswith("SHARED"))


def _barriers(program: Program) -> Bool[np.ndarray, " instruction"]:
    return np.array([instruction.opcode.startswith(BARRIER) for instruction in program.instructions])


def _in_blocks(program: Program, which: Bool[np.ndarray, " instruction"]) -> Int64[np.ndarray, " basic_block"]:
    """How many of these instructions each basic block has."""
    return np.array([int(which[block.start : block.stop].sum()) for block in program.blocks])


def _meet(program: Program, trace: Trace, kept: Bool[np.ndarray, " event"]) -> bool:
    """Do warps of a thread block that passed as many barriers before still do so?"""
    barriers = _in_blocks(program, _barriers(program))[trace.blocks]
    if not barriers.any():
        return True
    all_of, those = (
        np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(column)])[trace.block_offsets]).reshape(
            -1, trace.warps_per_block
        )
        for column in (barriers, barriers * kept)
    )
    return bool(((all_of == all_of[:, :1]) & (those == those[:, :1])).all())


def _lengths(last: Bool[np.ndarray, " record"]) -> Int64[np.ndarray, " access"]:
    """Line records of each access, whose last one is marked."""
    return np.diff(np.concatenate([np.full(1, -1), np.flatnonzero(last)]))


def _offsets(kept: Bool[np.ndarray, " n"], offsets: Int64[np.ndarray, " warp_plus_1"]) -> Int64[np.ndarray, " w"]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[offsets]
