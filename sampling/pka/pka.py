"""Principal Kernel Analysis: selection over launches, projection inside them (Baddouh et al., MICRO 2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sampling.estimate import Estimate, renamed
from sampling.pka.pkp import Pkp
from sampling.pka.pks import Pks
from sampling.profile import Profile
from sampling.protocol import Simulator
from sampling.selection import Selection


@dataclass(frozen=True)
class Pka:
    """PKS, then PKP on every selected launch; each class is usable alone."""

    pks: Pks = field(default_factory=Pks)
    pkp: Pkp = field(default_factory=Pkp)
    name = "PKA"

    def select(self, profile: Profile) -> Selection:
        """Which launches to simulate."""
        return self.pks.select(profile)

    def program(self, profile: Profile, open_launch: Callable[[int], Simulator]) -> Estimate:
        """The whole program, each selected launch projected."""
        selection = self.select(profile)
        instructions = selection.instructions
        measured = [self.pkp.launch(open_launch(unit), float(instructions[unit])) for unit in selection.units.tolist()]
        return renamed(selection.estimate(measured), self.name)
