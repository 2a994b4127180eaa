"""L2 slices, shared by all SMs: tags, miss registers, queues (docs/timing-rules.md, rule 11)."""

from abstim.engine.accesses import number_of, sectors_in
from abstim.engine.address_map import bank_of, row_of, slice_of
from abstim.engine.coalescer import answer_followers, coalesce
from abstim.engine.l1d import write_sectors
from abstim.engine.rules import SECTORS, UNITS_A_CYCLE
from abstim.engine.state import ATOMIC, EVICTED, FP64_ATOMIC, NEVER, NOBODY, READ, TO_CONST, WRITE
from abstim.engine.switch import append, give_back, new_place, put, take
from abstim.engine.tags import find, oldest_idle, take_way
from functional.jit.marked import add, outlined
from functional.traces.trace import LINE_BYTES, SECTOR_BYTES


def first_way(m, n, request):
    """Where the set of a request's line begins in slice `n`."""
    return (n * m.l2_sets + request.l2_set) * m.l2_ways


def use(l2, k):
    """The line at `k` is the youngest."""
    l2.uses[0] += 1
    l2.last_use[k] = l2.uses[0]


def evict(shared, n, k, time):
    """What was written of the line at `k` goes the way of a miss to DRAM; the slice reads it out first."""
    m, line = shared.machine, shared.l2.line[k]
    if line.dirty == 0:
        return
    place = new_place(shared.requests.rows, shared.requests.unused)
    request = shared.requests.rows[place - 1]
    request.line, request.sectors, request.kind, request.slice = shared.l2.tag[k] - 1, line.dirty, EVICTED, n
    _, _, local, _ = slice_of(m, request.line)
    request.bank, request.row, request.who = bank_of(m, local), row_of(m, local), NOBODY
    append(shared.requests.rows, shared.slices.missing[n], place)
    state = shared.slices.state[n]
    state.port_free = max(state.port_free, time * UNITS_A_CYCLE) + sectors_in(line.dirty) * m.l2_sector_units
    shared.traffic[0].dram_writes += sectors_in(line.dirty)


def write_back_early(shared, n, first, time):
    """Of a set in which too many lines wait to be written back, the one used longest ago goes to DRAM, and stays; not
    if there is no room for it now."""
    m, l2 = shared.machine, shared.l2
    oldest, count = -1, 0
    for k in range(first, first + m.l2_ways):
        if l2.line[k].dirty:
            count += 1
            if oldest < 0 or l2.last_use[k] < l2.last_use[oldest]:
                oldest = k
    if count > m.l2_dirty_ways and shared.slices.missing[n].count < m.l2_miss_queue:
        evict(shared, n, oldest, time)
        l2.line[oldest].dirty = 0


def begin_line(l2, k, line):
    """A line takes the way `k`, nothing of it there."""
    take_way(l2, k, line)
    l2.line[k].valid = l2.line[k].dirty = l2.line[k].written = 0


def place_line(shared, n, request, first, time):
    """The line asked for takes a way of its set, which begins at `first`; -1: something is on its way for all."""
    l2 = shared.l2
    k = oldest_idle(l2, first, shared.machine.l2_ways)
    if k >= 0:
        evict(shared, n, k, time)
        begin_line(l2, k, request.line)
    return k


def count(shared, request, missed):
    """An access, for the statistics; one of the other part of L2 has been counted there."""
    if request.slice != request.near:
        return
    traffic = shared.traffic[request.sm]
    traffic.l2_accesses += 1
    traffic.l2_misses += missed


def occupy(m, state, units, time):
    """A hit reads or writes through the slice's port."""
    state.port_free = max(state.port_free, time * UNITS_A_CYCLE) + units


def reply(shared, n, place, time):
    """A request is answered; what nobody waits for ends here. What the other part of L2 asked for goes there."""
    request = shared.requests.rows[place - 1]
    if n != request.near:
        request.slice = request.near
        append(shared.requests.rows, shared.slices.from_dram[request.near], place)
        shared.slices.wake[request.near] = min(shared.slices.wake[request.near], shared.slices.wake[n])
        return
    if request.who == NOBODY:
        shared.traffic[request.sm].ended += 1
        shared.traffic[request.sm].last_ended = time
        if shared.machine.side_by_side and request.place:
            add(shared.posted, request.place - 1, -1)
            shared.posted_end[request.place - 1] = time
        give_back(shared.requests.rows, shared.requests.unused, place)
    else:
        append(shared.requests.rows, shared.slices.replying[n], place)
        if shared.machine.l2_coalesces:
            answer_followers(shared, n, place, time)


def are_a_sectors(words):
    """Are there as many words in a set as a sector has? Then the reference takes the sector for whole."""
    number = 0
    while words and number <= SECTOR_BYTES // 4:
        words, number = words & (words - 1), number + 1
    return number == SECTOR_BYTES // 4


def write(shared, n, queue, place, k, first, time):
    """A store of a sector, its line at `k`, -1: not there. False: there is no room now."""
    m, l2, request = shared.machine, shared.l2, shared.requests.rows[place - 1]
    sector, missed = request.sectors, True
    present = k >= 0 and (l2.line[k].valid | l2.line[k].dirty) & sector != 0
    if present:
        missed = False
    else:
        if shared.slices.missing[n].count >= m.l2_miss_queue:
            return False
        if k < 0:
            k = place_line(shared, n, request, first, time)
            if k < 0:
                return False
        missed = not l2.line[k].coming & sector
        if m.coalesced_bytes == 0 and are_a_sectors(request.words):
            l2.line[k].valid |= sector
    if m.l2_write_units:
        occupy(m, shared.slices.state[n], m.l2_write_units, time)
    elif present:
        occupy(m, shared.slices.state[n], m.l2_sector_units, time)
    count(shared, request, missed)
    l2.line[k].valid |= write_sectors(l2.line[k], sector, request.words)
    use(l2, k)
    if m.l2_dirty_ways:
        write_back_early(shared, n, first, time)
    take(shared.requests.rows, queue)
    reply(shared, n, place, time)
    return True


def is_atomic(request):
    """Does it change what it reads?"""
    return request.kind == ATOMIC or request.kind >= FP64_ATOMIC


def hit(shared, n, queue, place, k, time):
    """A read of a sector that is there."""
    m, request = shared.machine, shared.requests.rows[place - 1]
    atomic = is_atomic(request)
    doubles = max(0, request.kind - FP64_ATOMIC) * m.l2_fp64_atomic_units
    occupy(m, shared.slices.state[n], max(m.l2_atomic_units, doubles) if atomic else m.l2_sector_units, time)
    if atomic:
        shared.l2.line[k].dirty |= request.sectors
    count(shared, request, False)
    use(shared.l2, k)
    take(shared.requests.rows, queue)
    reply(shared, n, place, time)


def known_by(m, request):
    """The sector by which a read is known while it is on its way. The reference's packets of 64 B have the address of
    the first for both sectors (breakdown_request_to_sector_requests), which matters for constants on a Fermi: the
    second is answered with the first, and is not there afterwards."""
    sectors = request.sectors
    if m.coalesced_bytes or m.const_line_bytes >= LINE_BYTES or request.who != TO_CONST:
        return sectors
    return sectors & 5 | (sectors & 10) >> 1


def being_answered(shared, n, request):
    """How many reads that are known by the same sector as this one have their data, and wait to be answered."""
    filled, rows, m, left = shared.slices.filled[n], shared.requests.rows, shared.machine, 0
    place = filled.first
    for _ in range(filled.count):
        other = rows[place - 1]
        left += other.line == request.line and known_by(m, other) == known_by(m, request)
        place = other.next
    return left


def join_answered(shared, n, queue, k):
    """The first read of a queue is answered behind those; it misses nothing."""
    place = take(shared.requests.rows, queue)
    append(shared.requests.rows, shared.slices.filled[n], place)
    count(shared, shared.requests.rows[place - 1], False)
    use(shared.l2, k)


def join(shared, queue, place, k):
    """A read of a sector that is on its way waits with the others; false if there are too many."""
    line, request, rows = shared.l2.line[k], shared.requests.rows[place - 1], shared.requests.rows
    known = known_by(shared.machine, request)
    j = number_of(known)
    if line.joined[j] >= shared.machine.l2_mshr_merges:
        return False
    take(rows, queue)
    request.next = 0
    if line.waiting[j]:
        rows[line.waiting_last[j] - 1].next = place
    else:
        line.waiting[j] = place
    line.waiting_last[j] = place
    # of a constant's two sectors the second counts as a miss as well, once
    count(shared, request, known != request.sectors and line.joined[j] == 1 and line.valid & known == 0)
    line.joined[j] += 1
    use(shared.l2, k)
    return True


def last_idle_way(l2, first, ways, k):
    """Would a miss to the line at `k`, or, if that is -1, of a line that is not there, leave its set without a way for
    which nothing is on its way?"""
    if k >= 0 and l2.line[k].coming:
        return False
    idle = 0
    for way in range(first, first + ways):
        idle += l2.line[way].coming == 0
    return idle < 2


def count_register(slices, n, request, more):
    """So many more miss registers are in use, or fewer."""
    if request.home == n:
        slices.state[n].mshrs_used += more
    else:
        slices.state[n].far_mshrs_used += more


def bring_neighbour(shared, n, place, k):
    """With a sector that comes from DRAM to the line at `k` comes the other one of its 64 bytes, if the slice has room
    for another miss."""
    rows, slices, line = shared.requests.rows, shared.slices, shared.l2.line[k]
    m, state, sectors = shared.machine, slices.state[n], rows[place - 1].sectors
    other = (sectors & 5) << 1 | (sectors & 10) >> 1
    there = (line.valid | line.coming | line.dirty) & other
    if there or slices.missing[n].count + 1 >= max(m.l2_miss_queue, 2) or state.mshrs_used >= m.l2_mshrs:
        return
    beside = new_place(rows, shared.requests.unused)
    rows[beside - 1] = rows[place - 1]
    request, j = rows[beside - 1], number_of(other)
    request.sectors, request.who, request.kind, request.near = other, NOBODY, READ, n
    line.coming |= other
    line.joined[j], line.waiting[j] = 1, 0
    count_register(slices, n, request, 1)
    shared.traffic[request.sm].dram_reads += 1
    append(rows, slices.missing[n], beside)


def miss(shared, n, queue, place, k, first, time):
    """A read of a sector that is not there; false if the slice has no room for a miss."""
    m, l2, request, slices = shared.machine, shared.l2, shared.requests.rows[place - 1], shared.slices
    state = slices.state[n]  # lines of the other part of L2 have miss registers of their own
    used = state.mshrs_used if request.home == n else state.far_mshrs_used
    if slices.missing[n].count + 1 >= max(m.l2_miss_queue, 2) or used >= m.l2_mshrs:
        return False
    if request.home != n and last_idle_way(l2, first, m.l2_ways, k):
        return False
    if k < 0:
        k = place_line(shared, n, request, first, time)
        if k < 0:
            return False
    known = known_by(m, request)
    line, j = l2.line[k], number_of(known)
    line.coming |= known
    line.joined[j], line.waiting[j] = 1, 0
    use(l2, k)
    count_register(slices, n, request, 1)
    count(shared, request, known == request.sectors)
    shared.traffic[request.sm].dram_reads += request.home == n
    request.from_dram = 1
    take(shared.requests.rows, queue)
    append(shared.requests.rows, slices.missing[n], place)
    if m.fetches_pairs and request.home == n:
        bring_neighbour(shared, n, place, k)
    return True


def access(shared, n, queue, time):
    """The first request of a queue of slice `n` meets the tags; false if it must wait."""
    m, l2 = shared.machine, shared.l2
    place = queue.first
    request = shared.requests.rows[place - 1]
    first = first_way(m, n, request)
    k = find(l2.tag, first, m.l2_ways, request.line)
    if request.kind == WRITE or request.kind == EVICTED:
        return write(shared, n, queue, place, k, first, time)
    if k >= 0 and l2.line[k].valid & request.sectors:
        hit(shared, n, queue, place, k, time)
        return True
    known, left = known_by(m, request), 0
    if k >= 0 and l2.line[k].coming & known:
        return join(shared, queue, place, k)
    if k >= 0 and known != request.sectors:
        left = being_answered(shared, n, request)
    if left:
        if left < m.l2_mshr_merges:
            join_answered(shared, n, queue, k)
        return left < m.l2_mshr_merges
    return miss(shared, n, queue, place, k, first, time)


def fill(shared, n, place):
    """A sector is back from DRAM: who waits for it is answered, one a cycle."""
    l2, rows, request = shared.l2, shared.requests.rows, shared.requests.rows[place - 1]
    m, filled = shared.machine, shared.slices.filled[n]
    k = find(l2.tag, first_way(m, n, request), m.l2_ways, request.line)
    known = known_by(m, request)
    line, j = l2.line[k], number_of(known)
    line.coming &= ~known
    line.valid |= request.sectors
    count_register(shared.slices, n, request, -1)
    while place:
        if is_atomic(rows[place - 1]):
            line.dirty |= rows[place - 1].sectors
        if rows[place - 1].who == NOBODY and rows[place - 1].kind == READ:  # what came beside another
            give_back(rows, shared.requests.unused, place)
        else:
            append(rows, filled, place)
        place = line.waiting[j]
        if place:
            line.waiting[j] = rows[place - 1].next


def send_reply(shared, n, time):
    """The first reply of slice `n` goes to the switch, if there is room."""
    m, rows = shared.machine, shared.requests.rows
    if shared.back.flits[n] >= m.inject_queue_flits + m.crossbar_queue_flits:
        return
    place = take(rows, shared.slices.replying[n])
    request = rows[place - 1]
    request.output, request.flits, request.due = request.sm, 1, time
    put(shared.back, rows, n, place)


def pass_misses(shared, n, time):
    """A miss goes on to the queue in front of DRAM, or to the other part of L2. Returns if one did the former."""
    if shared.slices.missing[n].count == 0 or shared.slices.to_dram[n].count >= shared.machine.l2_queue:
        return False
    first = shared.requests.rows[shared.slices.missing[n].first - 1]
    if first.kind != EVICTED and first.home != n:
        home, due = first.home, time + shared.machine.l2_partition
        first.slice, first.due = home, due
        append(shared.requests.rows, shared.slices.crossing[home], take(shared.requests.rows, shared.slices.missing[n]))
        shared.slices.wake[home] = min(shared.slices.wake[home], due)
        return False
    append(shared.requests.rows, shared.slices.to_dram[n], take(shared.requests.rows, shared.slices.missing[n]))
    return True


def take_in(shared, n, time):
    """Requests whose way to the slice is over come into its queue."""
    slices, rows, m = shared.slices, shared.requests.rows, shared.machine
    turns = m.l2_turns
    while turns and slices.delayed[n].count and rows[slices.delayed[n].first - 1].due <= time:
        if m.l2_coalesces and coalesce(shared, n, time):
            continue
        if slices.asking[n].count >= m.l2_queue:
            return
        append(rows, slices.asking[n], take(rows, slices.delayed[n]))
        turns -= 1


def first_due(rows, queue):
    """When the first request of a queue is there; NEVER if there is none."""
    return rows[queue.first - 1].due if queue.count else NEVER


def answer_one(shared, n, time):
    """The older of the first request that an SM asks of slice `n` and the first of the other part of L2, a read or an
    atomic, meets the tags; if the SM's must wait, the other does, or the two parts could wait for each other. False:
    there is none, or no room."""
    slices, state, rows = shared.slices, shared.slices.state[n], shared.requests.rows
    asking, crossing, afar = slices.asking[n], slices.crossing[n], slices.afar[n]
    read, changed = first_due(rows, crossing), first_due(rows, afar)
    came = min(read, changed) if min(read, changed) < time else NEVER
    if asking.count and not state.blocked and rows[asking.first - 1].due <= came:
        if access(shared, n, asking, time):
            return True
        state.blocked = 1
    if came >= NEVER:
        return False
    return access(shared, n, afar, time) if changed < read else access(shared, n, crossing, time)


def answer(shared, n, time):
    """Slice `n` meets the requests at hand: as many as its port has time for."""
    m, slices, state = shared.machine, shared.slices, shared.slices.state[n]
    for _ in range(m.l2_turns):
        if slices.to_dram[n].count >= m.l2_queue or slices.replying[n].count >= m.l2_queue:
            return
        if state.port_free >= (time + 1) * UNITS_A_CYCLE or not answer_one(shared, n, time):
            return


def next_turn(slices, m, rows, n, time):
    """The next cycle in which slice `n` has something to do, if nothing comes back to it before."""
    asking, state, following = slices.asking[n].count, slices.state[n], NEVER
    if (
        slices.replying[n].count or slices.filled[n].count or slices.from_dram[n].count or slices.missing[n].count
        or (asking and asking + SECTORS > m.l2_queue) or (asking and slices.to_dram[n].count >= m.l2_queue)
    ):  # fmt: skip
        return time + 1
    if asking and not state.blocked:
        following = state.port_free // UNITS_A_CYCLE
    following = min(following, first_due(rows, slices.delayed[n]))
    following = min(following, first_due(rows, slices.crossing[n]), first_due(rows, slices.afar[n]))
    return max(time + 1, following)


@outlined
def advance_slice(shared, n, time):
    """One cycle of slice `n`; true if a miss has come to the queue in front of DRAM."""
    slices, rows, m = shared.slices, shared.requests.rows, shared.machine
    for _ in range(m.l2_reply_sectors):
        if slices.replying[n].count:
            send_reply(shared, n, time)
    changed = slices.filled[n].count > 0 and slices.replying[n].count < m.l2_queue
    if changed:
        reply(shared, n, take(rows, slices.filled[n]), time)
    if slices.from_dram[n].count:
        changed = True
        fill(shared, n, take(rows, slices.from_dram[n]))
    missing = slices.missing[n].count
    passed = pass_misses(shared, n, time)
    if changed or slices.missing[n].count < missing:
        slices.state[n].blocked = 0
    answer(shared, n, time)
    take_in(shared, n, time)
    if slices.asking[n].count + SECTORS > m.l2_queue:  # a packet may hold as many
        shared.held[n, (time + 1) & (shared.held.shape[1] - 1)] = time + 1
        shared.clock[2] = 1
    slices.wake[n] = next_turn(slices, m, rows, n, time)
    return passed
