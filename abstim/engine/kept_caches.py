"""What the caches hold between two launches of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.engine.state import L1D, L2, NEVER, State, Tags

if TYPE_CHECKING:
    from jaxtyping import Int64

FLUSHES = ("all", "l1", "l1d", "none")  # before each launch: every cache, those of the SMs, L1D alone, none


class Held(NamedTuple):
    """Lines of a cache, as Tags lays them out. Whatever was on its way has arrived."""

    tag: np.ndarray
    last_use: np.ndarray


class FirstLevel(NamedTuple):
    """The caches of the SMs."""

    l1i: Held
    const: Held
    texture: Held
    l1d: Held
    l1d_line: np.ndarray  # L1D_LINE
    stamp: np.ndarray  # [sm], the clock of their last use


class Below(NamedTuple):
    """L2 and the DRAM banks."""

    l2: L2
    open_row: np.ndarray  # [bank] of BANK
    served_row: np.ndarray


@dataclass
class Caches:
    """Tags of all caches of a GPU, and the open DRAM rows; empty at first (None)."""

    first_level: FirstLevel | None = None
    below: Below | None = None

    def flush(self, what: str) -> None:
        """Invalidate what one of FLUSHES names."""
        if what in ("all", "l1"):
            self.first_level = None
        if what == "all":
            self.below = None
        if what == "l1d" and self.first_level is not None:
            for column in (*self.first_level.l1d, self.first_level.l1d_line):
                column[:] = 0

    def put(self, state: State) -> None:
        """Fill a new launch's state with what is kept."""
        kept, below = self.first_level, self.below
        if kept is not None:
            caches: tuple[Tags | L1D, ...] = (state.l1i, state.const, state.texture, state.l1d)
            for cache, held in zip(caches, (kept.l1i, kept.const, kept.texture, kept.l1d), strict=True):
                cache.tag[:], cache.last_use[:] = held
            state.l1d.line[:] = kept.l1d_line
            state.sms["stamp"] = kept.stamp
        if below is not None:
            for column, last in zip(state.shared.l2, below.l2, strict=True):
                column[:] = last
            banks = state.shared.channels.banks
            banks["open_row"], banks["served_row"] = below.open_row, below.served_row

    def take(self, state: State) -> None:
        """Keep what a finished launch leaves. Where lines were found last is forgotten: the next launch may leave L1D
        fewer ways."""
        line = _arrived(state.l1d.line)
        line["sector_there"][line["sector_there"] != NEVER] = 0
        self.first_level = FirstLevel(
            _held(state.l1i), _held(state.const), _held(state.texture), _held(state.l1d), line,
            state.sms["stamp"].copy(),
        )  # fmt: skip
        if not state.machine["perfect_memory"]:
            l2, banks = state.shared.l2, state.shared.channels.banks
            kept = L2(l2.tag.copy(), l2.last_use.copy(), _arrived(l2.line), l2.uses.copy())
            self.below = Below(kept, banks["open_row"].copy(), banks["served_row"].copy())

    @property
    def l2_lines(self) -> Int64[np.ndarray, " line"]:
        """Numbers of the lines that L2 holds, in no order."""
        if self.below is None:
            return np.empty(0, np.int64)
        tag = self.below.l2.tag
        return tag[tag > 0] - 1


def _held(cache: Tags | L1D) -> Held:
    return Held(cache.tag.copy(), cache.last_use.copy())


def _arrived(line: np.ndarray) -> np.ndarray:
    """Lines of L1D or L2, with nothing on its way and nobody waiting."""
    found = line.copy()
    found["valid"] |= found["coming"]
    for name in ("coming", "joined", "waiting", "waiting_last"):
        found[name] = 0
    return found
