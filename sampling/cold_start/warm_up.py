"""What to do to the caches before a selected launch. Thesis, section 2.4.1 and chapter 6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from sampling.selection import Selection

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

Mode = Literal["none", "memory", "perfect"]


@dataclass(frozen=True)
class WarmUp:
    """None, memory instructions only, or everything (perfect), of the last `launches` before a sample; None: of all.

    The thesis' finding (Figure 6.8): memory-only of one launch restores nearly everything. Launches that are themselves
    selected leave the caches as they are, so only what lies between two samples is warmed, once.
    """

    mode: Mode = "memory"
    launches: int | None = 1

    @property
    def name(self) -> str:
        """For tables."""
        if self.mode == "none":
            return "no warm-up"
        if self.mode == "perfect":
            return "perfect warm-up"
        return "memory of all" if self.launches is None else f"memory of {self.launches}"

    def before(self, unit: int, previous_sample: int) -> Int64[np.ndarray, " launch"]:
        """Launches to warm up with before `unit`, oldest first; `previous_sample` (-1: none) and earlier are done."""
        if self.mode == "none":
            return np.empty(0, np.int64)
        reach = unit if self.mode == "perfect" or self.launches is None else self.launches
        return np.arange(max(previous_sample + 1, unit - reach), unit)

    def plan(self, selection: Selection) -> list[Int64[np.ndarray, " launch"]]:
        """For every selected launch what to warm up with."""
        units = selection.units.tolist()
        return [self.before(unit, previous) for unit, previous in zip(units, [-1, *units[:-1]], strict=True)]

    def cost(self, selection: Selection, memory_instructions: Float64[np.ndarray, " unit"]) -> float:
        """Share of all instructions simulated for warm-up, `memory_instructions` being those of every launch."""
        warmed = np.concatenate([np.empty(0, np.int64), *self.plan(selection)])
        each = selection.instructions if self.mode == "perfect" else memory_instructions
        return float(each[warmed].sum() / selection.instructions.sum())
