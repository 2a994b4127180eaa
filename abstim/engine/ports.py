"""From issue to result: operand collectors, register banks, units, result buses (docs/timing-rules.md, rules 3, 4)."""

from __future__ import annotations

from abstim.engine.layout import MEM, SP
from abstim.engine.load_store import occupancy_of, result_of
from functional.disk.compile import jit


@jit
def port_of(m, kind, w):
    """The port through which warp `w` reaches units of a kind: with sub-cores, its scheduler's own."""
    return kind * m.schedulers + m.scheduler_of[w] if m.sub_cores else kind


@jit
def port_free(sm, port):
    """First cycle in which an instruction can issue to `port`: a dispatch register is free."""
    return sm.port_alloc[port, sm.port_position[port]]


@jit
def started(sm, m, kind, w):
    """Cycle in which the unit started warp `w`'s latest instruction of a kind, which must be its port's latest."""
    port = port_of(m, kind, w)
    place = sm.port_position[port]
    return sm.port_start[port, place - 1 if place else m.port_width[kind] - 1]


@jit
def collect(sm, m, kind, port, pool, time):
    """Take an operand collector for an instruction issued at `time`; returns (collector, allocation).

    Steps of the register file: `register_steps` a cycle.
    """
    best = 0
    for k in range(1, m.collectors[kind]):
        if sm.collector[pool, k] < sm.collector[pool, best]:
            best = k
    allocated = max((time + 1) * m.register_steps, sm.collector[pool, best])
    if m.shared_collectors:  # a kind's instructions are let in by age, whichever scheduler issued them
        allocated = max(allocated, sm.last_alloc[kind])
        sm.last_alloc[kind] = allocated
    elif m.port_width[kind] == 1:
        allocated = max(allocated, (sm.port_alloc[port, 0] + 1) * m.register_steps)
    return best, allocated


@jit
def bank_of(m, number, w):
    """The bank of a register of warp `w`; a sub-core has its own banks."""
    if m.sub_cores:
        own = m.banks // m.schedulers
        return m.scheduler_of[w] * own + (number + w) % own
    return (number + w) & (m.banks - 1)


@jit
def read_operands(heap, m, row, operands, w, allocated):
    """Step in which the operands are at hand: each bank serves one read a step and a write takes precedence."""
    ready, ring = allocated + 1, m.ring * m.register_steps - 1
    for k in range(row.reads_at, row.reads_end):
        bank = m.bank_at + bank_of(m, operands[k], w)
        step = allocated + 1
        while heap[bank + (step & ring) * m.banks] == step:
            step += 1
        heap[bank + (step & ring) * m.banks] = step
        ready = max(ready, step + 1)
    return ready


@jit
def write_back(heap, m, row, operands, w, time):
    """Results written at `time` occupy their banks in its first step."""
    step = time * m.register_steps
    for k in range(row.writes_end - row.writes_at):
        number = operands[row.write_banks_at + k]
        if number >= 0:
            heap[m.bank_at + bank_of(m, number, w) + (step & (m.ring * m.register_steps - 1)) * m.banks] = step


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
                result = m.results_at + slot * m.first_unit[-1] + unit
                if sm.unit_free[unit] <= time and heap[result] != due:
                    sm.unit_free[unit] = time + initiation
                    heap[result] = heap[bus] = due
                    return time
        time += 1


@jit
def execute(sm, heap, far, m, code, streams, i, w, time):
    """Send instruction `i` of warp `w`, issued at `time`, down its port; returns when its result can be used."""
    row = code[i]
    kind = row.unit
    port = port_of(m, kind, w)
    pool = m.scheduler_of[w] if m.shared_collectors and m.sub_cores else (0 if m.shared_collectors else port)
    collector, allocated = collect(sm, m, kind, port, pool, time)
    operands = read_operands(heap, m, row, streams.operands, w, allocated)
    place = sm.port_position[port]
    step = max(operands, sm.port_start[port, place] * m.register_steps)
    dispatched = step // m.register_steps
    if kind == MEM:
        unit = m.first_unit[port_of(m, MEM, 0)]
        busy, end = occupancy_of(sm, heap, far, m, code, streams, w, i)
        start = max(dispatched + 1, sm.unit_free[unit])
        sm.unit_free[unit] = start + busy
        result = result_of(sm, heap, far, m, code, streams, w, i, start, end)
        back_pressure = max(sm.entered, sm.const_blocked)
        sm.unit_free[unit] = max(sm.unit_free[unit], back_pressure)
    else:
        earliest = max(dispatched + 1, sm.last_start[port]) if kind == SP else dispatched + 1
        start = start_on_unit(sm, heap, far, m, port, earliest, row.latency, row.initiation)
        sm.last_start[port] = start
        result = start + row.latency + 2
    write_back(heap, m, row, streams.operands, w, result)
    sm.port_alloc[port, place] = allocated // m.register_steps
    sm.port_start[port, place] = start
    sm.port_position[port] = place + 1 if place + 1 < m.port_width[kind] else 0
    sm.collector[pool, collector] = step
    return result
