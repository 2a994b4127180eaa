"""From issue to operands: bookings of cycles, ports, operand collectors and conflicts on register banks
(docs/timing-rules.md, rules 3 and 13). Steps are those of the register file: `register_steps` a cycle."""

from __future__ import annotations

from abstim.engine.rules import ALLOCATE_CYCLES, READ_STEPS
from abstim.engine.state import BOOKED_LOG2, NEVER
from functional.jit.marked import jit

HALF = 1 << BOOKED_LOG2  # bits of a word: the cycle above, what is taken below
LOWER = (1 << HALF) - 1
CYCLES = LOWER >> 1  # cycles are told apart modulo 2^31, far more than a ring is long


@jit
def taken(ring, row, part, time):
    """What is taken in cycle `time`, whose word is `ring[row, part]`: a set, or a count."""
    word = ring[row, part]
    return word & LOWER if word >> HALF == time & CYCLES else 0


@jit
def is_taken(ring, row, number, time):
    """Is place `number` taken in cycle `time`?"""
    return (taken(ring, row, number >> BOOKED_LOG2, time) >> (number & (HALF - 1))) & 1 != 0


@jit
def book(ring, row, number, time):
    """Place `number` is taken in cycle `time`."""
    part = number >> BOOKED_LOG2
    ring[row, part] = (time & CYCLES) << HALF | taken(ring, row, part, time) | 1 << (number & (HALF - 1))


@jit
def count(ring, row, time):
    """One more is taken in cycle `time`, of places that are all alike."""
    ring[row, 0] = (time & CYCLES) << HALF | taken(ring, row, 0, time) + 1


@jit
def cycle_of(m, step):
    """The cycle of a step of the register file."""
    if m.register_file_ports == 1:  # a division costs as much as all the rest
        return step
    return step // m.register_file_ports


@jit
def port_of(m, kind, w):
    """The port through which warp `w` reaches units of a kind: with sub-cores, its scheduler's own."""
    return kind * m.schedulers_per_sm + m.scheduler_of[w] if m.sub_cores else kind


@jit
def port_free(sm, port):
    """First cycle in which an instruction can issue to `port`: a dispatch register is free."""
    return sm.port_alloc[port, sm.port_position[port]]


@jit
def pool_of(m, port, w):
    """Whose collectors an instruction of warp `w` to `port` takes: the port's, or those that all ports share."""
    if m.shared_collectors:
        return m.scheduler_of[w] if m.sub_cores else 0
    return port


@jit
def collector_known(sm, m, kind, pool):
    """Is it known of any collector when it will be free? Not of those in which something waits for a load/store unit
    that is held up."""
    for k in range(m.collectors[kind]):  # noqa: SIM110 (compiled)
        if sm.collector[pool, k] < NEVER:
            return True
    return False


@jit
def collect(sm, m, kind, port, pool, time):
    """Take an operand collector for an instruction issued at `time`; returns (collector, step of the allocation)."""
    best = 0
    for k in range(1, m.collectors[kind]):
        if sm.collector[pool, k] < sm.collector[pool, best]:
            best = k
    allocated = max((time + ALLOCATE_CYCLES) * m.register_file_ports, sm.collector[pool, best])
    if m.shared_collectors:  # a kind's instructions are let in by age, whichever scheduler issued them
        allocated = max(allocated, sm.last_alloc[kind])
        sm.last_alloc[kind] = allocated
    elif m.port_width[kind] == 1:
        allocated = max(allocated, (sm.port_alloc[port, 0] + 1) * m.register_file_ports)
    return best, allocated


@jit
def register_bank_of(m, number, w):
    """The bank of a register of warp `w`; a sub-core has its own banks."""
    if m.sub_cores:
        own = m.register_banks // m.schedulers_per_sm
        return m.scheduler_of[w] * own + (number + w) % own
    return (number + w) & (m.register_banks - 1)


@jit
def read_operands(c, row, w, allocated):
    """Step in which the operands are at hand: each bank serves one read a step and a write takes precedence."""
    m, banks = c.machine, c.register_banks
    ready, ring = allocated + READ_STEPS, m.ring * m.register_file_ports - 1
    for k in range(row.reads_at, row.reads_end):
        bank = register_bank_of(m, c.streams.operands[k], w)
        step = allocated + READ_STEPS
        while is_taken(banks, step & ring, bank, step):
            step += 1
        book(banks, step & ring, bank, step)
        ready = max(ready, step + 1)
    return ready


@jit
def write_back(c, row, w, time):
    """Results written at `time` occupy their banks in its first step."""
    m = c.machine
    step = time * m.register_file_ports
    for k in range(row.writes_end - row.writes_at):
        number = c.streams.operands[row.write_banks_at + k]
        if number >= 0:
            at = step & (m.ring * m.register_file_ports - 1)
            book(c.register_banks, at, register_bank_of(m, number, w), step)
