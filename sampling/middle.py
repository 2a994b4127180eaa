"""The middle launch of every kernel, by instructions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sampling.profile import Profile
from sampling.selection import Selection, relabel


@dataclass(frozen=True)
class Middle:
    """One launch a kernel: the one whose instructions are the median."""

    name = "middle"

    def select(self, profile: Profile) -> Selection:
        """A launch of every kernel. Raises SamplingError if the profile has no kernels."""
        strata, size = relabel(profile.need("kernels", self.name)), np.asarray(profile.instructions, float)
        rows = (np.flatnonzero(strata == stratum) for stratum in range(int(strata.max()) + 1))
        units = np.sort([own[np.argsort(size[own], kind="stable")[len(own) // 2]] for own in rows])
        return Selection(method=self.name, units=units, strata=strata, size=size, instructions=size)
