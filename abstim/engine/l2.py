"""L2 slices and DRAM channels, shared by all SMs (docs/timing-rules.md, rule 11).

`far` holds the L2 tags (line + 1, last use, valid sectors, dirty sectors, reads waiting for a sector, a byte each, and
the cycle in which each of the four sectors is there), the servers of slices and channels, of every bank the open row
and the cycle in which it has served all it was asked, and a use counter.
"""

from __future__ import annotations

from abstim.engine.layout import BUCKETS, UNITS_A_CYCLE_LOG2
from abstim.engine.servers import block, respond, serve
from abstim.engine.tags import find, victim
from functional.disk.compile import jit, outlined


@jit
def hashed(index, above, residues):
    """An index with the bits above it folded in."""
    k = 0
    while above:
        if above & 1:
            index ^= residues[k]
        above >>= 1
        k += 1
    return index


@jit
def slice_of(m, line):
    """(slice, channel, line number in the channel, line number in the slice) of a line."""
    block = line >> m.interleave_log2
    channel, rest = block % m.channels, block // m.channels
    local = (rest << m.interleave_log2) | (line & ((1 << m.interleave_log2) - 1))
    upper, part = (local >> m.slice_log2) // m.slices_per_channel, (local >> m.slice_log2) % m.slices_per_channel
    number = channel * m.slices_per_channel + part
    if m.slice_hash_log2:
        above = line >> (m.interleave_log2 + m.slice_hash_log2)
        number = hashed(number, above, m.slice_residues) % (m.channels * m.slices_per_channel)
        channel = number // m.slices_per_channel
    return number, channel, local, (upper << m.slice_log2) | (local & ((1 << m.slice_log2) - 1))


@jit
def l2_line(far, m, line):
    """(slice, channel, line number in the channel, position, is it there) of a line; one not there replaces the least
    recently used."""
    number, channel, local, in_slice = slice_of(m, line)
    index = in_slice % m.l2_sets
    if m.l2_hash_log2:
        index = hashed(index, in_slice >> m.l2_hash_log2, m.l2_residues)
    first = m.l2_at + (number * m.l2_sets + index) * m.l2_ways
    k = find(far, first, m.l2_ways, line)
    if k >= 0:
        return number, channel, local, k, True
    return number, channel, local, victim(far, first, m.l2_ways, m.l2_lines), False


@jit
def bank_of(m, channel, local):
    """Number of a line's bank among those of all channels."""
    bank = ((local >> m.bank_log2) << 1) | ((local >> m.slice_log2) & 1)
    return channel * m.dram_banks + bank % m.dram_banks


@jit
def activate_cycles(far, m, channel, local):
    """Cycles to open a line's row: 0 if it is open."""
    at = m.rows_at + bank_of(m, channel, local)
    row = (local >> m.row_log2) + 1
    if far[at] == row:
        return 0
    far[at] = row
    return m.activate_cycles


@jit
def write_out(far, m, k, channel, time):
    """The dirty sectors of the line at `k`, which leaves L2, go to DRAM; returns how many there are."""
    dirty, count = k + 3 * m.l2_lines, 0
    for j in range(4):
        if (far[dirty] >> j) & 1:
            count += 1
            serve(far, m.channels_at + channel * BUCKETS * 2, time, m.dram_sector_units)
    far[dirty] = 0
    return count


@jit
def on_its_way(far, m, k, j, number, served):
    """A read of sector `j`, which is valid but may not have arrived: cycle in which it is answered.

    So many reads can wait for one sector; one more blocks the slice until the sector is there.
    """
    filled = far[k + (5 + j) * m.l2_lines]
    if filled <= served:
        return served
    merged = k + 4 * m.l2_lines
    if (far[merged] >> (8 * j)) & 255 >= m.l2_merges:
        block(far, m.slices_at + number * BUCKETS * 2, served, filled)
    else:
        far[merged] += 1 << (8 * j)
    return filled


@jit
def read_sector(far, m, k, j, channel, local, served):
    """Sector `j` of the line at `k` is asked of DRAM; returns when it is there.

    A channel serves its banks in turn: behind what waits for other banks a read waits one turn for each that waits
    for its own, and no longer than if the channel served all in order.
    """
    opening, bank = activate_cycles(far, m, channel, local), m.banks_at + bank_of(m, channel, local)
    turn = (m.dram_banks * m.dram_sector_units) >> UNITS_A_CYCLE_LOG2
    in_turn = max(served, far[bank]) + opening + turn
    in_order = serve(far, m.channels_at + channel * BUCKETS * 2, served + opening, m.dram_sector_units)
    far[bank] = min(in_order, in_turn)
    filled = far[bank] + m.dram_cycles
    far[k + (5 + j) * m.l2_lines] = filled
    far[k + 4 * m.l2_lines] = (far[k + 4 * m.l2_lines] & ~(255 << (8 * j))) | (1 << (8 * j))
    return filled


@outlined
def access(sm, heap, far, m, line, sectors, time, write, units):
    """Sectors of a line are asked for, or written, at the SM's edge at `time`; returns when the last reply is back."""
    number, channel, local, k, there = l2_line(far, m, line)
    far[m.uses_at] += 1
    far[k + m.l2_lines] = far[m.uses_at]
    valid, dirty = k + 2 * m.l2_lines, k + 3 * m.l2_lines
    if not there:
        if far[dirty]:
            sm.dram_writes += write_out(far, m, k, channel, time + m.request_cycles)
        far[k] = line + 1
        far[valid] = 0
    done, left = time, (sectors & 1) + ((sectors >> 1) & 1) + ((sectors >> 2) & 1) + (sectors >> 3)
    all_served = serve(far, m.slices_at + number * BUCKETS * 2, time + m.request_cycles, left * units)
    for j in range(4):
        if not (sectors >> j) & 1:
            continue
        sm.l2_accesses += 1
        left -= 1
        served = all_served - ((left * units) >> UNITS_A_CYCLE_LOG2)
        present = (far[valid] >> j) & 1
        if not present:
            sm.l2_misses += 1
        if write:
            far[dirty] |= 1 << j
            if not present:
                far[k + (5 + j) * m.l2_lines] = 0
            reply = served + m.l2_reply_cycles
        elif present:
            reply = on_its_way(far, m, k, j, number, served) + m.l2_reply_cycles
        else:
            sm.dram_reads += 1
            reply = read_sector(far, m, k, j, channel, local, served) + m.dram_reply_cycles
        far[valid] |= 1 << j
        done = max(done, respond(heap, m, reply))
    return done
