"""Perfect memory: cycles on the load/store unit and result of an access, L1D by its policies, and replies that
come in one a cycle (docs/timing-rules.md, rules 5 and 12)."""

from abstim.engine import accesses
from abstim.engine.accesses import line_and_sectors
from abstim.engine.l1d import find_line, set_of, use
from abstim.engine.operand_collectors import write_back
from abstim.engine.pending_accesses import respond_in_order
from abstim.engine.read_only_caches import const_line, supply, texture_line
from abstim.engine.rules import SECTORS
from abstim.engine.state import CONTEXT, HINTS, NEVER, WRITE_BACK, WRITE_THROUGH
from abstim.engine.tags import drop, place, touch, victim
from functional.jit.marked import members, outlined, refer
from functional.traces.trace import LINE_BYTES
from precharacterize.classify import Kind


def allocate(c, line, time):
    """Make room for a line that is not there; returns its position."""
    m, l1d = c.machine, c.l1d
    k = victim(l1d.last_use, set_of(m, line), m.l1d_ways)
    row = l1d.line[k]
    place(l1d, k, line, time)
    row.dirty = 0
    for j in range(SECTORS):
        l1d.sector_there[k, j] = NEVER
    touch(c.sm, l1d.last_use, k)
    l1d.hint[line & (HINTS - 1)] = k
    return k


def absent(c, k, sectors):
    """Is a sector wanted of the line at `k` neither there nor on its way?"""
    for j in members(sectors if c.machine.l1d_sectored else 0):  # noqa: SIM110 (compiled)
        if c.l1d.sector_there[k, j] == NEVER:
            return True
    return False


def arrival(c, k, sectors):
    """Cycle in which the sectors wanted of the line at `k` are there."""
    if not c.machine.l1d_sectored:
        return c.l1d.there[k]
    there = 0
    for j in members(sectors):
        there = max(there, c.l1d.sector_there[k, j])
    return there


def arrive_at(c, k, sectors, there):
    """The sectors of the line at `k` are there from cycle `there` on."""
    c.l1d.there[k] = max(c.l1d.there[k], there)
    for j in members(sectors):
        c.l1d.sector_there[k, j] = there


def miss(c, k, line, time, sectors):
    """A load that finds its line, or the sectors it wants of the one at `k` (-1: no line), missing: (position, cycle in
    which they are there)."""
    if k < 0:
        k = allocate(c, line, time)
    there = supply(c, time)
    arrive_at(c, k, sectors if c.machine.l1d_sectored else accesses.WHOLE_LINE, there)
    return k, there


def load(c, line, time, sectors):
    """Result cycle of one load (or local store) transaction, a hit at `time`. Allocates on a miss."""
    k = find_line(c, line)
    c.sm.l1d_accesses += 1
    if k >= 0 and not absent(c, k, sectors):
        done = max(time, arrival(c, k, sectors))
    else:
        c.sm.l1d_misses += 1
        k, done = miss(c, k, line, time, sectors)
    use(c, k)
    return done


def store(c, line, time, sectors):
    """Acknowledgement of one global store transaction that meets the tags at `time`."""
    m, k = c.machine, find_line(c, line)
    c.sm.l1d_accesses += 1
    if k < 0 or absent(c, k, sectors):
        c.sm.l1d_misses += 1
    if m.l1d_write < WRITE_THROUGH:  # a hit evicts, a miss does not allocate
        if k >= 0:
            drop(c.l1d, k)
        return supply(c, time)
    if k < 0 and m.l1d_write_allocate:
        k = allocate(c, line, time)
    if k >= 0:
        if m.l1d_write_allocate:  # what is written need not be fetched
            arrive_at(c, k, sectors, time)
        use(c, k)
        if m.l1d_write == WRITE_BACK:
            c.l1d.line[k].dirty |= sectors
            return time
    return supply(c, time)


def access(c, w, i, start):
    """(cycles on the load/store unit, result) of instruction `i` of warp `w`, which starts at `start`; moves the warp's
    cursors past it."""
    kind, first, conflict = c.code[i].kind, c.sm.warps.record[w], c.sm.warps.conflict[w]
    end = accesses.move_past(c, w, i)
    busy, result = accesses.simple_result(c, w, i, first, end, conflict, start)
    if busy:
        return busy, came(c, w, i, start + 1, result) if kind > Kind.CONST_LOAD else result
    if kind <= Kind.CONST_LOAD:
        return const_result(c, w, i, first, end, start)
    return global_result(c, w, i, first, end, start)


def came(c, w, i, hit, result):
    """The result of a transaction; of one that did not hit, a reply, which is written to the register file. An SM that
    follows another one has bookings of its own only once it runs."""
    if result != hit and not c.sm.follows:
        write_back(c, c.code[i], w, result)
    return result


def const_result(c, w, i, first, end, start):
    """The same of a parameter or constant load: a line every `const_access_cycles`, last one first."""
    m = c.machine
    time, done, wide = start + m.const_hit_cycles, start, m.const_line_bytes >= LINE_BYTES
    for k in range(end - 1, first - 1, -1):
        line, sectors = line_and_sectors(c.streams.records, k)
        for half in range(1 if wide else 2):
            if sectors if wide else (sectors >> (2 * half)) & accesses.LOWER_HALF:
                done = max(done, came(c, w, i, time, const_line(c, line if wide else 2 * line + half, time)))
                time += m.const_access_cycles
    return max(time - start - m.const_hit_cycles, accesses.const_hold(m, 1, first, end)), done


def global_result(c, w, i, first, end, start):
    """The same of a global, local or generic access: a transaction a cycle into the L1D pipeline, last line first, and
    beside them a copy's passes of shared memory."""
    m = c.machine
    kind, size = c.code[i].kind, accesses.transaction_bytes(m, c.code[i].kind, c.code[i].access_bytes)
    time, done, busy, passing = start + m.l1d_latency_cycles, start, -1, 0
    banks = accesses.banks_of(m, c.streams.records, first, end, c.code[i].access_bytes)
    for k in range(end - 1, first - 1, -1):
        line, left = line_and_sectors(c.streams.records, k)
        if line == accesses.SHARED_LINE:
            passing += m.shared_pass_cycles
            continue
        if accesses.is_phase(line):
            continue
        line = accesses.line_for(m, line, c.sm.number, w)
        while left:
            sectors, later, busy = accesses.enter_next(banks, busy, left, size)
            left &= ~sectors
            time += later
            done = max(done, came(c, w, i, time, transaction(c, kind, line, time, sectors)))
    return max(m.lane_cycles, passing, time - start - m.l1d_latency_cycles), done


def transaction(c, kind, line, time, sectors):
    """Result cycle of one transaction that would meet the L1D tags at `time`."""
    m = c.machine
    passed = time - m.l1d_latency_cycles - 1 + m.atomic_latency_cycles  # if it passes L1D by
    if kind == Kind.GLOBAL_ATOMIC:
        return respond_in_order(c.sm, passed)
    if kind == Kind.TEXTURE_LOAD:
        return texture_line(c, line, time)
    if line >= accesses.LOCAL_LINE:
        return load(c, line, time, sectors)
    if m.l1d_bypass or kind == Kind.L2_LOAD:
        return respond_in_order(c.sm, passed)
    if kind == Kind.GLOBAL_LOAD:
        return load(c, line, time, sectors)
    return store(c, line, time, sectors)


@outlined
def ask_followers(c, w, i, start, fifo_free, busy, result):
    """Do the caches of SMs that follow this one (equal_sms.py) say the same of the access that it has made, for which
    its FIFO was free at `fifo_free`? Those that say something else stray."""
    k = c.sm.next_follower
    while k:
        other = refer(CONTEXT, c.contexts[(k - 1 - c.sm.number) * len(c.contexts) :])
        sm, k = other.sm, other.sm.next_follower
        if sm.strays == 0:
            sm.fifo_free = fifo_free
            other_busy, other_result = access(other, w, i, start)
            if other_busy != busy or other_result != result or sm.fifo_free != c.sm.fifo_free:
                sm.strays = c.sm.strays = 1
