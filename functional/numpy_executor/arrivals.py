"""Arrivals and waits at an `mbarrier`, as a trace says them (functional.traces.line_record)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from functional.traces.line_record import BARRIERS, MORE, MOST_COUNT, SHARED_PASS, phase_record

if TYPE_CHECKING:
    from jaxtyping import UInt32


def access_records(phases: list[int], passes: int) -> UInt32[np.ndarray, " record"]:
    """The records of one warp's access to barriers, with its passes of shared memory."""
    made = np.array([*sorted(phases), *[SHARED_PASS] * passes], np.uint32)
    made[:-1] |= MORE
    return made


PHASE_BIT = 40  # of an object (mbarrier.py): the parity of the running phase


@dataclass
class Known:
    """A barrier: its number in its thread block, its running phase, arrivals of that block in it and in the last."""

    number: int
    phase: int = 0
    arrived: int = 0
    arrived_before: int = 0


class Phases:
    """Of all barriers of a chunk, by the place of their object in the storage of shared memory."""

    def __init__(self, block_of_row: np.ndarray, shared_stride: int) -> None:
        self._block_of_row, self._stride = block_of_row, shared_stride  # bytes of shared memory of a thread block
        self._known: dict[int | tuple[int, int], Known] = {}
        self._numbers: dict[int, int] = {}  # barriers of each thread block
        self._noted: dict[int, list[int]] = {}  # by warp, of the instruction that runs

    def begin(self, word: int) -> None:
        """A barrier is initialised: what has been of it counts no more."""
        if word in self._known:
            known = self._known[word]
            known.phase, known.arrived, known.arrived_before = known.phase + 1, 0, 0

    def change(self, word: int, before: int, after: int, row: int | None) -> None:
        """The object was `before` and is `after`: its phase may be over. A thread of warp `row`, or its copy, arrives;
        None: nobody does."""
        if row is not None:
            known = self._of(word)
            if self._own(row, word):
                known.arrived += self._note(row, phase_record(known.number, known.phase, 0), known.number)
        if (before ^ after) >> PHASE_BIT & 1:
            known = self._of(word)
            known.phase, known.arrived_before, known.arrived = known.phase + 1, known.arrived, 0

    def wait(self, row: int, word: int) -> None:
        """A thread of warp `row` has seen that the last phase is over."""
        known = self._of(word)
        if self._own(row, word) and 0 < known.arrived_before <= MOST_COUNT:
            self._note(row, phase_record(known.number, known.phase - 1, known.arrived_before), known.number)

    def take(self) -> dict[int, list[int]]:
        """Records of the instruction that runs, by warp."""
        noted, self._noted = self._noted, {}
        return noted

    def _note(self, row: int, record: int, number: int) -> bool:
        """Threads of a warp that do the same in one instruction are one; is it the first of them?"""
        noted = self._noted.setdefault(row, [])
        new = number < BARRIERS and record not in noted
        noted += [record] if new else []
        return new

    def _own(self, row: int, word: int) -> bool:
        return 8 * word // self._stride == int(self._block_of_row[row])

    def meet(self, row: int, name: int, phase: int, count: int) -> None:
        """Warp `row` arrives at a barrier of its thread block that has a name, and waits for so many; 0: for none."""
        number = self._of((int(self._block_of_row[row]), name)).number
        for record in (phase_record(number, phase, 0), phase_record(number, phase, count)):
            self._note(row, record, number)

    def _of(self, which: int | tuple[int, int]) -> Known:
        """Of the word of an object, or of (thread block, name)."""
        if which not in self._known:
            block = which[0] if isinstance(which, tuple) else 8 * which // self._stride
            number = self._numbers.get(block, 0)
            self._numbers[block] = number + 1
            self._known[which] = Known(number)
        return self._known[which]
