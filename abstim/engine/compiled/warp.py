"""One warp: issue an instruction, move on to the next, reach a barrier, exit (MODEL.md rules 5 to 8)."""

from __future__ import annotations

from numba import njit

from abstim.engine.compiled.caches import fetch_at
from abstim.engine.compiled.layout import BARRIER_WAIT, EMPTY, MEMORY_WAIT, NEVER, NOT_READY
from abstim.engine.compiled.ports import execute
from precharacterize.classify import Kind

BARRIER, EXIT, PARAM_LOAD, CONST_LOAD, SHARED_ATOMIC, GLOBAL_LOAD, GLOBAL_ATOMIC, FENCE = (
    int(Kind.BARRIER), int(Kind.EXIT), int(Kind.PARAM_LOAD), int(Kind.CONST_LOAD),
    int(Kind.SHARED_ATOMIC), int(Kind.GLOBAL_LOAD), int(Kind.GLOBAL_ATOMIC), int(Kind.FENCE),
)  # fmt: skip
RETIRE_CYCLES = 6  # a `ret` from issue to the end of the pipeline


@njit
def refill(sm, heap, m, code, w, time):
    """Fetch the warp's next instruction, requested at `time`; returns the first cycle it can issue."""
    pc = code[sm.pc[w]].pc
    sm.buffered[w] = min(m.fetch_width, m.fetch_line - pc % m.fetch_line)
    return fetch_at(sm, heap, m, time, pc) + 2


@njit
def wait_for_operands(sm, heap, m, code, w, ready):
    """Set when the warp's next instruction can issue, given that its front end is ready at `ready`."""
    i = sm.pc[w]
    reason = NOT_READY
    for k in range(code[i].wait_count):
        entry = heap[m.registers_at + w * m.register_count + code[i].waits[k]]
        if entry >> 2 > ready:
            ready = entry >> 2
            reason = MEMORY_WAIT if entry & 1 else NOT_READY
    sm.ready[w] = ready
    sm.reason[w] = reason


@njit
def refetch(sm, heap, m, code, w, time):
    """The scheduler finds the wrong path in the warp's buffer at `time`: flush and fetch."""
    sm.flush[w] = False
    wait_for_operands(sm, heap, m, code, w, refill(sm, heap, m, code, w, time))


@njit
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


@njit
def front_end(sm, heap, m, code, w, i, time):
    """After issuing `i` at `time`: sequential, taken branch, or the other lanes after an exit."""
    sm.buffered[w] -= 1
    if code[i].kind == EXIT and sm.pc[w] != i + 1:
        wait_for_operands(sm, heap, m, code, w, refill(sm, heap, m, code, w, time))
    elif sm.pc[w] == i + 1:
        wait_for_operands(sm, heap, m, code, w, time + 1 if sm.buffered[w] > 0 else refill(sm, heap, m, code, w, time))
    else:
        sm.flush[w] = True
        wrong_path = time + 1 if sm.buffered[w] > 0 else fetch_at(sm, heap, m, time, code[i].pc + 1) + 2
        sm.ready[w] = wrong_path
        sm.reason[w] = NOT_READY


@njit
def release(sm, m, block, time):
    """Every warp of the block has reached the barrier or exited."""
    sm.block_waiting[block] = 0
    first = block * m.warps_per_block
    for w in range(first, first + m.warps_per_block):
        if sm.waiting[w]:
            sm.waiting[w] = False
            sm.ready[w] = max(sm.held[w], time)
            sm.reason[w] = NOT_READY
            s = w % m.schedulers
            sm.wake[s] = min(sm.wake[s], sm.ready[w])


@njit
def arrive(sm, m, w, time):
    """The warp waits at a barrier from `time`."""
    block = w // m.warps_per_block
    sm.held[w] = sm.ready[w]
    sm.ready[w] = NEVER
    sm.reason[w] = BARRIER_WAIT
    sm.waiting[w] = True
    sm.block_waiting[block] += 1
    if sm.block_waiting[block] == sm.block_live[block]:
        release(sm, m, block, time)


@njit
def leave(sm, m, w, time):
    """The warp has issued its last instruction at `time`; its block's slot may become free."""
    block = w // m.warps_per_block
    sm.alive[w] = False
    sm.ready[w] = NEVER
    sm.live -= 1
    if sm.live == 0:
        sm.idle_reason[:] = EMPTY
    sm.drained[w] = max(sm.drained[w], time + RETIRE_CYCLES)
    sm.block_live[block] -= 1
    sm.last_exit = max(sm.last_exit, sm.drained[w])
    if sm.block_live[block] == 0:
        free_block(sm, m, block)
    elif sm.block_waiting[block] == sm.block_live[block]:
        release(sm, m, block, time)


@njit
def free_block(sm, m, block):
    """All warps of the block have left: the slot is free when the last is drained."""
    first = block * m.warps_per_block
    free = 0
    for w in range(first, first + m.warps_per_block):
        free = max(free, sm.drained[w])
    sm.block_free[block] = free
    sm.resident_warp_cycles += m.warps_per_block * (free - sm.block_start[block])
    if sm.more_blocks:
        sm.horizon = min(sm.horizon, max(free, sm.last_dispatch + 1))


@njit
def scoreboard_flags(kind):
    """Low bits of a scoreboard entry: 1 = from memory, 2 = a long operation for the two-level scheduler."""
    long_operation = kind >= GLOBAL_LOAD or kind == PARAM_LOAD
    return (1 if kind >= PARAM_LOAD else 0) | (2 if long_operation else 0)


@njit
def issue(sm, heap, m, code, streams, w, time):
    """Issue the warp's next instruction at `time`; returns True if it was the warp's last."""
    i = sm.pc[w]
    kind = code[i].kind
    result = execute(sm, heap, m, code, streams, i, w, time)
    entry = (result << 2) | scoreboard_flags(kind)
    for k in range(code[i].write_count):
        heap[m.registers_at + w * m.register_count + code[i].writes[k]] = entry
    sm.drained[w] = max(sm.drained[w], result)
    if not step(sm, streams, w):
        leave(sm, m, w, time)
        return True
    front_end(sm, heap, m, code, w, i, time)
    if kind == BARRIER:
        arrive(sm, m, w, time)
    elif kind == SHARED_ATOMIC or kind == GLOBAL_ATOMIC:
        hold_until(sm, w, result - 1)
    elif kind == FENCE:
        hold_until(sm, w, sm.drained[w])
    return False


@njit
def hold_until(sm, w, time):
    """The warp issues nothing before `time`, because of memory."""
    if time > sm.ready[w]:
        sm.ready[w] = time
        sm.reason[w] = MEMORY_WAIT
