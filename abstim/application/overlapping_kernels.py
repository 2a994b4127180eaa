"""Kernels of a program's streams that may run side by side, timed together with the copies between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from abstim.application.stream_clock import KERNELS, PICOSECONDS, Operation, latest
from abstim.engine.kept_caches import Caches
from abstim.engine.side_by_side import Kernel, simulate_side_by_side
from abstim.gpu.config import Gpu
from functional.execution.computer import default_threads


def overlapping(operations: Sequence[Operation]) -> bool:
    """May any two kernels of these run side by side, or one be launched while another runs?"""
    if {one.programmatic for one in operations} & set(operations):
        return True
    before: dict[Operation, set[Operation]] = {}  # kernels
    kernels = 0
    for one in operations:
        known = [before[other] | ({other} if other.launch else set()) for other in one.after if other in before]
        before[one] = set().union(*known)
        if one.launch is not None:
            if len(before[one]) < kernels:
                return True
            kernels += 1
    return False


def time_together(
    operations: Sequence[Operation],
    kernel_of: Callable[[Operation, Sequence[int], int], Kernel],
    gpu: Gpu,
    caches: Caches | None,
) -> None:
    """Give operations their start and end; the end of what others wait for from before is known. `kernel_of` makes a
    kernel of one that has a launch, of the places of what it waits for, and of the one that lets it be launched while
    it runs (-1: none does). Caches are left as they are after all."""
    places: dict[Operation, int] = {}
    kernels: list[Kernel] = []
    cycle = PICOSECONDS / gpu.spec.core_clock_hz
    befores = [  # one engine does all copies in one direction
        (*one.after, *([one.before_on_engine] if one.before_on_engine and one.engine != KERNELS else ()))
        for one in operations
    ]
    ready = [latest(other for other in before if other.end >= 0) for before in befores]
    for one, before, from_outside in zip(operations, befores, ready, strict=True):
        awaits = [places[other] for other in before if other in places]
        if from_outside > min(ready):
            awaits.append(len(kernels))
            kernels.append(Kernel(None, delay_cycles=ceil((from_outside - min(ready)) / cycle)))
        places[one] = len(kernels)
        if one.launch is None:
            kernels.append(Kernel(None, awaits=tuple(awaits), delay_cycles=ceil(one.picoseconds / cycle)))
        else:
            kernels.append(kernel_of(one, awaits, places.get(one.programmatic, -1) if one.programmatic else -1))
    timed = simulate_side_by_side(kernels, gpu, caches, default_threads())
    for one, place in places.items():
        one.end = min(ready) + round(timed.ends[place] * cycle)
        one.start = min(ready) + round(timed.starts[place] * cycle) if one.launch else one.end - one.picoseconds
