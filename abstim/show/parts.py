"""Parts of an estimate, put together by how their cycles were found: what `abstim sample` prints and a report draws."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_WAYS = 12  # that are told apart
OTHER_WAYS = "other ways"  # how many, before it: what the rest is called


@dataclass(slots=True)
class Way:
    """All parts found one way: how many, their warp instructions, their cycles."""

    how: str
    parts: int = 0
    instructions: float = 0.0
    cycles: float = 0.0

    def add(self, parts: int, instructions: float, cycles: float) -> None:
        """Take in more of them."""
        self.parts += parts
        self.instructions += instructions
        self.cycles += cycles


def by_way(parts: Iterable[tuple[str, int, float, float]], most: int = MOST_WAYS) -> list[Way]:
    """Ways of parts, each (how, units, instructions, cycles), most cycles first: `most`, then all others as one."""
    ways: dict[str, Way] = {}
    for how, units, instructions, cycles in parts:
        ways.setdefault(how, Way(how)).add(units, instructions, cycles)
    found = sorted(ways.values(), key=lambda way: -way.cycles)
    left = found[most:]
    if len(left) < 2:  # a row for the rest would save none
        return found
    rest = Way(f"{len(left)} {OTHER_WAYS}")
    for way in left:
        rest.add(way.parts, way.instructions, way.cycles)
    return [*found[:most], rest]
