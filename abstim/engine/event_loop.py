"""A launch on a whole GPU: SMs run ahead until a thread block slot frees, blocks are handed out in time order
(docs/timing-rules.md, rules 1 and 10)."""

from __future__ import annotations

from abstim.engine.fetch import fetch, next_fetch, want_fetch
from abstim.engine.memory_pipe import memory_stage, next_memory_event
from abstim.engine.memory_side import exchange
from abstim.engine.rules import DECODE_CYCLES
from abstim.engine.schedulers import take_turn
from abstim.engine.scoreboard import forget
from abstim.engine.state import L1D, NEVER, TWO_LEVEL, WHEEL, Context, Tags
from abstim.engine.warp_slots import bit, next_on_wheel, turn_wheel
from functional.disk.by_reference import reference
from functional.disk.compile import jit, outlined, spliced


@jit
def tags_of(tags, n):
    """A cache of SM `n`."""
    return Tags(
        tags.tag[n], tags.last_use[n], tags.there[n], tags.pending[n], tags.waiting[n], tags.waiting_last[n],
    )  # fmt: skip


@jit
def l1d_of(l1d, n):
    """L1D of SM `n`."""
    return L1D(
        l1d.tag[n], l1d.last_use[n], l1d.there[n], l1d.line[n], l1d.hint[n], l1d.pipes[n], l1d.transactions[n],
        l1d.sent[n], l1d.waiters[n], l1d.accesses[n], l1d.issued[n],
    )  # fmt: skip


@spliced
def context_of(gpu, code, streams, n):
    """SM `n` of the GPU; `gpu` is a reference to its State."""
    return Context(
        gpu.sms[n], gpu.machine, tags_of(gpu.l1i, n), tags_of(gpu.const, n), tags_of(gpu.texture, n),
        l1d_of(gpu.l1d, n), gpu.scoreboard[n], gpu.results[n], gpu.buses[n], gpu.register_banks[n], gpu.shared,
        gpu.record, code, streams,
    )  # fmt: skip


@jit
def next_event(c, time, issued):
    """First cycle after `time` in which something can happen on the SM."""
    sm, m = c.sm, c.machine
    if m.policy == TWO_LEVEL or (issued and sm.visitable):
        return time + 1
    following = next_fetch(sm, time)
    if sm.visitable:  # all of them wait for a port
        following = min(following, sm.port_wait)
    if sm.wheel_used:
        following = min(following, next_on_wheel(sm, time))
    return following if m.perfect else min(following, next_memory_event(c, time))


@jit
def first_turn(m, time):
    """The scheduler whose turn comes first: their order rotates every cycle."""
    if m.schedulers & (m.schedulers - 1) == 0:  # a division costs as much as a turn
        return (time - 1) & (m.schedulers - 1)
    return (time - 1) % m.schedulers


@jit
def take_turns(c, time):
    """All schedulers, in this cycle's order; true if one issues."""
    m, issued = c.machine, False
    c.sm.port_wait = NEVER
    s = first_turn(m, time)
    for _ in range(m.schedulers):
        issued |= take_turn(c, s, time)
        s = s + 1 if s + 1 < m.schedulers else 0
    return issued


@outlined
def advance(context):
    """Run one SM up to and including its horizon, or until nothing on it is left to issue."""
    c = reference(context)
    sm, m = c.sm, c.machine
    time, idle = sm.clock, False
    while time <= sm.horizon and sm.live > 0:
        if sm.wheel_used & bit(time & (WHEEL - 1)):
            turn_wheel(sm, time)
        if not m.perfect:
            memory_stage(c, time)
        issued = False
        if sm.visitable or not idle or m.policy == TWO_LEVEL:  # else nothing has changed for them
            idle = not sm.visitable and not m.perfect
            issued = take_turns(c, time)
        for k in range(m.fetches):
            if sm.wanted | sm.missing | sm.exiting:  # all but the last fetch are decoded in the same cycle
                fetch(c, time, time + (1 if k + 1 < m.fetches else DECODE_CYCLES))
        time = next_event(c, time, issued)
    sm.clock = time


@jit
def next_dispatch(sm, m):
    """Cycle in which this SM can take a block, as far as known."""
    free = sm.block_free[0]
    for k in range(1, m.blocks_per_sm):
        free = min(free, sm.block_free[k])
    return max(free, sm.last_dispatch + 1)


@outlined
def launch_block(context, offsets, block, time):
    """Thread block `block` (a position in the trace) enters the lowest free slot at the end of cycle `time`."""
    c = reference(context)
    sm, m = c.sm, c.machine
    slot = 0
    while sm.block_free[slot] > time:
        slot += 1
    sm.block_free[slot], sm.block_start[slot], sm.last_dispatch = NEVER, time, time
    sm.block_live[slot], sm.block_running[slot], sm.block_waiting[slot] = m.warps_per_block, m.warps_per_block, 0
    sm.block_order[sm.resident], sm.block_position[slot] = slot, block
    c.record.blocks[block].sm = sm.number
    c.record.blocks[block].dispatch_cycle = time
    sm.resident += 1
    for k in range(m.warps_per_block):
        start_warp(c, offsets, slot * m.warps_per_block + k, block * m.warps_per_block + k)
    sm.clock = min(sm.clock, time + 1) if sm.live else time + 1
    sm.live += m.warps_per_block


@jit
def start_warp(c, offsets, w, warp):
    """Warp `warp` (a position in the trace) enters slot `w`, its instruction buffer empty."""
    sm, streams = c.sm, c.streams
    sm.warp[w] = warp
    sm.event[w], sm.event_end[w] = offsets.blocks[warp], offsets.blocks[warp + 1]
    sm.record[w], sm.conflict[w] = offsets.records[warp], offsets.conflicts[warp]
    block = streams.blocks[sm.event[w]]
    sm.pc[w], sm.stop[w] = streams.block_start[block], streams.block_stop[block]
    forget(c, w)
    sm.flush[w], sm.drained[w], sm.settled[w], sm.not_before[w] = 0, 0, 0, 0
    sm.running |= bit(w)
    sm.fresh |= bit(w)
    want_fetch(sm, w, c.code[sm.pc[w]].pc)


@jit
def run_round(gpu, code, streams, more):
    """Every SM runs, in cyclic order from the one after the last that took a block, to the end of the window, or to
    where it can take a block if there are more. Returns (who can take one first, when, is any of them not done)."""
    m, launch, sms = gpu.machine, gpu.record.launch, gpu.sms
    taker, taken, busy = 0, NEVER, False
    for k in range(m.sm_count):
        n = launch.first + k if launch.first + k < m.sm_count else launch.first + k - m.sm_count
        sms[n].more_blocks = more
        sms[n].horizon = min(next_dispatch(sms[n], m), launch.limit) if more else launch.limit
        if sms[n].live > 0 and sms[n].clock <= sms[n].horizon:  # most wait: a call costs as much as some cycles
            advance(context_of(gpu, code, streams, n))
        busy |= sms[n].live > 0
        dispatch = next_dispatch(sms[n], m)
        if dispatch < taken:
            taker, taken = n, dispatch
    return taker, taken, busy


def run_grid(state, code, streams, offsets, order, drain):
    """Hand out the thread blocks `order` (positions in the trace), and run to the end, or to the last dispatch."""
    gpu = reference(state)
    m, launch = gpu.machine, gpu.record.launch
    if launch.limit == 0:
        launch.limit = m.window_cycles
        if not m.perfect:
            exchange(gpu, 0)
    position, count, busy = 0, len(order), True
    while position < count or (drain and busy):
        taker, taken, busy = run_round(gpu, code, streams, position < count or not drain)
        if position < count and taken <= launch.limit:
            launch_block(context_of(gpu, code, streams, taker), offsets, order[position], taken)
            launch.first = taker + 1 if taker + 1 < m.sm_count else 0
            launch.clock = taken
            position += 1
            busy = True
        elif not m.perfect:
            exchange(gpu, launch.limit)
            launch.limit += m.window_cycles
