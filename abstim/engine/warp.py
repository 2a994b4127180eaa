"""One warp: issue an instruction and move on to the next (docs/timing-rules.md, rules 5 and 7)."""

from __future__ import annotations

from abstim.engine.frontend import make_ready, want_fetch
from abstim.engine.layout import FROM_ALU, FROM_GLOBAL, FROM_NEAR, FROM_PARAM
from abstim.engine.ports import execute, started
from abstim.engine.retire import arrive, leave
from abstim.engine.sets import bit
from abstim.engine.wheel import schedule
from functional.disk.compile import jit
from precharacterize.classify import Kind

BARRIER, EXIT, FENCE = int(Kind.BARRIER), int(Kind.EXIT), int(Kind.FENCE)
PARAM_LOAD, GLOBAL_LOAD = int(Kind.PARAM_LOAD), int(Kind.GLOBAL_LOAD)
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
def refetch(sm, code, w):
    """The scheduler finds the wrong path in the warp's buffer: flush and ask for the right one."""
    sm.flush[w] = 0
    want_fetch(sm, w, code[sm.pc[w]].pc)


@jit
def follow(sm, heap, far, m, code, streams, w, i, time):
    """After issuing `i` at `time`: sequential, other lanes after an exit, or a taken branch."""
    sm.buffered[w] -= 1
    sequential = sm.pc[w] == i + 1
    if sequential and sm.buffered[w] > 0:
        make_ready(sm, heap, far, m, code, streams.operands, w, time + 1, time)
    elif sequential or code[i].kind == EXIT:
        want_fetch(sm, w, code[sm.pc[w]].pc)
    else:
        sm.flush[w] = 1
        sm.wrong[w] = i + 1 if i + 1 < len(code) else i
        if sm.buffered[w] > 0:
            sm.ready[w] = time + 1
            sm.memory &= ~bit(w)
            if not sm.held & bit(w):
                schedule(sm, w, time + 1, time)
        else:
            want_fetch(sm, w, code[i].pc + 1)


@jit
def origin(kind):
    """Low bits of a scoreboard entry: where the register's value comes from."""
    if kind == PARAM_LOAD:
        return FROM_PARAM
    if kind >= GLOBAL_LOAD:
        return FROM_GLOBAL
    return FROM_NEAR if kind > PARAM_LOAD else FROM_ALU


@jit
def record(sm, far, m, code, streams, grid, w, i, time, result):
    """Book an issue for those who watch: the warp's first, the window's count, a row of the log."""
    if sm.fresh & bit(w):
        sm.fresh &= ~bit(w)
        far[m.warps_at + 2 * sm.warp[w]] = time
    if m.windows:
        far[m.windows_at + min(time >> m.window_log2, m.windows - 1)] += 1
    if grid.logged < len(streams.log):
        row = streams.log[grid.logged]
        row[0], row[1], row[2], row[3], row[4], row[5] = time, result, sm.number, w, sm.warp[w], i
        row[6], row[7], row[8] = started(sm, m, code[i].unit, w), sm.l1d_misses, sm.l1i_misses
        row[9], row[10] = sm.l2_accesses, sm.dram_reads
        grid.logged += 1


@jit
def issue(sm, heap, far, m, code, streams, grid, w, time):
    """Issue the warp's next instruction at `time`."""
    i = sm.pc[w]
    row = code[i]
    kind = row.kind
    sm.visitable &= ~bit(w)
    result = execute(sm, heap, far, m, code, streams, i, w, time)
    record(sm, far, m, code, streams, grid, w, i, time, result)
    entry = (result << 2) | origin(kind)
    for k in range(row.writes_at, row.writes_end):
        heap[m.registers_at + w * m.register_count + streams.operands[k]] = entry
    sm.drained[w] = max(sm.drained[w], result)
    if not step(sm, streams, w):
        leave(sm, m, w, time)
        return
    if kind in (SHARED_ATOMIC, GLOBAL_ATOMIC):
        sm.not_before[w] = result - 1
    else:
        sm.not_before[w] = sm.drained[w] if kind == FENCE else 0
    if kind == BARRIER:
        sm.held |= bit(w)
    follow(sm, heap, far, m, code, streams, w, i, time)
    if kind == BARRIER:
        arrive(sm, m, w, time)
