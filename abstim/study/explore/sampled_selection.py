"""Launches of a target chosen for a sweep, once, on the GPU that is varied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.study.sample.automatic import Aim, check_turn, choose, work_on
from abstim.study.sample.kept_parts import PartStore
from abstim.study.sample.kept_samples import MeasuredStore
from abstim.study.sample.sampled_program import SampledProgram
from abstim.study.sample.sampler import opened
from abstim.target.resolve import open_target
from functional.errors import InputError
from functional.trace import Trace
from sampling import Estimate
from sampling.auto import ProgramWork

if TYPE_CHECKING:
    from abstim.target.resolve import Target

MORE = 0.6  # by what the aim shrinks where points miss it


@dataclass(frozen=True, eq=False)
class Selection:
    """A target and its chosen launches, on the GPU that is varied. `of_points`: its work on each design point."""

    program: SampledProgram
    chosen: dict[int, Estimate]
    work: ProgramWork
    of_points: list[ProgramWork]
    aim: Aim

    @property
    def launches(self) -> list[int]:
        """The chosen ones, in order."""
        return sorted(self.chosen)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to choose."""
        return len(self.chosen) == len(self.program)

    def traces(self) -> list[Trace]:
        """Of the chosen ones, whole."""
        return [self.program.launches.trace(number) for number in self.launches]

    def more(self) -> Selection:
        """With more launches, as many as less error takes."""
        aim = replace(self.aim, error=MORE * self.aim.error)
        return replace(self, aim=aim, chosen=_kept(self.program, lambda: choose(self.program, self.work, aim)[1]))


def open_program(target: Target, gpu: Gpu, progress: Progress = silent) -> SampledProgram:
    """A target on the GPU that is varied. Raises InputError for one whose launches must come in turn."""
    program = opened(open_target(target), gpu, online=False, progress=progress, keep=True)
    check_turn(program)
    return program


def select(program: SampledProgram, gpus: Sequence[Gpu], aim: Aim) -> Selection:
    """As much of a target simulated as the aim takes. What was simulated is kept on disk, as of `abstim sample`."""
    program.prepare()
    program.measured = MeasuredStore(program.case, program.gpu).load()
    program.in_part = PartStore(program.case, program.gpu).load()
    work, *of_points = work_on(program, [program.gpu, *gpus])
    chosen = _kept(program, lambda: choose(program, work, aim)[1])
    return Selection(program, chosen, work, of_points, aim)


def _kept(program: SampledProgram, chosen: Callable[[], dict[int, Estimate]]) -> dict[int, Estimate]:
    """What was simulated is on disk afterwards, after an interrupt too."""
    try:
        return chosen()
    finally:
        MeasuredStore(program.case, program.gpu).save(program.measured)
        PartStore(program.case, program.gpu).save(program.in_part)


def refused_by(program: SampledProgram, gpu: Gpu) -> str:
    """Why a target cannot run on a GPU; nothing if it can."""
    from abstim.engine.unsupported import refuse_unsupported

    session = program.session
    try:
        for number, launch in enumerate(program.case.launches):
            blocks = session.blocks_per_sm(number, gpu)
            refuse_unsupported(gpu, session.table(number, gpu), launch.warps_per_block, blocks)
    except InputError as error:
        return str(error)
    return ""
