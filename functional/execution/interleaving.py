"""How thread blocks that are resident at the same time take turns, where the outcome depends on their order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int64

PACE = 1 << 10  # of a place that takes as long as others do


@dataclass(frozen=True)
class Interleaving:
    """Of one launch on a GPU that holds `resident_blocks` at the same time.

    Every warp has a time, that of its thread block's entry plus `block_cycles` of the basic blocks that it has run; the
    warp whose time comes first goes first. Blocks enter `dispatch_cycles` apart at least. `paces`: in 1024ths, what a
    place for a resident block takes, in relation to others (an SM may prefer older warps); none: all the same.
    """

    resident_blocks: int
    block_cycles: Int64[np.ndarray, " basic_block"]
    dispatch_cycles: float = 0.0
    paces: Int64[np.ndarray, " place"] = field(default_factory=lambda: np.zeros(0, np.int64))

    def parts(self) -> tuple[float | np.ndarray, ...]:
        """What the key of a kept execution holds of it."""
        return self.resident_blocks, self.block_cycles, self.dispatch_cycles, self.paces
