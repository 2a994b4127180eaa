"""What the caches hold when a chosen launch begins: nothing, what all launches before it left, or what the memory
accesses of some of them leave (thesis, section 2.4.1 and chapter 6)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from abstim.engine.inputs import LaunchInputs
from abstim.engine.kept_caches import Caches
from abstim.engine.warming import warm, warm_code
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.engine.simulation import Simulation
    from abstim.study.sample.program import SampledProgram

EMPTY, KEPT, ALL = "empty", "perfect", "all"


class WarmUp(Protocol):
    """`in_order`: launches must come one after the other, in ascending order."""

    in_order: bool

    @property
    def name(self) -> str:
        """As it is asked for."""
        ...

    def before(self, program: SampledProgram, number: int) -> Caches | None:
        """What a launch finds; None: nothing."""
        ...

    def after(self, launch: Simulation) -> None:
        """A launch has run to its end."""
        ...


@dataclass
class EmptyCaches:
    """All caches are flushed before each launch, as `abstim run` does."""

    name: str = EMPTY
    in_order: bool = False

    def before(self, program: SampledProgram, number: int) -> Caches | None:
        """Nothing."""
        return None

    def after(self, launch: Simulation) -> None:
        """It is flushed."""


@dataclass
class KeptCaches:
    """Each launch finds what the one before it left, as with `abstim run --flush none`: all must be simulated."""

    name: str = KEPT
    in_order: bool = True
    caches: Caches = field(default_factory=Caches)

    def before(self, program: SampledProgram, number: int) -> Caches | None:
        """What the launch before left."""
        return self.caches

    def after(self, launch: Simulation) -> None:
        """Keep it."""
        launch.leave(self.caches)


@dataclass
class MemoryOf:
    """Memory accesses of the last `launches` before one, and the code of its kernel, if an earlier launch ran it."""

    launches: int
    in_order: bool = False

    @property
    def name(self) -> str:
        """As it is asked for."""
        return str(self.launches)

    def before(self, program: SampledProgram, number: int) -> Caches | None:
        """Warmed from empty, so that nothing else that was chosen matters."""
        caches = Caches()
        if self.launches and program.first_launch_of(number) < number:
            warm_code(inputs_of(program, number), program.gpu, program.blocks_per_sm(number), caches)
        for k in range(max(0, number - self.launches), number):
            warm(inputs_of(program, k), program.gpu, program.blocks_per_sm(k), caches)
        return caches

    def after(self, launch: Simulation) -> None:
        """The next one begins anew."""


@dataclass
class MemoryOfAll:
    """Memory accesses of all launches before, once: what was chosen included."""

    name: str = ALL
    in_order: bool = True
    caches: Caches = field(default_factory=Caches)
    done: int = 0

    def before(self, program: SampledProgram, number: int) -> Caches | None:
        """Walk those since the launch before this one was asked for."""
        for k in range(self.done, number):
            warm(inputs_of(program, k), program.gpu, program.blocks_per_sm(k), self.caches)
        self.done = max(self.done, number)
        return replace(self.caches)

    def after(self, launch: Simulation) -> None:
        """Its memory accesses are walked like all others."""


def warm_up_named(name: str) -> WarmUp:
    """`empty`, a number of launches, `all` or `perfect`. Raises InputError for anything else."""
    if name in ("", EMPTY):
        return EmptyCaches()
    if name in (ALL, KEPT):
        return MemoryOfAll() if name == ALL else KeptCaches()
    if not name.isdigit():
        raise InputError(f"--warm-up {name!r}: give a number of launches, all, perfect or empty")
    return MemoryOf(int(name))


def inputs_of(program: SampledProgram, number: int) -> LaunchInputs:
    """A whole launch, executed for its memory accesses if it has not been."""
    trace = program.accesses(number)
    return LaunchInputs(program.table(number), trace, program.case.launches[number].shared_bytes)
