"""L1D: where a line lies in it, and, with real memory, what a transaction finds at the tags, what it asks for and what
comes back (docs/timing-rules.md, rules 11 and 12). A function that says False has changed nothing: the transaction
tries again."""

import numpy as np

from abstim.engine import state
from abstim.engine.accesses import WHOLE_LINE, full_sectors, sectors_in, segment
from abstim.engine.address_map import hashed, slice_of
from abstim.engine.pending_accesses import can_send, enlist, finish, send, serve_waiters, write_words
from abstim.engine.tags import drop, find, oldest_idle, take_way, touch
from functional.jit.marked import add, members, outlined
from functional.traces.line_record import words_of


def set_of(m, line):
    """First way of a line's set: linear, or the hash of Nugteren et al. (HPCA 2014) that the reference uses, or
    polynomial."""
    index = line & (m.l1d_sets - 1)
    if m.l1d_index == state.INDEX_HASH:
        upper = ((line >> 6) & 7) | (((line >> 10) & 1) << 3) | (((line >> 12) & 1) << 4)
        index = (index ^ upper) & (m.l1d_sets - 1)
    elif m.l1d_index == state.INDEX_IPOLY:
        index = hashed(index, line // m.l1d_sets, m.l1d_residues)
    return index * m.l1d_set_lines


def find_line(c, line):
    """Position of a line, or -1. Looks first where it was last: the sets of a modern L1D are 256 ways long."""
    l1d, m = c.l1d, c.machine
    k = l1d.hint[line & (state.HINTS - 1)]
    if l1d.tag[k] == line + 1:
        return k
    k = find(l1d.tag, set_of(m, line), m.l1d_ways, line)
    if k >= 0:
        l1d.hint[line & (state.HINTS - 1)] = k
    return k


def use(c, k):
    """The line at `k` is used: the youngest, unless the policy goes by arrival alone."""
    if not c.machine.l1d_fifo:
        touch(c.sm, c.l1d.last_use, k)


def queue_room_from(c, spare):
    """Cycle from which the miss queue has room for one request, with `spare` more places left."""
    at = c.sm.sent_position + spare
    return c.l1d.sent[at if at < c.machine.l1d_miss_queue else 0]


def send_miss(c, line, sectors, kind, who, place, time):
    """A request goes through the miss queue."""
    sm = c.sm
    c.l1d.sent[sm.sent_position] = send(c, line, sectors, kind, who, place, time + 1)
    sm.sent_position = sm.sent_position + 1 if sm.sent_position + 1 < c.machine.l1d_miss_queue else 0


def may_send(c, kind, sectors, spare, time):
    """Can a request be made at the tags at `time`?"""
    return queue_room_from(c, spare) <= time and can_send(c, kind, sectors)


def free_way(c, line):
    """The way that a new line takes: the least recently used of those that wait for nothing; -1 if there is none."""
    return oldest_idle(c.l1d, set_of(c.machine, line), c.machine.l1d_ways)


def send_astray(c, line):
    """What has been sent last goes to the slice of `line`: what was written of a line that leaves L1D is taken for a
    part of the one that takes its place (GPGPU-Sim 4.2, data_cache::rd_miss_base)."""
    request = c.shared.outbox[c.sm.number, c.sm.asked - 1]
    number, _, _, _ = slice_of(c.machine, line)
    if c.machine.slice_random:
        request.home = line
    else:
        request.home = request.near = request.slice = request.output = number


def replace(c, k, line, time):
    """`line` takes the way `k`; what was written of the one before goes to L2."""
    l1d, row = c.l1d, c.l1d.line[k]
    if row.dirty and c.machine.l1d_write != state.WRITE_THROUGH:
        leaves = row.dirty if c.machine.l1d_sectored else WHOLE_LINE
        send_miss(c, l1d.tag[k] - 1, leaves, state.EVICTED, state.NOBODY, 0, time)
        write_words(c, row.written)
        if c.machine.l1d_write == state.LOCAL_BACK:
            send_astray(c, line)
    take_way(l1d, k, line)
    row.valid = row.dirty = row.coming = row.written = 0
    touch(c.sm, l1d.last_use, k)
    l1d.hint[line & (state.HINTS - 1)] = k


def keys(c, sectors):
    """The sectors whose miss registers an access waits in: a whole line has one, the first sector's."""
    return sectors if c.machine.l1d_sectored else 1


def join(c, k, sectors, place):
    """An access waits for sectors of the line at `k` that are on their way."""
    row, access, waits = c.l1d.line[k], c.l1d.accesses[place - 1], 0
    sectors = keys(c, sectors)
    for j in members(sectors):
        enlist(c, row.waiting, row.waiting_last, j, place)
        row.joined[j] += 1
        waits += 1
    access.waiting += waits - 1


def joinable(c, k, sectors):
    """Can one more wait for these sectors of the line at `k`?"""
    row, sectors = c.l1d.line[k], keys(c, sectors)
    for j in members(sectors):  # noqa: SIM110 (compiled)
        if row.joined[j] >= c.machine.l1d_mshr_merges:
            return False
    return True


def ask(c, k, line, absent, wanted, place, time):
    """Sectors that are neither there nor on their way are asked for. False: no miss register, way or place in the queue
    is free."""
    sm, m = c.sm, c.machine
    registers = sectors_in(absent) if m.l1d_sectored else 1
    if sm.mshrs_used and sm.mshrs_used + registers > m.l1d_mshrs:
        return False
    if not may_send(c, state.READ, absent, 1, time):
        return False
    if k < 0:
        k = free_way(c, line)
        if k < 0:
            return False
        replace(c, k, line, time)
    row = c.l1d.line[k]
    for j in members(keys(c, absent)):
        row.joined[j] = row.waiting[j] = 0
    row.coming |= absent
    sm.mshrs_used += registers
    join(c, k, wanted & ~row.valid, place)
    send_miss(c, line, absent, state.READ, state.TO_LINE, k, time)
    access = c.l1d.accesses[place - 1]
    access.l1d_misses += 1
    access.l2_accesses += sectors_in(absent)
    use(c, k)
    sm.l1d_misses += 1
    return True


@outlined
def load(c, line, sectors, place, time):
    """A load meets the tags."""
    sm, k = c.sm, find_line(c, line)
    wanted = sectors if c.machine.l1d_sectored else WHOLE_LINE
    there, coming = (c.l1d.line[k].valid, c.l1d.line[k].coming) if k >= 0 else (0, 0)
    if not wanted & ~there:
        use(c, k)
        finish(c, place, time, time)
    elif not wanted & ~(there | coming):
        if not joinable(c, k, wanted & ~there):
            return False
        use(c, k)
        join(c, k, wanted & ~there, place)
    elif not ask(c, k, line, wanted & ~(there | coming), wanted, place, time):
        return False
    sm.l1d_accesses += 1
    return True


def load_below(c, line, sectors, place, time):
    """A load that L1D may not answer, and that leaves nothing there."""
    if not may_send(c, state.READ, sectors, 0, time):
        return False
    access = c.l1d.accesses[place - 1]
    access.waiting += sectors_in(sectors) - 1
    access.l1d_misses += 1
    access.l2_accesses += sectors_in(sectors)
    send_miss(c, line, sectors, state.READ, state.TO_ACCESS, place, time)
    c.sm.l1d_accesses += 1
    c.sm.l1d_misses += 1
    return True


def store_below(c, line, sectors, words, place, time):
    """A store goes on to L2, which acknowledges each sector; nobody waits for that of a posted one."""
    sectors = segment(c.machine, sectors)
    access = c.l1d.accesses[place - 1]
    if c.machine.posted_stores:
        access.l2_accesses += sectors_in(sectors)
        kernel = c.sm.block_kernel[c.sm.warps.block_of[access.warp]]
        if c.machine.side_by_side:
            add(c.shared.posted, kernel, sectors_in(sectors))
        send_miss(c, line, sectors, state.WRITE, state.NOBODY, kernel + 1, time)
        write_words(c, words)
        finish(c, place, time, time)
        return
    access.waiting += sectors_in(sectors) - 1
    access.l2_accesses += sectors_in(sectors)
    send_miss(c, line, sectors, state.WRITE, state.TO_ACCESS, place, time)
    write_words(c, words)


def write_sectors(line, sectors, words):
    """Stores go to sectors of a line of L1D or L2; returns those that can be read without a fetch."""
    line.dirty |= sectors
    line.written |= words & words_of(sectors)
    return sectors & full_sectors(np.int64(line.written))


def keep_store(c, k, sectors, words, place, time):
    """A store that goes no further than L1D."""
    c.l1d.line[k].valid |= write_sectors(c.l1d.line[k], sectors, words)
    use(c, k)
    finish(c, place, time, time)


def store_allocating(c, k, line, sectors, words, place, time):
    """A store that keeps its line, or takes a way for it, and what is written need not be fetched."""
    m = c.machine
    if k < 0 and m.l1d_write_allocate:
        k = free_way(c, line)
        if k < 0:
            return False
        replace(c, k, line, time)
    if k >= 0:
        if m.l1d_write == state.WRITE_BACK:
            keep_store(c, k, sectors, words, place, time)
            return True
        if m.l1d_write_allocate:
            c.l1d.line[k].valid |= write_sectors(c.l1d.line[k], sectors, words) & ~c.l1d.line[k].coming
        use(c, k)
    store_below(c, line, sectors, words, place, time)
    return True


def known_sectors(line):
    """The sectors of a line that are there, on their way, or have been written to."""
    return line.valid | line.coming | line.dirty


@outlined
def store(c, stage, local, time):
    """The transaction of a store meets the tags: by the write policy."""
    line, sectors, words, place = stage.line, stage.sectors, stage.words, stage.access
    sm, m, k = c.sm, c.machine, find_line(c, line)
    there = k >= 0 and not sectors & ~c.l1d.line[k].valid
    known = k >= 0 and not (m.l1d_sectored and sectors & ~known_sectors(c.l1d.line[k]))
    if local and there and m.l1d_write < state.WRITE_THROUGH:
        keep_store(c, k, sectors, words, place, time)
    elif not may_send(c, state.WRITE, segment(c.machine, sectors), 0, time):
        return False
    elif m.l1d_write < state.WRITE_THROUGH:
        if there and c.l1d.line[k].coming == 0:
            drop(c.l1d, k)
            c.l1d.line[k].valid = c.l1d.line[k].dirty = c.l1d.line[k].written = 0
        store_below(c, line, sectors, words, place, time)
    elif not store_allocating(c, k, line, sectors, words, place, time):
        return False
    sm.l1d_accesses += 1
    sm.l1d_misses += not known
    c.l1d.accesses[place - 1].l1d_misses += not known
    return True


def fill(c, k, sectors, from_dram, time):
    """Sectors of the line at `k` are there; with the last of a whole line, all who wait for it have it."""
    sm, m, row = c.sm, c.machine, c.l1d.line[k]
    row.coming &= ~sectors
    row.valid |= sectors
    for j in members(keys(c, sectors)):
        note_dram(c, row.waiting[j], from_dram)
        if m.l1d_sectored or row.coming == 0:
            sm.mshrs_used -= 1
            serve_waiters(c, row.waiting[j], time)
            row.waiting[j] = 0


def note_dram(c, node, from_dram):
    """The access that asked first is charged with a read of DRAM."""
    if node and from_dram:
        c.l1d.accesses[c.l1d.waiters[node - 1].access - 1].dram_reads += 1
