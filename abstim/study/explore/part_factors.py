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
        self.selection, self.gpus = selection, gpus
        self.projected = any(gpu.spec.timed_code != "ptx" for gpu in gpus)
        session, launches = self.selection.program.session, self.selection.launches
        self.traces = [
            self._part(number, trace, share) for number, trace in zip(launches, self.selection.traces(), strict=True)
        ]
        targets = zip(launches, self.traces, strict=True)
        self.timer = timer_of([reduced(session, [number], [trace]) for number, trace in targets])
        self.known: dict[tuple[int, int], float] = {}
        self.simulated: list[int] = []  # which part, each time that one was
        self.first = self._first() if share == 1.0 else {}

    def _part(self, number: int, trace: Trace, share: float) -> Trace:
        session = self.selection.program.session
        wave = max(session.blocks_per_sm(number, gpu) * gpu.spec.sm_count for gpu in self.gpus)
        return trace if self.projected else part_of(session.launch(number).program, trace, wave, share)

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
        self.known |= {
            pair: of_pair / self.first[pair[1]] for pair, of_pair in zip(new, cycles[len(on_first) :], strict=True)
        }
        return np.array([self.known[pair] for pair in pairs])

    def _cycles(self, wanted: Sequence[tuple[int, Gpu]]) -> list[float]:
        found, reasons = self.timer.target_cycles(wanted)
        if wrong := next((reason for reason in reasons if reason), ""):
            raise InputError(f"a sampled sweep needs points on which everything runs: {wrong}")
        return [float(cycles[0]) for cycles in found]

    @property
    def work(self) -> float:
        """Of what was timed so far, in instructions over the target's own."""
        instructions = [float(trace.warp_instructions.sum()) for trace in self.traces]
        return sum(instructions[place] for place in self.simulated) / float(self.selection.work.instructions.sum())

    def described(self, weights: Float64[np.ndarray, " launch"]) -> Parts:
        """By the work of the launches that they are parts of."""
        launches, work = self.selection.launches, self.selection.work
        return Parts(work.kernels[launches], work.columns[launches], weights)

    def roughly(self) -> Float64[np.ndarray, "point launch"]:
        """The same of all points by the analytic model. Of keys that it does not know it says that they change
        nothing; of machine code it is not asked."""
        if self.projected:
            return np.ones((len(self.gpus) - 1, len(self.traces)))
        return self.by_formula()

    def by_formula(self) -> Float64[np.ndarray, "point launch"]:
        """By the analytic model."""
        from abstim.analytic import points_of, predict_points, summaries

        points = points_of(self.gpus)
        session = reduced(self.selection.program.session, self.selection.launches, self.traces)
        found = [predict_points(each, points).cycles for each in summaries(session, self.gpus[0])]
        cycles = np.array(found, float)
        return (cycles[:, 1:] / cycles[:, :1]).T
