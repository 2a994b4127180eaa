"""Parts of an estimate, put together by how their cycles were found: what `abstim sample` prints and a report draws."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from abstim.brief import grouped

MOST_WAYS = 12  # that are told apart
OTHER_WAYS = "other ways"  # how many, before it: what the rest is called


@dataclass(frozen=True, slots=True)
class Way:
    """All parts found one way: how many, their warp instructions, their cycles."""

    how: str
    parts: int
    instructions: float
    cycles: float


def by_way(parts: Iterable[tuple[str, int, float, float]], most: int = MOST_WAYS) -> list[Way]:
    """Ways of parts, each (how, units, instructions, cycles), most cycles first: `most`, then all others as one."""
    groups = grouped(parts, lambda part: part[0])
    ways = [Way(how, *(sum(p[k] for p in own) for k in (1, 2, 3))) for how, own in groups.items()]  # type: ignore[misc]
    found = sorted(ways, key=lambda way: -way.cycles)
    left = found[most:]
    if len(left) < 2:  # a row for the rest would save none
        return found
    together = (sum(getattr(way, name) for way in left) for name in ("parts", "instructions", "cycles"))
    return [*found[:most], Way(f"{len(left)} {OTHER_WAYS}", *together)]
