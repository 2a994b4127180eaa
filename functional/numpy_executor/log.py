"""The log of a chunk while it runs, in execution order; its sorting into streams of each warp."""

from __future__ import annotations

import numpy as np

from functional.numpy_executor.stack import FULL


class Log:
    """Append-only lists of (rows, values) of one chunk of `warps` warps."""

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self._blocks: list[tuple[np.ndarray, int, np.ndarray]] = []
        self._records: list[tuple[np.ndarray, np.ndarray]] = []
        self._conflicts: list[tuple[np.ndarray, np.ndarray]] = []

    def block(self, rows: np.ndarray, block: int, bits: np.ndarray) -> None:
        """Warps `rows` enter a basic block with lanes `bits`."""
        self._blocks.append((rows, block, bits))

    def records(self, rows: np.ndarray, records: np.ndarray) -> None:
        """Line records, one row number each; those of one instruction of one warp adjacent and in order."""
        self._records.append((rows, records))

    def conflicts(self, rows: np.ndarray, passes: np.ndarray) -> None:
        """Bank passes of one shared-memory instruction, one a row."""
        self._conflicts.append((rows, passes))

    def lanes(self, rows: np.ndarray, lanes: np.ndarray) -> None:
        """Lanes with a true guard of one instruction, bits [row]. Forgotten: no trace needs them."""

    def addresses(self, rows: np.ndarray, addresses: np.ndarray) -> None:
        """Lane addresses of one memory instruction, within its space. Forgotten: no trace needs them."""

    def block_streams(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(block ids, masks, events a warp), warp after warp."""
        order, counts = self._order([rows for rows, _, _ in self._blocks])
        lengths = [len(rows) for rows, _, _ in self._blocks]
        blocks = np.repeat(np.array([b for _, b, _ in self._blocks], np.uint16), lengths)
        masks = np.concatenate([bits for _, _, bits in self._blocks])
        uniform = (masks == FULL).all()
        return blocks[order], masks if uniform else masks[order], counts

    def record_stream(self) -> tuple[np.ndarray, np.ndarray]:
        """(records, records a warp)."""
        return self._stream(self._records, np.uint32)

    def conflict_stream(self) -> tuple[np.ndarray, np.ndarray]:
        """(bank passes, accesses a warp)."""
        return self._stream(self._conflicts, np.uint8)

    def _stream(self, entries: list[tuple[np.ndarray, np.ndarray]], dtype: type) -> tuple[np.ndarray, np.ndarray]:
        if not entries:
            return np.zeros(0, dtype), np.zeros(self.warps, np.int64)
        order, counts = self._order([rows for rows, _ in entries])
        return np.concatenate([values for _, values in entries])[order].astype(dtype, copy=False), counts

    def _order(self, rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        small = np.uint16 if self.warps <= 1 << 16 else np.int64  # NumPy sorts 16-bit keys by radix
        joined = np.concatenate([r.astype(small) for r in rows])
        return np.argsort(joined, kind="stable"), np.bincount(joined, minlength=self.warps)
