"""L1I with real memory (rules 6 and 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abstim.gpu.config import Gpu
from oracle.memory_side import READ
from oracle.real_memory import ALL, CODE_LINE, Lines, Link, Whole
from oracle.resources import NEVER, FrontEnd

if TYPE_CHECKING:
    from oracle.resident import Warp


class CodeFetch(FrontEnd):
    """As with perfect memory, but for lines that are on their way."""

    def __init__(self, gpu: Gpu, link: Link) -> None:
        super().__init__(gpu)
        self.link, self.registers, self.coming = link, gpu.spec.l1i_mshrs, 0
        self.l1i, self.prefetched = Lines(gpu.spec.l1i_sets, gpu.spec.l1i_ways), gpu.spec.l1i_prefetch_lines

    def look_up(self, pc: int, time: int, warp: Warp) -> int | None:
        """When the line of `pc`, which a warp wants, is there; NEVER: not known; None: it cannot be asked for now."""
        if self.perfect:
            if self.link.side.gpu.spec.l2_slice_index == "random":
                self.link.side.fetched[self.link.sm].append((time + 1, CODE_LINE + pc // self.line))
            return time
        number = pc // self.line
        line = self._asked_for(number, self.link.has_room(READ, len(ALL)), time)
        if line is None:
            return None
        for ahead in range(1, self.prefetched + 1):
            if self.coming < self.registers:
                counted = self.l1i.accesses, self.l1i.misses
                self._asked_for(number + ahead, True, time)
                self.l1i.accesses, self.l1i.misses = counted  # of fetches alone
        if line.coming:
            line.waiting.append(warp)
            return NEVER
        return time

    def _asked_for(self, number: int, has_room: bool, time: int) -> Whole | None:
        """A line, the youngest now; it is on its way if it was not there. None: it cannot be asked for."""
        line = self.l1i.find(number)
        if line is None:
            if self.coming >= self.registers or not has_room or not self.l1i.has_way(number):
                return None
            filled = line = self.l1i.allocate(number, len(ALL))
            self.coming += 1
            self.link.send(CODE_LINE + number, ALL, READ, lambda _, due: self._sector_comes(filled, due), time)
        self.l1i.use(line)
        return line

    def _sector_comes(self, line: Whole, due: int) -> None:
        line.coming -= 1
        if not line.coming:
            self.coming -= 1
            for warp in line.waiting:
                warp.line_back = due
            line.waiting = []
