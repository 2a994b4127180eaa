"""What every method is measured against: everything, the first N instructions, a random tenth, every k-th unit."""

import math
from dataclasses import dataclass, replace

import numpy as np

from sampling.arrays import Int64
from sampling.selection import Profile, Selection, by_instructions


@dataclass(frozen=True)
class Full:
    """No sampling: every unit is simulated."""

    name = "full"

    def select(self, profile: Profile) -> Selection:
        """Every unit."""
        return _one_stratum(self.name, profile, np.arange(len(profile)))


@dataclass(frozen=True)
class FirstInstructions:
    """Simulate the first N warp instructions and take their CPI for all (PKA, section 5.1: the first 1 billion). The
    interval assumes that what follows behaves as what came first, which is the method's known flaw."""

    instructions: float = 1e9
    name = "first instructions"

    def select(self, profile: Profile) -> Selection:
        """Units from the first until the budget is spent; at least one."""
        before = np.cumsum(profile.instructions) - profile.instructions
        return replace(_one_stratum(self.name, profile, np.flatnonzero(before < self.instructions)), in_a_row=True)


@dataclass(frozen=True)
class RandomUnits:
    """A simple random sample of the units (TBPoint, section V-A: 10 % of the sampling units)."""

    fraction: float = 0.1
    seed: int = 0
    name = "random"

    def select(self, profile: Profile) -> Selection:
        """That share of the units, at least two (one has no spread)."""
        count = min(len(profile), max(2, math.ceil(self.fraction * len(profile))))
        chosen = np.random.default_rng(self.seed).choice(len(profile), count, replace=False)
        return _one_stratum(self.name, profile, np.sort(chosen))


@dataclass(frozen=True)
class Systematic:
    """One unit of every k consecutive ones, as SMARTS does (Wunderlich et al., ISCA 2003). Which of the k is drawn anew
    each time: launches repeat with a period, and fixed steps could meet one kernel."""

    fraction: float = 0.1
    seed: int = 0
    name = "systematic"

    def select(self, profile: Profile) -> Selection:
        """That share of the units, spread evenly; at least two."""
        period = max(1, len(profile) // max(2, math.ceil(self.fraction * len(profile))))
        starts = np.arange(0, len(profile), period)
        ends = np.minimum(starts + period, len(profile))
        return _one_stratum(self.name, profile, np.random.default_rng(self.seed).integers(starts, ends))


def _one_stratum(name: str, profile: Profile, units: Int64[np.ndarray, " sample"]) -> Selection:
    return by_instructions(name, profile, np.zeros(len(profile), np.int64), units)
