"""Which launches wait for which, and may run side by side: by streams, and by what each names besides."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functional.launches.launch import Launch

Awaits = Sequence[Sequence[int]]  # of each launch those before it, by number, that must have ended


def awaits_of(launches: Sequence[Launch]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Of each launch the one before it on its stream, and those that it names; and the former again where it is
    launched while that runs, -1 elsewhere."""
    latest: dict[str, int] = {}
    awaits, programmatic = [], []
    for number, order in enumerate(launch.order for launch in launches):
        before = latest.get(order.stream, -1)
        awaits.append(tuple(sorted({before, *order.after} - {-1})))
        programmatic.append(before if order.programmatic else -1)
        latest[order.stream] = number
    return awaits, programmatic


def stretches(awaits: Awaits, programmatic: Sequence[int]) -> list[range]:
    """Launches cut where all that follow wait, directly or not, for all before: those of a stretch may run side by
    side, at least some of them, or are launched while others of it run (`programmatic`)."""
    before: list[int] = []  # sets of launches
    for waits in awaits:
        before.append(0)
        for other in waits:
            before[-1] |= before[other] | 1 << other
    cuts, needed = [len(awaits)], (1 << len(awaits)) - 1
    for number in reversed(range(len(awaits))):
        needed &= before[number]
        if needed & (1 << number) - 1 == (1 << number) - 1 and programmatic[number] < 0:
            cuts.append(number)
    cuts.reverse()
    return [range(*pair) for pair in pairwise(cuts)]


def may_overlap(launches: Sequence[Launch]) -> bool:
    """May any two run side by side?"""
    if len({launch.order.stream for launch in launches}) < 2 and not any(x.order.programmatic for x in launches):
        return False
    return any(len(stretch) > 1 for stretch in stretches(*awaits_of(launches)))
