"""What the caches hold between two launches of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abstim.engine.layout import LINE_WORDS, NEVER

FLUSHES = ("all", "l1", "l1d", "none")  # before each launch: every cache, those of the SMs, L1D alone, none


@dataclass
class Caches:
    """Tags of all caches of a GPU, and the open DRAM rows; empty at first."""

    heaps: np.ndarray | None = None  # [sm, word], the part of the SMs' heaps that outlives a launch
    stamps: np.ndarray | None = None  # [sm]
    far: np.ndarray | None = None  # L2 and rows
    l1d: tuple[int, int] = (0, 0)  # where L1D lies in `heaps`

    def flush(self, what: str) -> None:
        """Invalidate what one of FLUSHES names."""
        if what in ("all", "l1"):
            self.heaps = self.stamps = None
        if what == "all":
            self.far = None
        if what == "l1d" and self.heaps is not None:
            self.heaps[:, self.l1d[0] : self.l1d[1]] = 0

    def put(self, m: np.ndarray, sms: np.ndarray, heaps: np.ndarray, far: np.ndarray) -> None:
        """Fill a new launch's state with what is kept."""
        if self.heaps is not None and self.stamps is not None:
            heaps[:, : self.heaps.shape[1]] = self.heaps
            sms["stamp"] = self.stamps
        if self.far is not None:
            far[: len(self.far)] = self.far

    def take(self, m: np.ndarray, sms: np.ndarray, heaps: np.ndarray, far: np.ndarray) -> None:
        """Keep what a finished launch leaves: whatever was on its way has arrived."""
        self.heaps, self.stamps = heaps[:, : int(m["cache_words"])].copy(), sms["stamp"].copy()
        for cache in ("l1i", "const", "l1t"):
            at, lines = m[f"{cache}_at"], m[f"{cache}_sets"] * m[f"{cache}_ways"]
            self.heaps[:, int(at + 2 * lines) : int(at + 3 * lines)] = 0
        first, l1d_lines = int(m["l1d_at"]), int(m["l1d_lines"])
        self.l1d = (first, int(m["cache_words"]))
        self.heaps[:, first + 2 * l1d_lines : first + 4 * l1d_lines] = 0
        sectors = self.heaps[:, first + 5 * l1d_lines : first + LINE_WORDS * l1d_lines]
        sectors[sectors != NEVER] = 0
        # Where lines were found last: the next launch may leave L1D fewer ways
        self.heaps[:, int(m["hints_at"]) : int(m["cache_words"])] = 0
        if not m["perfect"]:
            self.far = far[: int(m["far_words"])].copy()
            self.far[int(m["l2_at"] + 4 * m["l2_lines"]) : int(m["slices_at"])] = 0
            self.far[int(m["slices_at"]) : int(m["rows_at"])] = 0
