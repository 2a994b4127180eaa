"""Bounds of code that runs alone: the longest chain of results and the busiest unit of a basic block, and the rate at
which units with common result buses take instructions of several latencies."""

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np

from functional.arrays import Float, Int
from functional.jit.machine_code import compiled
from precharacterize.table import UNITS, LatencyTable


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
    unit_cycles = Counter[str]()
    for i in range(start, stop):
        unit_cycles[UNITS[int(table.unit[i])]] += max(1, int(table.initiation_cycles[i]))
    return BlockBounds(start, stop, path_cycles, tuple(reversed(path)), dict(unit_cycles))


SAMPLE = 1 << 14  # instructions looked at
RING = 1 << 12  # cycles; above any latency
UNIT_BITS = 16  # of a slot's word, for the units whose result is due then; as many for how many of them, then the cycle


@compiled
def start_all(latencies, initiations, units, bus, due, free, last):
    """Start instructions in order, each as early as a unit is free and its result has a place; last[0]: the last start.
    `due`: of each cycle, modulo RING, whose results are on the buses."""
    start = 0
    for i in range(len(latencies)):
        found, word = -1, 0
        while found < 0:
            cycle = start + latencies[i]
            word = due[cycle % RING]
            if word >> (2 * UNIT_BITS) != cycle:
                word = cycle << (2 * UNIT_BITS)
            for unit in range(units if (word >> UNIT_BITS) & ((1 << UNIT_BITS) - 1) < bus else 0):
                if free[unit] <= start and not (word >> unit) & 1:
                    found = unit
                    break
            start += found < 0
        free[found] = start + initiations[i]
        due[(start + latencies[i]) % RING] = (word | 1 << found) + (1 << UNIT_BITS)
    last[0] = start


@cache
def _drawn() -> tuple[Float[np.ndarray, " sample"], Int[np.ndarray, " sample"]]:
    """Random numbers from 0 to 1 from a fixed seed, sorted, and where each was."""
    numbers = np.random.default_rng(0).random(SAMPLE)
    return np.sort(numbers), np.argsort(np.argsort(numbers, kind="stable"), kind="stable")


def _chosen(executed: Int[np.ndarray, " instr"]) -> Int[np.ndarray, " sample"]:
    """What NumPy's `choice` draws from that seed, by the cumulated probabilities."""
    cumulated = (executed / executed.sum()).cumsum()
    numbers, places = _drawn()
    stops = np.searchsorted(numbers, cumulated / cumulated[-1], side="left")
    return np.repeat(np.arange(len(executed)), np.diff(stops, prepend=0))[places]


def cycles_an_instruction(
    latency_cycles: Int[np.ndarray, " instr"], initiation_cycles: Int[np.ndarray, " instr"],
    executed: Int[np.ndarray, " instr"], units: int, result_bus: int,
) -> float:  # fmt: skip
    """Cycles an instruction of a stream that mixes them as often as they are executed (docs/timing-rules.md, rule 4).
    The stream is drawn at random from a fixed seed: neighbours are of different warps."""
    chosen = _chosen(executed)
    latencies, initiations = (cycles[chosen].astype(np.int64) for cycles in (latency_cycles, initiation_cycles))
    due, free, last = np.full(RING, -1, np.int64), np.zeros(units, np.int64), np.zeros(1, np.int64)
    start_all(latencies, initiations, units, result_bus, due, free, last)
    return (int(last[0]) + 1) / SAMPLE
