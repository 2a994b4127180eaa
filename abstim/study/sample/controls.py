"""Control variates for auto: a quick estimate of every launch, to which cycles are fitted as to any count of work.

Such an estimate is no truth. Where it is off alike for all launches, the fit takes that away; where it tells nothing,
the fit gives it no share (`sampling.auto.prediction`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from abstim.models import DETAILED, MODELS, model_named
from abstim.study.sample.inside import INSIDE
from abstim.study.sample.profiling import kinds_of_launches
from abstim.study.sample.sampled_program import SampledProgram
from functional.errors import InputError
from sampling.auto import ProgramWork


@dataclass(frozen=True)
class Quick:
    """An estimate of a launch, and the warp instructions that were simulated in detail for it."""

    cycles: float
    instructions: float


def _inside(name: str, program: SampledProgram, number: int) -> Quick:
    found = INSIDE[name](program, number)
    instructions = sum(part.instructions for part in found.parts)
    return Quick(found.total, found.detailed_fraction * instructions)


def _modelled(name: str, program: SampledProgram, number: int) -> Quick:
    return Quick(float(model_named(name).launch_on(program.session, number, [program.gpu])[0].cycles), 0.0)


CONTROLS: dict[str, Callable[[SampledProgram, int], Quick]] = {
    **{name: partial(_inside, name) for name in ("photon", "pkp", "tbpoint")},
    **{name: partial(_modelled, name) for name in MODELS if name != DETAILED},
}


def check_control(name: str) -> None:
    """Raises InputError for a name that is none of CONTROLS."""
    if name and name not in CONTROLS:
        raise InputError(f"--control {name}: there are {', '.join(CONTROLS)}")


def with_control(program: SampledProgram, work: ProgramWork, name: str) -> tuple[ProgramWork, float]:
    """The work with a column more, and the share of all instructions that was simulated for it. Of launches with
    equal traces one is estimated."""
    kind = kinds_of_launches(program)
    first = np.unique(kind, return_index=True)[1].tolist()
    found: dict[int, Quick] = {}
    for place in sorted(first):
        program.progress("control", place, len(program))
        found[int(kind[place])] = CONTROLS[name](program, place)
        program.launches.drop(place)
    column = np.array([found[int(k)].cycles for k in kind])
    spent = sum(quick.instructions for quick in found.values()) / float(work.instructions.sum())
    return replace(work, columns=np.column_stack([work.columns, column])), spent
