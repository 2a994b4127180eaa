"""The methods by name, and how each is run on a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

import sampling
from abstim.sampled import ideal
from abstim.sampled.features import by_thread_block
from abstim.sampled.profile import light_profile_of
from abstim.sampled.program import SampledProgram
from functional.errors import InputError
from sampling import Estimate, Profile, Selection
from sampling.estimate import combine
from sampling.pka import LightProfile

TBPOINT = sampling.TBPoint(intra=sampling.IntraLaunch(times=3))
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
    """`select`: which launches; `run`: the estimate. `online`: needs no profile, so nothing is executed before it."""

    name: str
    what: str
    run: Callable[[SampledProgram, Known | None], Estimate]
    select: Callable[[Known], Selection] | None = None
    online: bool = False


def _photon(program: SampledProgram, known: Known | None) -> Estimate:
    return sampling.Photon().program(program.online())


def _pkp(program: SampledProgram, known: Known | None) -> Estimate:
    estimates, weights = [], []
    for number in range(len(program)):
        program.progress("sample", number, len(program))
        simulator = program.simulator(number, keep=False)
        estimates.append(sampling.Pkp().launch(simulator).cycles)
        weights.append(simulator.thread_blocks.mean_instructions * simulator.shape.thread_blocks)
        program.drop(number)
    return combine("PKP", estimates, weights)


def _pka(program: SampledProgram, known: Known | None) -> Estimate:
    assert known is not None
    return sampling.Pka(pks=_pks(known)).program(known.profile, program.simulator)


def _pks(known: Known) -> sampling.Pks:
    return sampling.Pks(measured=known.measured)


def _tbpoint(program: SampledProgram, known: Known | None) -> Estimate:
    assert known is not None

    def open_launch(number: int) -> tuple[Any, np.ndarray, np.ndarray]:
        requests, issued, _ = by_thread_block(program.trace(number))
        ids = program.trace(number).thread_blocks
        order = np.argsort(ids)
        return program.simulator(number), requests[order], issued[order]

    return TBPOINT.program(_times_if_measured(known), open_launch)


def _times_if_measured(known: Known) -> Profile:
    """For methods that take a profile's times for what launches of a stratum differ by."""
    return known.profile if known.measured else replace(known.profile, cycles=None)


def _over_launches(name: str, what: str, make: Callable[[Known], Any], times: Times) -> Method:
    """A method that has `select`, and perhaps an `estimate` of its own. `times`: which profile's it may use."""

    def select(known: Known) -> Selection:
        return make(known).select(known.profile if times == "always" else _times_if_measured(known))

    def run(program: SampledProgram, known: Known | None) -> Estimate:
        assert known is not None
        selection = select(known)
        cycles = simulate(program, selection)
        own = getattr(make(known), "estimate", None)
        return own(selection, np.array(cycles)) if own else selection.estimate(cycles)

    return Method(name, what, run, select)


def simulate(program: SampledProgram, selection: Selection) -> list[float]:
    """Cycles of the selected launches, each in full."""
    found = []
    for place, unit in enumerate(selection.units.tolist()):
        program.progress("time", place, len(selection.units))
        found.append(float(program.measure(unit).cycles))
    return found


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


def _two_level(program: SampledProgram, known: Known | None) -> Estimate:
    """Without files: the first tenth of the launches (at least 20) in detail, of the rest names and shapes."""
    assert known is not None
    if known.light is None:
        known = replace(
            known, profile=first_launches(known.profile, max(20, len(program) // 10)), light=light_profile_of(program)
        )
    selection = _two_level_selection(known)
    return selection.estimate(simulate(program, selection))


def first_launches(profile: Profile, count: int) -> Profile:
    """The profile of the first launches alone."""
    first: dict[str, Any] = {name: None if column is None else column[:count] for name, column in vars(profile).items()}
    return Profile(**first)


def _ideal(name: str, what: str) -> Method:
    """A baseline over units of the full simulation, which it needs."""
    return Method(
        name, f"ideal, needs the full simulation: {what}",
        lambda program, known: ideal.estimate(name, program, known is not None and known.measured),
    )  # fmt: skip


_ALL = (
    Method("photon", "online: like launches, then warps or basic blocks that have settled", _photon, online=True),
    Method("tbpoint", "like launches, then like regions of thread blocks", _tbpoint,
           lambda known: TBPOINT.select(_times_if_measured(known))),
    Method("pka", "principal launches, each stopped when IPC has settled", _pka,
           lambda known: _pks(known).select(known.profile)),
    _over_launches("pks", "principal launches in full", _pks, "always"),
    Method("pkp", "every launch, stopped when IPC has settled", _pkp, online=True),
    Method("two-level", "as pks; a classifier places launches not profiled in detail", _two_level,
           _two_level_selection),
    _over_launches("sieve", "strata of instruction counts, one launch each", lambda _: sampling.Sieve(), "measured"),
    _over_launches("stem", "as many launches of a kind as the error bound asks for",
                   lambda _: sampling.Stem(ratio=True), "always"),
    _over_launches("simpoint", "clusters of basic-block vectors, one launch each",
                   lambda _: sampling.SimPoint(), "measured"),
    _over_launches("full", "everything", lambda _: sampling.Full(), "measured"),
    _over_launches("first", "the first billion warp instructions", lambda _: sampling.FirstInstructions(), "measured"),
    _over_launches("random", "a tenth of the launches at random", lambda _: sampling.RandomUnits(), "measured"),
    _over_launches("systematic", "one launch of every ten", lambda _: sampling.Systematic(), "measured"),
    *(_ideal(name, what) for name, (what, _) in ideal.IDEAL.items()),
)  # fmt: skip
METHODS = {method.name: method for method in _ALL}


def method_named(name: str) -> Method:
    """Raises InputError for a name that is none of METHODS."""
    if name not in METHODS:
        from abstim.config import nearest

        raise InputError(f"no method {name!r}{nearest(name, METHODS)}; there are {', '.join(METHODS)}")
    return METHODS[name]
