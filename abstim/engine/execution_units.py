"""Units and result buses: when an instruction starts and when its result can be used (docs/timing-rules.md, rule 4)."""

from __future__ import annotations

from abstim.engine.bookings import book, count, is_taken, taken
from abstim.engine.load_store import occupancy_of, result_of
from abstim.engine.memory_pipe import issue_access
from abstim.engine.operand_collectors import collect, cycle_of, pool_of, port_of, read_operands, write_back
from abstim.engine.rules import START_CYCLES
from abstim.engine.state import MEM, SP
from functional.jit.compile import jit


@jit
def started(sm, m, kind, w):
    """Cycle in which the unit started warp `w`'s latest instruction of a kind, which must be its port's latest."""
    port = port_of(m, kind, w)
    place = sm.port_position[port]
    return sm.port_start[port, place - 1 if place else m.port_width[kind] - 1]


@jit
def start_on_unit(c, port, earliest, latency, initiation):
    """First cycle in which a unit of the port is free, its result slot is free and a result bus is free; books them."""
    sm, m, time = c.sm, c.machine, earliest
    while True:
        due = time + latency
        slot = due & (m.ring - 1)
        if taken(c.buses, slot, 0, due) < m.result_bus:
            for unit in range(m.first_unit[port], m.first_unit[port + 1]):
                if sm.unit_free[unit] <= time and not is_taken(c.results, slot, unit, due):
                    sm.unit_free[unit] = time + initiation
                    book(c.results, slot, unit, due)
                    count(c.buses, slot, due)
                    return time
        time += 1


@jit
def arithmetic(c, row, port, dispatched):
    """(start, result) of an instruction that leaves its collector at `dispatched`."""
    kind = row.unit
    earliest = dispatched + START_CYCLES
    if kind == SP:
        earliest = max(earliest, c.sm.last_start[port])
    start = start_on_unit(c, port, earliest, row.latency, row.initiation)
    c.sm.last_start[port] = start
    return start, start + row.latency + row.result_offset


@jit
def memory(c, i, w, dispatched):
    """Perfect memory: (start, result) of an access that leaves its collector at `dispatched`."""
    sm, m = c.sm, c.machine
    unit = m.first_unit[port_of(m, MEM, 0)]
    busy, end = occupancy_of(c, w, i)
    start = max(dispatched + START_CYCLES, sm.unit_free[unit])
    sm.unit_free[unit] = start + busy
    return start, result_of(c, w, i, start, end)


@jit
def execute(c, i, w, time):
    """Send instruction `i` of warp `w`, issued at `time`, down its port; returns when its result can be used, NEVER if
    that is not known yet."""
    sm, m, row = c.sm, c.machine, c.code[i]
    kind = row.unit
    port = port_of(m, kind, w)
    pool = pool_of(m, port, w)
    if kind == MEM and not m.perfect:
        return issue_access(c, i, w, port, pool, time)
    collector, allocated = collect(sm, m, kind, port, pool, time)
    operands = read_operands(c, row, w, allocated)
    place = sm.port_position[port]
    step = max(operands, sm.port_start[port, place] * m.register_steps)
    dispatched = cycle_of(m, step)
    start, result = memory(c, i, w, dispatched) if kind == MEM else arithmetic(c, row, port, dispatched)
    write_back(c, row, w, result)
    sm.port_alloc[port, place] = cycle_of(m, allocated)
    sm.port_start[port, place] = start
    sm.port_position[port] = place + 1 if place + 1 < m.port_width[kind] else 0
    sm.collector[pool, collector] = step
    return result
