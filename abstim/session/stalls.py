"""What each instruction waited for before it issued, from a launch's log."""

import numpy as np

from functional.arrays import Int64
from functional.jit.machine_code import compiled
from precharacterize.classify import Kind
from precharacterize.table import LatencyTable

# Columns of `stalls`, cycles between a warp's issues: for a load, for an arithmetic result, at a barrier, and the rest:
# for its turn, its unit, its port, its fetch
STALLS = ("memory", "arithmetic", "barrier", "turn_or_unit")
MEMORY, ARITHMETIC, AT_BARRIER, TURN = range(len(STALLS))


@compiled
def attribute(warp, cycle, instruction, result, place, kind, waits, writes, ready, of_memory, found):
    """Add to `found` [place, STALLS]. Of the log, by warp and then time: `warp`, `cycle`, `instruction`, `result`
    cycle, and the `place` where the wait before it counts; of the program `kind`, `waits`, `writes` [instruction,
    register]; scratch `ready`, `of_memory` [register]."""
    last, before, previous = -1, 0, 0
    for k in range(len(warp)):
        i = instruction[k]
        if warp[k] != last:
            last = warp[k]
            ready[:] = 0
            of_memory[:] = 0
        elif cycle[k] > before + 1:
            left, memory, arithmetic = cycle[k] - before - 1, 0, 0
            if kind[previous] == Kind.BARRIER:
                found[place[k], AT_BARRIER] += left
                left = 0
            elif kind[previous] in (Kind.FENCE, Kind.SHARED_ATOMIC, Kind.GLOBAL_ATOMIC):
                found[place[k], MEMORY] += left
                left = 0
            for j in range(waits.shape[1]):
                r = waits[i, j]
                if r >= 0 and of_memory[r]:
                    memory = max(memory, ready[r] - before - 1)
                elif r >= 0:
                    arithmetic = max(arithmetic, ready[r] - before - 1)
            memory = min(memory, left)
            arithmetic = min(max(arithmetic - memory, 0), left - memory)
            found[place[k], MEMORY] += memory
            found[place[k], ARITHMETIC] += arithmetic
            found[place[k], TURN] += left - memory - arithmetic
        for j in range(writes.shape[1]):
            r = writes[i, j]
            if r >= 0:
                ready[r] = result[k]
                of_memory[r] = kind[i] >= Kind.PARAM_LOAD
        before, previous = cycle[k], i


def add_stalls(
    log: np.ndarray, table: LatencyTable, place: Int64[np.ndarray, " issue"], found: Int64[np.ndarray, "place reason"]
) -> None:
    """What the issues of a log (ISSUE, by warp and then time) waited for, each added to its place of `found`."""
    columns = (np.ascontiguousarray(log[name], np.int64) for name in ("warp", "cycle", "instruction", "result_cycle"))
    kinds = np.where(table.copies >= 0, Kind.FENCE, table.kind)  # what waits for copies waits for memory
    program = (np.ascontiguousarray(a, np.int64) for a in (kinds, table.waits, table.writes))
    ready, of_memory = (np.zeros(table.register_count + 1, np.int64) for _ in range(2))
    attribute(*columns, np.ascontiguousarray(place, np.int64), *program, ready, of_memory, found)
