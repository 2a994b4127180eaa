"""The caches of a GPU when a launch begins: as a flush left them, or the memory accesses of launches before it.

J. Sys, "Quantifying and mitigating the cold-start problem in GPU simulation", Ghent University 2024, section 2.4.1 and
chapter 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from abstim.engine.kept_caches import FLUSHES, Caches
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.engine.simulation import Simulation
    from abstim.gpu.config import Gpu
    from abstim.session.session import Session

EMPTY, KEPT = "empty", "perfect"  # what `--warm-up` calls a flush of everything, and of nothing


def check_flush(flush: str) -> None:
    """Raises InputError for a way to flush caches that is not there."""
    if flush not in FLUSHES:
        raise InputError(f"caches cannot be flushed {flush!r}; there are {', '.join(FLUSHES)}")


@dataclass
class Flushed:
    """Caches are kept from launch to launch, but for those flushed before each: `--flush`, one of FLUSHES."""

    flush: str = FLUSHES[0]
    caches: Caches = field(default_factory=Caches)

    @property
    def name(self) -> str:
        """As `--warm-up` has it."""
        return {"all": EMPTY, "none": KEPT}.get(self.flush, self.flush)

    @property
    def in_order(self) -> bool:
        """Unless nothing is kept."""
        return self.flush != "all"

    def before(self, session: Session, number: int, gpu: Gpu) -> Caches | None:
        """What the launch before left and the flush did not take."""
        if not self.in_order:
            return None
        self.caches.flush(self.flush)
        return self.caches

    def after(self, simulation: Simulation) -> None:
        """Keep what it leaves."""
        if self.in_order:
            simulation.leave(self.caches)


Plan = list[tuple[int, float]]  # launches to walk, oldest first, and of each the share of its thread blocks, the last
ALL = "all"  # with EMPTY and KEPT, as `--warm-up` has them


class WarmUp(Protocol):
    """A policy. `in_order`: launches must come one after the other, in ascending order."""

    @property
    def name(self) -> str:
        """As it is asked for."""

    @property
    def in_order(self) -> bool:
        """Must launches come one after the other, in ascending order?"""

    def before(self, session: Session, number: int, gpu: Gpu) -> Caches | None:
        """What a launch finds; None: nothing."""

    def after(self, simulation: Simulation) -> None:
        """A launch has run to its end."""


def warmed(session: Session, number: int, gpu: Gpu, plan: Plan) -> Caches:
    """Caches after the code of a launch, if an earlier one ran it, and then a plan's memory accesses."""
    caches = Caches()
    if session.first_launch_of(number) < number:
        session.warm_code(number, gpu, caches)
    for k, share in plan:
        session.warm(k, gpu, caches, share)
    return caches


@dataclass
class MemoryOf:
    """Memory accesses of the last `launches` before one, and the code of its kernel, if an earlier launch ran it."""

    launches: int
    in_order: bool = False

    @property
    def name(self) -> str:
        """As it is asked for."""
        return str(self.launches)

    def before(self, session: Session, number: int, gpu: Gpu) -> Caches | None:
        """Warmed from empty, so that nothing else that was chosen matters."""
        if not self.launches:
            return Caches()
        return warmed(session, number, gpu, [(k, 1.0) for k in range(max(0, number - self.launches), number)])

    def after(self, simulation: Simulation) -> None:
        """The next one begins anew."""


@dataclass
class MemoryOfAll:
    """Memory accesses of all launches before, once: what was chosen included."""

    name: str = ALL
    in_order: bool = True
    caches: Caches = field(default_factory=Caches)
    done: int = 0

    def before(self, session: Session, number: int, gpu: Gpu) -> Caches | None:
        """Walk those since the launch before this one was asked for."""
        for k in range(self.done, number):
            session.warm(k, gpu, self.caches)
        self.done = max(self.done, number)
        return replace(self.caches)

    def after(self, simulation: Simulation) -> None:
        """Its memory accesses are walked like all others."""


def warm_up_named(name: str) -> WarmUp:
    """`empty`, a number of launches, `all` or `perfect`. Raises InputError for anything else."""
    if name in ("", EMPTY):
        return Flushed("all")
    if name in (ALL, KEPT):
        return MemoryOfAll() if name == ALL else Flushed("none")
    if not name.isdigit():
        raise InputError(f"--warm-up {name!r}: give a number of launches, all, perfect or empty")
    return MemoryOf(int(name))
