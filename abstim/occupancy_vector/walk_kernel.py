"""The loops of `cache_walk`, compiled: accesses of all SMs through the tags, in nominal time."""

import numpy as np

from abstim.engine import accesses
from abstim.engine.accesses import line_of, sectors_in, sectors_of
from abstim.engine.address_map import bank_of, l2_set_of, row_of, slice_of
from abstim.engine.l1d import set_of, write_sectors
from abstim.engine.rules import SECTORS
from abstim.engine.state import WRITE_THROUGH
from abstim.engine.warp_slots import bit, first_after, lowest, span
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.answer_kernel import asked_by
from abstim.occupancy_vector.cache_walk import DRAM_CYCLES, FEW_WAYS, FIRST_CYCLES, L2_CYCLES, OPENED_ROWS, PIPE_PLACES
from abstim.occupancy_vector.evenness import STRETCH_CYCLES, WINDOW_CYCLES, end_stretch, end_window
from abstim.occupancy_vector.miss_queue import leave_sm, serve
from abstim.occupancy_vector.ready_slots import prefetch, split
from abstim.occupancy_vector.walk_tags import (
    empty,
    evict,
    find,
    free_way,
    in_l1d,
    oldest_way,
    place_in_l1d,
    place_in_l2,
    use,
)
from abstim.occupancy_vector.walk_uses import note, note_store
from functional.jit.marked import zero
from functional.traces.line_record import EACH_SECTOR, SPREAD, words_of
from functional.traces.trace import SECTOR_BYTES

MEETING_CYCLES = 2 * STRETCH_CYCLES  # in which SMs that ask for a line on its way go on together
ISSUE_CYCLES = 4  # of a warp between two of its instructions
CODE_LINES = 1 << 27  # where L2 finds instruction lines: above all data


def open_row(walk, caches, channel, local, sectors):
    """DRAM reads of a row: is it open, or is it to be opened for another one in the channel's queue?"""
    m, totals = walk.machine[0], caches.totals[0]
    bank, row = bank_of(m, local), row_of(m, local)
    own = row * m.dram_banks + bank + 1
    opened = caches.opened[channel, own & (OPENED_ROWS - 1)]
    if opened.row != own or totals.dram_reads - opened.read >= m.dram_queue * m.dram_channels:
        opened.row, opened.read = own, totals.dram_reads
        totals.rows_opened += caches.open_rows[channel, bank] != row + 1
    caches.open_rows[channel, bank] = row + 1
    totals.dram_reads += sectors
    caches.channel_sectors[channel] += sectors


def queued(caches, number, time, sectors, read):
    """How long sectors asked of L2, and of DRAM, wait for those that the SM has asked before."""
    own, shares = caches.servers[number], caches.shares[0]
    own.asks = 1
    own.l2 = max(own.l2, time) + sectors * shares.l2
    if read:
        own.dram = max(own.dram, own.l2) + read * shares.dram
    return np.int64(max(own.l2, own.dram if read else 0.0)) - time


NONE_WRITTEN = -1  # in place of a set of words


def ask_l2(walk, caches, line, sectors, words, time, found):
    """Sectors of a line are asked of L2, or words of them written, and counted in `found`; returns when the SM has
    them, but for what they wait for others."""
    m = walk.machine[0]
    number, channel, local, in_slice = slice_of(m, line)
    caches.slice_sectors[number] += sectors_in(sectors)
    totals = caches.totals[0]
    totals.asks += 1
    slice = caches.slices[number]
    held = slice.blocked <= time < slice.free  # who comes before it is blocked was only asked later
    if held:
        time = slice.free
    k, there = find(caches, caches.l2, (number * m.l2_sets + l2_set_of(m, in_slice)) * m.l2_ways, m.l2_ways, line)
    row = caches.l2.row[k]
    found.sectors = min(255, found.sectors + sectors_in(sectors))
    if not there:
        make_place(caches, k, line, channel, found)
    use(caches, caches.l2, k)
    how = rec.USED if words == NONE_WRITTEN else rec.WRITTEN
    totals.l2_uses = note(walk.l2_uses, totals.l2_uses, 0, line, there, how, 0, 0)
    missed = sectors & ~row.valid
    if row.there <= time:
        totals.port_sectors += sectors_in(sectors & ~missed)
    if words != NONE_WRITTEN:
        row.valid |= write_sectors(row, sectors, words)
        return time + L2_CYCLES
    row.valid |= sectors
    is_coming, comes = row.there - L2_CYCLES > time, row.there if row.joined & words_of(sectors) else 0
    if missed:
        found.dram_sectors = min(255, found.dram_sectors + sectors_in(missed))
        open_row(walk, caches, channel, local, sectors_in(missed))
        ask_first(row, missed, is_coming)
        comes = row.there = time + DRAM_CYCLES
    elif is_coming and join(row, sectors, m.l2_mshr_merges) and not held:
        # The slice takes nothing until what it waits for is there. Sectors that come in packets of their own come after
        # the same one of all others, so that each has to wait.
        if m.coalesced_bytes == SECTOR_BYTES and time + DRAM_CYCLES <= row.there + SECTORS:
            row.there += (sectors_in(sectors) - 1) * (DRAM_CYCLES - L2_CYCLES)
        slice.blocked, slice.free = time, row.there - L2_CYCLES
        return row.there
    elif held:
        return max(comes, time + L2_CYCLES)
    # SMs that come to a line one soon after the other go on together: who came later would else overtake who asked
    return time + DRAM_CYCLES if comes + MEETING_CYCLES >= time + DRAM_CYCLES else max(comes, time + L2_CYCLES)


def make_place(caches, k, line, channel, found):
    """A line that L2 lacks takes place `k`; what is dirty there goes to DRAM."""
    totals, row, leaves = caches.totals[0], caches.l2.row[k], place_in_l2(caches, k, line)
    totals.l2_uses = rec.FAR_OFF if leaves else totals.l2_uses  # others do not compare with it
    found.dram_sectors = min(255, found.dram_sectors + leaves)
    caches.channel_sectors[channel] += leaves
    totals.port_sectors += leaves
    row.valid = row.dirty = row.there = row.joined = row.written = 0


def join(row, sectors, most):
    """Who waits for each sector of a line that is on its way is counted; are there more than may?"""
    full = 0
    for j in range(SECTORS):
        count = (row.joined >> (8 * j)) & 255
        if (sectors >> j) & 1 and count:
            full |= count >= most
            row.joined += (count < 255) << (8 * j)
    return full


def ask_first(row, sectors, is_coming):
    """Sectors of a line, of which others may be coming, are asked for: one waits for each."""
    first = (sectors * SPREAD) & EACH_SECTOR
    row.joined = ((row.joined if is_coming else 0) & ~(first * 255)) | first


def wait_for(walk, found, row, access, time):
    """An access waits for a line, which another one may have asked for."""
    found.there = max(found.there, row.there)
    if row.there - time > found.wait:
        found.wait, found.waits_for = row.there - time, row.asker
    if row.asker != access + 1:
        found.way = max(found.way, min(row.there - time, DRAM_CYCLES))


def held_up(found, row, access, time):
    """When the tags take an access that has to wait until a line is there; all behind it wait as long."""
    if row.there <= time:
        return time
    if row.asker == access + 1:
        found.trips = min(rec.MOST_TRIPS, found.trips + 1)
    else:
        found.behind, found.until = row.asker, row.there
    return row.there


def load(walk, caches, number, sm, line, sectors, time, access, found):
    """A load looks up L1D; returns when the tags have taken it."""
    m, lines, totals, idle_by = walk.machine[0], caches.l1d, caches.totals[0], 0
    first = number * lines.size + set_of(m, line)
    k = in_l1d(walk, caches, number, first, line)
    wanted, there = sectors if m.l1d_sectored else accesses.WHOLE_LINE, k >= 0
    missed = wanted
    if there:
        row = lines.row[k]
        missed &= ~row.valid
        if not missed and row.there > time and join(row, wanted, m.l1d_mshr_merges):
            time = held_up(found, row, access, time)
    if missed:
        registers, own = caches.registers[number], caches.missed[number]
        count = sectors_in(missed) if m.l1d_sectored else 1
        if own + count > len(registers):
            time = held_up(found, registers[(own + count - 1) % len(registers)], access, time)
        if not there:
            k, idle_by = free_way(caches, lines, first, m.l1d_ways, time), time
            if lines.used[k] >= caches.uses[0].before:
                time = held_up(found, lines.row[k], access, time)
            totals.l1d_uses = totals.l1d_uses if time == idle_by else rec.FAR_OFF
            take_way(walk, caches, number, k, line, time)
        row, before = lines.row[k], found.dram_sectors
        row.valid |= missed
        leave_sm(walk, caches, number, sm, access, missed, time)
        ask_first(row, missed, there and row.there > time)
        answered = ask_l2(walk, caches, line, missed, NONE_WRITTEN, time, found)
        found.way = max(found.way, answered - time)
        row.there = answered + queued(caches, number, time, sectors_in(missed), found.dram_sectors - before)
        row.asker = access + 1
        for n in range(own, own + count):
            registers[n % len(registers)].there, registers[n % len(registers)].asker = row.there, row.asker
        caches.missed[number] += count
    use(caches, lines, k)
    totals.l1d_uses = note(walk.l1d_uses, totals.l1d_uses, number, line, there, rec.USED, idle_by, lines.row[k].there)
    if lines.row[k].joined & words_of(wanted):
        wait_for(walk, found, lines.row[k], access, time)
    return time


def passed(caches, number, found, answered, time, sectors, read):
    """An access that leaves nothing in L1D."""
    found.way = max(found.way, answered - time)
    found.wait = max(found.wait, answered - time + queued(caches, number, time, sectors_in(sectors), read))


def take_way(walk, caches, number, k, line, time):
    """A line takes a way of an SM's L1D; what was written of the one before goes to L2, beside what is read."""
    m, lines, row = walk.machine[0], caches.l1d, caches.l1d.row[k]
    if row.dirty and lines.used[k] > caches.uses[0].before and m.l1d_write != WRITE_THROUGH:
        leaves = row.dirty if m.l1d_sectored else accesses.WHOLE_LINE
        caches.totals[0].l1d_uses = rec.FAR_OFF
        ask_l2(walk, caches, lines.tag[k] - 1, leaves, np.int64(row.written), time, caches.code_found[0])
    place_in_l1d(caches, number, k, line)


def store(walk, caches, number, sm, line, sectors, words, time, access, found):
    """A store: evicts or updates the line in L1D, allocates it by policy, and goes on to L2, or stays, if it is to
    local memory of which L1D has all sectors."""
    m, lines = walk.machine[0], caches.l1d
    first = number * lines.size + set_of(m, line)
    k = in_l1d(walk, caches, number, first, line)
    there = k >= 0
    if not there:
        k = oldest_way(caches, lines, first, m.l1d_ways)
    row, how = lines.row[k], rec.LOOKED_UP
    if m.l1d_write < WRITE_THROUGH:
        if there and not sectors & ~row.valid and row.there <= time:
            how = rec.WRITTEN if line >= accesses.LOCAL_LINE else rec.EVICTED
    elif there or m.l1d_write_allocate:
        how = rec.WRITTEN
        if not there:
            take_way(walk, caches, number, k, line, time)
            row.there = 0
    if how == rec.WRITTEN:
        row.valid |= write_sectors(row, sectors, words)
        use(caches, lines, k)
    elif how == rec.EVICTED:
        evict(caches, lines, k)
    note_store(walk, caches, number, line, there, how, row)
    if m.l1d_write < WRITE_THROUGH and how == rec.WRITTEN:
        return
    sectors = accesses.segment(m, sectors)
    leave_sm(walk, caches, number, sm, access, sectors, time)
    answered = ask_l2(walk, caches, line, sectors, words, time, found)
    passed(caches, number, found, answered, time, sectors, 0)


def read_constant(walk, caches, number, line, sectors, time, access, found):
    """A constant or parameter goes through the constant cache, whose lines may be half as long."""
    m = walk.machine[0]
    if m.perfect_constant_cache:
        return
    halves = m.const_line_bytes == 64
    own = 2 * line + (0 if sectors & 3 else 1) if halves else line
    wanted = accesses.WHOLE_LINE if not halves else 3 if sectors & 3 else 12
    first, latest = number * caches.const.size + (own & (m.const_sets - 1)) * m.const_ways, caches.read[number]
    there = latest.line == own + 1
    if not there:
        latest.way, there = find(caches, caches.const, first, m.const_ways, own)
        latest.line = own + 1
    k, row = latest.way, caches.const.row[latest.way]
    use(caches, caches.const, k)
    if not there:
        caches.const.tag[k] = own + 1
        row.there, row.asker = ask_l2(walk, caches, line, wanted, NONE_WRITTEN, time, found), access + 1
        found.way = max(found.way, row.there - time)
    wait_for(walk, found, row, access, time)


def read_code(walk, caches, number, line, time, fetch):
    """An instruction line, which is the SM's youngest from now on, and those to be there with it, are looked for."""
    latest, found = caches.fetched[number], caches.code_found[0]
    k = code_line(walk, caches, number, line, time, fetch, found)
    for ahead in range(walk.machine[0].l1i_prefetch_lines):
        code_line(walk, caches, number, line + 1 + ahead, time, fetch, found)
    latest.line, latest.there, latest.asker = line + 1, caches.code.row[k].there, caches.code.row[k].asker


def code_line(walk, caches, number, line, time, fetch, found):
    """Where an instruction line is in L1I, which asks for it if it is not there; it is the youngest now."""
    m, lines = walk.machine[0], caches.code
    k, there = find(caches, lines, number * lines.size + (line & (m.l1i_sets - 1)) * m.l1i_ways, m.l1i_ways, line)
    use(caches, lines, k)
    if not there:
        lines.tag[k], row = line + 1, lines.row[k]
        row.there = ask_l2(walk, caches, CODE_LINES + line, accesses.WHOLE_LINE, NONE_WRITTEN, time, found)
        row.asker = fetch + 1
    return k


def ask_caches(walk, caches, number, sm, kind, r, time, access, found):
    """All lines of a memory instruction, from line record `r` on; returns when the tags have taken the last."""
    m = walk.machine[0]
    more = 1
    while more:
        word = walk.records[r]
        line, sectors = line_of(word), sectors_of(word)
        local, shared = line >= accesses.LOCAL_LINE, line == accesses.SHARED_LINE
        if kind != rec.CONSTANT:
            line = accesses.line_for(m, line, number, sm.last)
        if sectors == 0 or shared:
            pass
        elif kind == rec.CONSTANT:
            read_constant(walk, caches, number, line, sectors, time, access, found)
        elif kind == rec.ATOMIC or ((kind == rec.PASSING or (m.l1d_bypass and kind == rec.LOAD)) and not local):
            before = found.dram_sectors
            answered = ask_l2(walk, caches, line, sectors, NONE_WRITTEN, time, found)
            passed(caches, number, found, answered, time, sectors, found.dram_sectors - before)
        elif kind == rec.LOAD or kind == rec.PASSING:
            time = load(walk, caches, number, sm, line, sectors, time, access, found)
        else:
            words = accesses.words_at(m, walk.words, r)
            store(walk, caches, number, sm, line, sectors, words, time, access, found)
        more = accesses.more_follow(word)
        r += 1
    return time


def ready_at(sm, w, time):
    """A slot's warp can go on from `time` on."""
    sm.due[w] = time
    sm.first = min(sm.first, time)


def place(walk, caches, number, sm, slots, b, time):
    """The SM's next thread block, if there is one left, enters slot `b`."""
    if sm.next == sm.stop:
        return
    m, block = walk.machine[0], walk.dealt[sm.next]
    for k in range(m.warps_per_block):
        w, warp = b * m.warps_per_block + k, block * m.warps_per_block + k
        slot, path = slots[w], walk.paths[warp]
        slot.item, slot.stop = walk.offsets[path], walk.offsets[path + 1]
        slot.access, slot.to_fetch = walk.access_offsets[warp], walk.fetch_offsets[warp] - slot.item
        slot.back = slot.back_near = time
        slot.loaded = slot.asked = 0
        slot.state = rec.RUNNING
        ready_at(sm, w, fetch_next(walk, caches, number, slot, time))
    sm.next += 1
    n = 0
    while sm.order[n] != b:
        n += 1
    for k in range(n, m.blocks_per_sm - 1):  # thread blocks come in order of age
        sm.order[k] = sm.order[k + 1]
    sm.order[m.blocks_per_sm - 1] = b


def oldest(sm, m, ready):
    """The slot of the oldest warp among some, which are there."""
    for n in range(m.blocks_per_sm):
        found = ready & span(sm.order[n] * m.warps_per_block, m.warps_per_block)
        if found:
            return lowest(found)
    return 0


def pick(walk, sm):
    """The slot whose turn it is, or -1; then the SM's clock is at the next cycle in which one is ready."""
    m = walk.machine[0]
    if sm.clock >= sm.first:
        count = m.blocks_per_sm * m.warps_per_block + rec.TOGETHER - 1 & -rec.TOGETHER
        sm.ready, sm.first = split(sm.due, 0, count, sm.clock)
    if not sm.ready:
        sm.clock = sm.first
        return -1
    w = first_after(sm.ready, sm.last) if m.walks_by_slot else oldest(sm, m, sm.ready)
    sm.ready &= ~bit(w)
    return w


def fetch_next(walk, caches, number, slot, time):
    """A warp whose instruction buffer is empty fetches its next item at `time`; returns when its line is there."""
    line, fetch, latest = walk.items[slot.item].line, slot.to_fetch + slot.item, caches.fetched[number]
    if walk.machine[0].perfect_instruction_cache:
        return time
    if latest.line != line + 1:  # else it is the youngest already
        read_code(walk, caches, number, line, time, fetch)
    if latest.there <= time:
        return time
    walk.fetch_waits[fetch], walk.fetch_askers[fetch] = latest.there - time, latest.asker
    return latest.there


def go_on(walk, caches, number, sm, slot):
    """A warp goes on to its next memory access, barrier, or wait; returns when it is ready again."""
    m, time, issued, soon, ready, goes_on = walk.machine[0], sm.clock, 0, 0, 0, 1
    while goes_on:
        item, needs = walk.items[slot.item], 0
        issued += item.cycles
        slot.item += 1
        if item.unit == rec.MEMORY:
            soon = access_memory(walk, caches, number, sm, item, slot, time)
        if item.wait_far:
            needs = slot.back
            slot.asked = slot.loaded
        if item.wait_near:
            needs = max(needs, slot.back_near)
        ready = max(time, needs)
        if slot.item < slot.stop:
            ready = max(ready, fetch_next(walk, caches, number, slot, time))
        goes_on = not (item.barrier or item.access != rec.NONE or ready > time or slot.item == slot.stop)
    foresee(walk, slot)
    sm.clock = max(soon, time + max(1, issued if m.schedulers_per_sm == 1 else issued // m.schedulers_per_sm))
    if slot.item == slot.stop:
        slot.state = rec.GONE
    elif walk.items[slot.item - 1].barrier:
        slot.state = rec.WAITING
    return max(ready, time + ISSUE_CYCLES * issued)


def foresee(walk, slot):
    """What a warp looks at when its turn comes again is brought into the processor's cache; others come first."""
    prefetch(walk.items, slot.item + 2)
    prefetch(walk.records, walk.accesses[slot.access].record)
    prefetch(walk.answers, slot.access)
    prefetch(walk.accesses, slot.access + 2)


def enter_pipe(walk, pipe, sm, time, cycles):
    """An access of so many transactions, which the tags have taken by `memory_free`, goes through the pipe in front of
    them; returns when the first one enters, from `time` on."""
    last = sm.piped - FIRST_CYCLES  # the transaction that leaves it a stage
    while sm.tail < sm.entered and pipe[sm.tail & (PIPE_PLACES - 1)].stop <= last:
        sm.tail += 1
    if sm.tail < sm.entered and last >= 0:
        time = max(time, pipe[sm.tail & (PIPE_PLACES - 1)].taken)
    row = pipe[sm.entered & (PIPE_PLACES - 1)]
    sm.piped += cycles
    row.stop, row.taken = sm.piped, sm.memory_free
    sm.entered += 1
    return time


def access_memory(walk, caches, number, sm, item, slot, time):
    """An item's memory instruction, issued at `time`, goes to the load/store unit; returns when the next one may."""
    own, found, starts = walk.accesses[slot.access], walk.answers[slot.access], caches.starts[number]
    start = taken = max(time, sm.memory_free)
    slot.access += 1
    zero(found)
    if item.access != rec.NONE:
        taken = ask_caches(walk, caches, number, sm, item.access, own.record, start, slot.access - 1, found)
        found.number = sm.asks
        if found.behind:
            before = walk.answers[found.behind - 1]
            early = (before.there - found.until) * rec.PARTS // (DRAM_CYCLES - L2_CYCLES)
            early = max(0, min(rec.MOST_PARTS, early))
            found.back = min(rec.RECENT, sm.asks - before.number) | early << rec.BACK_BITS
        sm.asks += item.access == rec.LOAD and found.sectors > 0
        follow(walk, found, slot.access - 1)
        sm.sectors += found.sectors
        sm.dram_sectors += found.dram_sectors
        answered = taken + max(FIRST_CYCLES, found.wait)
        if item.access == rec.CONSTANT:
            slot.back_near = max(slot.back_near, answered)
        elif item.access != rec.STORE:
            slot.back, slot.loaded = max(slot.back, answered), slot.access if found.waits else 0
    sm.held += own.cycles
    sm.longest = max(sm.longest, own.cycles)
    sm.memory_free = taken + own.cycles
    starts[sm.started] = enter_pipe(walk, caches.pipes[number], sm, time, own.cycles)
    sm.started = sm.started + 1 if sm.started + 1 < len(starts) else 0
    return starts[sm.started]


def follow(walk, found, access):
    """Others wait for the one that asked for an access's data, or this one for more than its own."""
    asker = asked_by(found)
    if found.sectors > 0 and (found.behind > 0 or found.trips > 0):
        asker = access
    if asker >= 0:
        walk.followed[asker] = 1


def settle(walk, caches, number, sm, slots, w):
    """A warp has left or waits: release its block's barrier, or give its slot to the next block."""
    m = walk.machine[0]
    b = w // m.warps_per_block
    running, waiting = 0, 0
    for k in range(b * m.warps_per_block, (b + 1) * m.warps_per_block):
        running += slots[k].state == rec.RUNNING
        waiting += slots[k].state == rec.WAITING
    if running == 0 and waiting > 0:
        for k in range(b * m.warps_per_block, (b + 1) * m.warps_per_block):
            if slots[k].state == rec.WAITING:
                slots[k].state = rec.RUNNING
                ready_at(sm, k, sm.clock)
    if running == 0 and waiting == 0:
        place(walk, caches, number, sm, slots, b, sm.clock)


def lateness(walk, caches, number, sm, slot):
    """How much later a warp goes on, as what it waits for left the SM after what came later."""
    if not slot.asked:
        return 0
    found = walk.answers[slot.asked - 1]
    serve(walk, caches, number, sm, sm.clock)
    if found.waits:
        return sm.waits
    slot.asked = 0
    return max(0, found.left - found.came)


def walk_sm(walk, caches, number, sm, own, slots, limit):
    """An SM goes on to the cycle `limit`; `own`: its TOLD_SM."""
    while sm.clock < limit:
        w = pick(walk, sm)
        if w >= 0:
            late = lateness(walk, caches, number, sm, slots[w])
            if late:
                ready_at(sm, w, sm.clock + late)
                continue
            sm.last, own.ended = w, sm.clock
            time = go_on(walk, caches, number, sm, slots[w])
            if slots[w].state == rec.RUNNING:
                ready_at(sm, w, time)
            else:
                sm.due[w] = rec.FAR_OFF
                settle(walk, caches, number, sm, slots, w)


def begin(caches, sm_count):
    """Caches that hold nothing, before SMs that have asked for nothing."""
    for counts in (caches.servers, caches.missed, caches.starts, caches.fetched, caches.read, caches.banks):
        zero(counts)
    for counts in (caches.slices, caches.open_rows, caches.opened, caches.channel_sectors, caches.slice_sectors):
        zero(counts)
    zero(caches.window_sectors)
    zero(caches.totals)
    empty(caches)
    caches.shares[0].l2 = 1 + sm_count / len(caches.slice_sectors)
    caches.shares[0].dram = sm_count / len(caches.channel_sectors)


def start(walk, caches, number, sm, own, slots):
    """An SM before its first thread block; `own`: its TOLD_SM."""
    zero(sm)
    if walk.machine[0].l1d_ways > FEW_WAYS:
        zero(caches.hints[number])
    sm.next, sm.stop = own.first, own.stop
    sm.room = walk.machine[0].l1d_miss_queue - 1
    for w in range(rec.MOST_SLOTS):
        sm.due[w] = rec.FAR_OFF
    for w in range(len(slots)):
        slots[w].state = rec.GONE
    for b in range(walk.machine[0].blocks_per_sm):
        sm.order[b] = b
    for b in range(walk.machine[0].blocks_per_sm):
        place(walk, caches, number, sm, slots, b, 0)


def walk_caches(walk, caches, told, sms, slots):
    """All of a launch. `told`: TOLD_SMs, which say where each SM's thread blocks begin and end in `dealt`; `slots`:
    warp slots, those of an SM one after the other."""
    limit, count = 0, len(told)
    left, size = count, walk.machine[0].warps_per_block * walk.machine[0].blocks_per_sm
    begin(caches, count)
    for number in range(count):
        start(walk, caches, number, sms[number], told[number], slots[number * size : (number + 1) * size])
    while left:
        limit += STRETCH_CYCLES
        left = 0
        for number in range(count):
            own = slots[number * size : (number + 1) * size]
            walk_sm(walk, caches, number, sms[number], told[number], own, limit)
            left += sms[number].clock < rec.FAR_OFF
        end_stretch(caches, count, walk.machine[0].crossbar_output_queues)
        if limit % WINDOW_CYCLES == 0 or not left:
            end_window(caches, count)
    for number in range(count):
        sm, own = sms[number], told[number]
        serve(walk, caches, number, sm, rec.FAR_OFF)
        own.sectors, own.dram_sectors, own.held, own.longest = sm.sectors, sm.dram_sectors, sm.held, sm.longest
