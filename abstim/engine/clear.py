"""The state of a launch before its first cycle: what an earlier launch on the same design point has left is cleared,
where it has been."""

from __future__ import annotations

from abstim.engine import state
from abstim.engine.state import CONTEXT, NEVER, TWO_LEVEL
from functional.jit.marked import jit, outlined, refer, zero


@jit
def context_of(gpu, n):
    """SM `n` of the GPU, with what it needs of the rest."""
    return refer(CONTEXT, gpu.contexts[n])


@outlined
def clear_sm(c, booked):
    """One that had thread blocks; `booked`: cycles from its last exit to its last booking. A warp that starts clears
    its part of the scoreboard, a thread block its phases."""
    sm, m, l1d = c.sm, c.machine, c.l1d
    cycles = min(m.ring, sm.last_exit + booked)
    zero(c.results, cycles)
    zero(c.buses, cycles)
    zero(c.register_banks, cycles * m.register_file_ports)
    zero(l1d.waiters, sm.waiters_unused[1])
    zero(l1d.accesses, sm.accesses_unused[1])
    for array in (
        l1d.tag, l1d.last_use, l1d.there, l1d.line, l1d.hint, l1d.pipes, l1d.transactions, l1d.sent, l1d.issued,
        c.barriers, c.words, c.copies, c.l1i, c.const,
    ):  # fmt: skip
        zero(array)
    if sm.l1t_accesses:
        zero(c.texture)
    zero(sm)


@outlined
def clear_shared(shared):
    """What lies behind the SMs. Rows of the outbox are written before they are read."""
    l2 = shared.l2
    zero(shared.requests.rows, shared.requests.unused[1])
    for k in range(l2.uses[1]):
        place = l2.placed[k]
        l2.tag[place] = l2.last_use[place] = 0
        zero(l2.line[place])
    if shared.clock[2]:
        zero(shared.held)
    for array in (
        l2.uses, shared.requests.unused, shared.there, shared.back, shared.slices, shared.channels, shared.inbox,
        shared.received, shared.arriving, shared.traffic, shared.clock, shared.posted, shared.posted_end,
    ):  # fmt: skip
        zero(array)


@jit
def begin_sm(sm, m, n):
    """Nothing is resident."""
    sm.number, sm.last_fetched = n, -1
    for w in range(m.max_warps_per_sm):
        sm.ready[w] = NEVER
    for s in range(m.schedulers_per_sm):
        sm.last[s], sm.idle_reason[s] = -1, state.EMPTY
        if m.policy == TWO_LEVEL:  # its queues hold every slot, resident or not
            for w in range(s, m.max_warps_per_sm, m.schedulers_per_sm):
                sm.order[s, sm.count[s]] = w
                sm.count[s] += 1


@outlined
def begin(gpu):
    """Before the first cycle."""
    m, booked = gpu.machine, gpu.record.launch.booked_cycles
    for n in range(m.sm_count):
        sm = gpu.sm[n]
        used = booked and sm.clock
        if used:
            clear_sm(context_of(gpu, n), booked)
        if used or not booked:
            begin_sm(sm, m, n)
        sm.horizon = sm.more_blocks = sm.credits = 0  # of one that had no thread block, too
        sm.last_dispatch = -1
    zero(gpu.free)
    if not m.perfect_memory:
        if booked:
            clear_shared(gpu.shared)
        for n in range(len(gpu.shared.slices.wake)):
            gpu.shared.slices.wake[n] = NEVER
        for h in range(len(gpu.shared.channels.wake)):
            gpu.shared.channels.wake[h] = NEVER
