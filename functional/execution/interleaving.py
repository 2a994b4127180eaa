"""How thread blocks that are resident at the same time take turns, where the outcome depends on their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int64


@dataclass(frozen=True)
class Interleaving:
    """Of one launch on a GPU that holds `resident_blocks` at the same time.

    Every warp has a time, that of its thread block's entry plus `block_cycles` of the basic blocks that it has run; the
    warp whose time comes first goes first. Blocks enter `dispatch_cycles` apart at least.
    """

    resident_blocks: int
    block_cycles: Int64[np.ndarray, " basic_block"]
    dispatch_cycles: float = 0.0

    def parts(self) -> tuple[float | np.ndarray, ...]:
        """What the key of a kept execution holds of it."""
        return self.resident_blocks, self.block_cycles, self.dispatch_cycles
