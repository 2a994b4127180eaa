"""One warp: issue an instruction, move on to the next, reach a barrier, exit (MODEL.md rules 5 to 8)."""

from __future__ import annotations

from numba import njit

from abstim.engine.compiled.caches import fetch_at
from abstim.engine.compiled.layout import (
    BARRIER_WAIT,
    EMPTY,
    HORIZON,
    LAST_DISPATCH,
    LAST_EXIT,
    LIVE,
    MEMORY_WAIT,
    NEVER,
    NOT_READY,
    RESIDENT_WARP_CYCLES,
)
from abstim.engine.compiled.ports import execute
from precharacterize.classify import Kind

BARRIER, EXIT, PARAM_LOAD, CONST_LOAD, SHARED_ATOMIC, GLOBAL_LOAD, GLOBAL_ATOMIC, FENCE = (
    int(Kind.BARRIER), int(Kind.EXIT), int(Kind.PARAM_LOAD), int(Kind.CONST_LOAD),
    int(Kind.SHARED_ATOMIC), int(Kind.GLOBAL_LOAD), int(Kind.GLOBAL_ATOMIC), int(Kind.FENCE),
)  # fmt: skip
RETIRE_CYCLES = 6  # a `ret` from issue to the end of the pipeline


@njit(cache=True)
def refill(sm, m, code, w, time):
    """Fetch the warp's next instruction, requested at `time`; returns the first cycle it can issue."""
    pc = code.pc[sm.pc[w]]
    sm.buffered[w] = min(m.fetch_width, m.fetch_line - pc % m.fetch_line)
    return fetch_at(sm, m, time, pc) + 2


@njit(cache=True)
def wait_for_operands(sm, code, w, ready):
    """Set when the warp's next instruction can issue, given that its front end is ready at `ready`."""
    i = sm.pc[w]
    reason = NOT_READY
    for k in range(code.wait_count[i]):
        entry = sm.registers[w, code.waits[i, k]]
        if entry >> 2 > ready:
            ready = entry >> 2
            reason = MEMORY_WAIT if entry & 1 else NOT_READY
    sm.ready[w] = ready
    sm.reason[w] = reason


@njit(cache=True)
def refetch(sm, m, code, w, time):
    """The scheduler finds the wrong path in the warp's buffer at `time`: flush and fetch."""
    sm.flush[w] = False
    wait_for_operands(sm, code, w, refill(sm, m, code, w, time))


@njit(cache=True)
def step(sm, code, streams, w):
    """Move the warp to its next instruction; returns False at the end of its stream."""
    i = sm.pc[w] + 1
    if i >= sm.stop[w]:
        sm.event[w] += 1
        if sm.event[w] >= sm.event_end[w]:
            return False
        block = streams.blocks[sm.event[w]]
        i = code.block_start[block]
        sm.stop[w] = code.block_stop[block]
    sm.pc[w] = i
    return True


@njit(cache=True)
def front_end(sm, m, code, w, i, time):
    """After issuing `i` at `time`: sequential, taken branch, or the other lanes after an exit."""
    sm.buffered[w] -= 1
    if code.kind[i] == EXIT and sm.pc[w] != i + 1:
        wait_for_operands(sm, code, w, refill(sm, m, code, w, time))
    elif sm.pc[w] == i + 1:
        wait_for_operands(sm, code, w, time + 1 if sm.buffered[w] > 0 else refill(sm, m, code, w, time))
    else:
        sm.flush[w] = True
        wrong_path = time + 1 if sm.buffered[w] > 0 else fetch_at(sm, m, time, code.pc[i] + 1) + 2
        sm.ready[w] = wrong_path
        sm.reason[w] = NOT_READY


@njit(cache=True)
def release(sm, m, block, time):
    """Every warp of the block has reached the barrier or exited."""
    sm.block_waiting[block] = 0
    first = block * m.warp_slots_per_block
    for w in range(first, first + m.warp_slots_per_block):
        if sm.waiting[w]:
            sm.waiting[w] = False
            sm.ready[w] = max(sm.held[w], time)
            sm.reason[w] = NOT_READY
            s = w % m.schedulers
            sm.wake[s] = min(sm.wake[s], sm.ready[w])


@njit(cache=True)
def arrive(sm, m, w, time):
    """The warp waits at a barrier from `time`."""
    block = w // m.warp_slots_per_block
    sm.held[w] = sm.ready[w]
    sm.ready[w] = NEVER
    sm.reason[w] = BARRIER_WAIT
    sm.waiting[w] = True
    sm.block_waiting[block] += 1
    if sm.block_waiting[block] == sm.block_live[block]:
        release(sm, m, block, time)


@njit(cache=True)
def leave(sm, m, w, time):
    """The warp has issued its last instruction at `time`; its block's slot may become free."""
    block = w // m.warp_slots_per_block
    sm.alive[w] = False
    sm.ready[w] = NEVER
    sm.now[LIVE] -= 1
    if sm.now[LIVE] == 0:
        sm.idle_reason[:] = EMPTY
    sm.drained[w] = max(sm.drained[w], time + RETIRE_CYCLES)
    sm.block_live[block] -= 1
    sm.now[LAST_EXIT] = max(sm.now[LAST_EXIT], sm.drained[w])
    if sm.block_live[block] == 0:
        free_block(sm, m, block)
    elif sm.block_waiting[block] == sm.block_live[block]:
        release(sm, m, block, time)


@njit(cache=True)
def free_block(sm, m, block):
    """All warps of the block have left: the slot is free when the last is drained."""
    first = block * m.warp_slots_per_block
    free = 0
    for w in range(first, first + m.warp_slots_per_block):
        free = max(free, sm.drained[w])
    sm.block_free[block] = free
    sm.counters[RESIDENT_WARP_CYCLES] += m.warp_slots_per_block * (free - sm.block_start[block])
    if m.more_blocks:
        sm.now[HORIZON] = min(sm.now[HORIZON], max(free, sm.now[LAST_DISPATCH] + 1))


@njit(cache=True)
def scoreboard_flags(kind):
    """Low bits of a scoreboard entry: 1 = from memory, 2 = a long operation for the two-level scheduler."""
    long_operation = kind >= GLOBAL_LOAD or kind == PARAM_LOAD
    return (1 if kind >= PARAM_LOAD else 0) | (2 if long_operation else 0)


@njit(cache=True)
def issue(sm, m, code, streams, w, time):
    """Issue the warp's next instruction at `time`; returns True if it was the warp's last."""
    i = sm.pc[w]
    kind = code.kind[i]
    result = execute(sm, m, code, streams, i, w, time)
    entry = (result << 2) | scoreboard_flags(kind)
    for k in range(code.write_count[i]):
        sm.registers[w, code.writes[i, k]] = entry
    sm.drained[w] = max(sm.drained[w], result)
    if not step(sm, code, streams, w):
        leave(sm, m, w, time)
        return True
    front_end(sm, m, code, w, i, time)
    if kind == BARRIER:
        arrive(sm, m, w, time)
    elif kind == SHARED_ATOMIC or kind == GLOBAL_ATOMIC:
        hold_until(sm, w, result - 1)
    elif kind == FENCE:
        hold_until(sm, w, sm.drained[w])
    return False


@njit(cache=True)
def hold_until(sm, w, time):
    """The warp issues nothing before `time`, because of memory."""
    if time > sm.ready[w]:
        sm.ready[w] = time
        sm.reason[w] = MEMORY_WAIT
