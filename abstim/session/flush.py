"""`--flush`: which caches are invalidated before each launch, and what a launch finds of the one before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
