"""From the engine's log of issues: when basic blocks began and ended, and how long instructions took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abstim.engine.state import NEVER

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


@dataclass(frozen=True, slots=True)
class BlockEvents:
    """Executions of basic blocks, in order of retirement."""

    blocks: Int64[np.ndarray, " event"]
    issue_cycles: Int64[np.ndarray, " event"]
    retire_cycles: Int64[np.ndarray, " event"]


class Watch:
    """What a launch's log has said so far. A basic block retires when its warp issues the first instruction of the next
    one, the last one when the warp retires (Photon, section 3)."""

    def __init__(
        self, block_start: Int64[np.ndarray, " basic_block"], classes: Int64[np.ndarray, " instruction"], warps: int
    ) -> None:
        self.block_at = np.full(len(classes), -1)
        self.block_at[block_start] = np.arange(len(block_start))
        self.classes = classes
        self.open_block = np.full(warps, -1)  # of every warp
        self.open_cycle = np.zeros(warps, np.int64)
        self.latency_sum, self.seen = np.zeros(len(classes)), np.zeros(len(classes))

    def read(self, log: np.ndarray, retired: Int64[np.ndarray, "warp 2"]) -> BlockEvents:
        """Take in what was issued since; `retired`: warps that are gone now, each with its cycle."""
        instructions, results = log["instruction"].astype(np.intp), log["result_cycle"]
        known = results < NEVER  # not of what is still on its way: the mean is without those
        took = np.where(known, results - log["cycle"], 0)
        self.latency_sum += np.bincount(instructions, took, len(self.classes))
        self.seen += np.bincount(instructions, known, len(self.classes))
        first = log[np.flatnonzero(self.block_at[instructions] >= 0)]
        warps = np.concatenate([first["warp"], retired[:, 0]])
        cycles = np.concatenate([first["cycle"], retired[:, 1]])
        blocks = np.concatenate([self.block_at[first["instruction"]], np.full(len(retired), -1)])
        order = np.argsort(warps, kind="stable")
        return self._close(warps[order], cycles[order], blocks[order])

    def _close(self, warps: np.ndarray, cycles: np.ndarray, blocks: np.ndarray) -> BlockEvents:
        """Rows, warp by warp, in which a block begins (or -1: nothing more does) and the one before it ends."""
        begins = np.ones(len(warps), bool)
        begins[1:] = warps[1:] != warps[:-1]
        ended, since = np.roll(blocks, 1), np.roll(cycles, 1)
        ended[begins], since[begins] = self.open_block[warps[begins]], self.open_cycle[warps[begins]]
        last = np.roll(begins, -1)
        self.open_block[warps[last]], self.open_cycle[warps[last]] = blocks[last], cycles[last]
        real = ended >= 0
        order = np.argsort(cycles[real], kind="stable")
        return BlockEvents(ended[real][order], since[real][order], cycles[real][order])

    @property
    def class_latency_cycles(self) -> Float64[np.ndarray, " class"]:
        """Mean cycles from issue to result; NaN for a class never seen."""
        sums, seen = np.bincount(self.classes, self.latency_sum), np.bincount(self.classes, self.seen)
        return np.divide(sums, seen, out=np.full(len(seen), np.nan), where=seen > 0)
