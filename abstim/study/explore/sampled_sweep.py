"""A sweep from a sample: launches chosen once, pairs of a launch and a design point timed.

Launches are chosen, and all pairs of one of them and a point known roughly, by a formula, before anything is timed. Of
all pairs, those on the GPU that is varied included, as many are timed as the error takes, and the others are read off
between them (`sampling.auto.interpolation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from abstim.gpu.config import Gpu
from abstim.study.explore.launch_formula import formula_of
from abstim.study.explore.sampled_points import SampledPoints
from abstim.study.explore.sampled_selection import ROUNDS, Selection, select
from abstim.study.explore.timed_pairs import MakeTimer, TimedPairs
from abstim.study.sample.automatic import Aim
from abstim.study.sample.profiling import kinds_of_launches
from abstim.study.sample.sampled_program import SampledProgram
from sampling.auto.interpolation import Pair, read_off

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float64

# Of the half-width, squares adding up to one: what launches left out may take of it, and what is read off
OF_LAUNCHES, OF_PAIRS = 0.4, 0.9


class SampledSweep:
    """A target on `gpus`, of which the first is the one that is varied. `features` of them: see `Pairs`; `timer_of`
    makes a timer of sessions."""

    def __init__(
        self, program: SampledProgram, gpus: Sequence[Gpu], features: Float64[np.ndarray, "gpu feature"],
        timer_of: MakeTimer, aim: Aim,
    ) -> None:  # fmt: skip
        self.program, self.gpus, self.features, self.aim = program, gpus, features, aim
        self.launches = TimedPairs(program.session, gpus, timer_of)

    def run(self) -> SampledPoints:
        """With more launches while the interval of a point is wider than was aimed at."""
        formula = formula_of(self.launches, kinds_of_launches(self.program))
        selection = select(self.program, self.gpus, formula, OF_LAUNCHES * self.aim.error, self.aim.confidence)
        for _ in range(ROUNDS):
            found = self._points(selection)
            if selection.complete or found.half_widths.max(initial=0.0) <= self.aim.error:
                break
            selection = selection.more()
        return found

    def _points(self, selection: Selection) -> SampledPoints:
        numbers, place = selection.launches, {number: k for k, number in enumerate(selection.launches)}

        def time(pairs: Sequence[Pair]) -> Float64[np.ndarray, " pair"]:
            return self.launches.timed([(gpu, numbers[k]) for gpu, k in pairs])

        known = {(gpu, place[n]): cycles for (gpu, n), cycles in self.launches.known.items() if n in place}
        pairs, error = selection.pairs(self.features), OF_PAIRS * self.aim.error
        read = read_off(time, pairs, error, self.aim.confidence, known)
        work = self.launches.instructions / float(selection.works[0].instructions.sum())
        return SampledPoints(selection.estimates(read.cycles, read.of_sums, read.degrees), read, work)
