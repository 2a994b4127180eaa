"""What the caches hold between two launches of a run."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from abstim.engine.behind_sms import Drawn
from abstim.engine.read_only_caches import CODE_LINE, CONST_LINE
from abstim.engine.state import NEVER, State
from functional.arrays import Int64
from functional.traces.trace import LINE_BYTES
from precharacterize import LatencyTable

# Before each launch: every cache; all but code in L2 (what a profiler does); those of the SMs; L1D alone; none
FLUSHES = ("all", "data", "l1", "l1d", "none")


class Ways(NamedTuple):
    """The ways of a cache that have ever held a line: `placed` as in the state, as far as any SM's list goes; where
    they lie in the arrays of the state; and of those arrays, by name, what they hold."""

    placed: np.ndarray
    at: tuple[np.ndarray, ...]
    columns: dict[str, np.ndarray]

    @classmethod
    def of(cls, cache: Any, *names: str) -> Ways:
        """Of a cache after a launch. `names`: what it has beside tags and their order."""
        longest = int(cache.placed[..., 0].max())
        placed = cache.placed[..., : 1 + longest].copy()
        used = np.arange(longest) < placed[..., :1]
        at = *np.nonzero(used)[:-1], placed[..., 1:][used]
        return cls(placed, at, {name: _arrived(name, getattr(cache, name)[at]) for name in ("tag", "last_use", *names)})

    def put(self, cache: Any) -> None:
        """Into a cache that holds nothing."""
        cache.placed[..., : self.placed.shape[-1]] = self.placed
        for name, column in self.columns.items():
            getattr(cache, name)[self.at] = column


def _arrived(name: str, column: np.ndarray) -> np.ndarray:
    """A column of a cache's lines when all that was on its way is there, and nobody waits."""
    if name == "there":
        column[:] = 0
    elif name == "sector_there":
        column[column != NEVER] = 0
    elif name == "line":
        column["valid"] |= column["coming"]
        for of_who_waits in ("coming", "joined", "waiting", "waiting_last"):
            column[of_who_waits] = 0
    return column


class FirstLevel(NamedTuple):
    """Of the SMs; `stamp` is the clock of the last use of lines. Where lines were found last is forgotten: the next
    launch may leave L1D fewer ways."""

    l1i: Ways
    const: Ways
    texture: Ways
    l1d: Ways | None  # None: empty
    stamp: np.ndarray


class Below(NamedTuple):
    """Of what the SMs share: `uses` is the clock of L2's lines; the open rows of DRAM's banks; slices drawn."""

    l2: Ways
    uses: np.ndarray
    open_row: np.ndarray
    served_row: np.ndarray
    drawn: Drawn  # rows of the table in the order of their places


_APART = 11  # lines between code and other code: its first lines are not all of one set of the instruction cache
_MOST_CODE = (CONST_LINE - CODE_LINE) * LINE_BYTES >> 4  # instructions of 16 bytes that have lines of their own


@lru_cache(maxsize=128)
def _moved(table: LatencyTable, by: int) -> LatencyTable:
    return replace(table, pcs=table.pcs + by)


@dataclass
class Caches:
    """All caches of a GPU, those of the SMs and L2, and the open DRAM rows. Empty at first (None). `code`: where the
    instructions lie whose lines they may hold, of a module, or of a kernel's machine code: from, to."""

    first_level: FirstLevel | None = None
    below: Below | None = None
    code: dict[Hashable, tuple[int, int]] = field(default_factory=dict)

    def placed(self, table: LatencyTable, module: str, line: int) -> LatencyTable:
        """A table whose program counters count from where its module's code lies, in lines of so many instructions.
        `module` "": it is one by itself."""
        last, needed = max((end for _, end in self.code.values()), default=0), int(table.pcs.max(initial=0)) + 1
        free = last + _APART * line if last else 0
        first, end = self.code.get(module or table, (free, free))
        if first + needed > end:
            first = first if end == last else free
            self.code[module or table] = first, first + -(-needed // line) * line
        return _moved(table, first % _MOST_CODE) if first else table

    def flush(self, what: str) -> None:
        """Invalidate what one of FLUSHES names."""
        if what in ("all", "l1"):
            self.first_level = None
        if what == "all":
            self.below = None
        if what == "l1d" and self.first_level is not None:
            self.first_level = self.first_level._replace(l1d=None)

    def put(self, state: State) -> None:
        """Fill a new launch's state with what is kept."""
        if (kept := self.first_level) is not None:
            for name, ways in kept._asdict().items():
                if isinstance(ways, Ways):
                    ways.put(getattr(state, name))
            state.sm["stamp"] = kept.stamp
        if (below := self.below) is not None:
            below.l2.put(state.shared.l2)
            state.shared.l2.uses[:] = below.uses
            state.shared.channels.banks["open_row"] = below.open_row
            state.shared.channels.banks["served_row"] = below.served_row
            table, places, terms = state.shared.drawn
            table[below.drawn.places[1:]], terms[:] = below.drawn.table, below.drawn.terms
            places[: len(below.drawn.places)] = below.drawn.places

    def take(self, state: State) -> None:
        """Keep what a finished launch leaves."""
        l1i, const, texture = (Ways.of(cache, "there") for cache in (state.l1i, state.const, state.texture))
        l1d = Ways.of(state.l1d, "there", "sector_there", "line")
        self.first_level = FirstLevel(l1i, const, texture, l1d, state.sm["stamp"].copy())
        if not state.machine["perfect_memory"]:
            l2, banks = state.shared.l2, state.shared.channels.banks
            rows = banks["open_row"].copy(), banks["served_row"].copy()
            drawn = state.shared.drawn
            places = drawn.places[: 1 + drawn.places[0]].copy()
            kept = Drawn(drawn.table[places[1:]], places, drawn.terms.copy())
            self.below = Below(Ways.of(l2, "line"), l2.uses.copy(), *rows, kept)

    @property
    def l2_lines(self) -> Int64[np.ndarray, " line"]:
        """Numbers of the lines that L2 holds, in no order."""
        if self.below is None:
            return np.empty(0, np.int64)
        tag = self.below.l2.columns["tag"]
        return tag[tag > 0].astype(np.int64) - 1
