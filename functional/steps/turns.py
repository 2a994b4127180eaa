"""Which warps of a chunk run next, and, where the order of thread blocks decides, when each warp is where it is."""

import numpy as np

from functional.arrays import Int64
from functional.execution.executor import PACE, Interleaving
from functional.programs.program import Program, told_to_others
from functional.steps.stack import WAITING

FAIR_TURN = 256  # every so many basic blocks, the warps that waited longest run: a spinning warp must not starve others


class Turns:
    """All warps at that basic block which comes first in the program run together; nobody looks at the time."""

    def __init__(self, program: Program) -> None:
        self._last_turn = np.zeros(len(program.blocks), np.int64)

    def is_order_point(self, blocks: Int64[np.ndarray, " row"]) -> bool:
        """Is every warp that can run, of those at some basic blocks, at a place where the order of warps decides?"""
        return False

    def choose(self, blocks: Int64[np.ndarray, " row"], turn: int) -> tuple[int, np.ndarray]:
        """Of warps at some basic blocks: the block that runs in a turn, WAITING or more if none can, and its warps."""
        current = int(blocks.min())
        if not turn % FAIR_TURN and current < WAITING:
            runnable = np.unique(blocks[blocks < WAITING])
            current = int(runnable[self._last_turn[runnable].argmin()])
        if current < WAITING:
            self._last_turn[current] = turn
        return current, np.flatnonzero(blocks == current)

    def run(self, rows: np.ndarray, block: int) -> None:
        """Warps begin to run a basic block."""

    def time(self, row: int) -> int:
        """Of a warp, in cycles."""
        return 0

    def wait(self, row: int, until: int) -> None:
        """A warp has waited for what another did."""

    def meet(self, rows: np.ndarray, owners: np.ndarray, barrier: np.ndarray) -> None:
        """Warps arrive at barriers of their thread blocks, or of their clusters, by number."""

    def go_on(self, rows: np.ndarray, owners: np.ndarray, barrier: np.ndarray) -> None:
        """Warps have waited at barriers that are complete now."""


class TimedTurns(Turns):
    """Where what other thread blocks do can be seen, the warp goes first whose time comes first: that of its entry,
    what the basic blocks take that it has run, and what it waited for others. Elsewhere they run as in any launch."""

    def __init__(self, program: Program, given: Interleaving, warps_per_block: int, warps: int) -> None:
        super().__init__(program)
        self._costs = np.maximum(given.block_cycles, 1)
        self._is_ordered = np.zeros(len(program.blocks), bool)
        points = {*program.order_points, *told_to_others(program.instructions)}
        self._is_ordered[[program.block_of(point.index) for point in points]] = True
        places = np.arange(warps) // warps_per_block
        self._paces = np.append(given.paces, np.full(len(places), PACE))[places]
        self.times = (places * given.dispatch_cycles).astype(np.int64)
        self._latest: dict[tuple[int, ...], int] = {}  # arrival at a barrier, by its thread block or cluster and number

    def _free(self, blocks: np.ndarray) -> np.ndarray:
        can_run = blocks < WAITING
        return can_run & ~self._is_ordered[np.where(can_run, blocks, 0)]

    def is_order_point(self, blocks: Int64[np.ndarray, " row"]) -> bool:
        return not self._free(blocks).any()

    def choose(self, blocks: Int64[np.ndarray, " row"], turn: int) -> tuple[int, np.ndarray]:
        free = self._free(blocks)
        if free.any() or not (blocks < WAITING).any():
            return super().choose(np.where(free | (blocks >= WAITING), blocks, WAITING), turn)
        first = int(np.where(blocks < WAITING, self.times, np.iinfo(np.int64).max).argmin())
        # one that runs this block now is not back before those which come to it in the meantime
        near = np.flatnonzero((blocks == blocks[first]) & (self.times < self.times[first] + self._costs[blocks[first]]))
        return int(blocks[first]), near[self.times[near].argsort(kind="stable")]

    def run(self, rows: np.ndarray, block: int) -> None:
        self.times[rows] += self._costs[block] * self._paces[rows] // PACE

    def time(self, row: int) -> int:
        return int(self.times[row])

    def wait(self, row: int, until: int) -> None:
        self.times[row] = max(self.times[row], until)

    def meet(self, rows: np.ndarray, owners: np.ndarray, barrier: np.ndarray) -> None:
        for row, *which in zip(rows.tolist(), owners.tolist(), barrier.tolist(), strict=True):
            self._latest[*which] = max(self._latest.get((*which,), 0), int(self.times[row]))

    def go_on(self, rows: np.ndarray, owners: np.ndarray, barrier: np.ndarray) -> None:
        for row, *which in zip(rows.tolist(), owners.tolist(), barrier.tolist(), strict=True):
            self.wait(row, self._latest.get((*which,), 0))
