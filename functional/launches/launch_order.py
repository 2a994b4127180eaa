"""Which launches wait for which, and may run side by side: by streams, and by what each names besides."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functional.launches.launch import Launch

Awaits = Sequence[Sequence[int]]  # of each launch those before it, by number, that must have ended


def awaits_of(launches: Sequence[Launch]) -> list[tuple[int, ...]]:
    """Of each launch the one before it on its stream, and those that it names."""
    latest: dict[str, int] = {}
    found = []
    for number, launch in enumerate(launches):
        before = {latest[launch.stream]} if launch.stream in latest else set()
        found.append(tuple(sorted(before | set(launch.after))))
        latest[launch.stream] = number
    return found


def programmatic_of(launches: Sequence[Launch]) -> list[int]:
    """Of each launch the one before it on its stream, if it is launched while that runs; -1: it is not."""
    latest: dict[str, int] = {}
    found = []
    for number, launch in enumerate(launches):
        found.append(latest.get(launch.stream, -1) if launch.programmatic else -1)
        latest[launch.stream] = number
    return found


def stretches(awaits: Awaits, programmatic: Sequence[int] = ()) -> list[range]:
    """Launches cut where all that follow wait, directly or not, for all before: those of a stretch may run side by
    side, at least some of them, or are launched while others of it run (`programmatic_of`)."""
    before: list[int] = []  # sets of launches
    for waits in awaits:
        before.append(0)
        for other in waits:
            before[-1] |= before[other] | 1 << other
    cuts, needed = [len(awaits)], (1 << len(awaits)) - 1
    for number in reversed(range(len(awaits))):
        needed &= before[number]
        if needed & (1 << number) - 1 == (1 << number) - 1 and (not programmatic or programmatic[number] < 0):
            cuts.append(number)
    cuts.reverse()
    return [range(*pair) for pair in pairwise(cuts)]


def may_overlap(launches: Sequence[Launch]) -> bool:
    """May any two run side by side?"""
    if len({launch.stream for launch in launches}) < 2 and not any(launch.programmatic for launch in launches):
        return False
    return any(len(stretch) > 1 for stretch in stretches(awaits_of(launches), programmatic_of(launches)))
