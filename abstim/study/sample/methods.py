"""The table of sampling methods: what each needs, how it selects launches, and how their cycles make an estimate.

A method is composed: `select` says which launches to take, and `inside` how each of them is simulated
(`inside.INSIDE`). Help, docs and tests read this table, `methods.csv`; nothing slow is imported before a method is
used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from functional.errors import InputError, refuse
from functional.files import rows_beside

if TYPE_CHECKING:
    from abstim.study.sample.automatic import Aim
    from abstim.study.sample.sampled_program import SampledProgram
    from sampling import Estimate, Profile, Selection
    from sampling.nsight import LightProfile


class Needs(Enum):
    """What must be there before a method begins."""

    NOTHING = "nothing"
    ANY_ORDER = "launches in any order"
    PROFILE = "a profile"
    FULL_SIMULATION = "full simulation"


@dataclass(frozen=True)
class Known:
    """What a method may know beforehand. `light`: of all launches, where `profile` holds only the first. `measured`:
    the profile's cycles are a machine's, not `expected_cycles`."""

    profile: Profile
    light: LightProfile | None = None
    measured: bool = False
    seed: int = 0  # of what is chosen at random


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row. `select`: launches by a profile (without it: all). `inside`: a name of `INSIDE`, which may be replaced
    where it is "full". `whole`: a function, `module.name` of this package, that does it all itself. `completed`: adds
    to a profile what no file gave."""

    name: str
    what: str
    assumes: str = ""  # of what it leaves out
    random: bool = False  # whether a seed decides what is chosen
    source: str = ""
    needs: Needs = Needs.PROFILE
    select: Callable[[Known], Selection] | None = None
    inside: str = "full"
    whole: str = ""
    completed: Callable[[SampledProgram, Known], Known] = lambda program, known: known

    @property
    def online(self) -> bool:
        """Whether nothing need be executed before it begins."""
        return self.needs in (Needs.NOTHING, Needs.FULL_SIMULATION)

    def with_inside(self, inside: str) -> Method:
        """The same choice of launches, each simulated another way; as it is where none is named. Raises InputError for
        a way that is none of INSIDE, and if the method has its own."""
        from abstim.gpu.config import nearest
        from abstim.study.sample.inside import INSIDE

        if not inside:
            return self
        refuse(inside not in INSIDE, f"launches cannot be simulated {inside!r}{nearest(inside, INSIDE)}")
        refuse(self.inside != "full", f"{self.name} has its own way to simulate a launch; leave out --inside")
        return self if inside == "full" else replace(self, name=f"{self.name}+{inside}", inside=inside)

    def run(self, program: SampledProgram, known: Known | None, aim: Aim) -> Estimate:
        """The program's cycles. `known` is there where a profile is needed; `aim`: the error to reach, if it does."""
        from abstim.study.sample.inside import INSIDE, every_launch, simulate

        if self.whole:
            module, _, name = self.whole.rpartition(".")
            found: Estimate = getattr(import_module(f"abstim.study.sample.{module}"), name)(program, aim, self.name)
            return found
        if known is None or self.select is None:
            return every_launch(simulate(program, range(len(program)), INSIDE[self.inside]))
        selection = self.select(replace(self.completed(program, known), seed=aim.seed))
        return selection.estimate(simulate(program, selection.units.tolist(), INSIDE[self.inside]))


def _by(path: str, guesses: bool = False) -> Callable[[Known], Selection]:
    """Selected by `module.Class` of `sampling`, told what it asks for; `guesses`: cycles nobody has measured too."""

    def select(known: Known) -> Selection:
        module, _, name = path.rpartition(".")
        kind = getattr(import_module(f"sampling.{module}"), name)
        told = {"seed": known.seed, "measured": known.measured}
        method = kind(**{own.name: told[own.name] for own in fields(kind) if own.name in told})
        told_cycles = guesses or known.measured
        found: Selection = method.select(known.profile if told_cycles else replace(known.profile, cycles=None))
        return found

    return select


def _by_two_levels(known: Known) -> Selection:
    from sampling import Pks, TwoLevel

    if known.light is None:
        raise InputError("two-level needs a light profile of all launches and a detailed one of the first")
    weights = known.light.nanoseconds
    if weights is None:  # warp instructions of launches nobody counted: as many a thread as the detailed ones had
        threads = known.light.dimensions.prod(1)
        weights = threads * (known.profile.instructions.sum() / threads[: len(known.profile)].sum())
    pks = Pks(measured=known.measured, seed=known.seed)
    return TwoLevel(pks=pks, seed=known.seed).select(known.profile, known.light, weights)


def _in_two_levels(program: SampledProgram, known: Known) -> Known:
    """Without files: the first tenth of the launches (at least 20) in detail, of the rest names and shapes."""
    from abstim.study.sample.profiling import light_profile_of

    if known.light is not None:
        return known
    return replace(known, profile=known.profile.first(max(20, len(program) // 10)), light=light_profile_of(program))


def _read(row: dict[str, str]) -> Method:
    """`select`: a class of `sampling`, told cycles that nobody has measured too where it `guesses`; or "two levels"."""
    how: dict[str, Any] = {name: row[name] for name in ("name", "what", "assumes", "source", "inside", "whole")}
    how |= {"needs": Needs(row["needs"]), "random": row["random"] == "yes"}
    if row["select"] == "two levels":
        how |= {"select": _by_two_levels, "completed": _in_two_levels}
    elif row["select"]:
        how["select"] = _by(row["select"], guesses=row["guesses"] == "yes")
    return Method(**how)


METHODS = {row["name"]: _read(row) for row in rows_beside(__file__, "methods.csv")}


def method_named(name: str) -> Method:
    """Raises InputError for a name that is none of METHODS."""
    if name not in METHODS:
        from abstim.gpu.config import nearest

        raise InputError(f"no method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def names_for_help() -> str:
    """All methods on one line."""
    first, *others = (name for name, method in METHODS.items() if method.needs is Needs.FULL_SIMULATION)
    short = (f"-{name.removeprefix('ideal-')}" for name in others)
    listed = ", ".join(name for name, method in METHODS.items() if method.needs is not Needs.FULL_SIMULATION)
    return f"{listed}; over parts of launches, needing the full simulation: {', '.join((first, *short))}"
