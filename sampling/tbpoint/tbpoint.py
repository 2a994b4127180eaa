"""TBPoint: inter-launch selection, then intra-launch sampling of what was selected (Huang et al., IPDPS 2014)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sampling.estimate import Estimate, renamed
from sampling.profile import Profile
from sampling.protocol import Simulator
from sampling.selection import Selection
from sampling.tbpoint.inter import InterLaunch
from sampling.tbpoint.intra import IntraLaunch

# A launch by number: its simulator, and memory requests and warp instructions of every thread block.
Open = Callable[[int], tuple[Simulator, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class TBPoint:
    """Both levels; they are orthogonal, and each class is usable alone."""

    inter: InterLaunch = field(default_factory=InterLaunch)
    intra: IntraLaunch = field(default_factory=IntraLaunch)
    name = "TBPoint"

    def select(self, profile: Profile) -> Selection:
        """Which launches to simulate."""
        return self.inter.select(profile)

    def program(self, profile: Profile, open_launch: Open) -> Estimate:
        """The whole program, each selected launch sampled inside."""
        selection = self.select(profile)
        measured = [self.intra.launch(*open_launch(unit)) for unit in selection.units.tolist()]
        return renamed(selection.estimate(measured), self.name)
