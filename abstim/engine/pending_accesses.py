"""Memory instructions on their way: what they ask the memory side for, and who waits for which sector
(docs/timing-rules.md, rule 11)."""

from abstim.engine import mbarriers
from abstim.engine.accesses import ALL_WORDS, sectors_in
from abstim.engine.address_map import address
from abstim.engine.operand_collectors import write_back
from abstim.engine.rules import UNITS_A_CYCLE
from abstim.engine.scoreboard import count_down, fence_over, write_registers
from abstim.engine.state import IN_FLIGHT, NEVER, READ
from abstim.engine.switch import give_back, new_place
from abstim.engine.warp_slots import bit
from functional.jit.marked import outlined
from functional.traces.trace import SECTOR_BYTES
from precharacterize.synchronisation import COMMITS, COPY, MEETS_LATER, NONE, PRODUCTS, family_of, starts_work


def flits_of(m, kind, sectors):
    """Flits of a request's packet: a read is its header alone."""
    if kind == READ:
        return 1
    size = SECTOR_BYTES * sectors_in(sectors) + m.packet_header_bytes
    return (size + m.flit_bytes - 1) // m.flit_bytes


def can_send(c, kind, sectors):
    """May the SM ask now? If not: in the next window, or when something has come back."""
    return c.sm.credits >= flits_of(c.machine, kind, sectors) and c.sm.in_flight < IN_FLIGHT


@outlined
def send(c, line, sectors, kind, who, place, time):
    """Ask for, or write, sectors of a line; the packet goes to the switch at `time` at the earliest. Returns when."""
    sm, m = c.sm, c.machine
    flits = flits_of(m, kind, sectors)
    sent = max(time, sm.last_sent + 1, sm.link_free + flits - m.inject_queue_flits)
    sm.last_sent, sm.link_free = sent, max(sent, sm.link_free) + flits
    sm.credits -= flits
    sm.in_flight += sectors_in(sectors)
    request = c.shared.outbox[sm.number, sm.asked]
    sm.asked += 1
    request.line, request.sectors, request.kind, request.sm = line, sectors, kind, sm.number
    request.who, request.place, request.flits, request.from_dram = who, place, flits, 0
    request.due, request.words = sent + 1, ALL_WORDS
    address(m, request)
    return sent


def write_words(c, words):
    """What has been sent last writes these words alone."""
    c.shared.outbox[c.sm.number, c.sm.asked - 1].words = words


def respond_in_order(sm, time):
    """A response enters the SM's one-a-cycle FIFO at `time`, after those before it; returns when it comes out."""
    out = max(time, sm.fifo_free)
    sm.fifo_free = out + 1
    return out


REPLY_TO_RESULT = 2  # from the fill of a cache to the write-back of what waited for it


def new_access(c, w, i):
    """The place of a new memory instruction, which waits until it has left the load/store unit."""
    sm = c.sm
    place = new_place(c.l1d.accesses, sm.accesses_unused)
    access = c.l1d.accesses[place - 1]
    access.warp, access.instruction, access.waiting, access.result, access.row = w, i, 1, 0, 0
    access.l1d_misses = access.l2_accesses = access.dram_reads = access.awaited = 0
    sm.warps.outstanding[w] += 1
    sm.latest_access = place
    if c.code[i].copies != NONE:
        note_copy(c, w, access, c.code[i].copies)
    return place


def note_copy(c, w, access, copies):
    """An access does something with asynchronous work: what is to be known of it when it is complete."""
    access.record = c.sm.warps.record[w]
    if copies in (COPY, MEETS_LATER):
        access.number = mbarriers.number_copy(c, w, copies, access.record)
    if copies == COMMITS:
        access.number = mbarriers.work_done(c, w, PRODUCTS)
    if starts_work(copies):
        family = family_of(copies)  # it joins the warp's open group
        access.group = c.sm.group[w, family]
        c.copies[w, family, access.group].coming += 1


def describe(access, row):
    """A row of the log is told what an access missed and asked for."""
    row.l1d_misses, row.l2_accesses, row.dram_reads = access.l1d_misses, access.l2_accesses, access.dram_reads


def conclude(c, w, row, result):
    """The result of an instruction of warp `w` that was on its way is known."""
    sm = c.sm
    if row.counted:
        count_down(c, w, row, result)
    else:
        write_registers(c, w, row, result)
    sm.warps.settled[w] = max(sm.warps.settled[w], result)
    sm.warps.outstanding[w] -= 1
    if sm.warps.outstanding[w] == 0:
        sm.warps.drained[w] = sm.warps.settled[w]
        if sm.exiting & bit(w):
            sm.next_exit = min(sm.next_exit, sm.warps.drained[w])


def let_go(c, w, time):
    """Warp `w` goes on, if it has waited for what is known now."""
    sm = c.sm
    if sm.fenced & bit(w) and fence_over(c, w) < NEVER:
        sm.fenced &= ~bit(w)
        sm.warps.not_before[w] = fence_over(c, w)
    mbarriers.wake(c, w, time)


@outlined
def complete(c, place, time):
    """All of a memory instruction is there, or will be at its result cycle, which is known at `time`."""
    sm, access = c.sm, c.l1d.accesses[place - 1]
    w, row = access.warp, c.code[access.instruction]
    conclude(c, w, row, access.result)
    if access.row:  # what is now known of an issue that was noted before
        c.record.log[access.row - 1].result_cycle = access.result
        describe(access, c.record.log[access.row - 1])
    if access.awaited:
        sm.warps.not_before[w] = access.result - 1
    if row.copies != NONE:
        if starts_work(row.copies):
            mbarriers.copy_ends(c, w, family_of(row.copies), access.group, access.result)
        mbarriers.meet_when_complete(c, w, row.copies, access.number, access.record, access.result, time)
    give_back(c.l1d.accesses, sm.accesses_unused, place)
    let_go(c, w, time)


def finish(c, place, result, time):
    """A part of a memory instruction is there at `result`, which is known at `time`."""
    access = c.l1d.accesses[place - 1]
    access.result = max(access.result, result)
    access.waiting -= 1
    if access.waiting == 0:
        complete(c, place, time)


def enlist(c, first, last, j, place):
    """An access waits for a sector or line: it joins the list of those that do, from first[j] to last[j]."""
    waiters = c.l1d.waiters
    k = new_place(waiters, c.sm.waiters_unused)
    waiters[k - 1].access, waiters[k - 1].next = place, 0
    if first[j]:
        waiters[last[j] - 1].next = k
    else:
        first[j] = k
    last[j] = k


def reply_result(c, time):
    """When the next of those that wait for a line that is there at `time` has its result: they leave one a cycle, or as
    many as replies come."""
    result = max((time + REPLY_TO_RESULT) * UNITS_A_CYCLE, c.sm.response_free)
    c.sm.response_free = result + UNITS_A_CYCLE // c.machine.l2_reply_sectors
    return result // UNITS_A_CYCLE


def reply(c, place, time):
    """A reply that is there at `time` reaches a memory instruction, and is written to the register file."""
    access, result = c.l1d.accesses[place - 1], reply_result(c, time)
    write_back(c, c.code[access.instruction], access.warp, result)
    finish(c, place, result, time)


def serve_waiters(c, k, time):
    """Everybody of a list has what it waited for."""
    waiters = c.l1d.waiters
    while k:
        following = waiters[k - 1].next
        reply(c, waiters[k - 1].access, time)
        give_back(waiters, c.sm.waiters_unused, k)
        k = following
