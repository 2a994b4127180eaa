"""What launches take on GPUs, roughly, and what decides it: what a sweep from a sample starts from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.study.explore.timed_pairs import TimedPairs, reduced

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

A_WAVE = 0.2  # an e-fold of waves of thread blocks, beside limits that are shares of the time


class Roughly(NamedTuple):
    """A launch on all GPUs: `cycles`; `limits`: numbers that are alike where the same decides them."""

    cycles: Float64[np.ndarray, " gpu"]
    limits: Float64[np.ndarray, "gpu limit"]


Formula = Callable[[int], Roughly]  # of a launch, by its number


def formula_of(launches: TimedPairs, kinds: Int64[np.ndarray, " launch"]) -> Formula:
    """The analytic model; of machine code, which it does not know, nothing but the cycles on the first GPU. Launches of
    equal `kinds` have the same."""
    machine_code = any(gpu.spec.timed_code != "ptx" for gpu in launches.gpus)
    find = as_on_first if machine_code else by_formula
    found: dict[int, Roughly] = {}

    def formula(number: int) -> Roughly:
        kind = int(kinds[number])
        return found.get(kind) or found.setdefault(kind, find(launches, number))

    return formula


def by_formula(launches: TimedPairs, number: int) -> Roughly:
    """By the analytic model. Of keys that it does not know it says that they change nothing."""
    from abstim.analytic import points_of, predict_points, summaries

    session = reduced(launches.session, number)
    (summary,) = summaries(session, launches.gpus[0])
    found = predict_points(summary, points_of(launches.gpus))
    limits = found.bounds_cycles / found.cycles[:, None]
    return Roughly(np.asarray(found.cycles, float), np.column_stack([limits, waves(launches, number)]))


def as_on_first(launches: TimedPairs, number: int) -> Roughly:
    """The same on all GPUs: what the engine says of the first."""
    cycles = launches.timed([(0, number)])[0]
    return Roughly(np.full(len(launches.gpus), cycles), waves(launches, number))


def waves(launches: TimedPairs, number: int) -> Float64[np.ndarray, "gpu 2"]:
    """Of the SM that gets most thread blocks: the logarithm of how many waves of them it runs, and by how much the
    last one, which may be small, makes them more."""
    session = launches.session
    blocks = session.launch(number).thread_blocks
    most = np.ceil(blocks / np.array([gpu.spec.sm_count for gpu in launches.gpus]))
    count = most / np.minimum(most, [session.blocks_per_sm(number, gpu) for gpu in launches.gpus])
    return np.column_stack([A_WAVE * np.log(count), np.ceil(count) / count])
