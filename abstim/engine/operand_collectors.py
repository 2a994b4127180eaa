"""From issue to operands: bookings of cycles, ports, operand collectors and conflicts on register banks
(docs/timing-rules.md, rules 3 and 13). Steps are those of the register file: `register_steps` a cycle."""

from abstim.engine.rules import ALLOCATE_CYCLES, READ_STEPS
from abstim.engine.state import BOOKED_LOG2, NEVER, PORT_WIDTH
from functional.jit.marked import ones

HALF = 1 << BOOKED_LOG2  # bits of a word: the cycle above, what is taken below
LOWER = (1 << HALF) - 1
CYCLES = LOWER >> 1  # cycles are told apart modulo 2^31, far more than a ring is long


def taken(ring, row, part, time):
    """The set of what is taken in cycle `time`, whose word is `ring[row, part]`."""
    word = ring[row, part]
    return word & LOWER if word >> HALF == time & CYCLES else 0


def is_taken(ring, row, number, time):
    """Is place `number` taken in cycle `time`?"""
    return (taken(ring, row, number >> BOOKED_LOG2, time) >> (number & (HALF - 1))) & 1 != 0


def book(ring, row, number, time):
    """Place `number` is taken in cycle `time`."""
    part = number >> BOOKED_LOG2
    ring[row, part] = (time & CYCLES) << HALF | taken(ring, row, part, time) | 1 << (number & (HALF - 1))


def unbook(ring, row, number):
    """Place `number` is free in the cycle of a row, in which it was taken."""
    ring[row, number >> BOOKED_LOG2] &= ~(1 << (number & (HALF - 1)))


def count_taken(ring, row, time):
    """How many places are taken in cycle `time`."""
    found = 0
    for part in range(ring.shape[1]):
        found += ones(taken(ring, row, part, time))
    return found


def cycle_of(m, step):
    """The cycle of a step of the register file."""
    if m.register_file_ports == 1:  # a division costs as much as all the rest
        return step
    return step // m.register_file_ports


def port_of(m, kind, w):
    """The port through which warp `w` reaches units of a kind: with sub-cores, its scheduler's own."""
    return kind * m.schedulers_per_sm + m.scheduler_of[w] if m.sub_cores else kind


def port_free(sm, port):
    """First cycle in which an instruction can issue to `port`: a dispatch register is free."""
    return sm.ports[port].alloc[sm.ports[port].position]


def pool_of(m, port, w):
    """Whose collectors an instruction of warp `w` to `port` takes: the port's, or those that all ports share."""
    if m.shared_collectors:
        return m.scheduler_of[w] if m.sub_cores else 0
    return port


def waits_at_port(m):
    """Is it known only when a collector is free who gets it? Else the instruction that has issued first."""
    return m.shared_collectors and not m.perfect_memory


def first_free(sm, pool):
    """The step from which a collector of a pool is free; NEVER: that is not known of any."""
    ports = sm.ports[pool]
    found = ports.collector[0]
    for k in range(1, ports.collectors):
        found = min(found, ports.collector[k])
    return found


def has_collector(sm, m, kind, pool, time):
    """Does an instruction issued at `time` have a collector in the next cycle, whoever comes after it?"""
    if sm.queued[kind] or sm.ports[pool].waiting:
        return False
    return first_free(sm, pool) <= (time + ALLOCATE_CYCLES) * m.register_file_ports


def wait_at_port(c, kind, i, w, port, pool, place):
    """An instruction waits at its port for a collector; returns its AT_PORT. Its place of the port is taken
    meanwhile."""
    sm = c.sm
    row = c.port_queues[kind, (sm.queued_first[kind] + sm.queued[kind]) & (PORT_WIDTH - 1)]
    row.instruction, row.warp, row.port, row.pool, row.place, row.log_row = i, w, port, pool, place, 0
    sm.queued[kind] += 1
    sm.ports[pool].waiting += 1
    sm.at_port += 1
    sm.ports[port].alloc[place] = NEVER
    return row


def latest_at_port(c, kind):
    """The AT_PORT that came last to the ports of a kind."""
    return c.port_queues[kind, (c.sm.queued_first[kind] + c.sm.queued[kind] - 1) & (PORT_WIDTH - 1)]


def take(sm, pool, step):
    """Of the collectors of a pool that are free in a step the lowest is taken."""
    ports, number = sm.ports[pool], 0
    while ports.collector[number] > step:
        number += 1
    ports.collector[number], ports.collector_taken = NEVER, number


def collect(sm, m, kind, port, pool, time):
    """Take an operand collector for an instruction issued at `time` as soon as one is free; returns the step. When it
    is free is known of none in which something waits for a load/store unit that is held up."""
    allocated = max((time + ALLOCATE_CYCLES) * m.register_file_ports, first_free(sm, pool))
    if m.shared_collectors:  # a kind's instructions are let in by age, whichever scheduler issued them
        allocated = max(allocated, sm.last_alloc[kind])
        sm.last_alloc[kind] = allocated
    elif m.port_width[kind] == 1:
        allocated = max(allocated, (sm.ports[port].alloc[0] + 1) * m.register_file_ports)
    take(sm, pool, allocated)
    return allocated


def register_bank_of(m, number, w):
    """The bank of a register of warp `w`; a sub-core has its own banks."""
    own = (number + w) & (m.warp_banks - 1)
    return m.scheduler_of[w] * m.warp_banks + own if m.sub_cores else own


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


def row_of(m, step):
    """Where the bookings of register banks for a step stand."""
    return step & (m.ring * m.register_file_ports - 1)


def write_back(c, row, w, time):
    """Results written at `time` occupy their banks in its first step."""
    step = time * c.machine.register_file_ports
    for k in range(row.write_banks_at, row.write_banks_end):
        bank = register_bank_of(c.machine, c.streams.operands[k], w)
        book(c.register_banks, row_of(c.machine, step), bank, step)


def unwrite(c, row, w, time):
    """The same are not written at `time`, as was booked."""
    at = row_of(c.machine, time * c.machine.register_file_ports)
    for k in range(row.write_banks_at, row.write_banks_end):
        unbook(c.register_banks, at, register_bank_of(c.machine, c.streams.operands[k], w))
