"""The loops of `cache_walk`, compiled: accesses of all SMs through the tags, in nominal time."""

from __future__ import annotations

import numpy as np

from abstim.engine import accesses, tags
from abstim.engine.accesses import line_of, sectors_in, sectors_of
from abstim.engine.address_map import bank_of, l2_set_of, row_of, slice_of
from abstim.engine.l1d import set_of
from abstim.engine.state import LOCAL_BACK, WRITE_THROUGH
from abstim.occupancy_vector import records as rec
from functional.jit.compile import jit

STRETCH_CYCLES = 64  # by which SMs may be apart
WINDOW_CYCLES = 6 * STRETCH_CYCLES  # in which slices and channels are busy unevenly: some answer from DRAM
ISSUE_CYCLES = 4  # of a warp between two of its instructions
CODE_LINES = 1 << 27  # where L2 finds instruction lines: above all data
FAR_FUTURE = 1 << 60


@jit
def find(lines, first, ways, line):
    """(position, is it there): where it is, or the least recently used of its set."""
    k = tags.find(lines.tag, first, ways, line)
    return (k, True) if k >= 0 else (tags.victim(lines.used, first, ways), False)


@jit
def use(caches, row):
    """The line is the youngest of its set."""
    caches.totals[0].uses += 1
    row.used = caches.totals[0].uses


@jit
def open_row(walk, caches, channel, local, sectors):
    """DRAM reads of a row: is it open?"""
    m, totals = walk.machine[0], caches.totals[0]
    bank, row = bank_of(m, local), row_of(m, local)
    totals.dram_reads += sectors
    caches.channel_sectors[channel] += sectors
    if caches.open_rows[channel, bank] != row + 1:
        caches.open_rows[channel, bank] = row + 1
        totals.rows_opened += 1


@jit
def ask_l2(walk, caches, line, sectors, write, time, found):
    """Sectors of a line are asked of L2, or written, and counted in `found`; returns when the SM has them."""
    m = walk.machine[0]
    number, channel, local, in_slice = slice_of(m, line)
    caches.slice_sectors[number] += sectors_in(sectors)
    k, there = find(caches.l2, (number * m.l2_sets + l2_set_of(m, in_slice)) * m.l2_ways, m.l2_ways, line)
    row = caches.l2[k]
    use(caches, row)
    found.sectors = min(255, found.sectors + sectors_in(sectors))
    if not there:
        found.dram_sectors = min(255, found.dram_sectors + sectors_in(np.int64(row.dirty)))
        caches.channel_sectors[channel] += sectors_in(np.int64(row.dirty))
        caches.totals[0].port_sectors += sectors_in(np.int64(row.dirty))
        row.tag, row.valid, row.dirty, row.there = line + 1, 0, 0, 0
    missed = sectors & ~np.int64(row.valid)
    if row.there <= time:
        caches.totals[0].port_sectors += sectors_in(sectors & ~missed)
    row.valid |= sectors
    if write:
        row.dirty |= sectors
        return time + walk.nominal[rec.L2]
    if missed:
        found.dram_sectors = min(255, found.dram_sectors + sectors_in(missed))
        open_row(walk, caches, channel, local, sectors_in(missed))
        row.there = time + walk.nominal[rec.DRAM]
    return max(time + walk.nominal[rec.L2], np.int64(row.there))


@jit
def wait_for(found, row, time):
    """An access waits for a line, which another one may have asked for."""
    if row.there - time > found.wait:
        found.wait, found.waits_for = row.there - time, row.asker


@jit
def load(walk, caches, sm, line, sectors, time, access, found):
    """A load, or a local store, looks up L1D."""
    m = walk.machine[0]
    k, there = find(caches.l1d[sm], set_of(m, line), m.l1d_ways, line)
    row = caches.l1d[sm][k]
    use(caches, row)
    if not there:
        row.tag, row.valid = line + 1, 0
    missed = (sectors if m.l1d_sectored else accesses.WHOLE_LINE) & ~np.int64(row.valid)
    if missed:
        row.valid |= missed
        row.there = ask_l2(walk, caches, line, missed, False, time, found)
        row.asker = access + 1
    wait_for(found, row, time)


@jit
def store(walk, caches, sm, line, sectors, time, found):
    """A store to global memory: evicts or updates the line in L1D, allocates it by policy, and goes on to L2."""
    m = walk.machine[0]
    k, there = find(caches.l1d[sm], set_of(m, line), m.l1d_ways, line)
    row = caches.l1d[sm][k]
    updates = m.l1d_write >= WRITE_THROUGH  # the others evict
    if there and not updates:
        row.tag, row.used, row.valid = 0, 0, 0
    elif updates and (there or m.l1d_write_allocate):
        if not there:
            row.tag, row.valid, row.there = line + 1, 0, 0
        row.valid |= sectors
        use(caches, row)
    answered = ask_l2(walk, caches, line, accesses.segment(m, sectors), True, time, found)
    found.wait = max(np.int64(found.wait), answered - time)


@jit
def read_constant(walk, caches, sm, line, sectors, time, access, found):
    """A constant or parameter goes through the constant cache, whose lines may be half as long."""
    m = walk.machine[0]
    if m.perfect_constant_cache:
        return
    halves = m.const_line_bytes == 64
    own = 2 * line + (0 if sectors & 3 else 1) if halves else line
    wanted = accesses.WHOLE_LINE if not halves else np.int64(3) if sectors & 3 else np.int64(12)
    k, there = find(caches.const[sm], (own & (m.const_sets - 1)) * m.const_ways, m.const_ways, own)
    row = caches.const[sm][k]
    use(caches, row)
    if not there:
        row.tag = own + 1
        row.there, row.asker = ask_l2(walk, caches, line, wanted, False, time, found), access + 1
    wait_for(found, row, time)


@jit
def read_code(walk, caches, sm, line, time, fetch, found):
    """The cycle an instruction line is there; `found` is scratch."""
    m = walk.machine[0]
    if m.perfect_instruction_cache:
        return time
    k, there = find(caches.code[sm], (line & (m.l1i_sets - 1)) * m.l1i_ways, m.l1i_ways, line)
    row = caches.code[sm][k]
    use(caches, row)
    if not there:
        row.tag = line + 1
        row.there = ask_l2(walk, caches, CODE_LINES + line, accesses.WHOLE_LINE, False, time, found)
        row.asker = fetch + 1
    walk.fetch_askers[fetch] = row.asker
    return max(time, np.int64(row.there))


@jit
def ask_caches(walk, caches, sm, kind, r, time, access, found):
    """All lines of a memory instruction, from line record `r` on."""
    m = walk.machine[0]
    more = np.int64(1)
    while more:
        word = np.int64(walk.records[r])
        line, sectors = line_of(word), sectors_of(word)
        local = line >= accesses.LOCAL_LINE
        if sectors == 0 or line == accesses.SHARED_LINE:
            pass
        elif kind == rec.CONSTANT:
            read_constant(walk, caches, sm, line, sectors, time, access, found)
        elif kind == rec.ATOMIC or ((kind == rec.PASSING or (m.l1d_bypass and kind == rec.LOAD)) and not local):
            found.wait = max(np.int64(found.wait), ask_l2(walk, caches, line, sectors, False, time, found) - time)
        elif kind == rec.LOAD or kind == rec.PASSING or (local and m.l1d_write == LOCAL_BACK):
            load(walk, caches, sm, line, sectors, time, access, found)
        else:
            store(walk, caches, sm, line, sectors, time, found)
        more = accesses.more_follow(word)
        r += 1


@jit
def place(walk, sm, slots, b, time):
    """The SM's next thread block enters slot `b`; false if there is none left."""
    if sm.next == sm.stop:
        return False
    m, block = walk.machine[0], walk.dealt[sm.next]
    for k in range(m.warps_per_block):
        slot, warp = slots[b * m.warps_per_block + k], block * m.warps_per_block + k
        path = walk.paths[warp]
        slot.item, slot.stop = walk.offsets[path], walk.offsets[path + 1]
        slot.access, slot.fetch = walk.access_offsets[warp], walk.fetch_offsets[warp]
        slot.ready, slot.back, slot.age, slot.state = time, time, warp, rec.RUNNING
    sm.next += 1
    return True


@jit
def pick(walk, sm, slots):
    """The slot whose turn it is, or -1; then the SM's clock is at the next cycle in which one is ready."""
    chosen, best, soon = -1, FAR_FUTURE, FAR_FUTURE
    by_slot, count = walk.machine[0].walks_by_slot, len(slots)
    for w in range(count):
        slot = slots[w]
        if slot.state != rec.RUNNING:
            continue
        if slot.ready > sm.clock:
            soon = min(soon, slot.ready)
            continue
        order = (w - sm.last - 1) % count if by_slot else slot.age
        if order < best:
            chosen, best = w, order
    if chosen < 0:
        sm.clock = soon
    return chosen


@jit
def go_on(walk, caches, number, sm, slot):
    """A warp goes on to its next memory access, barrier, or wait."""
    m, time, issued, held = walk.machine[0], sm.clock, np.int64(0), np.int64(0)
    while slot.item < slot.stop:
        item, code = walk.items[slot.item], caches.code_found[0]
        slot.ready = max(time, read_code(walk, caches, number, np.int64(item.line), time, slot.fetch, code))
        walk.fetch_waits[slot.fetch] = slot.ready - time
        issued += item.cycles
        slot.item += 1
        slot.fetch += 1
        if item.unit == rec.MEMORY:
            held = max(held, access_memory(walk, caches, number, item, slot, time))
        waits = item.wait_far and slot.back > time
        if waits:
            slot.ready = max(slot.ready, slot.back)
        if item.barrier or item.access != rec.NONE or waits or slot.ready > time:
            break
    slot.ready = max(slot.ready, time + ISSUE_CYCLES * issued)
    sm.clock = time + max(1, held, issued // m.schedulers_per_sm)
    if slot.item == slot.stop:
        slot.state = rec.GONE
    elif walk.items[slot.item - 1].barrier:
        slot.state = rec.WAITING


@jit
def access_memory(walk, caches, number, item, slot, time):
    """An item's memory instruction; returns the cycles it holds the load/store unit."""
    own, found = walk.accesses[slot.access], walk.answers[slot.access]
    slot.access += 1
    if item.access != rec.NONE:
        ask_caches(walk, caches, number, item.access, own.record, time, slot.access - 1, found)
        answered = time + max(walk.nominal[rec.FIRST], np.int64(found.wait))
        if item.access != rec.STORE:
            slot.back = max(slot.back, answered)
        if item.access == rec.CONSTANT:
            slot.ready = max(slot.ready, answered)
    return np.int64(own.cycles)


@jit
def settle(walk, sm, slots, w):
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
                slots[k].state, slots[k].ready = rec.RUNNING, sm.clock
    if running == 0 and waiting == 0:
        place(walk, sm, slots, b, sm.clock)


@jit
def counted(counts):
    """(sum of all, the largest); all are zero then."""
    whole = most = np.int64(0)
    for k in range(len(counts)):
        whole, most = whole + counts[k], max(most, counts[k])
        counts[k] = 0
    return whole, most


@jit
def end_window(caches):
    """How unevenly slices and channels were busy in a window is added up."""
    totals = caches.totals[0]
    whole, most = counted(caches.slice_sectors)
    totals.slice_sectors += whole
    totals.busiest_slice += most
    whole, most = counted(caches.channel_sectors)
    totals.channel_sectors += whole
    totals.busiest_channel += most


def walk_launch(walk, caches, sms, slots):
    """All of a launch. `sms`: where each SM's thread blocks begin and end in `dealt`; `slots` [SM, warp slot]."""
    m, limit, left = walk.machine[0], np.int64(0), np.int64(len(sms))
    for number in range(len(sms)):
        for b in range(m.blocks_per_sm):
            place(walk, sms[number], slots[number], b, 0)
    while left:
        limit += STRETCH_CYCLES
        left = 0
        for number in range(len(sms)):
            sm = sms[number]
            while sm.clock < limit:
                w = pick(walk, sm, slots[number])
                if w >= 0:
                    sm.last = w
                    go_on(walk, caches, number, sm, slots[number][w])
                    if slots[number][w].state != rec.RUNNING:
                        settle(walk, sm, slots[number], w)
            left += sm.clock < FAR_FUTURE
        if limit % WINDOW_CYCLES == 0 or not left:
            end_window(caches)
