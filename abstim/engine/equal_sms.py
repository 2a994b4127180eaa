"""SMs that do the same are run once. With perfect memory what an SM does depends on its thread blocks and on when they
come: of SMs with equal histories the first is run, and the others follow it. Their caches alone are asked what they
say, because they access other lines (perfect_memory.py). An SM that gets another kind of thread block than the one it
follows, or another answer, runs again for itself, from the beginning."""

from abstim.engine.clear import begin_sm, clear_sm, context_of
from abstim.engine.one_sm import advance, aim, launch_block
from abstim.engine.room import next_dispatch
from abstim.engine.state import NEVER
from abstim.engine.warp_slots import lowest
from functional.jit.marked import outlined


def first_free(gpu):
    """The SM that can take a thread block first; of several the next in turn after the last that took one."""
    m, launch, best = gpu.machine, gpu.record.launch, gpu.record.launch.first
    for k in range(1, m.sm_count):
        if gpu.free[best] <= launch.clock:  # the latest dispatch: no SM can take one before
            break
        n = launch.first + k if launch.first + k < m.sm_count else launch.first + k - m.sm_count
        if gpu.free[n] < gpu.free[best]:
            best = n
    return best


@outlined
def run_sm(gpu, n):
    """SM `n` runs to its horizon, and with it those that follow it."""
    sm = gpu.sm[n]
    advance(context_of(gpu, n))
    note_free(gpu, n)
    if gpu.machine.perfect_memory and sm.strays:
        sm.strays = 0
        for k in range(n + 1, gpu.machine.sm_count):
            if gpu.sm[k].follows == n + 1 and gpu.sm[k].strays:
                unfollow(gpu, k)
                run_again(gpu, k)
                note_free(gpu, k)
                if aim(gpu, k, sm.more_blocks):
                    advance(context_of(gpu, k))
                    note_free(gpu, k)


def note_free(gpu, n):
    """When SM `n`, and those that follow it, can take a thread block, as far as known."""
    gpu.free[n], k = next_dispatch(context_of(gpu, n)), gpu.sm[n].next_follower
    while k:
        gpu.free[k - 1], k = gpu.free[n], gpu.sm[k - 1].next_follower


def follow_first(gpu):
    """Before the first cycle all SMs follow the first."""
    count = gpu.machine.sm_count
    for n in range(count):
        gpu.sm[n].follows, gpu.sm[n].next_follower = (1 if n else 0), (n + 2 if n + 1 < count else 0)


def unfollow(gpu, n):
    """SM `n` is no longer among those that follow another one."""
    at = gpu.sm[n].follows
    while gpu.sm[at - 1].next_follower != n + 1:
        at = gpu.sm[at - 1].next_follower
    gpu.sm[at - 1].next_follower = gpu.sm[n].next_follower
    gpu.sm[n].follows = gpu.sm[n].next_follower = 0


@outlined
def run_again(gpu, n):
    """SM `n`, which followed another one, does itself what it has done so far, up to its latest thread block."""
    c, sm, kernel = context_of(gpu, n), gpu.sm[n], gpu.record.kernels[0]
    pending = sm.pending
    clear_sm(c, 0)
    begin_sm(sm, gpu.machine, n)
    sm.last_dispatch, sm.pending = -1, pending
    for place in range(kernel.next):
        block = gpu.record.blocks[gpu.order[place]]
        if block.sm == n:
            run_to(c, block.dispatch_cycle)
            launch_block(c, kernel, place, block.dispatch_cycle)


def run_to(c, time):
    """The SM runs up to and including a cycle."""
    c.sm.horizon = time
    if c.sm.live > 0 and c.sm.clock <= time:
        advance(c)


def pending_kind(gpu, n):
    """The kind of the thread block that comes into SM `n` now, one too high; 0: none does."""
    place = gpu.sm[n].pending
    return gpu.record.alike[gpu.order[place - 1]] + 1 if place else 0


@outlined
def part(gpu, n, time):
    """SM `n`, which gets something else at the end of cycle `time` than the one it follows, follows the first SM that
    parted from that one for the same; if there is none, it is that one."""
    sm, old = gpu.sm[n], gpu.sm[n].follows
    unfollow(gpu, n)
    for k in range(n):
        other = gpu.sm[k]
        if other.parted_from == old and other.follows == 0 and pending_kind(gpu, k) == pending_kind(gpu, n):
            sm.follows, sm.next_follower = k + 1, other.next_follower
            other.next_follower = n + 1
            return
    run_again(gpu, n)
    run_to(context_of(gpu, n), time)
    sm.parted_from = old


def enter_follower(gpu, n, place, time):
    """The thread block at a place in the order comes into SM `n` as one of its kind has come into the one it
    follows: where the records of its warps begin is all that is not the same."""
    block, kernel, leader = gpu.order[place], gpu.record.kernels[0], gpu.sm[gpu.sm[n].follows - 1]
    gpu.record.blocks[block].sm, gpu.record.blocks[block].dispatch_cycle = n, time
    first = lowest(leader.block_slots[leader.block_order[leader.resident - 1]])
    warp = kernel.first_warp + (block - kernel.first_block) * kernel.warps_per_block
    for k in range(kernel.warps_per_block):
        gpu.sm[n].warps.record[first + k] = gpu.offsets.records[warp + k]


@outlined
def enter_pending(gpu, more):
    """The thread blocks of this cycle come in; are there `more`, their SMs run to where they can take the next."""
    m, time = gpu.machine, gpu.record.launch.clock
    gpu.record.launch.pending = 0
    for n in range(m.sm_count):
        gpu.sm[n].parted_from = 0
        if gpu.sm[n].follows and pending_kind(gpu, n) != pending_kind(gpu, gpu.sm[n].follows - 1):
            part(gpu, n, time)
    for n in range(m.sm_count):  # whom others follow comes before them
        sm = gpu.sm[n]
        if sm.pending and sm.follows:
            enter_follower(gpu, n, sm.pending - 1, time)
        elif sm.pending:
            launch_block(context_of(gpu, n), gpu.record.kernels[0], sm.pending - 1, time)
    for n in range(m.sm_count):
        sm = gpu.sm[n]
        if sm.pending and sm.follows == 0:
            note_free(gpu, n)
            if more and aim(gpu, n, True):
                run_sm(gpu, n)
        elif sm.follows == 0 and sm.parted_from:
            note_free(gpu, n)
        sm.pending = 0


@outlined
def hand_out_alike(gpu, handed_out):
    """`hand_out`: SMs that take a thread block in one cycle run on when all of them have it."""
    launch, kernel = gpu.record.launch, gpu.record.kernels[0]
    while handed_out < len(gpu.order):
        n = first_free(gpu)
        time = gpu.free[n]
        if launch.pending and time > launch.clock:
            enter_pending(gpu, True)
            continue
        if time > launch.limit:
            break
        gpu.sm[n].pending, gpu.free[n] = kernel.next + 1, NEVER
        launch.first, launch.clock, launch.pending = n + 1 if n + 1 < gpu.machine.sm_count else 0, time, 1
        kernel.next += 1
        handed_out += 1
    if launch.pending:
        enter_pending(gpu, handed_out < len(gpu.order))
    return handed_out
