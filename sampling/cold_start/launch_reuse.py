"""How much a cold cache matters: data reuse between launches, and IPC with and without a flush. Thesis, chapter 4."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

THRESHOLDS = (0.05, 0.10, 0.15, 0.20)  # of the relative difference of IPC, section 4.2


def footprint(lines: Int64[np.ndarray, " reference"]) -> Int64[np.ndarray, " line"]:
    """The set of addresses (here: cache lines) a launch touches, sorted."""
    return np.unique(lines)


def forward_reuse(footprints: Sequence[np.ndarray]) -> Float64[np.ndarray, " launch"]:
    """Equation 4.1: share of launch i's footprint that launch i + 1 touches too; NaN for the last launch."""
    pairs = pairwise(footprints)
    return np.array([_overlap(mine, later, mine) for mine, later in pairs] + [np.nan])[: len(footprints)]


def backward_reuse(footprints: Sequence[np.ndarray]) -> Float64[np.ndarray, " launch"]:
    """Equation 4.2: share of launch i's footprint that launch i - 1 touched too; NaN for the first launch."""
    pairs = pairwise(footprints)
    return np.array([np.nan] + [_overlap(earlier, mine, mine) for earlier, mine in pairs])[: len(footprints)]


def _overlap(a: np.ndarray, b: np.ndarray, of: np.ndarray) -> float:
    return len(np.intersect1d(a, b, assume_unique=True)) / len(of) if len(of) else 0.0


def ipc_difference(
    flushed_cycles: Float64[np.ndarray, " launch"], kept_cycles: Float64[np.ndarray, " launch"]
) -> Float64[np.ndarray, " launch"]:
    """|IPC flushed - IPC kept| / IPC kept; the instructions are the same, so cycles say it all."""
    return np.abs(kept_cycles / np.asarray(flushed_cycles, float) - 1.0)


def affected_share(
    difference: Float64[np.ndarray, " launch"],
    instructions: Float64[np.ndarray, " launch"],
    thresholds: Sequence[float] = THRESHOLDS,
) -> dict[float, float]:
    """Share of the instructions in launches whose IPC differs by at least each threshold (Figures 4.2 and 5.2)."""
    weight = instructions / instructions.sum()
    return {threshold: float(weight[difference >= threshold].sum()) for threshold in thresholds}
