"""From issue to operands: bookings of cycles, ports, operand collectors and conflicts on register banks
(docs/timing-rules.md, rules 3 and 13). Steps are those of the register file: `register_steps` a cycle."""

from abstim.engine.rules import ALLOCATE_CYCLES, READ_STEPS
from abstim.engine.state import AT_PORTS, NEVER, PLACES_LOG2, SLOTS
from abstim.engine.warp_slots import EMPTY_SET, bit
from functional.jit.marked import ones

HALF = 1 << PLACES_LOG2  # bits of a word: the cycle above, what is taken below
LOWER = (1 << HALF) - 1
CYCLES = LOWER >> 1  # cycles are told apart modulo 2^31, far more than a ring is long


def taken(ring, row, time):
    """The set of places that are taken in cycle `time`, whose word is `ring[row]`."""
    word = ring[row]
    return word & LOWER if word >> HALF == time & CYCLES else 0


def book(ring, row, places, time):
    """Some places are taken in cycle `time`."""
    ring[row] = (time & CYCLES) << HALF | taken(ring, row, time) | places


def count_results(c, due):
    """How many results are due in a cycle."""
    found = 0
    for word in range(len(c.results)):
        found += ones(taken(c.results[word], due & (c.machine.ring - 1), due))
    return found


def results_of(c, unit):
    """Which ring a unit's results are in, and its place there."""
    return unit >> PLACES_LOG2 if len(c.results) > 1 else 0, 1 << (unit & (HALF - 1))


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


def first_free(c, pool):
    """The step from which a collector of a pool is free; NEVER: that is not known of any."""
    found = c.collectors[pool, 0]
    for k in range(1, c.sm.ports[pool].collectors):
        found = min(found, c.collectors[pool, k])
    return found


def has_collector(c, kind, pool, time):
    """Does an instruction issued at `time` have a collector in the next cycle, whoever comes after it? Not known where
    a warp may issue another one at once, whose kind comes before."""
    if c.sm.queued[kind] or c.sm.ports[pool].waiting or c.machine.issues_per_turn > 1:
        return False
    return first_free(c, pool) <= (time + ALLOCATE_CYCLES) * c.machine.register_file_ports


def wait_at_port(c, kind, i, w, port, pool, place):
    """An instruction waits at its port for a collector; returns its AT_PORT. Its place of the port is taken
    meanwhile."""
    sm = c.sm
    row = c.port_queues[kind, (sm.queued_first[kind] + sm.queued[kind]) & (AT_PORTS - 1)]
    row.instruction, row.warp, row.port, row.pool, row.place, row.log_row = i, w, port, pool, place, 0
    sm.queued[kind] += 1
    sm.ports[pool].waiting += 1
    sm.at_port += 1
    sm.ports[port].alloc[place] = NEVER
    return row


def latest_at_port(c, kind):
    """The AT_PORT that came last to the ports of a kind."""
    return c.port_queues[kind, (c.sm.queued_first[kind] + c.sm.queued[kind] - 1) & (AT_PORTS - 1)]


def take(c, pool, step):
    """A collector of a pool is taken as soon as one is free, in `step` at the earliest: the lowest of those that are.
    Returns the step."""
    ports, free, number = c.sm.ports[pool], c.collectors[pool], 0
    found = max(free[0], step)
    for k in range(1, ports.collectors if found > step else 1):
        then = max(free[k], step)
        number = k if then < found else number
        found = min(found, then)
    free[number], ports.collector_taken = NEVER, number
    return found


def collect(c, kind, port, pool, time):
    """Take an operand collector for an instruction issued at `time` as soon as one is free; returns the step. When it
    is free is known of none in which something waits for a load/store unit that is held up."""
    sm, m = c.sm, c.machine
    step = (time + ALLOCATE_CYCLES) * m.register_file_ports
    if m.shared_collectors:  # a kind's instructions are let in by age, whichever scheduler issued them
        step = take(c, pool, max(step, sm.last_alloc[kind]))
        sm.last_alloc[kind] = step
        return step
    if m.port_width[kind] == 1:
        step = max(step, (sm.ports[port].alloc[0] + 1) * m.register_file_ports)
    return take(c, pool, step)


def banks_of(m, banks, w):
    """The register banks of warp `w` where those of warp 0 are a set of `banks`; a sub-core has its own."""
    count, turn = m.warp_banks, w & (m.warp_banks - 1)
    own = ((banks << turn) | (banks >> 1 >> (count - 1 - turn))) & (~EMPTY_SET >> (SLOTS - count))
    return own << (m.scheduler_of[w] * count) if m.sub_cores else own


def read_from(c, banks, first):
    """One read of each of some banks, in step `first` or later: each bank serves one read a step, and a write takes
    precedence. Returns the step after the last."""
    ready = first
    for word in range(len(c.register_banks)):
        ring, step, left = c.register_banks[word], first, banks >> (word * HALF) & LOWER
        while left:
            there = left & ~taken(ring, row_of(c.machine, step), step)
            book(ring, row_of(c.machine, step), there, step)
            left &= ~there
            step += 1
        ready = max(ready, step)
    return ready


def read_operands(c, row, w, allocated):
    """Step in which the operands are at hand."""
    first = allocated + READ_STEPS
    if not row.read_set:
        return first
    ready = read_from(c, banks_of(c.machine, row.read_set, w), first)
    for k in range(row.reads_again_at, row.reads_again_end):  # a step later than the first of that bank at the earliest
        ready = max(ready, read_from(c, banks_of(c.machine, bit(c.streams.operands[k]), w), first + 1))
    return ready


def row_of(m, step):
    """Where the bookings of register banks for a step stand."""
    return step & (m.ring * m.register_file_ports - 1)


def write_back(c, row, w, time):
    """Results written at `time` occupy their banks in its first step."""
    if row.write_set:
        step, banks = time * c.machine.register_file_ports, banks_of(c.machine, row.write_set, w)
        for word in range(len(c.register_banks)):
            book(c.register_banks[word], row_of(c.machine, step), banks >> (word * HALF) & LOWER, step)


def unwrite(c, row, w, time):
    """The same are not written at `time`, as was booked."""
    if row.write_set:
        step, banks = time * c.machine.register_file_ports, banks_of(c.machine, row.write_set, w)
        for word in range(len(c.register_banks)):
            c.register_banks[word, row_of(c.machine, step)] &= ~(banks >> (word * HALF) & LOWER)
