"""From issue to result: operand collectors, register banks, execution units, result buses (MODEL.md rules 2 to 4)."""

from __future__ import annotations

from numba import njit

from abstim.engine.compiled.layout import LAST_SP_START, MEM, RING, SP
from abstim.engine.compiled.memory import occupancy_of, result_of


@njit(cache=True)
def port_free(sm, m, port):
    """First cycle in which an instruction can issue to `port`: a dispatch register is free."""
    return sm.port_alloc[port, sm.port_position[port] % m.port_width[port]]


@njit(cache=True)
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


@njit(cache=True)
def read_operands(sm, m, code, i, w, allocated):
    """Cycle in which the operands are at hand: each bank serves one read a cycle and a write takes precedence."""
    ready = allocated + 1
    for k in range(code.read_count[i]):
        bank = (code.reads[i, k] + w) % m.banks
        time = allocated + 1
        while sm.bank[bank, time % RING] == time:
            time += 1
        sm.bank[bank, time % RING] = time
        ready = max(ready, time + 1)
    return ready


@njit(cache=True)
def write_back(sm, m, code, i, w, time):
    """Results written at `time` occupy their banks."""
    for k in range(code.write_count[i]):
        number = code.write_banks[i, k]
        if number >= 0:
            sm.bank[(number + w) % m.banks, time % RING] = time


@njit(cache=True)
def start_on_unit(sm, m, port, earliest, latency, initiation):
    """First cycle in which a unit of the port is free, its result slot is free and a result bus is free; books them."""
    time = earliest
    while True:
        slot = (time + latency) % RING
        bus = 0
        while bus < m.result_bus and sm.bus[bus, slot] == time + latency:
            bus += 1
        if bus < m.result_bus:
            for unit in range(m.first_unit[port], m.first_unit[port + 1]):
                if sm.unit_free[unit] <= time and sm.unit_result[unit, slot] != time + latency:
                    sm.unit_free[unit] = time + initiation
                    sm.unit_result[unit, slot] = time + latency
                    sm.bus[bus, slot] = time + latency
                    return time
        time += 1


@njit(cache=True)
def execute(sm, m, code, streams, i, w, time):
    """Send instruction `i` of warp `w`, issued at `time`, down its port; returns the cycle its result is free to use."""
    port = code.unit[i]
    collector, allocated = collect(sm, m, port, time)
    operands = read_operands(sm, m, code, i, w, allocated)
    place = sm.port_position[port] % m.port_width[port]
    dispatched = max(operands, sm.port_start[port, place])
    if port == MEM:
        unit = m.first_unit[MEM]
        busy, end = occupancy_of(sm, m, code, streams, w, i)
        start = max(dispatched + 1, sm.unit_free[unit])
        sm.unit_free[unit] = start + busy
        result = result_of(sm, m, code, streams, w, i, start, end)
    else:
        earliest = max(dispatched + 1, sm.now[LAST_SP_START]) if port == SP else dispatched + 1
        start = start_on_unit(sm, m, port, earliest, code.latency[i], code.initiation[i])
        if port == SP:
            sm.now[LAST_SP_START] = start
        result = start + code.latency[i] + 2
    write_back(sm, m, code, i, w, result)
    sm.port_alloc[port, place] = allocated
    sm.port_start[port, place] = start
    sm.port_position[port] += 1
    sm.collector[port, collector] = dispatched
    return result
