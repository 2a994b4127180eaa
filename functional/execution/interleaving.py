"""How thread blocks that are resident at the same time take turns, where the outcome depends on their order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int64


def _none() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Interleaving:
    """Of one launch on a GPU that holds `resident_blocks` at the same time.

    Every warp has a time, that of its thread block's entry plus `block_cycles` of the basic blocks that it has run; the
    warp whose time comes first goes first. Where somebody has timed the launch before, `event_times` are the cycles in
    which warp w enters the basic blocks of its stream: elements `event_starts[w]` to `event_starts[w + 1] - 1`, warps
    in the order of the thread blocks that are executed. They count as long as they last.
    """

    resident_blocks: int
    block_cycles: Int64[np.ndarray, " basic_block"]
    event_times: Int64[np.ndarray, " event"] = field(default_factory=_none)
    event_starts: Int64[np.ndarray, " warp_plus_1"] = field(default_factory=_none)

    def parts(self) -> tuple[int | np.ndarray, ...]:
        """What the key of a kept execution holds of it."""
        return self.resident_blocks, self.block_cycles, self.event_times, self.event_starts
