"""What the warps of a trace went through, kept as runs of instructions until the basic blocks are known."""

from __future__ import annotations

from array import array

import numpy as np

from functional.accelsim.static_code import Code


class Runs:
    """Runs: instructions that follow each other in the code, executed by one warp with one mask."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.starts, self.lengths, self.masks = array("I"), array("I"), array("I")
        self.counts = array("q")  # of each warp
        self._before, self._mask, self._length, self._start = -1, 0, 0, 0

    def begin_warp(self) -> None:
        """Instructions are from now on those of the next warp."""
        self._close()
        if self._before >= 0:
            self.code.left.add(self._before)
        self.counts.append(0)
        self._before = -1

    def add(self, i: int, mask: int) -> None:
        """The warp executes instruction `i` with these lanes.

        Lanes that join begin a block; a mask that only shrinks may come from a predicate, hence begins a run, no block.
        """
        before = self._before
        code = self.code
        straight = before >= 0 and (code.next[before] == i or code.link(before, i))
        if not straight or mask & ~self._mask or code.instructions[before].ends_block:
            code.leaders.add(i)
            if not straight and before >= 0:
                code.left.add(before)
            self._open(i, mask)
        elif mask != self._mask:
            self._open(i, mask)
        else:
            self._length += 1
        self._before = i

    def _open(self, i: int, mask: int) -> None:
        self._close()
        self._start, self._mask, self._length = i, mask, 1

    def _close(self) -> None:
        if self._length:
            self.starts.append(self._start)
            self.lengths.append(self._length)
            self.masks.append(self._mask)
            self.counts[-1] += 1
        self._length = 0

    def streams(self, places: np.ndarray, leading: np.ndarray) -> dict[str, np.ndarray]:
        """Block ids and masks, events a warp, and instructions a warp.

        A run has an event for every block that begins inside it; one in whose middle no block begins goes on with the
        block of the run before.
        """
        self.begin_warp()
        self.counts.pop()
        start = places[np.frombuffer(self.starts, np.uint32)]
        length = np.frombuffer(self.lengths, np.uint32).astype(np.int64)
        mask = np.frombuffer(self.masks, np.uint32)
        begun = np.concatenate([np.zeros(1, np.int64), np.cumsum(leading)])
        first, events = begun[start], begun[start + length] - begun[start]
        within = np.arange(int(events.sum())) - np.repeat(np.cumsum(events) - events, events)
        warp = np.repeat(np.arange(len(self.counts)), np.array(self.counts))
        threads = length * np.bitwise_count(mask)
        warps = len(self.counts)
        return {
            "blocks": (np.repeat(first, events) + within).astype(np.uint16),
            "masks": np.repeat(mask, events),
            "events": np.bincount(warp, events, warps).astype(np.int64),
            "warp_instructions": np.bincount(warp, length, warps).astype(np.int64),
            "thread_instructions": np.bincount(warp, threads, warps).astype(np.int64),
        }
