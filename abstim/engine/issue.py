"""One warp: issue an instruction and move on to the next (docs/timing-rules.md, rules 5 and 7)."""

from __future__ import annotations

from abstim.engine.barriers_and_exits import arrive, leave, settle
from abstim.engine.copy_groups import follow_groups
from abstim.engine.execution_units import execute, started
from abstim.engine.fetch import want_fetch
from abstim.engine.mbarriers import follow_phases
from abstim.engine.pending_accesses import describe
from abstim.engine.rules import READ_OPERANDS_CYCLES
from abstim.engine.scoreboard import count_up, make_ready, release_register, write_results
from abstim.engine.state import MEM, NEVER
from abstim.engine.warp_slots import bit, visit_from
from functional.jit.compile import jit
from functional.jit.shared_words import add
from precharacterize.classify import Kind
from precharacterize.synchronisation import LAST_PRODUCT, NONE

BARRIER, EXIT, FENCE = int(Kind.BARRIER), int(Kind.EXIT), int(Kind.FENCE)
SHARED_ATOMIC, GLOBAL_ATOMIC = int(Kind.SHARED_ATOMIC), int(Kind.GLOBAL_ATOMIC)


@jit
def step(sm, streams, w):
    """Move the warp to its next instruction; returns False at the end of its stream."""
    i = sm.pc[w] + 1
    if i >= sm.stop[w]:
        sm.event[w] += 1
        if sm.event[w] >= sm.event_end[w]:
            return False
        block = streams.blocks[sm.event[w]]
        i = streams.block_start[block]
        sm.stop[w] = streams.block_stop[block]
    sm.pc[w] = i
    return True


@jit
def want_unit(sm, code, w, last):
    """The warp's next instruction goes to its kind of unit; the one before went to `last`."""
    sm.of_kind[last] &= ~bit(w)
    sm.of_kind[code[sm.pc[w]].unit] |= bit(w)


@jit
def refetch(sm, code, w):
    """The scheduler finds the wrong path in the warp's buffer: flush and ask for the right one."""
    sm.flush &= ~bit(w)
    want_fetch(sm, w, code[sm.pc[w]].pc)


@jit
def follow(c, w, i, time):
    """After issuing `i` at `time`: sequential, other lanes after an exit, or a taken branch."""
    sm, code = c.sm, c.code
    sm.buffered[w] -= 1
    sequential = sm.pc[w] == i + 1
    if sequential and sm.buffered[w] > 0:
        make_ready(c, w, time + code[i].stall, time)
    elif sequential or code[i].kind == EXIT:
        want_fetch(sm, w, code[sm.pc[w]].pc)
    else:
        sm.flush |= bit(w)
        sm.wrong[w] = i + 1 if i + 1 < len(code) else i
        if sm.buffered[w] > 0:
            sm.ready[w] = time + 1
            sm.memory &= ~bit(w)
            if not sm.held & bit(w):
                visit_from(sm, w, time + 1, time)
        else:
            want_fetch(sm, w, code[i].pc + 1)


@jit
def write_log(c, row, w, i, time, result, missed):
    """One issue: when, what, by whom. What an access missed and asked for is known when it is complete."""
    sm = c.sm
    row.cycle, row.result_cycle, row.start_cycle = time, result, started(sm, c.machine, c.code[i].unit, w)
    row.sm, row.slot, row.warp, row.instruction = sm.number, w, sm.warp[w], i
    row.l1d_misses, row.l1i_misses, row.l2_accesses, row.dram_reads = missed, sm.l1i_misses, 0, 0


@jit
def store_window(record, sm):
    """What an SM counted of a window joins what others did, which may do so at the same time."""
    if sm.window_issued:
        add(record.windows, sm.window, sm.window_issued)
        sm.window_issued = 0


@jit
def note(c, w, i, time, result, missed):
    """Book an issue for those who watch: the warp's first, the window's count, a row of the log."""
    sm, record = c.sm, c.record
    launch, windows = record.launch, len(record.windows)
    if sm.fresh & bit(w):
        sm.fresh &= ~bit(w)
        record.warps[sm.warp[w]].issue_cycle = time
    if windows:
        at = min(time >> launch.window_log2, windows - 1)
        if at != sm.window:
            store_window(record, sm)
            sm.window = at
        sm.window_issued += 1
    if launch.logged < len(record.log):
        write_log(c, record.log[launch.logged], w, i, time, result, missed)
        launch.logged += 1
        if result >= NEVER:
            c.l1d.accesses[sm.latest_access - 1].row = launch.logged
        elif c.code[i].unit == MEM and not c.machine.perfect:
            describe(c.l1d.accesses[sm.latest_access - 1], record.log[launch.logged - 1])


@jit
def follow_copies(c, w, row, record, result, time):
    """What an instruction issued at `time` does with asynchronous work; `record` is the first of its access."""
    if row.copies < LAST_PRODUCT:
        follow_phases(c, w, row.copies, record, result, time)
    elif row.copies != NONE:
        follow_groups(c, w, row, result)


@jit
def issue(c, w, time):
    """Issue the warp's next instruction at `time`."""
    sm = c.sm
    i = sm.pc[w]
    row = c.code[i]
    kind = row.kind
    sm.visitable &= ~bit(w)
    missed, record = sm.l1d_misses, sm.record[w]
    counted = row.counted and row.unit == MEM and not c.machine.perfect  # comes when it is complete
    if counted:
        count_up(c, w, row)
    result = execute(c, i, w, time)
    note(c, w, i, time, result, sm.l1d_misses - missed)
    if not counted:
        write_results(c, w, row, result)
    if row.release >= 0:
        release_register(c, w, row.release, time + READ_OPERANDS_CYCLES)
    settle(sm, w, result)
    if not step(sm, c.streams, w):
        leave(sm, c.machine, w, time)
        follow_copies(c, w, row, record, result, time)
        return
    want_unit(sm, c.code, w, row.unit)
    if kind in (SHARED_ATOMIC, GLOBAL_ATOMIC):
        sm.not_before[w] = result - 1 if result < NEVER else NEVER
    else:
        if kind == FENCE and c.machine.posted_stores:  # as long as a store's way to L2 and back, if it meets nobody
            settle(sm, w, time + c.machine.slice_delay + c.machine.hit_delay)
        sm.not_before[w] = sm.drained[w] if kind == FENCE else (time + row.stall if row.stall > 1 else 0)
        if kind == FENCE and sm.outstanding[w]:
            sm.fenced |= bit(w)
    follow_copies(c, w, row, record, result, time)
    if kind == BARRIER:
        sm.held |= bit(w)
    follow(c, w, i, time)
    if row.barrier >= 0:
        arrive(sm, c.machine, w, time, row.barrier)
