"""The state of a launch before its first cycle, and what it leaves, which is cleared where it has been."""

from abstim.engine import state
from abstim.engine.state import CONTEXT, NEVER, TWO_LEVEL
from abstim.engine.tags import clear_ways
from functional.jit.marked import outlined, refer, zero


def context_of(gpu, n):
    """SM `n` of the GPU, with what it needs of the rest."""
    return refer(CONTEXT, gpu.contexts[n])


@outlined
def clear_sm(c, booked):
    """One that had thread blocks; `booked`: cycles from the exit of its last warp to its last booking. A warp that
    starts clears its part of the scoreboard, a thread block its phases; rows of accesses and of what waits at
    ports are written before they are read."""
    sm, m, l1d = c.sm, c.machine, c.l1d
    cycles = m.ring if sm.live else min(m.ring, sm.last_exit + booked)
    for word in range(len(c.results)):
        zero(c.results[word], cycles)
    for word in range(len(c.register_banks)):
        zero(c.register_banks[word], cycles * m.register_file_ports)
    zero(l1d.waiters, sm.waiters_unused[1])
    zero(l1d.accesses, sm.accesses_unused[1])
    for cache in (l1d, c.l1i, c.const, c.texture):
        clear_ways(cache)
    for array in (l1d.hint, l1d.pipes, l1d.transactions, l1d.sent, c.collectors, c.barriers, c.words, c.copies):
        zero(array)
    zero(sm)


@outlined
def clear_shared(shared):
    """What lies behind the SMs. Rows of the outbox are written before they are read."""
    l2 = shared.l2
    zero(shared.requests.rows, shared.requests.unused[1])
    if shared.machine.l2_coalesces:
        zero(shared.requests.followers, shared.requests.unused[1])
    clear_ways(l2)
    if shared.clock[2]:
        zero(shared.held)
    if shared.machine.slice_random:
        for k in range(shared.drawn.places[0]):
            zero(shared.drawn.table[shared.drawn.places[k + 1]])
        shared.drawn.places[0] = 0
    for array in (
        l2.uses, shared.requests.unused, shared.there, shared.back, shared.slices, shared.channels, shared.inbox,
        shared.received, shared.arriving, shared.traffic, shared.clock, shared.posted, shared.posted_end,
    ):  # fmt: skip
        zero(array)


@outlined
def clear(gpu, booked, warm):
    """What a launch leaves, whether it has ended or not (`clear_sm`); `warm`: its caches were not empty, those of SMs
    without thread blocks neither."""
    for n in range(gpu.machine.sm_count):
        if warm or gpu.sm[n].clock:
            clear_sm(context_of(gpu, n), booked)
    if not gpu.machine.perfect_memory:
        clear_shared(gpu.shared)


def begin_sm(sm, m, n):
    """Nothing is resident."""
    sm.number, sm.last_fetched = n, 0
    for w in range(m.max_warps_per_sm):
        sm.warps.ready[w] = NEVER
    groups = m.schedulers_per_sm if m.sub_cores else 1
    for port in range(state.KINDS * groups):
        sm.ports[port].collectors = m.collectors[port // groups]
    for s in range(m.schedulers_per_sm):
        sm.last[s], sm.idle_reason[s] = -1, state.EMPTY
        if m.policy == TWO_LEVEL:  # its queues hold every slot, resident or not
            for w in range(s, m.max_warps_per_sm, m.schedulers_per_sm):
                sm.order[s, sm.count[s]] = w
                sm.count[s] += 1


@outlined
def begin(gpu):
    """Before the first cycle."""
    m = gpu.machine
    for n in range(m.sm_count):
        sm = gpu.sm[n]
        if sm.last_dispatch and not gpu.record.launch.begun:  # ready for another design point
            zero(sm)
        if sm.last_dispatch == 0:  # used, or new
            begin_sm(sm, m, n)
        sm.horizon = sm.more_blocks = sm.credits = 0  # of one that had no thread block, too
        sm.follows = sm.next_follower = 0
        sm.last_dispatch = -1
    zero(gpu.free)
    if not m.perfect_memory:
        for n in range(len(gpu.shared.slices.wake)):
            gpu.shared.slices.wake[n] = NEVER
        for h in range(len(gpu.shared.channels.wake)):
            gpu.shared.channels.wake[h] = NEVER
