"""Launches of a target chosen for a sweep, before any is timed: those that stand for all others as far as a formula
tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.study.explore.launch_formula import Formula
from abstim.study.sample.automatic import check_turn, work_on
from abstim.study.sample.profiling import kinds_of_launches
from abstim.study.sample.sampled_program import SampledProgram
from abstim.study.sample.sampler import opened
from abstim.targets.resolve import open_target
from functional.errors import InputError
from sampling.auto.interpolation import Pairs
from sampling.auto.launches import LaunchSampling, ProgramWork, TimedSelection, multiples, timed_selection
from sampling.estimate import Estimate, exact

if TYPE_CHECKING:
    from jaxtyping import Float64

    from abstim.targets.resolve import Target

MORE = 0.6  # by what the aim shrinks where points miss it
ROUNDS = 3  # in which it does


@dataclass(frozen=True, eq=False)
class Selection:
    """`launches` that were chosen, in order; `works`: the target's work on each GPU, the one that is varied first.
    They were chosen with `error` for those left out."""

    launches: list[int]
    works: list[ProgramWork]
    formula: Formula
    error: float
    confidence: float

    @property
    def complete(self) -> bool:
        """Whether nothing is left to choose."""
        return len(self.launches) == len(self.works[0].kernels)

    def estimates(
        self, cycles: Float64[np.ndarray, "gpu launch"], errors: Float64[np.ndarray, " gpu"] | None = None,
        degrees: float = math.inf,
    ) -> list[TimedSelection]:  # fmt: skip
        """The target on all GPUs, from cycles of the chosen launches; `errors`: see `TimedSelection.shared_error`."""
        shared = np.zeros(len(self.works)) if errors is None else errors
        return [self._estimate(k, cycles[k], float(shared[k]), degrees) for k in range(len(self.works))]

    def _estimate(
        self, place: int, cycles: Float64[np.ndarray, " launch"], shared_error: float = 0.0, degrees: float = math.inf
    ) -> TimedSelection:
        """On one GPU."""
        known = zip(self.launches, cycles.tolist(), strict=True)
        return timed_selection(
            self.works[place], {number: exact("sweep", each) for number, each in known}, chosen_here=place == 0,
            shared_error=shared_error, degrees=degrees, confidence=self.confidence,
        )  # fmt: skip

    def pairs(self, features: Float64[np.ndarray, "gpu feature"]) -> Pairs:
        """Of GPUs and chosen launches, as the formula has them."""
        rough = [self.formula(number) for number in self.launches]
        cycles = np.stack([each.cycles for each in rough], 1)
        base = self._estimate(0, cycles[0])
        return Pairs(
            cycles=cycles,
            limits=np.stack([each.limits for each in rough], 1),
            features=features,
            kernels=self.works[0].kernels[self.launches],
            work=self.works[0].columns[self.launches],
            multiples=multiples(base, self.launches),
        )

    def more(self) -> Selection:
        """With more launches, as many as less error takes."""
        return chosen(self.works, self.formula, MORE * self.error, self.confidence)


def chosen(works: list[ProgramWork], formula: Formula, error: float, confidence: float) -> Selection:
    """By auto, with the formula in place of the engine, on the first GPU."""
    asked: set[int] = set()

    def measure(rows: Sequence[int]) -> list[Estimate]:
        asked.update(rows)
        return [exact("formula", float(formula(row).cycles[0])) for row in rows]

    LaunchSampling(error=error, confidence=confidence).program(works[0], measure)
    return Selection(sorted(asked), works, formula, error, confidence)


def select(
    program: SampledProgram, gpus: Sequence[Gpu], formula: Formula, error: float, confidence: float
) -> Selection:
    """As many launches as keep half of the interval that those left out give below `error` on all GPUs, as far as the
    formula tells, but for a last round that may not be enough."""
    program.prepare()
    kinds = kinds_of_launches(program)  # which no formula tells apart, small ones neither
    works = [replace(work, kinds=kinds) for work in work_on(program, gpus)]
    selection = chosen(works, formula, error, confidence)
    for _ in range(ROUNDS):
        rough = np.stack([formula(number).cycles for number in selection.launches], 1)
        halves = [of_gpu.half_width / of_gpu.total for of_gpu in selection.estimates(rough)]
        if selection.complete or max(halves) <= error:
            break
        selection = selection.more()
    return selection


def open_program(target: Target, gpu: Gpu, progress: Progress = silent) -> SampledProgram:
    """A target on the GPU that is varied. Raises InputError for one whose launches must come in turn."""
    program = opened(open_target(target), gpu, online=False, progress=progress, keep=True)
    check_turn(program)
    return program


def refused_by(program: SampledProgram, gpu: Gpu) -> str:
    """Why a target cannot run on a GPU; nothing if it can."""
    from abstim.engine.design_point import refuse_unsupported

    session = program.session
    try:
        for number, launch in enumerate(program.case.launches):
            blocks = session.blocks_per_sm(number, gpu)
            refuse_unsupported(gpu, session.table(number, gpu), launch.warps_per_block, blocks)
    except InputError as error:
        return str(error)
    return ""
