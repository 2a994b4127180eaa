"""Caches without time: every line that a launch, or thread blocks left out of one, touches goes through the tags."""

import numpy as np

from abstim.engine.accesses import line_and_sectors, words_at
from abstim.engine.address_map import bank_of, l2_set_of, row_of, send_to, slice_of
from abstim.engine.clear import begin, context_of
from abstim.engine.drawn_slices import slice_drawn
from abstim.engine.l1d import write_sectors
from abstim.engine.l2 import begin_line, first_way, is_atomic, use
from abstim.engine.memory_pipe import come_back, go_on, issue_access, look_up
from abstim.engine.operand_collectors import pool_of, port_of, waits_at_port
from abstim.engine.perfect_memory import access
from abstim.engine.port_queues import fill_collectors
from abstim.engine.read_only_caches import l1i_lookup
from abstim.engine.state import EVICTED, MEM, NOBODY, WRITE
from abstim.engine.tags import find, oldest_idle
from functional.jit.marked import outlined, zero
from functional.traces.trace import PHASE_WINDOW_LINE
from precharacterize.classify import Kind

# Between two memory instructions: nothing is on its way any more, so that no access waits for another
STEP_CYCLES = 1 << 13


def place_block(sm, m, offsets, slot, block):
    """The warps of thread block `block` (a position in the trace) enter a slot."""
    for k in range(m.warps_per_block):
        w, warp = slot * m.warps_per_block + k, block * m.warps_per_block + k
        sm.warps.block_of[w] = slot
        sm.warps.event[w], sm.warps.event_end[w] = offsets.blocks[warp], offsets.blocks[warp + 1]
        sm.warps.record[w], sm.warps.conflict[w] = offsets.records[warp], offsets.conflicts[warp]
        sm.warps.pc[w], sm.warps.stop[w] = 0, 0


def open_row(shared, line):
    """DRAM reads or writes of a line."""
    m = shared.machine
    _, channel, local, _ = slice_of(m, line)
    if m.slice_random:
        channel = slice_drawn(shared, line) // m.l2_slices_per_channel
    bank = shared.channels.banks[channel * m.dram_banks + bank_of(m, local)]
    bank.served_row = bank.open_row = row_of(m, local) + 1


def touch_slice(shared, request, n, opens):
    """Sectors are read or written in one slice of L2 without time, and DRAM's rows are opened for what is not there if
    it `opens` them; true if it asks the line's home instead."""
    m, l2 = shared.machine, shared.l2
    first = first_way(m, n, request)
    k = find(l2.tag, first, m.l2_ways, request.line)
    written = request.kind == WRITE or request.kind == EVICTED
    missed = not written and (k < 0 or request.sectors & ~l2.line[k].valid)
    if missed and opens:
        open_row(shared, request.line)
    if k < 0:
        k = oldest_idle(l2, first, m.l2_ways)
        if l2.line[k].dirty:
            open_row(shared, l2.tag[k] - 1)
        begin_line(l2, k, request.line)
    if written:
        l2.line[k].valid |= write_sectors(l2.line[k], request.sectors, request.words)
    else:
        l2.line[k].valid |= request.sectors
        l2.line[k].dirty |= request.sectors if is_atomic(request) else 0
    use(l2, k)
    return missed and not opens


def answer_all(c, time):
    """What the SM has asked for is there."""
    sm, shared, k = c.sm, c.shared, 0
    while k < sm.asked:
        request = shared.outbox[sm.number, k]
        if shared.machine.slice_random:
            send_to(shared.machine, request, slice_drawn(shared, request.home))
        # what an SM's own part of L2 lacks is looked up in the other
        if touch_slice(shared, request, request.near, request.near == request.home):
            touch_slice(shared, request, request.home, True)
        if request.who != NOBODY:
            come_back(c, request, time)
        k += 1
    sm.asked = sm.in_flight = 0
    sm.credits = shared.machine.inject_queue_flits + shared.machine.crossbar_queue_flits


def pass_through(c, i, w, time):
    """A memory instruction goes through the tags; with real memory, from one transaction to the next in the time that
    all of them take to enter and to be answered."""
    sm, m = c.sm, c.machine
    if m.perfect_memory:
        access(c, w, i, time)
        return
    port = port_of(m, MEM, w)
    for array in (sm.unit_free, c.collectors, sm.ports[port].start, sm.ports[port].alloc, sm.last_alloc):
        zero(array)  # nothing is before it
    issue_access(c, i, w, port, pool_of(m, port, w), time)
    step = 0
    while sm.warps.outstanding[w]:
        step += 1
        if waits_at_port(m) and sm.at_port:
            fill_collectors(c, time + step)
        answer_all(c, time + step)
        look_up(c, time + m.l1d_latency_cycles + step)
        go_on(c, time + step)


def enter_block(c, w, time):
    """The next basic block of warp `w`; its instruction lines are fetched."""
    sm, m = c.sm, c.machine
    block = c.streams.blocks[sm.warps.event[w]]
    sm.warps.event[w] += 1
    sm.warps.pc[w], sm.warps.stop[w] = c.streams.block_start[block], c.streams.block_stop[block]
    if m.perfect_instruction_cache:
        return
    line = np.int64(-1)
    for i in range(sm.warps.pc[w], sm.warps.stop[w]):
        pc = np.int64(c.code[i].pcs)
        if pc >> m.fetch_line_log2 != line:
            line = pc >> m.fetch_line_log2
            l1i_lookup(c, pc, time)
            if not m.perfect_memory:
                answer_all(c, time)


@outlined
def next_access(c, w, time):
    """Go on with warp `w` past its next memory instruction; false if it has none left."""
    sm = c.sm
    while sm.warps.pc[w] < sm.warps.stop[w] or sm.warps.event[w] < sm.warps.event_end[w]:
        if sm.warps.pc[w] == sm.warps.stop[w]:
            enter_block(c, w, time)
        i = sm.warps.pc[w]
        sm.warps.pc[w] += 1
        if c.code[i].kind >= Kind.PARAM_LOAD:
            pass_through(c, i, w, time)
            return True
    return False


@outlined
def walk(gpu, first, stop):
    """The thread blocks `first` .. `stop` - 1, as many at once as the SMs hold, dealt to the SMs in turn."""
    m, sms, time = gpu.machine, gpu.sm, 0
    begin(gpu)
    for n in range(m.sm_count):  # nothing is on its way: the SM's link has room for its first request
        answer_all(context_of(gpu, n), time)
    while first < stop:
        count = min(m.sm_count * m.blocks_per_sm, stop - first)
        for k in range(count):
            place_block(sms[k % m.sm_count], m, gpu.offsets, k // m.sm_count, first + k)
        busy = True
        while busy:
            busy = False
            for w in range(((count - 1) // m.sm_count + 1) * m.warps_per_block):
                for n in range(min(m.sm_count, count - w // m.warps_per_block * m.sm_count)):
                    time += STEP_CYCLES
                    busy |= next_access(context_of(gpu, n), w, time)
        first += count
    for n in range(m.sm_count):  # what replies have booked belongs to no cycle
        zero(context_of(gpu, n).register_banks)


@outlined
def controllers(m, lines, reads):
    """Counts, into `reads[channel, bank]`, the lines that each bank of each memory controller holds."""
    for k in range(len(lines)):
        _, channel, local, _ = slice_of(m, lines[k])
        reads[channel, bank_of(m, local)] += 1


@outlined
def touch(gpu, records, words, written, first_line, recent):
    """Data `records` go through L2's tags, without time; `written`: which of them are of stores and atomics. Lines with
    something on its way stay. `recent`, -1 at first, stands for L1D: what has just been read does not reach L2."""
    m, l2 = gpu.machine, gpu.shared.l2
    for k in range(len(records)):
        line, sectors = line_and_sectors(records, k)
        if line < first_line or line >= PHASE_WINDOW_LINE or sectors == 0:
            continue
        mark = line << 4 | sectors
        if not written[k] and recent[line & (len(recent) - 1)] == mark:
            continue
        recent[line & (len(recent) - 1)] = mark
        number, _, _, in_slice = slice_of(m, line)
        if m.slice_random:
            number = slice_drawn(gpu.shared, line)
        first = (number * m.l2_sets + l2_set_of(m, in_slice)) * m.l2_ways
        place = find(l2.tag, first, m.l2_ways, line)
        if place < 0:
            place = oldest_idle(l2, first, m.l2_ways)
            if place < 0:
                continue
            begin_line(l2, place, line)
        if written[k]:
            l2.line[place].valid |= write_sectors(l2.line[place], sectors, words_at(m, words, k))
        else:
            l2.line[place].valid |= sectors
        use(l2, place)
