"""Thread blocks of a cluster: where they go, and what they do for each other at barriers (docs/timing-rules.md, rules 8
and 10)."""

from abstim.engine.clear import context_of
from abstim.engine.mbarriers import arrive_in_phase, release_phases
from abstim.engine.state import NEVER
from abstim.gpu.occupancy import first_sm
from functional.jit.marked import outlined


def gpc_with_room(gpu, kernel):
    """The first GPC in turn of which as many SMs have room at the end of the window as a cluster has thread blocks; -1:
    none has."""
    m, launch = gpu.machine, gpu.record.launch
    for k in range(m.gpcs):
        gpc, there = (launch.gpc + k) % m.gpcs, 0
        for n in range(first_sm(m.sm_count, m.gpcs, gpc), first_sm(m.sm_count, m.gpcs, gpc + 1)):
            there += 1 if gpu.free[n] <= launch.limit else 0
        if there >= kernel.cluster_blocks:
            return gpc
    return -1


def emptiest(gpu, gpc):
    """Of those SMs the one with the fewest thread blocks, the lowest of several."""
    m, best, fewest = gpu.machine, -1, NEVER
    for n in range(first_sm(m.sm_count, m.gpcs, gpc), first_sm(m.sm_count, m.gpcs, gpc + 1)):
        if gpu.free[n] <= gpu.record.launch.limit and gpu.sm[n].resident < fewest:
            best, fewest = n, gpu.sm[n].resident
    return best


@outlined
def deliver_arrivals(gpu, time):
    """What thread blocks of clusters have done for each other in the window up to `time` is known to all."""
    for n in range(gpu.machine.sm_count):
        for k in range(gpu.sm[n].crossings):
            row = gpu.crossings[n, k]
            c = context_of(gpu, gpu.record.blocks[row.block].sm)
            for j in range(c.sm.resident):
                slot = c.sm.block_order[j]
                if c.sm.block_position[slot] == row.block:
                    arrive_in_phase(c, slot, row.line, max(row.there, time + 1))
                    release_phases(c, slot, time)
                    c.sm.clock = min(c.sm.clock, time + 1)
        gpu.sm[n].crossings = 0
