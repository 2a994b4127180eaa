"""Instruction, constant and texture cache of an SM (docs/timing-rules.md, rules 5, 6, 11 and 12), and what lies behind
all caches of the first level: perfect memory, which answers a miss after a fixed time, or the L2."""

from __future__ import annotations

import numpy as np

from abstim.engine.accesses import WHOLE_LINE, sectors_in
from abstim.engine.pending_accesses import can_send, finish, new_waiter, respond_in_order, send, serve_waiters
from abstim.engine.state import NEVER, READ, TO_CODE, TO_CONST, TO_TEXTURE
from abstim.engine.tags import find, place, touch, victim
from abstim.engine.warp_slots import ONE, lowest
from functional.jit.compile import jit
from functional.traces.trace import LINE_BYTES

COMING = NEVER + 1  # when a line is there: not known
# Where instructions and constants lie among the lines of memory: apart from each other and from global memory
CODE_LINE, CONST_LINE = 0xF000_0000 // LINE_BYTES, 0x1_0000_0000 // LINE_BYTES


@jit
def supply(c, time):
    """Perfect memory: cycle in which a line missed by a hit time of `time` is there."""
    return respond_in_order(c.sm, time + c.machine.miss_cycles)


@jit
def free_way(cache, first, ways):
    """The least recently used way of a set that waits for nothing; -1 if there is none."""
    best = -1
    for k in range(first, first + ways):
        if cache.pending[k] == 0 and (best < 0 or cache.last_use[k] < cache.last_use[best]):
            best = k
    return best


@jit
def ask(c, cache, k, tag, line, sectors, who, time):
    """Real memory: the way `k` is for line `tag`, which is asked for as the sectors of line `line` of memory."""
    place(cache, k, tag, NEVER)
    cache.pending[k] = sectors_in(sectors)
    cache.waiting[k] = 0
    send(c, line, sectors, READ, who, k, time)


@jit
def wait_for(c, cache, k, access):
    """An access waits for the line at `k`."""
    node = new_waiter(c, access)
    if cache.waiting[k]:
        c.l1d.waiters[cache.waiting_last[k] - 1].next = node
    else:
        cache.waiting[k] = node
    cache.waiting_last[k] = node
    c.l1d.accesses[access - 1].waiting += 1


@jit
def line_arrives(c, cache, k, count, time):
    """Sectors of the line at `k` are there; true if it now is, and those who waited for it have it."""
    cache.pending[k] -= count
    if cache.pending[k]:
        return False
    cache.there[k] = 0
    serve_waiters(c, np.int64(cache.waiting[k]), time)
    cache.waiting[k] = 0
    return True


@jit
def code_arrives(c, k, count, time):
    """Sectors of the instruction line at `k` are there; with the last, the warps that wait for it can fetch it."""
    sm = c.sm
    c.l1i.pending[k] -= count
    if c.l1i.pending[k]:
        return
    c.l1i.there[k] = 0
    sm.codes_coming -= 1
    sm.fetch_blocked = min(sm.fetch_blocked, time)
    left = sm.missing
    while left:
        w = lowest(left)
        left &= left - ONE
        if sm.fetch_place[w] == k and sm.fetch_back[w] > NEVER:
            sm.fetch_back[w] = time


@jit
def code_lookup(c, line, first, time):
    """`l1i_lookup` with real memory; COMING: the line is on its way."""
    sm, m, l1i = c.sm, c.machine, c.l1i
    k = find(l1i.tag, first, m.l1i_ways, line)
    if k < 0:
        if sm.codes_coming >= m.l1i_mshrs:
            sm.fetch_blocked = NEVER
            return NEVER
        if not can_send(c, READ, WHOLE_LINE):
            sm.fetch_blocked = c.record.launch.limit + 1
            return NEVER
        k = free_way(l1i, first, m.l1i_ways)
        if k < 0:
            sm.fetch_blocked = NEVER
            return NEVER
        ask(c, l1i, k, line, CODE_LINE + line, WHOLE_LINE, TO_CODE, time)
        sm.codes_coming += 1
        sm.l1i_misses += 1
    sm.l1i_accesses += 1
    touch(sm, l1i.last_use, k)
    sm.code_place = k
    return COMING if l1i.pending[k] else time


@jit
def const_lookup(c, line, access, due, time):
    """Real memory: a line of the constant cache is looked up at `due`, as is known at `time`; false if there is no room
    for a miss."""
    sm, m, const = c.sm, c.machine, c.const
    first = (line & (m.const_sets - 1)) * m.const_ways
    k = find(const.tag, first, m.const_ways, line)
    if k < 0:
        wide = m.const_line_bytes >= LINE_BYTES
        sectors = WHOLE_LINE if wide else 3 << (2 * (line & 1))
        if sm.consts_coming >= m.const_mshrs or not can_send(c, READ, sectors):
            return False
        k = free_way(const, first, m.const_ways)
        if k < 0:
            return False
        ask(c, const, k, line, CONST_LINE + (line if wide else line >> 1), sectors, TO_CONST, due + 1)
        sm.consts_coming += 1
        sm.const_misses += 1
    sm.const_accesses += 1
    touch(sm, const.last_use, k)
    found = c.l1d.accesses[access - 1]
    if const.pending[k]:
        found.l2_accesses += const.pending[k]
        wait_for(c, const, k, access)
    found.result = max(found.result, due)
    return True


@jit
def texture_lookup(c, line, access, time):
    """Real memory: a texture line is looked up; false if there is no room for a miss."""
    sm, m, texture = c.sm, c.machine, c.texture
    first = (line & (m.l1t_sets - 1)) * m.l1t_ways
    k = find(texture.tag, first, m.l1t_ways, line)
    if k < 0:
        k = free_way(texture, first, m.l1t_ways)
        if k < 0 or not can_send(c, READ, WHOLE_LINE):
            return False
        ask(c, texture, k, line, line, WHOLE_LINE, TO_TEXTURE, time + 1)
        sm.l1t_misses += 1
    sm.l1t_accesses += 1
    touch(sm, texture.last_use, k)
    if texture.pending[k]:
        wait_for(c, texture, k, access)
    finish(c, access, 0 if texture.pending[k] else time, time)
    return True


@jit
def l1i_lookup(c, pc, time):
    """Cycle in which the instruction line of `pc` is there: `time` on a hit, NEVER if no miss register is free."""
    sm, m, l1i = c.sm, c.machine, c.l1i
    line = pc >> m.fetch_line_log2
    first = (line & (m.l1i_sets - 1)) * m.l1i_ways
    if not m.perfect:
        return code_lookup(c, line, first, time)
    k = find(l1i.tag, first, m.l1i_ways, line)
    if k < 0:
        k = victim(l1i.last_use, first, m.l1i_ways)
        place(l1i, k, line, time + m.l1i_miss_cycles)
        sm.l1i_misses += 1
    sm.l1i_accesses += 1
    touch(sm, l1i.last_use, k)
    return max(time, l1i.there[k])


@jit
def line_from(c, cache, first, ways, line, time):
    """Perfect memory: (does it miss, result cycle) of a line whose hit result would be at `time`; it is there then."""
    k = find(cache.tag, first, ways, line)
    missed = k < 0
    if missed:
        k = victim(cache.last_use, first, ways)
        place(cache, k, line, supply(c, time))
    touch(c.sm, cache.last_use, k)
    return missed, max(time, cache.there[k])


@jit
def texture_line(c, line, time):
    """Perfect memory: result cycle of one texture-cache line whose hit result would be at `time`."""
    sm, m = c.sm, c.machine
    missed, result = line_from(c, c.texture, (line & (m.l1t_sets - 1)) * m.l1t_ways, m.l1t_ways, line, time)
    sm.l1t_accesses += 1
    sm.l1t_misses += missed
    return result


@jit
def const_line(c, line, time):
    """Perfect memory: result cycle of one constant-cache line whose hit result would be at `time`."""
    sm, m = c.sm, c.machine
    missed, result = line_from(c, c.const, (line & (m.const_sets - 1)) * m.const_ways, m.const_ways, line, time)
    sm.const_accesses += 1
    sm.const_misses += missed
    return result
