"""The methods by name, and how each is run on a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import sampling
from abstim.study.sample import ideal
from abstim.study.sample.automatic import Aim, automatic
from abstim.study.sample.inside import INSIDE, Inside, analysis_share, simulate
from abstim.study.sample.profiling import light_profile_of
from abstim.study.sample.sampled_program import SampledProgram
from functional.errors import InputError
from sampling import Estimate, Part, Profile, Selection
from sampling.estimate import combine, exact, weighted_counters
from sampling.nsight import LightProfile

if TYPE_CHECKING:
    import numpy as np

Times = Literal["always", "measured"]


@dataclass(frozen=True)
class Known:
    """What a method may know beforehand. `light`: of all launches, where `profile` holds only the first.

    `measured`: the profile's cycles are a machine's, not `expected_cycles`.
    """

    profile: Profile
    light: LightProfile | None = None
    measured: bool = False


@dataclass(frozen=True)
class Method:
    """`run`: the estimate, each launch that the method chooses being simulated by `inside`. `select`: which it chooses.

    `online`: needs no profile, so nothing is executed before it. `aimed`: the estimate for an aim, of a method that
    takes one and looks at the launches itself; they must all be there, or be executable alone. `inside` may be replaced
    unless it is `own`. `ideal`: needs all traces at once and a full simulation from empty caches.
    """

    name: str
    what: str
    run: Callable[[SampledProgram, Known | None, Inside], Estimate]
    select: Callable[[Known], Selection] | None = None
    online: bool = False
    inside: Inside = INSIDE["full"]
    own: bool = False
    ideal: bool = False
    aimed: Callable[[SampledProgram, Aim], Estimate] | None = None
    aim: Aim = field(default_factory=Aim)

    @property
    def profiled(self) -> bool:
        """Whether it needs a profile made for it."""
        return not self.online and self.aimed is None

    def aiming(self, aim: Aim) -> Method:
        """The same with another aim. Raises InputError for a method that takes none."""
        if self.aimed is None:
            raise InputError(f"{self.name} aims at no error; leave out --error and --confidence, or --method auto")
        return replace(self, aim=aim)

    def estimate(self, program: SampledProgram, known: Known | None) -> Estimate:
        """The program's cycles."""
        return self.aimed(program, self.aim) if self.aimed else self.run(program, known, self.inside)

    def with_inside(self, name: str, inside: Inside) -> Method:
        """The same choice of launches, each simulated another way. Raises InputError if the method has its own."""
        if self.own:
            raise InputError(f"{self.name} has its own way to simulate a launch; leave out --inside")
        return replace(self, name=self.name if name == "full" else f"{self.name}+{name}", inside=inside)


def _photon(program: SampledProgram, known: Known | None, inside: Inside) -> Estimate:
    method = sampling.Photon(analysis_share=analysis_share(program))
    return method.program(program.online(), program.analyses)


def _every_launch(program: SampledProgram, known: Known | None, inside: Inside) -> Estimate:
    estimates = simulate(program, range(len(program)), inside)
    weights = [sum(part.instructions for part in estimate.parts) for estimate in estimates]
    if all(estimate.basis == "exact" for estimate in estimates):
        cycles = tuple(estimate.total for estimate in estimates)
        total, count = sum(cycles), len(program)
        part = Part(name=f"{count} launches", how="detailed", instructions=sum(weights), cycles=total)
        whole = exact("full", total, (part,), weighted_counters(estimates, [1.0] * len(estimates)))
        return replace(whole, unit_cycles=cycles)
    return combine("every launch", estimates, weights)


def _pks(known: Known) -> sampling.Pks:
    return sampling.Pks(measured=known.measured)


def _times_if_measured(known: Known) -> Profile:
    """For methods that take a profile's times for what launches of a stratum differ by."""
    return known.profile if known.measured else replace(known.profile, cycles=None)


def _over_launches(
    name: str, what: str, make: Callable[[Known], Any], times: Times, inside: str = "full", own: bool = False
) -> Method:
    """A method that has `select`, and perhaps an `estimate` of its own. `times`: which profile's it may use."""

    def select(known: Known) -> Selection:
        return make(known).select(known.profile if times == "always" else _times_if_measured(known))

    def run(program: SampledProgram, known: Known | None, inside: Inside) -> Estimate:
        assert known is not None
        selection = select(known)
        measured = simulate(program, selection.units.tolist(), inside)
        estimate = getattr(make(known), "estimate", None)
        return estimate(selection, measured) if estimate else selection.estimate(measured)

    return Method(name, what, run, select, inside=INSIDE[inside], own=own)


def _two_level_selection(known: Known) -> Selection:
    if known.light is None:
        raise InputError("two-level needs a light profile of all launches and a detailed one of the first")
    weights = known.light.nanoseconds if known.light.nanoseconds is not None else _mean_weights(known)
    return sampling.TwoLevel(pks=_pks(known)).select(known.profile, known.light, weights)


def _mean_weights(known: Known) -> np.ndarray:
    """Warp instructions of launches nobody counted: as many a thread as the detailed ones had."""
    assert known.light is not None
    threads = known.light.dimensions.prod(1)
    done = len(known.profile)
    return threads * (known.profile.instructions.sum() / threads[:done].sum())


def _two_level(program: SampledProgram, known: Known | None, inside: Inside) -> Estimate:
    """Without files: the first tenth of the launches (at least 20) in detail, of the rest names and shapes."""
    assert known is not None
    if known.light is None:
        known = replace(
            known, profile=first_launches(known.profile, max(20, len(program) // 10)), light=light_profile_of(program)
        )
    selection = _two_level_selection(known)
    return selection.estimate(simulate(program, selection.units.tolist(), inside))


def first_launches(profile: Profile, count: int) -> Profile:
    """The profile of the first launches alone."""
    first: dict[str, Any] = {name: None if column is None else column[:count] for name, column in vars(profile).items()}
    return Profile(**first)


def _ideal(name: str, what: str) -> Method:
    """A baseline over units of the full simulation, which it needs."""
    return Method(name, f"ideal, needs the full simulation: {what}",
                  lambda program, known, inside: ideal.estimate(name, program), online=True, own=True,
                  ideal=True)  # fmt: skip


_ALL = (
    Method("auto", "as much of launches and inside of them as the error asked for takes", _every_launch, own=True,
           aimed=automatic),
    Method("photon", "online: like launches, then warps or basic blocks that have settled", _photon, online=True,
           own=True),
    _over_launches("tbpoint", "like launches, then like regions of thread blocks",
                   lambda _: sampling.InterLaunch(), "measured", "tbpoint", own=True),
    _over_launches("pka", "principal launches, each stopped when IPC has settled", _pks, "always", "pkp", own=True),
    _over_launches("pks", "principal launches", _pks, "always"),
    Method("pkp", "every launch, stopped when IPC has settled", _every_launch, online=True, inside=INSIDE["pkp"],
           own=True),
    Method("two-level", "as pks; a classifier places launches not profiled in detail", _two_level,
           _two_level_selection),
    _over_launches("sieve", "strata of instruction counts, one launch each", lambda _: sampling.Sieve(), "measured"),
    _over_launches("stem", "as many launches of a kind as the error bound asks for",
                   lambda _: sampling.Stem(), "always"),
    _over_launches("simpoint", "clusters of basic-block vectors, one launch each",
                   lambda _: sampling.SimPoint(), "measured"),
    Method("full", "every launch", _every_launch, lambda known: sampling.Full().select(known.profile), online=True),
    _over_launches("first", "the first billion warp instructions", lambda _: sampling.FirstInstructions(), "measured"),
    _over_launches("random", "a tenth of the launches at random", lambda _: sampling.RandomUnits(), "measured"),
    _over_launches("systematic", "one launch of every ten", lambda _: sampling.Systematic(), "measured"),
    *(_ideal(name, what) for name, (what, _) in ideal.IDEAL.items()),
)  # fmt: skip
METHODS = {method.name: method for method in _ALL}


def method_named(name: str) -> Method:
    """Raises InputError for a name that is none of METHODS."""
    if name not in METHODS:
        from abstim.gpu.config import nearest

        raise InputError(f"no method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]
