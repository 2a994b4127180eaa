"""The reconvergence stacks of the warps of a chunk, which lie in the frames of the machine code (runtime_stack.py)."""

from collections.abc import Callable, Sequence

import numpy as np

NOWHERE = -1  # reconvergence only at the exit of the function
WAITING = 1 << 20  # not a block: at a barrier
DONE = 1 << 21  # not a block: no lane left
FULL = np.uint32(0xFFFFFFFF)


def pack(lanes: np.ndarray, rows: int) -> np.ndarray:
    """bool, broadcastable to [rows, 32], as uint32 [rows]; lane 0 is bit 0."""
    if lanes.shape != (rows, 32):
        lanes = np.broadcast_to(lanes, (rows, 32))
    return np.packbits(np.ascontiguousarray(lanes), axis=1, bitorder="little").view(np.uint32)[:, 0]


def unpack(bits: np.ndarray) -> np.ndarray:
    """uint32 [row] as bool [row, 32]."""
    return np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), bitorder="little").view(bool).reshape(-1, 32)


class Stack:
    """Stacks of warps. `block` [warp]: the basic block that each runs next, WAITING or DONE; `mask`: its lanes;
    `meets`: where they wait for others; `level`: its calls in progress; `base`: entries saved before the last of these;
    `saved` [warp, entry]: basic blocks to go on with. `move` calls a routine of the run time for some warps."""

    def __init__(
        self, block: np.ndarray, mask: np.ndarray, meets: np.ndarray, level: np.ndarray, base: np.ndarray,
        saved: np.ndarray, move: Callable[..., object],
    ) -> None:  # fmt: skip
        self.block, self.mask, self.level = block, mask, level
        self._meets, self._base, self._saved, self._move = meets, base, saved, move
        # Told warps whose calls have ended, and how many of each still go on
        self.on_return: Callable[[np.ndarray, np.ndarray], None] | None = None

    def advance(self, rows: np.ndarray | None, target: int) -> None:
        """All active lanes of the warps `rows` (None: all warps) go to block `target`."""
        rows = np.arange(len(self.block)) if rows is None else rows
        self.block[rows] = target
        met = self._meets[rows] == target
        if met.any():
            self._move("settle_rows", rows[met])

    def resume(self, rows: np.ndarray, targets: np.ndarray) -> None:
        """Warps leave a barrier: each goes to its own block."""
        self.block[rows] = targets
        self._move("settle_rows", rows)

    def branch(self, rows: np.ndarray, paths: Sequence[tuple[int, np.ndarray]], reconvergence: int) -> None:
        """The active lanes of `rows` split into disjoint `paths` (block, lane mask [row]); the first runs first."""
        self._move("fork_rows", rows, _table(paths), len(paths), reconvergence)

    def call(self, rows: np.ndarray, paths: Sequence[tuple[int, np.ndarray]], after: int) -> None:
        """Lanes call the function at a block, by disjoint `paths` (block, lane mask [row]), of which the last runs
        first; all active lanes continue at block `after`."""
        self._move("call_rows", rows, _table(paths), len(paths), after)

    def leave(self, rows: np.ndarray, lanes: np.ndarray, whole_thread: bool, after: int) -> None:
        """`lanes` return from the function or exit (always so outside a function); others go to block `after`."""
        before = self.level[rows]
        self._move("leave_rows", rows, lanes.astype(np.int64), after, int(whole_thread))
        ended = rows[self.level[rows] < before]
        if self.on_return is not None and ended.size:
            self.on_return(ended, self.level[ended])

    def callers(self, rows: np.ndarray) -> np.ndarray:
        """The basic blocks that called the functions which run on top."""
        return self._saved[rows, self._base[rows] - 1] - 1


def _table(paths: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
    each = [np.stack([np.full(len(lanes), block, np.uint32), np.uint32(lanes)], axis=1) for block, lanes in paths]
    return np.stack(each, axis=1)
