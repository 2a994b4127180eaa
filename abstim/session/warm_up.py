"""The caches of a GPU when a launch begins: as a flush left them, or the memory accesses of launches before it.

J. Sys, "Quantifying and mitigating the cold-start problem in GPU simulation", Ghent University 2024, section 2.4.1 and
chapter 6."""

from dataclasses import dataclass, field, replace

from abstim.engine.kept_caches import FLUSHES, Caches
from abstim.engine.simulation import Simulation
from abstim.gpu.config import Gpu
from abstim.session.session import Session
from functional.errors import refuse

EMPTY, KEPT = "empty", "perfect"  # what `--warm-up` calls a flush of everything, and of nothing


def check_flush(flush: str) -> None:
    """Raises InputError for a way to flush caches that is not there."""
    refuse(flush not in FLUSHES, f"caches cannot be flushed {flush!r}; there are {', '.join(FLUSHES)}")


class WarmUp:
    """A policy."""

    name = ""  # as it is asked for
    in_order = False  # must launches come one after the other, in ascending order?

    def before(self, session: Session, number: int, gpu: Gpu) -> Caches | None:
        """What a launch finds; None: nothing."""
        raise NotImplementedError

    def after(self, simulation: Simulation) -> None:
        """A launch has run to its end."""


def bring_code(session: Session, number: int, gpu: Gpu, caches: Caches) -> None:
    """A launch will find its code and constants in L2, where a profiler leaves them; no SM has them yet."""
    session.warm_code(number, gpu, caches)
    caches.flush("l1")


@dataclass
class Flushed(WarmUp):
    """Caches are kept from launch to launch, but for those flushed before each: `--flush`, one of FLUSHES."""

    flush: str = FLUSHES[0]
    caches: Caches = field(default_factory=Caches)

    def __post_init__(self) -> None:
        self.name = {"all": EMPTY, "none": KEPT}.get(self.flush, self.flush)
        self.in_order = self.flush not in ("all", "data")

    def before(self, session: Session, number: int, gpu: Gpu, *beside: int) -> Caches | None:
        """`beside`: launches that run side by side with it, and find the same."""
        if self.flush == "data":
            caches = Caches()
            for each in (number, *beside):
                bring_code(session, each, gpu, caches)
            return caches
        if not self.in_order:
            return None
        self.caches.flush(self.flush)
        return self.caches

    def after(self, simulation: Simulation) -> None:
        if self.in_order:
            simulation.leave(self.caches)


Plan = list[tuple[int, float]]  # launches to walk, oldest first, and of each the share of its thread blocks, the last
ALL = "all"  # with EMPTY and KEPT, as `--warm-up` has them


def warmed(session: Session, number: int, gpu: Gpu, plan: Plan) -> Caches:
    """Caches after the code of a launch, if an earlier one ran it, and then a plan's memory accesses."""
    caches = Caches()
    if session.first_launch_of(number) < number:
        session.warm_code(number, gpu, caches)
    for k, share in plan:
        session.warm(k, gpu, caches, share)
    return caches


@dataclass
class MemoryOf(WarmUp):
    """Memory accesses of the last `launches` before one, and the code of its kernel, if an earlier launch ran it: from
    empty caches, so that nothing else that was chosen matters."""

    launches: int

    def __post_init__(self) -> None:
        self.name = str(self.launches)

    def before(self, session: Session, number: int, gpu: Gpu) -> Caches | None:
        if not self.launches:
            return Caches()
        return warmed(session, number, gpu, [(k, 1.0) for k in range(max(0, number - self.launches), number)])


@dataclass
class MemoryOfAll(WarmUp):
    """Memory accesses of all launches before, once: what was chosen included."""

    name = ALL
    in_order = True
    caches: Caches = field(default_factory=Caches)
    done: int = 0  # launches that were walked

    def before(self, session: Session, number: int, gpu: Gpu) -> Caches | None:
        for k in range(self.done, number):
            session.warm(k, gpu, self.caches)
        self.done = max(self.done, number)
        return replace(self.caches)


def warm_up_named(name: str) -> WarmUp:
    """`empty`, a number of launches, `all` or `perfect`. Raises InputError for anything else."""
    if name in ("", EMPTY):
        return Flushed("all")
    if name in (ALL, KEPT):
        return MemoryOfAll() if name == ALL else Flushed("none")
    refuse(not name.isdecimal(), f"--warm-up {name!r}: give a number of launches, all, perfect or empty")
    return MemoryOf(int(name))
