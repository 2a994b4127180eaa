"""By what parts of launches are slower or faster on design points than on the first GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu
from abstim.session.session import Session
from abstim.study.explore.launch_parts import part_of, reduced
from abstim.study.explore.sampled_selection import Selection
from abstim.study.explore.timing import Timer
from functional.errors import InputError
from functional.trace import Trace
from sampling.auto import Parts

if TYPE_CHECKING:
    from jaxtyping import Float64

MakeTimer = Callable[[Sequence[Session]], Timer]


class PartFactors:
    """The same `share` of every chosen launch; all of it where machine code is timed, on which a trace is projected
    whole. `known`: cycles on points over those on the first GPU, of the pairs timed so far."""

    def __init__(
        self, selection: Selection, gpus: Sequence[Gpu], timer_of: MakeTimer, share: float
    ) -> None:  # fmt: skip
        self.selection, self.gpus, self.timer_of, self.share = selection, gpus, timer_of, share
        self.known: dict[tuple[int, int], float] = {}
        self.simulated: list[int] = []  # which part, each time that one was
        self.first = self._first() if share == 1.0 else {}
        self._traces: dict[int, Trace] = {}

    def trace(self, place: int) -> Trace:
        """Of the part, or of the launch if no part would do."""
        if place not in self._traces:
            self._traces[place] = self._part(self.selection.launches[place])
        return self._traces[place]

    def _part(self, number: int) -> Trace:
        program = self.selection.program
        trace = program.launches.trace(number)
        if projected(self.gpus):
            return trace
        wave = max(program.session.blocks_per_sm(number, gpu) * gpu.spec.sm_count for gpu in self.gpus)
        return part_of(program.session.launch(number).program, trace, wave, self.share)

    def in_part(self, place: int) -> bool:
        """Whether it is less than the launch."""
        return self.trace(place) is not self.selection.program.launches.trace(self.selection.launches[place])

    def _first(self) -> dict[int, float]:
        """Cycles of whole launches on the first GPU that were found when they were chosen."""
        chosen = [self.selection.chosen[number] for number in self.selection.launches]
        return {k: estimate.total for k, estimate in enumerate(chosen) if estimate.basis == "exact"}

    def timed(self, pairs: Sequence[tuple[int, int]]) -> Float64[np.ndarray, " pair"]:
        """Factors of pairs of a point and a launch, each simulated once."""
        new = [pair for pair in pairs if pair not in self.known]
        on_first = sorted({place for _, place in new if place not in self.first})
        wanted = [(place, self.gpus[0]) for place in on_first]
        wanted += [(place, self.gpus[1 + point]) for point, place in new]
        cycles = self._cycles(wanted)
        self.simulated += [place for place, _ in wanted]
        self.first |= dict(zip(on_first, cycles[: len(on_first)], strict=True))
        on_points = zip(new, cycles[len(on_first) :], strict=True)
        self.known |= {pair: of_pair / self.first[pair[1]] for pair, of_pair in on_points}
        return np.array([self.known[pair] for pair in pairs])

    def _cycles(self, wanted: Sequence[tuple[int, Gpu]]) -> list[float]:
        """Of parts on GPUs."""
        if not wanted:
            return []
        places = sorted({place for place, _ in wanted})
        session, launches = self.selection.program.session, self.selection.launches
        timer = self.timer_of([reduced(session, [launches[k]], [self.trace(k)]) for k in places])
        found, reasons = timer.target_cycles([(places.index(place), gpu) for place, gpu in wanted])
        if wrong := next((reason for reason in reasons if reason), ""):
            raise InputError(f"a sampled sweep needs points on which everything runs: {wrong}")
        return [float(cycles[0]) for cycles in found]

    @property
    def work(self) -> float:
        """Of what was timed so far, in instructions over the target's own."""
        done = sum(float(self.trace(place).warp_instructions.sum()) for place in self.simulated)
        return done / float(self.selection.work.instructions.sum())

    def described(self, weights: Float64[np.ndarray, " launch"]) -> Parts:
        """By the work of the launches that they are parts of."""
        launches, work = self.selection.launches, self.selection.work
        return Parts(work.kernels[launches], work.columns[launches], weights)


def projected(gpus: Sequence[Gpu]) -> bool:
    """Whether machine code is timed on one of them."""
    return any(gpu.spec.timed_code != "ptx" for gpu in gpus)


def roughly(selection: Selection, gpus: Sequence[Gpu]) -> Float64[np.ndarray, "point launch"]:
    """What each chosen launch takes on GPUs over what it takes on the first, by the analytic model. Of keys that it
    does not know it says that they change nothing; of machine code it is not asked."""
    if projected(gpus):
        return np.ones((len(gpus) - 1, len(selection.launches)))
    return by_formula(selection, gpus)


def by_formula(selection: Selection, gpus: Sequence[Gpu]) -> Float64[np.ndarray, "point launch"]:
    """By the analytic model."""
    from abstim.analytic import points_of, predict_points, summaries

    points = points_of(gpus)
    session = reduced(selection.program.session, selection.launches, selection.traces())
    found = [predict_points(each, points).cycles for each in summaries(session, gpus[0])]
    cycles = np.array(found, float)
    return (cycles[:, 1:] / cycles[:, :1]).T
