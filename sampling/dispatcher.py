"""Thread blocks on slots without simulating them: the dispatcher alone (Photon, section 4.2: "only the scheduler")."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64


def dispatch(
    free_cycles: Float64[np.ndarray, " slot"], durations: Float64[np.ndarray, " tb"]
) -> tuple[Float64[np.ndarray, " tb"], Float64[np.ndarray, " slot"]]:
    """Each thread block in turn goes to the slot that frees first: (when each starts, when each slot is free)."""
    slots = [float(cycle) for cycle in free_cycles]
    heapq.heapify(slots)
    starts = np.empty(len(durations))
    for place, duration in enumerate(durations.tolist()):
        starts[place] = slots[0]
        heapq.heapreplace(slots, slots[0] + duration)
    return starts, np.array(slots)


def dispatch_equal(
    free_cycles: Float64[np.ndarray, " slot"], duration: float, count: int
) -> Float64[np.ndarray, " slot"]:
    """When each slot is free after `count` thread blocks of one duration; whole rounds in one step.

    Once every slot frees within one duration of the others, each takes exactly one block a round.
    """
    slots = np.sort(np.asarray(free_cycles, float))
    while count and slots[-1] - slots[0] > duration:  # a slot far behind takes several blocks first
        taken = min(count, int(np.searchsorted(slots, slots[0] + duration, side="right")))
        slots[:taken] += duration
        slots.sort()
        count -= taken
    rounds, rest = divmod(count, len(slots))
    slots += rounds * duration
    slots[:rest] += duration
    return slots


def finish(
    free_cycles: Float64[np.ndarray, " slot"],
    observed: Float64[np.ndarray, " n"],
    count: int,
    rng: np.random.Generator,
    replicates: int = 16,
    tail_rounds: int = 4,
) -> Float64[np.ndarray, " replicate"]:
    """When the last of `count` thread blocks retires, if their durations are drawn from those observed.

    Only the last rounds are drawn: the rounds before them take the mean, because there spread averages out, while the
    last block to finish depends on it.
    """
    drawn = min(count, tail_rounds * len(free_cycles))
    slots = dispatch_equal(free_cycles, float(observed.mean()), count - drawn)
    if drawn == 0:
        return np.full(replicates, float(slots.max()))
    return np.array([dispatch(slots, rng.choice(observed, drawn))[1].max() for _ in range(replicates)])
