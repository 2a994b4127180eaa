"""The memory side's turn: what SMs asked for in a window goes through the switch; slices and channels work on, and
replies fall due in later windows (docs/timing-rules.md, rule 11)."""

from abstim.engine.accesses import UPPER_HALF
from abstim.engine.address_map import bank_of, l2_set_of, parts_of, row_of, slice_of
from abstim.engine.dram import advance_channel, cycles_by
from abstim.engine.drawn_slices import draw_slices
from abstim.engine.l2 import advance_slice, is_atomic
from abstim.engine.rules import UNITS_A_CYCLE
from abstim.engine.state import FETCHED, NEVER, NOBODY, TO_ACCESS
from abstim.engine.switch import WORD_LOG2, advance_switch, append, give_back_all, is_idle, join, leave, new_place, put
from functional.jit.marked import members, outlined, vectors
from functional.traces.line_record import words_of


def of_fermi(m, request, packet_sectors):
    """A sector's mask of written words has those of its packet's sectors before it, too, and sectors of an upper half
    alone meet the tags of the next line, in the same slice (GPGPU-Sim 4.2, breakdown_request_to_sector_requests)."""
    request.words &= words_of(packet_sectors & (2 * request.sectors - 1))
    if packet_sectors == UPPER_HALF and request.who in (NOBODY, TO_ACCESS):
        request.line += 1
        _, _, local, in_slice = slice_of(m, request.line)
        request.l2_set, request.bank, request.row = l2_set_of(m, in_slice), bank_of(m, local), row_of(m, local)


def is_from_afar(m, request, n):
    """Does an SM of the other part of L2 change what lies in slice `n`? Reads ask their own part first."""
    own, home = parts_of(m, request.sm, n)
    return own != home and is_atomic(request)


def into_slice(shared, place, time):
    """A packet comes out of the switch: a request a sector, which are at the slice after its delay."""
    requests, slices, m = shared.requests, shared.slices, shared.machine
    rows, packet = requests.rows, requests.rows[place - 1]
    n, sectors = packet.slice, packet.sectors
    for j in members(sectors):
        rest = sectors >> (j + 1)
        each = new_place(requests.rows, requests.unused) if rest else place
        if rest:
            rows[each - 1] = packet
        request = rows[each - 1]
        request.sectors = 1 << j
        request.due = time + m.slice_delay
        if m.coalesced_bytes == 0:
            of_fermi(m, request, sectors)
        if is_from_afar(m, request, n):
            request.due += m.l2_partition
            append(rows, slices.afar[n], each)
        else:
            append(rows, slices.delayed[n], each)
    slices.wake[n] = min(slices.wake[n], time + m.slice_delay)


def empty_outputs(shared, time):
    """A packet leaves each output of the switch to the slices, unless its slice is full."""
    switch, rows, held = shared.there, shared.requests.rows, shared.held
    for k in range(len(switch.filled)):
        for w in members(switch.filled[k]):
            n = (k << WORD_LOG2) + w
            if rows[switch.outputs[n].first - 1].due > time or held[n, time & (held.shape[1] - 1)] == time:
                continue
            place = leave(switch, shared.machine, rows, n, rows[switch.outputs[n].first - 1].sm)
            into_slice(shared, place, time)


def deliver_one(shared, n, time):
    """The next reply comes out of the switch for SM `n`."""
    rows, m, traffic = shared.requests.rows, shared.machine, shared.traffic[n]
    place = leave(shared.back, m, rows, n, rows[shared.back.outputs[n].first - 1].near)
    request = rows[place - 1]
    due = time + 1 + (m.miss_delay if request.from_dram else m.hit_delay)
    free = max(due * UNITS_A_CYCLE, traffic.reply_free)
    request.due, traffic.reply_free = free // UNITS_A_CYCLE, free + UNITS_A_CYCLE // m.l2_reply_sectors
    append(rows, shared.arriving[n], place)


def deliver(shared, time):
    """Replies come out of the switch for each SM that has any, as many as it takes in a cycle."""
    switch, rows, most = shared.back, shared.requests.rows, shared.machine.l2_reply_sectors
    for k in range(len(switch.filled)):
        for w in members(switch.filled[k]):
            n = (k << WORD_LOG2) + w
            for _ in range(most):
                if switch.outputs[n].count and rows[switch.outputs[n].first - 1].due <= time:
                    deliver_one(shared, n, time)


@outlined
def collect_requests(shared, until):
    """The switch to the slices, up to and including cycle `until`."""
    time = shared.clock[0]
    while time <= until and not is_idle(shared.there):
        empty_outputs(shared, time)
        advance_switch(shared.there, shared.machine, shared.requests.rows, 1, time)
        time += 1
    shared.clock[0] = max(time, until + 1)


@vectors
def earliest(times):
    """The first of some cycles."""
    following = NEVER
    for n in range(len(times)):
        following = min(following, times[n])
    return following


def next_work(shared, time):
    """The first cycle after `time` in which anything behind the switch to the slices has something to do."""
    if not is_idle(shared.back):
        return time + 1
    following = earliest(shared.slices.wake)
    if following <= time + 1:
        return time + 1
    cycle = earliest(shared.channels.wake)
    if cycle < NEVER:  # the core cycle into which it falls
        following = min(following, -((-cycle * shared.machine.dram_cycle) >> 16))
    return max(following, time + 1)


def is_all_served(shared):
    """Is nothing on its way behind the SMs?"""
    idle = is_idle(shared.there) and is_idle(shared.back)
    return idle and min(earliest(shared.slices.wake), earliest(shared.channels.wake)) >= NEVER


@outlined
def serve_requests(gpu):
    """Slices, channels and the switch back, as far ahead as nothing that is still to be asked can reach. May run while
    the SMs run their next window: what it sends them is due in later ones."""
    shared = gpu.shared
    m, wake, until = shared.machine, shared.channels.wake, shared.clock[0] - 1 + shared.machine.slice_delay
    time = max(shared.clock[1], next_work(shared, shared.clock[1] - 1))
    while time <= until:
        deliver(shared, time)
        upto = cycles_by(m, time)
        for h in range(len(wake)):
            while wake[h] <= upto:
                advance_channel(shared, h, wake[h], time)
        for n in range(len(shared.slices.wake)):
            if shared.slices.wake[n] <= time and advance_slice(shared, n, time):
                h = n // m.l2_slices_per_channel
                wake[h] = min(wake[h], upto + 1)
        advance_switch(shared.back, m, shared.requests.rows, m.l2_reply_sectors, time)
        time = next_work(shared, time)
    shared.clock[1] = max(shared.clock[1], until + 1)


def hand_over(gpu, n, until):
    """SM `n` gets what is due in windows to come, gives back what it has received, and is told how much it may ask."""
    shared, sm, m, rows = gpu.shared, gpu.sm[n], gpu.machine, gpu.shared.requests.rows
    inbox, traffic = shared.inbox[n], shared.traffic[n]
    give_back_all(shared.requests, shared.received[n])
    join(rows, inbox, shared.arriving[n])
    sm.in_flight -= traffic.ended
    traffic.ended = 0
    sm.credits = m.inject_queue_flits + m.crossbar_queue_flits - shared.there.flits[n]
    if sm.issued_count:  # for want of room, maybe
        sm.memory_due = min(sm.memory_due, until + 1)
    if inbox.count:
        sm.below_due = min(sm.below_due, rows[inbox.first - 1].due)
        sm.memory_due = min(sm.memory_due, sm.below_due)
    if sm.live > 0 and (sm.issued_count or inbox.count):
        sm.clock = min(sm.clock, max(sm.memory_due, until + 1))


@outlined
def exchange(gpu, until):
    """The SMs have run up to and including cycle `until`, and the memory side as far as it could meanwhile."""
    shared = gpu.shared
    rows = shared.requests.rows
    for n in range(gpu.machine.sm_count):  # what they asked for in the window comes into their queues of the switch
        for k in range(gpu.sm[n].asked):
            if gpu.machine.slice_random and shared.outbox[n, k].kind == FETCHED:
                continue
            place = new_place(rows, shared.requests.unused)
            rows[place - 1] = shared.outbox[n, k]
            put(shared.there, rows, n, place)
            if gpu.machine.slice_random and shared.traffic[n].undrawn == 0:
                shared.traffic[n].undrawn = place
    if gpu.machine.slice_random:
        draw_slices(gpu, until)
    for n in range(gpu.machine.sm_count):
        gpu.sm[n].asked = gpu.sm[n].drawn = 0
    collect_requests(gpu.shared, until)
    for n in range(gpu.machine.sm_count):
        hand_over(gpu, n, until)
