"""Instruction and constant cache of an SM (docs/timing-rules.md, rules 5, 6 and 11), and what lies behind all caches of
the first level: perfect memory, which answers a miss after a fixed time, or the L2."""

from __future__ import annotations

from abstim.engine.l2 import access
from abstim.engine.layout import NEVER, READ, WHOLE_LINE
from abstim.engine.servers import respond_in_order
from abstim.engine.tags import find, first_free, place, touch, victim
from functional.disk.compile import jit

# Where instructions and constants lie among the lines of memory: apart from each other and from global memory
CODE_LINE, CONST_LINE = 0xF000_0000 >> 7, 0x1_0000_0000 >> 7


@jit
def supply(sm, heap, far, m, line, sectors, time):
    """Cycle in which a line missed by a hit time of `time` is there."""
    if m.perfect:
        return respond_in_order(sm, time + m.miss_cycles)
    return access(sm, heap, far, m, line, sectors, time + 1, READ, m.l2_sector_units)


@jit
def l1i_lookup(sm, heap, far, m, pc, time):
    """Cycle in which the instruction line of `pc` is there: `time` on a hit, NEVER if no miss register is free."""
    line, lines = pc >> m.fetch_line_log2, m.l1i_sets * m.l1i_ways
    first = m.l1i_at + (line & (m.l1i_sets - 1)) * m.l1i_ways
    k = find(heap, first, m.l1i_ways, line)
    if k < 0:
        entry = first_free(sm.l1i_misses_until, m.l1i_mshrs)
        if not m.perfect and sm.l1i_misses_until[entry] > time:
            sm.fetch_blocked = sm.l1i_misses_until[entry]
            return NEVER
        k = victim(heap, first, m.l1i_ways, lines)
        there = time + m.l1i_miss_cycles if m.perfect else supply(sm, heap, far, m, CODE_LINE + line, WHOLE_LINE, time)
        place(heap, k, lines, line, there)
        sm.l1i_misses_until[entry] = there
        sm.l1i_misses += 1
    sm.l1i_accesses += 1
    touch(sm, heap, k, lines)
    return max(time, heap[k + 2 * lines])


@jit
def texture_line(sm, heap, far, m, line, time):
    """Result cycle of one texture-cache line whose hit result would be at `time`."""
    lines = m.l1t_sets * m.l1t_ways
    first = m.l1t_at + (line & (m.l1t_sets - 1)) * m.l1t_ways
    k = find(heap, first, m.l1t_ways, line)
    sm.l1t_accesses += 1
    if k < 0:
        sm.l1t_misses += 1
        k = victim(heap, first, m.l1t_ways, lines)
        place(heap, k, lines, line, supply(sm, heap, far, m, line, WHOLE_LINE, time))
    touch(sm, heap, k, lines)
    return max(time, heap[k + 2 * lines])


@jit
def const_line(sm, heap, far, m, line, time):
    """Result cycle of one constant-cache line whose hit result would be at `time`."""
    lines = m.const_sets * m.const_ways
    first = m.const_at + (line & (m.const_sets - 1)) * m.const_ways
    k = find(heap, first, m.const_ways, line)
    sm.const_accesses += 1
    if k < 0:
        sm.const_misses += 1
        k = victim(heap, first, m.const_ways, lines)
        entry = first_free(sm.const_misses_until, m.const_mshrs)
        if not m.perfect:
            time = max(time, sm.const_misses_until[entry])
            sm.const_blocked = time
        wide = m.const_line_bytes >= 128
        sectors = 15 if wide else 3 << (2 * (line & 1))
        there = supply(sm, heap, far, m, CONST_LINE + (line if wide else line >> 1), sectors, time)
        place(heap, k, lines, line, there)
        sm.const_misses_until[entry] = there
    touch(sm, heap, k, lines)
    return max(time, heap[k + 2 * lines])
