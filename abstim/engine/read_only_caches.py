"""Instruction, constant and texture cache of an SM (docs/timing-rules.md, rules 5, 6, 11 and 12), and what lies behind
all caches of the first level: perfect memory, which answers a miss after a fixed time, or the L2."""

from abstim.engine.accesses import WHOLE_LINE, sectors_in
from abstim.engine.pending_accesses import can_send, enlist, finish, respond_in_order, send, serve_waiters
from abstim.engine.state import IN_FLIGHT, NEVER, READ, TO_CODE, TO_CONST, TO_TEXTURE
from abstim.engine.tags import find, oldest_idle, place, touch, victim
from functional.jit.marked import members
from functional.traces.trace import LINE_BYTES, PARAM_WINDOW_LINE

COMING = NEVER + 1  # when a line is there: not known
# Where instructions, constants and parameters begin among the lines of memory: apart from each other and from global
# memory; parameters in the DRAM bank and row of address 0, where the reference has them
CODE_LINE, CONST_LINE, PARAM_LINE = (at // LINE_BYTES for at in (0xF000_0000, 0x1_0000_0000, 0x1_8000_0000))


def supply(c, time):
    """Perfect memory: cycle in which a line missed by a hit time of `time` is there."""
    return respond_in_order(c.sm, time + c.machine.l1_miss_extra_cycles)


def look_up(c, cache, sets, ways, tag, line, sectors, who, room, queues, time):
    """Real memory: (position of line `tag`, is it asked for only now?). It is then asked for as the sectors of line
    `line` of memory, at `time`; (-1, False): no `room` for a miss, no way is free, or it `queues` and there is no room
    on the way to L2: what is asked for ahead does not queue."""
    first = (tag & (sets - 1)) * ways
    k = find(cache.tag, first, ways, tag)
    missed = k < 0
    if missed:
        k = oldest_idle(cache, first, ways) if room and (not queues or can_send(c, READ, sectors)) else -1
        if k < 0:
            return -1, False
        place(cache, k, tag, NEVER)
        cache.line[k].coming, cache.line[k].waiting[0] = sectors_in(sectors), 0
        send(c, line, sectors, READ, who, k, time)
    touch(c.sm, cache.last_use, k)
    return k, missed


def wait_for(c, cache, k, access):
    """An access waits for the line at `k`."""
    enlist(c, cache.line[k].waiting, cache.line[k].waiting_last, 0, access)
    c.l1d.accesses[access - 1].waiting += 1


def line_arrives(c, cache, k, count, time):
    """Sectors of the line at `k` are there; true if it now is, and those who waited for it have it."""
    row = cache.line[k]
    row.coming -= count
    if row.coming:
        return False
    cache.there[k] = 0
    serve_waiters(c, row.waiting[0], time)
    row.waiting[0] = 0
    return True


def code_arrives(c, k, count, time):
    """Sectors of the instruction line at `k` are there; with the last, the warps that wait for it can fetch it."""
    sm = c.sm
    if not line_arrives(c, c.l1i, k, count, time):
        return
    sm.codes_coming -= 1
    sm.fetch_blocked = min(sm.fetch_blocked, time)
    for w in members(sm.missing):
        if sm.fetch_place[w] == k and sm.fetch_back[w] > NEVER:
            sm.fetch_back[w], sm.next_back = time, min(sm.next_back, time)


def code_lookup(c, line, time):
    """Real memory: cycle in which an instruction line is there; COMING: it is on its way, NEVER: no room for a miss."""
    sm, m, l1i = c.sm, c.machine, c.l1i
    room = sm.codes_coming < m.l1i_mshrs
    k, missed = code_line(c, line, room, True, time)
    if k < 0:
        sm.fetch_blocked = NEVER if not room or can_send(c, READ, WHOLE_LINE) else c.record.launch.limit + 1
        return NEVER
    sm.l1i_misses += missed
    sm.l1i_accesses += 1
    sm.code_place, there = k, COMING if l1i.line[k].coming else time
    for ahead in range(m.l1i_prefetch_lines):
        if sm.codes_coming < m.l1i_mshrs:
            code_line(c, line + 1 + ahead, sm.in_flight < IN_FLIGHT, False, time)
    return there


def code_line(c, line, room, queues, time):
    """`look_up` of an instruction line, which counts those that are coming."""
    m = c.machine
    k, missed = look_up(
        c, c.l1i, m.l1i_sets, m.l1i_ways, line, CODE_LINE + line, WHOLE_LINE, TO_CODE, room, queues, time
    )
    c.sm.codes_coming += missed
    return k, missed


def const_lookup(c, line, access, due, time):
    """Real memory: a line of the constant cache is looked up at `due`, as is known at `time`; false if there is no room
    for a miss."""
    sm, m, const = c.sm, c.machine, c.const
    wide, room = m.const_line_bytes >= LINE_BYTES, sm.consts_coming < m.const_mshrs
    sectors = WHOLE_LINE if wide else 3 << (2 * (line & 1))
    below = line if wide else line >> 1
    below += CONST_LINE if below < PARAM_WINDOW_LINE else PARAM_LINE - PARAM_WINDOW_LINE
    k, missed = look_up(c, const, m.const_sets, m.const_ways, line, below, sectors, TO_CONST, room, True, due + 1)
    if k < 0:
        return False
    sm.consts_coming += missed
    sm.const_misses += missed
    sm.const_accesses += 1
    found = c.l1d.accesses[access - 1]
    if const.line[k].coming:
        found.l2_accesses += const.line[k].coming
        wait_for(c, const, k, access)
    found.result = max(found.result, due)
    return True


def texture_lookup(c, line, access, time):
    """Real memory: a texture line is looked up; false if there is no room for a miss."""
    sm, m, texture = c.sm, c.machine, c.texture
    k, missed = look_up(c, texture, m.l1t_sets, m.l1t_ways, line, line, WHOLE_LINE, TO_TEXTURE, True, True, time + 1)
    if k < 0:
        return False
    sm.l1t_misses += missed
    sm.l1t_accesses += 1
    if texture.line[k].coming:
        wait_for(c, texture, k, access)
    finish(c, access, 0 if texture.line[k].coming else time, time)
    return True


def line_from(c, cache, sets, ways, line, time, there):
    """Perfect memory: (does it miss, result cycle) of a line whose hit result would be at `time`; if it misses, it is
    there at `there`, or, for -1, when memory's next answer is."""
    first = (line & (sets - 1)) * ways
    k = find(cache.tag, first, ways, line)
    missed = k < 0
    if missed:
        k = victim(cache.last_use, first, ways)
        place(cache, k, line, there if there >= 0 else supply(c, time))
    touch(c.sm, cache.last_use, k)
    return missed, max(time, cache.there[k])


def l1i_lookup(c, pc, time):
    """Cycle in which the instruction line of `pc` is there: `time` on a hit, NEVER if no miss register is free."""
    sm, m, line = c.sm, c.machine, pc >> c.machine.fetch_line_log2
    if not m.perfect_memory:
        return code_lookup(c, line, time)
    missed, result = line_from(c, c.l1i, m.l1i_sets, m.l1i_ways, line, time, time + m.l1i_miss_extra_cycles)
    sm.l1i_accesses += 1
    sm.l1i_misses += missed
    return result


def texture_line(c, line, time):
    """Perfect memory: result cycle of one texture-cache line whose hit result would be at `time`."""
    sm, m = c.sm, c.machine
    missed, result = line_from(c, c.texture, m.l1t_sets, m.l1t_ways, line, time, -1)
    sm.l1t_accesses += 1
    sm.l1t_misses += missed
    return result


def const_line(c, line, time):
    """Perfect memory: result cycle of one constant-cache line whose hit result would be at `time`."""
    sm, m = c.sm, c.machine
    missed, result = line_from(c, c.const, m.const_sets, m.const_ways, line, time, -1)
    sm.const_accesses += 1
    sm.const_misses += missed
    return result
