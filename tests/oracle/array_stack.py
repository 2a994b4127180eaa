"""The reconvergence stack of every warp of a chunk, as arrays: GPGPU-Sim's simt_stack with immediate post-dominators.

An entry is {block to run next, block to reconverge at, lane mask, frame base}. The top entry is kept apart from the
saved ones below it, because almost every step touches only the top. A call saves the caller's entry and raises the
frame base; lanes that return leave the entries from the base up, lanes that exit leave all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from functional.steps.stack import DONE, NOWHERE

_ENTRY = ("block", "reconvergence", "mask", "base", "level")  # arrays by warp: what is saved of the top


class ArrayStack:
    """Stacks of warps whose lanes `masks` (uint32 [warp]) begin at the first block."""

    def __init__(self, masks: np.ndarray) -> None:
        warps = len(masks)
        self.mask, self.reconvergence = masks, np.full(warps, NOWHERE, np.int32)
        self.block, self.base, self.level, self.depth = np.zeros((4, warps), np.int32)
        self.saved = {name: np.zeros((warps, 4), getattr(self, name).dtype) for name in _ENTRY}
        # Told rows whose running call has ended, and the levels of their callers
        self.on_return: Callable[[np.ndarray, np.ndarray], None] | None = None

    def advance(self, rows: np.ndarray | None, target: int) -> None:
        """All active lanes of the warps `rows` (None: all warps) go to block `target`."""
        if rows is None:
            self.block.fill(target)
            met = self.reconvergence == target
        else:
            self.block[rows] = target
            met = self.reconvergence[rows] == target
        if met.any():
            self.settle(np.flatnonzero(met) if rows is None else rows[met])

    def resume(self, rows: np.ndarray, targets: np.ndarray) -> None:
        """Warps leave a barrier: each goes to its own block."""
        self.block[rows] = targets
        self.settle(rows)

    def branch(self, rows: np.ndarray, paths: Sequence[tuple[int, np.ndarray]], reconvergence: int) -> None:
        """The active lanes of `rows` split into disjoint `paths` (block, lane mask [row]); the first runs first."""
        ways = sum((lanes != 0).astype(np.int32) for _, lanes in paths)
        for block, lanes in paths:
            whole = lanes == self.mask[rows]
            self.block[rows[whole]] = block
        split = ways > 1
        if split.any():
            self._diverge(rows[split], [(block, lanes[split]) for block, lanes in paths], reconvergence)
        self.settle(rows)

    def _diverge(self, rows: np.ndarray, paths: Sequence[tuple[int, np.ndarray]], reconvergence: int) -> None:
        """Turn the top into the reconvergence entry, unless it already meets there; then push every path.

        Without that exception a loop that lanes leave one after the other would grow the stack each trip.
        """
        self.block[rows] = reconvergence
        here = self.reconvergence[rows] == reconvergence
        fresh = here.copy()  # the top entry is free to be overwritten by the next push
        for block, lanes in reversed(paths):
            if block == reconvergence:
                continue
            pushed = lanes != 0
            self._save(rows[pushed & ~fresh])
            fresh &= ~pushed
            at = rows[pushed]
            self.block[at], self.reconvergence[at], self.mask[at] = block, reconvergence, lanes[pushed]
        self._pop(rows[fresh])  # every path is already at the reconvergence point of the old top

    def call(self, rows: np.ndarray, paths: Sequence[tuple[int, np.ndarray]], after: int) -> None:
        """Lanes call the function at a block, by disjoint `paths` (block, lane mask [row]), of which the last runs
        first. Each returns to an entry that goes at once; all active lanes continue at block `after`."""
        self.block[rows] = after
        level = self.level[rows]
        for entry, lanes in paths:
            called = lanes != 0
            at = rows[called]
            self._save(at)
            self.block[at], self.reconvergence[at], self.mask[at] = after, after, lanes[called]
            self.level[at] = level[called]
            self._save(at)
            self.block[at], self.reconvergence[at] = entry, NOWHERE
            self.base[at] = self.depth[at]
            self.level[at] += 1
        self.settle(rows)

    def leave(self, rows: np.ndarray, lanes: np.ndarray, whole_thread: bool, after: int) -> None:
        """`lanes` return from the function or exit (always so outside a function); others go to block `after`."""
        self.block[rows] = after
        self.mask[rows] &= ~lanes
        base = np.zeros(len(rows), np.int32) if whole_thread else self.base[rows]
        saved = self.saved["mask"][:, : int(self.depth[rows].max(initial=0))]
        below = np.arange(saved.shape[1]) >= base[:, None]
        saved[rows] &= np.where(below, ~lanes[:, None], np.uint32(0xFFFFFFFF))
        self.settle(rows)

    def callers(self, rows: np.ndarray) -> np.ndarray:
        """The basic blocks that called the functions which run on top."""
        return self.saved["block"][rows, self.base[rows] - 1] - 1

    def settle(self, rows: np.ndarray) -> None:
        """Pop entries that reached their reconvergence block or have no lane left, until a runnable one is on top."""
        while True:
            rows = rows[(self.mask[rows] == 0) | (self.block[rows] == self.reconvergence[rows])]
            if not rows.size:
                return
            finished = self.depth[rows] == 0
            self.block[rows[finished]] = DONE
            rows = rows[~finished]
            self._pop(rows)

    def _save(self, rows: np.ndarray) -> None:
        if not rows.size:
            return
        at = self.depth[rows]
        if int(at.max()) == self.saved["mask"].shape[1]:
            self.saved = {name: np.concatenate([old, np.zeros_like(old)], axis=1) for name, old in self.saved.items()}
        for name, saved in self.saved.items():
            saved[rows, at] = getattr(self, name)[rows]
        self.depth[rows] = at + 1

    def _pop(self, rows: np.ndarray) -> None:
        if not rows.size:
            return
        at = self.depth[rows] - 1
        if self.on_return is not None and (ended := self.depth[rows] == self.base[rows]).any():
            self.on_return(rows[ended], self.level[rows[ended]] - 1)
        for name, saved in self.saved.items():
            getattr(self, name)[rows] = saved[rows, at]
        self.depth[rows] = at
