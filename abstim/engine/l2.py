"""L2 slices, shared by all SMs (docs/timing-rules.md, rule 11)."""

from __future__ import annotations

import numpy as np

from abstim.engine import dram
from abstim.engine.address_map import l2_set_of, slice_of
from abstim.engine.rules import SECTORS, UNITS_A_CYCLE_LOG2
from abstim.engine.servers import block, respond, serve
from abstim.engine.tags import find, victim
from functional.disk.compile import jit, outlined

# Typed, because of a function that is called with literals there is one form for each
WHOLE_LINE = np.int64((1 << SECTORS) - 1)  # the set of its sectors
READ, WRITE = np.bool_(False), np.bool_(True)


@jit
def sectors_in(sectors):
    """How many sectors a set holds."""
    return (sectors & 1) + ((sectors >> 1) & 1) + ((sectors >> 2) & 1) + (sectors >> 3)


@jit
def l2_line(l2, m, line, number, in_slice):
    """(position, is it there) of a line of slice `number`; one not there replaces the least recently used."""
    first = (number * m.l2_sets + l2_set_of(m, in_slice)) * m.l2_ways
    k = find(l2.tag, first, m.l2_ways, line)
    return (k, True) if k >= 0 else (victim(l2.last_use, first, m.l2_ways), False)


@jit
def replace(sm, shared, k, line, channel, time):
    """`line` takes the place at `k`; what was written of the one before goes to DRAM."""
    row = shared.l2.line[k]
    if row.dirty:
        sm.dram_writes += dram.write_back(shared, channel, row.dirty, time)
        row.dirty = 0
    shared.l2.tag[k] = line + 1
    row.valid = 0


@jit
def wait_for_sector(shared, row, j, number, served):
    """A read of sector `j`, which is valid but may not have arrived: cycle in which slice `number` answers it.

    So many reads can wait for one sector; one more blocks the slice until the sector is there.
    """
    there = row.sector_there[j]
    if there <= served:
        return served
    if (row.merged >> (8 * j)) & 255 >= shared.machine.l2_merges:
        block(shared.slices, number, served, there)
    else:
        row.merged += 1 << (8 * j)
    return there


@jit
def fetch_sector(shared, row, j, channel, local, served):
    """Sector `j` is asked of DRAM; returns when it is there. Its read is the first of those that wait for it."""
    there = dram.read(shared, channel, local, served)
    row.sector_there[j] = there
    row.merged = (row.merged & ~(255 << (8 * j))) | (1 << (8 * j))
    return there


@jit
def sector_reply(sm, shared, row, j, write, place, served):
    """Cycle in which the answer about sector `j`, served at `served`, leaves for the SM; place: (slice, channel, line
    number in the channel)."""
    m, present = shared.machine, (row.valid >> j) & 1
    number, channel, local = place
    sm.l2_accesses += 1
    if not present:
        sm.l2_misses += 1
    row.valid |= 1 << j
    if write:
        row.dirty |= 1 << j
        if not present:
            row.sector_there[j] = 0
        return served + m.l2_reply_cycles
    if present:
        return wait_for_sector(shared, row, j, number, served) + m.l2_reply_cycles
    sm.dram_reads += 1
    return fetch_sector(shared, row, j, channel, local, served) + m.dram_reply_cycles


@outlined
def access(sm, shared, line, sectors, time, write, units):
    """Sectors of a line are asked for, or written, at the SM's edge at `time`; returns when the last reply is back."""
    m, l2 = shared.machine, shared.l2
    number, channel, local, in_slice = slice_of(m, line)
    k, there = l2_line(l2, m, line, number, in_slice)
    l2.uses[0] += 1
    l2.last_use[k] = l2.uses[0]
    if not there:
        replace(sm, shared, k, line, channel, time + m.request_cycles)
    done, left = time, sectors_in(sectors)
    all_served = serve(shared.slices, number, time + m.request_cycles, left * units)
    for j in range(SECTORS):
        if (sectors >> j) & 1:
            left -= 1
            served = all_served - ((left * units) >> UNITS_A_CYCLE_LOG2)
            reply = sector_reply(sm, shared, l2.line[k], j, write, (number, channel, local), served)
            done = max(done, respond(shared.responses, sm.number, reply))
    return done
