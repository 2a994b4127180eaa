"""What the caches hold between two launches of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from abstim.engine.state import L2, NEVER, State, Tags

FLUSHES = ("all", "l1", "l1d", "none")  # before each launch: every cache, those of the SMs, L1D alone, none


class FirstLevel(NamedTuple):
    """The caches of the SMs. Whatever was on its way has arrived."""

    l1i: Tags
    const: Tags
    texture: Tags
    l1d: Tags
    l1d_line: np.ndarray  # L1D_LINE
    stamp: np.ndarray  # [sm], the clock of their last use


class Below(NamedTuple):
    """L2 and the DRAM banks."""

    l2: L2
    banks: np.ndarray  # BANK


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
            l1d = Tags(state.l1d.tag, state.l1d.last_use, state.l1d.there)
            for caches in zip((state.l1i, state.const, state.texture, l1d), kept[:4], strict=True):
                for column, held in zip(*caches, strict=True):
                    column[:] = held
            state.l1d.line[:] = kept.l1d_line
            state.sms["stamp"] = kept.stamp
        if below is not None:
            for column, held in zip((*state.shared.l2, state.shared.banks), (*below.l2, below.banks), strict=True):
                column[:] = held

    def take(self, state: State) -> None:
        """Keep what a finished launch leaves. Where lines were found last is forgotten: the next launch may leave L1D
        fewer ways."""
        l1d, line = state.l1d, state.l1d.line.copy()
        line["merged"] = 0
        line["sector_there"][line["sector_there"] != NEVER] = 0
        self.first_level = FirstLevel(
            _arrived(state.l1i), _arrived(state.const), _arrived(state.texture),
            _arrived(Tags(l1d.tag, l1d.last_use, l1d.there)), line, state.sms["stamp"].copy(),
        )  # fmt: skip
        if not state.machine["perfect"]:
            l2 = L2(*(column.copy() for column in state.shared.l2))
            l2.line["merged"], l2.line["sector_there"] = 0, 0
            self.below = Below(l2, state.shared.banks.copy())

    @property
    def l2_lines(self) -> Int64[np.ndarray, " line"]:
        """Numbers of the lines that L2 holds, in no order."""
        if self.below is None:
            return np.empty(0, np.int64)
        tag = self.below.l2.tag
        return tag[tag > 0] - 1


def _arrived(cache: Tags) -> Tags:
    return Tags(cache.tag.copy(), cache.last_use.copy(), np.zeros_like(cache.there))
