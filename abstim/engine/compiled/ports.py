"""From issue to result: operand collectors, register banks, units, result buses (docs/timing-rules.md, rules 3, 4)."""

from __future__ import annotations

from abstim.engine.compiled.compile import jit
from abstim.engine.compiled.layout import MEM, SP
from abstim.engine.compiled.memory import occupancy_of, result_of


@jit
def port_free(sm, m, port):
    """First cycle in which an instruction can issue to `port`: a dispatch register is free."""
    return sm.port_alloc[port, sm.port_position[port]]


@jit
def collect(sm, m, port, time):
    """Take an operand collector for an instruction issued at `time`; returns (collector, allocation cycle)."""
    best = 0
    for k in range(1, m.collectors[port]):
        if sm.collector[port, k] < sm.collector[port, best]:
            best = k
    allocated = max(time + 1, sm.collector[port, best])
    if m.port_width[port] == 1:
        allocated = max(allocated, sm.port_alloc[port, 0] + 1)
    return best, allocated


@jit
def read_operands(heap, m, row, operands, w, allocated):
    """Cycle in which the operands are at hand: each bank serves one read a cycle and a write takes precedence."""
    ready = allocated + 1
    for k in range(row.reads_at, row.reads_end):
        bank = m.bank_at + ((operands[k] + w) & (m.banks - 1))
        time = allocated + 1
        while heap[bank + (time & (m.ring - 1)) * m.banks] == time:
            time += 1
        heap[bank + (time & (m.ring - 1)) * m.banks] = time
        ready = max(ready, time + 1)
    return ready


@jit
def write_back(heap, m, row, operands, w, time):
    """Results written at `time` occupy their banks."""
    for k in range(row.writes_end - row.writes_at):
        number = operands[row.write_banks_at + k]
        if number >= 0:
            heap[m.bank_at + ((number + w) & (m.banks - 1)) + (time & (m.ring - 1)) * m.banks] = time


@jit
def start_on_unit(sm, heap, far, m, port, earliest, latency, initiation):
    """First cycle in which a unit of the port is free, its result slot is free and a result bus is free; books them."""
    time = earliest
    while True:
        due = time + latency
        slot = due & (m.ring - 1)
        bus = m.bus_at + slot * m.result_bus
        last_bus = bus + m.result_bus
        while bus < last_bus and heap[bus] == due:
            bus += 1
        if bus < last_bus:
            for unit in range(m.first_unit[port], m.first_unit[port + 1]):
                result = m.results_at + slot * m.first_unit[3] + unit
                if sm.unit_free[unit] <= time and heap[result] != due:
                    sm.unit_free[unit] = time + initiation
                    heap[result] = heap[bus] = due
                    return time
        time += 1


@jit
def execute(sm, heap, far, m, code, streams, i, w, time):
    """Send instruction `i` of warp `w`, issued at `time`, down its port; returns when its result can be used."""
    row = code[i]
    port = row.unit
    collector, allocated = collect(sm, m, port, time)
    operands = read_operands(heap, m, row, streams.operands, w, allocated)
    place = sm.port_position[port]
    dispatched = max(operands, sm.port_start[port, place])
    if port == MEM:
        unit = m.first_unit[MEM]
        busy, end = occupancy_of(sm, heap, far, m, code, streams, w, i)
        start = max(dispatched + 1, sm.unit_free[unit])
        sm.unit_free[unit] = start + busy
        result = result_of(sm, heap, far, m, code, streams, w, i, start, end)
        back_pressure = max(sm.tags_blocked - m.l1d_cycles - 1, sm.const_blocked)
        sm.unit_free[unit] = max(sm.unit_free[unit], back_pressure)
    else:
        earliest = max(dispatched + 1, sm.last_sp_start) if port == SP else dispatched + 1
        start = start_on_unit(sm, heap, far, m, port, earliest, row.latency, row.initiation)
        if port == SP:
            sm.last_sp_start = start
        result = start + row.latency + 2
    write_back(heap, m, row, streams.operands, w, result)
    sm.port_alloc[port, place] = allocated
    sm.port_start[port, place] = start
    sm.port_position[port] = place + 1 if place + 1 < m.port_width[port] else 0
    sm.collector[port, collector] = dispatched
    return result
