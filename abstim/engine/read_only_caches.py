"""Instruction, constant and texture cache of an SM (docs/timing-rules.md, rules 5, 6, 11 and 12), and what lies behind
all caches of the first level: perfect memory, which answers a miss after a fixed time, or the L2."""

from __future__ import annotations

from abstim.engine.l2 import READ, WHOLE_LINE, access
from abstim.engine.servers import respond_in_order
from abstim.engine.state import NEVER
from abstim.engine.tags import find, place, touch, victim
from functional.disk.compile import jit
from functional.trace import LINE_BYTES

# Where instructions and constants lie among the lines of memory: apart from each other and from global memory
CODE_LINE, CONST_LINE = 0xF000_0000 // LINE_BYTES, 0x1_0000_0000 // LINE_BYTES


@jit
def supply(c, line, sectors, time):
    """Cycle in which a line missed by a hit time of `time` is there."""
    if c.machine.perfect:
        return respond_in_order(c.sm, time + c.machine.miss_cycles)
    return access(c.sm, c.shared, line, sectors, time + 1, READ, c.machine.l2_sector_units)


@jit
def first_free(misses_until, count):
    """The miss register that is free first."""
    best = 0
    for k in range(1, count):
        if misses_until[k] < misses_until[best]:
            best = k
    return best


@jit
def l1i_lookup(c, pc, time):
    """Cycle in which the instruction line of `pc` is there: `time` on a hit, NEVER if no miss register is free."""
    sm, m, l1i = c.sm, c.machine, c.l1i
    line = pc >> m.fetch_line_log2
    first = (line & (m.l1i_sets - 1)) * m.l1i_ways
    k = find(l1i.tag, first, m.l1i_ways, line)
    if k < 0:
        entry = first_free(sm.l1i_misses_until, m.l1i_mshrs)
        if not m.perfect and sm.l1i_misses_until[entry] > time:
            sm.fetch_blocked = sm.l1i_misses_until[entry]
            return NEVER
        k = victim(l1i.last_use, first, m.l1i_ways)
        there = time + m.l1i_miss_cycles if m.perfect else supply(c, CODE_LINE + line, WHOLE_LINE, time)
        place(l1i, k, line, there)
        sm.l1i_misses_until[entry] = there
        sm.l1i_misses += 1
    sm.l1i_accesses += 1
    touch(sm, l1i.last_use, k)
    return max(time, l1i.there[k])


@jit
def texture_line(c, line, time):
    """Result cycle of one texture-cache line whose hit result would be at `time`."""
    sm, m, texture = c.sm, c.machine, c.texture
    first = (line & (m.l1t_sets - 1)) * m.l1t_ways
    k = find(texture.tag, first, m.l1t_ways, line)
    sm.l1t_accesses += 1
    if k < 0:
        sm.l1t_misses += 1
        k = victim(texture.last_use, first, m.l1t_ways)
        place(texture, k, line, supply(c, line, WHOLE_LINE, time))
    touch(sm, texture.last_use, k)
    return max(time, texture.there[k])


@jit
def const_line(c, line, time):
    """Result cycle of one constant-cache line whose hit result would be at `time`."""
    sm, m, const = c.sm, c.machine, c.const
    first = (line & (m.const_sets - 1)) * m.const_ways
    k = find(const.tag, first, m.const_ways, line)
    sm.const_accesses += 1
    if k < 0:
        sm.const_misses += 1
        k = victim(const.last_use, first, m.const_ways)
        entry = first_free(sm.const_misses_until, m.const_mshrs)
        if not m.perfect:
            time = max(time, sm.const_misses_until[entry])
            sm.const_blocked = time
        wide = m.const_line_bytes >= LINE_BYTES
        sectors = 15 if wide else 3 << (2 * (line & 1))
        there = supply(c, CONST_LINE + (line if wide else line >> 1), sectors, time)
        place(const, k, line, there)
        sm.const_misses_until[entry] = there
    touch(sm, const.last_use, k)
    return max(time, const.there[k])
