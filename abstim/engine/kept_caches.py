"""What the caches hold between two launches of a run."""

from dataclasses import dataclass

import numpy as np

from abstim.engine.state import NEVER, State
from functional.arrays import Int64

# Before each launch: every cache; all but code (what a profiler does); those of the SMs; L1D alone; none
FLUSHES = ("all", "data", "l1", "l1d", "none")


@dataclass
class Caches:
    """Tags of all caches of a GPU, those of the SMs and L2, and the open DRAM rows, as arrays of the state by name:
    "l1d tag". Empty at first (None). Whatever was on its way has arrived."""

    first_level: dict[str, np.ndarray] | None = None
    below: dict[str, np.ndarray] | None = None

    def flush(self, what: str) -> None:
        """Invalidate what one of FLUSHES names."""
        if what in ("all", "l1"):
            self.first_level = None
        if what == "all":
            self.below = None
        if what == "l1d" and self.first_level is not None:
            for name, column in self.first_level.items():
                if name.startswith("l1d "):
                    column[:] = 0

    def put(self, state: State) -> None:
        """Fill a new launch's state with what is kept."""
        for kept, columns in ((self.first_level, _first_level), (self.below, _below)):
            if kept is not None:
                for name, column in columns(state).items():
                    column[:] = kept[name]
        for cache in (state.l1i, state.const, state.texture, state.l1d):
            cache.there[:] = 0

    def take(self, state: State) -> None:
        """Keep what a finished launch leaves. Where lines were found last is forgotten: the next launch may leave L1D
        fewer ways."""
        self.first_level = {name: column.copy() for name, column in _first_level(state).items()}
        _arrive(self.first_level["l1d line"])
        there = self.first_level["l1d sector_there"]
        there[there != NEVER] = 0
        if not state.machine["perfect_memory"]:
            self.below = {name: column.copy() for name, column in _below(state).items()}
            _arrive(self.below["l2 line"])

    @property
    def l2_lines(self) -> Int64[np.ndarray, " line"]:
        """Numbers of the lines that L2 holds, in no order."""
        if self.below is None:
            return np.empty(0, np.int64)
        tag = self.below["l2 tag"]
        return tag[tag > 0].astype(np.int64) - 1


PARTS = ("tag", "last_use", "placed")


def _first_level(state: State) -> dict[str, np.ndarray]:
    """What is kept of the SMs; `stamp` is the clock of the last use of lines."""
    caches = {"l1i": state.l1i, "const": state.const, "texture": state.texture, "l1d": state.l1d}
    tags = {f"{name} {part}": getattr(cache, part) for name, cache in caches.items() for part in PARTS}
    return tags | {"l1d sector_there": state.l1d.sector_there, "l1d line": state.l1d.line, "stamp": state.sm["stamp"]}


def _below(state: State) -> dict[str, np.ndarray]:
    """What is kept of what the SMs share."""
    banks = {name: state.shared.channels.banks[name] for name in ("open_row", "served_row")}
    return {f"l2 {name}": column for name, column in state.shared.l2._asdict().items()} | banks


def _arrive(line: np.ndarray) -> None:
    """Nothing of the lines of L1D or L2 is on its way any more, and nobody waits."""
    line["valid"] |= line["coming"]
    for name in ("coming", "joined", "waiting", "waiting_last"):
        line[name] = 0
