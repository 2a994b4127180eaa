"""What bounds a basic block, executed once by a lone warp: its longest chain of results, and its busiest unit."""

from __future__ import annotations

from dataclasses import dataclass

from precharacterize.parameters import UNITS
from precharacterize.table import LatencyTable


@dataclass(frozen=True)
class BlockBounds:
    """Of instructions `start` to `stop` - 1. `path_cycles`: of the longest chain, up to its last result, on any number
    of units; `path`: the instructions of it, in order; `unit_cycles`: busy time of each unit, by name."""

    start: int
    stop: int
    path_cycles: int
    path: tuple[int, ...]
    unit_cycles: dict[str, int]


def block_bounds(table: LatencyTable, start: int, stop: int) -> BlockBounds:
    """Every load hits: what memory adds is known when the kernel runs."""
    done: dict[int, int] = {}  # instruction -> cycle of its result
    before: dict[int, int | None] = {}  # instruction -> whose result it waited for last
    writer: dict[int, int] = {}  # register -> who wrote it last
    for i in range(start, stop):
        sources = [writer[r] for r in table.waits[i].tolist() if r in writer]
        last = max(sources, key=done.__getitem__, default=None)
        before[i] = last
        done[i] = (0 if last is None else done[last]) + max(1, int(table.result_cycles[i]))
        writer |= dict.fromkeys((r for r in table.writes[i].tolist() if r >= 0), i)
    at: int | None = max(done, key=done.__getitem__, default=None)
    path_cycles, path = 0 if at is None else done[at], []
    while at is not None:
        path.append(at)
        at = before[at]
    return BlockBounds(start, stop, path_cycles, tuple(reversed(path)), _unit_cycles(table, start, stop))


def _unit_cycles(table: LatencyTable, start: int, stop: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for i in range(start, stop):
        name = UNITS[int(table.unit[i])]
        found[name] = found.get(name, 0) + max(1, int(table.initiation_cycles[i]))
    return found
