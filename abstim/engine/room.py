"""Room for a thread block on an SM (docs/timing-rules.md, rules 1 and 10). Of kernels side by side each takes something
else of it; a block of a kernel that is alone fits where one was."""

from abstim.engine.state import NEVER, RESOURCES
from abstim.engine.warp_slots import EMPTY_SET, span
from functional.jit.marked import outlined


def next_dispatch(c):
    """Cycle in which this SM can take a block, as far as known."""
    sm, m = c.sm, c.machine
    if m.side_by_side:  # it has run to its horizon already
        return next_room(c, max(sm.last_dispatch + 1, sm.horizon if sm.live else sm.last_exit))
    free = sm.block_free[0]
    for k in range(1, m.blocks_per_sm):
        free = min(free, sm.block_free[k])
    return max(free, sm.last_dispatch + 1)


@outlined
def next_room(c, earliest):
    """Cycle, from `earliest` on, in which the SM has room for a block of the kernel whose blocks are handed out; NEVER:
    not known, or there is no such kernel."""
    sm, m, launch = c.sm, c.machine, c.record.launch
    if launch.kernel < 0:
        return NEVER
    kernel = c.record.kernels[launch.kernel]
    time = max(earliest, kernel.ready, launch.clock)
    while time < NEVER and not (has_room(c, kernel, time) and first_warp_slot(c, kernel, time) >= 0):
        following = NEVER
        for k in range(m.blocks_per_sm):
            if sm.block_free[k] > time:
                following = min(following, sm.block_free[k])
        time = following
    return time


def has_room(c, kernel, time):
    """Are enough resources free at the end of cycle `time`?"""
    sm, m = c.sm, c.machine
    for r in range(len(RESOURCES)):
        taken = kernel.needs[r]
        for k in range(m.blocks_per_sm):
            if sm.block_free[k] > time:
                taken += c.record.kernels[sm.block_kernel[k]].needs[r]
        if taken > m.capacity[r]:
            return False
    return True


def first_warp_slot(c, kernel, time):
    """Where the warps of a block would begin: the first free stretch of warp slots at a multiple of their number
    (GPGPU-Sim 4.2, find_available_hwtid); -1: there is none."""
    sm, m, warps, taken = c.sm, c.machine, kernel.warps_per_block, EMPTY_SET
    for k in range(m.blocks_per_sm):
        if sm.block_free[k] > time:
            taken |= sm.block_slots[k]
    first = 0
    while first + warps <= m.max_warps_per_sm:
        if not taken & span(first, warps):
            return first
        first += warps
    return -1
