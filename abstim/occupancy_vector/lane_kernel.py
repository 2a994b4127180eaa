"""A lane from its first thread block to its last, compiled (docs/occupancy-vector.md, "A step")."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from abstim.engine.rules import DECODE_CYCLES
from abstim.occupancy_vector.records import (
    ACCESS_WORD,
    ATOMIC,
    DRAM,
    GONE,
    LOADS,
    MEMORY,
    NUMBER,
    PARTS,
    POOL_COUNT,
    RESULTS,
    RUNNING,
    SERVER,
    SPECIALS,
    STORE,
    TERM,
    TERMS,
    TICKS,
    TO_UNIT_CYCLES,
    WAITING,
)
from abstim.occupancy_vector.times import at, get, later, portion, put, zero
from functional.jit.compile import jit

TO_UNIT, TO_ISSUE = TO_UNIT_CYCLES * TICKS, DECODE_CYCLES * TICKS
LEVEL_SHIFT, SECTORS_SHIFT, DRAM_SHIFT, PART_SHIFT = accumulate(bits for _, bits in ACCESS_WORD[:-1])
OCCUPIES_MASK = (1 << LEVEL_SHIFT) - 1
SP, INT = 1, 2  # Lane.pools
FAR_OFF = 1 << 50
ORDER_BITS = 8  # rows of a scheduler
CHECK_STEPS = 1 << 12  # between two looks at whether the caller has had enough


@jit
def choose(lane, shape, s):
    """Lane.picked: the tick and row of the scheduler's next issue, if units are free; FAR_OFF: it has none."""
    begin = 0 if shape.priority else lane.last[s] + 1
    clock, first, best = at(get(lane.clock, s)), s * shape.rows, FAR_OFF << ORDER_BITS
    for r in range(shape.rows):
        ahead = r - begin + (shape.rows if r < begin else 0)
        best = min(best, (max(lane.due[np.uint64(first + r)], clock) << ORDER_BITS) + ahead)
    keep(lane, shape, s, begin, best)


@jit
def choose_bounded(lane, shape, m, s):
    """The same, where units are not free."""
    find_bounds(lane, shape, m, s)
    begin = 0 if shape.priority else lane.last[s] + 1
    clock, first, best = at(get(lane.clock, s)), s * shape.rows, FAR_OFF << ORDER_BITS
    for r in range(shape.rows):
        slot, ahead = np.uint64(first + r), r - begin + (shape.rows if r < begin else 0)
        bound = max(lane.unit_bounds[lane.units[slot]], lane.pool_bounds[lane.pools[slot]])
        best = min(best, (max(lane.due[slot], max(bound, clock)) << ORDER_BITS) + ahead)
    keep(lane, shape, s, begin, best)


@jit
def keep(lane, shape, s, begin, best):
    """Lane.picked, from a tick above how many rows after `begin`: one number, so that no branch has to be guessed."""
    row = (best & ((1 << ORDER_BITS) - 1)) + begin
    lane.picked[s, 0], lane.picked[s, 1] = best >> ORDER_BITS, row if row < shape.rows else row - shape.rows


@jit
def find_bounds(lane, shape, m, s):
    """The earliest issues that units allow a scheduler: Lane.unit_bounds by special unit, Lane.pool_bounds by pools."""
    g = s if shape.sub_cores else 0
    special, pools = lane.unit_bounds, lane.pool_bounds
    held = special[0] = at(collectors_held(lane, shape, g)) if shape.holding else 0
    special[MEMORY] = at(get(lane.memory_starts, (g + 1) * shape.memory_queue - 1))
    for n in range(SPECIALS):
        free = at(get(lane.special_free, SPECIALS * g + n)) - at(get(m, NUMBER.special_slack))
        special[MEMORY + 1 + n] = max(held, free)
    slack = at(get(m, NUMBER.pool_slack)) + TO_UNIT
    pools[SP] = at(get(lane.pool_free, POOL_COUNT * g)) - slack
    pools[INT] = at(get(lane.pool_free, POOL_COUNT * g + 1)) - slack
    pools[SP | INT] = max(pools[SP], pools[INT])


@jit
def pick(lane, shape, m, s):
    """The tick of the scheduler's next issue; Lane.picked is its row, Lane.begins the tick as a time.

    What was picked holds until something wakes or the scheduler issues: units are only ever free later.
    """
    if lane.stale[s]:
        choose(lane, shape, s)
        lane.stale[s] = 0
    if lane.picked[s, 0] == FAR_OFF:
        return FAR_OFF
    begin = begin_of(lane, shape, m, s, s * shape.rows + lane.picked[s, 1])
    if at(begin) > lane.picked[s, 0]:
        choose_bounded(lane, shape, m, s)
        begin = begin_of(lane, shape, m, s, s * shape.rows + lane.picked[s, 1])
    put(lane.begins, s, begin)
    return lane.picked[s, 0]


@jit
def wake(lane, slot, time):
    """A slot's warp can issue its next item at `time`."""
    put(lane.ready, slot, time)
    lane.due[slot] = at(time)


@jit
def collectors_held(lane, shape, g):
    """Until when memory instructions that wait hold every collector of a group: the earliest issue of others."""
    return get(lane.memory_starts, g * shape.memory_queue + shape.holding - 1) - TO_UNIT


@jit
def begin_of(lane, shape, m, s, slot):
    """When a scheduler can issue what a slot has next."""
    g, unit, pools = s if shape.sub_cores else 0, np.int64(lane.units[slot]), lane.pools[slot]
    time = later(get(lane.clock, s), get(lane.ready, slot))
    if unit == MEMORY:
        time = later(time, get(lane.memory_starts, (g + 1) * shape.memory_queue - 1))
    elif shape.holding:
        time = later(time, collectors_held(lane, shape, g))
    if unit > MEMORY:
        time = later(time, get(lane.special_free, SPECIALS * g + unit - MEMORY - 1) - get(m, NUMBER.special_slack))
    for n in range(POOL_COUNT):
        if pools & (1 << n):
            time = later(time, get(lane.pool_free, POOL_COUNT * g + n) - at(get(m, NUMBER.pool_slack)) - TO_UNIT)
    return time


@jit
def beyond_l1d(lane, m, kind, word, here):
    """When an access is answered that the first level has at `here`: sectors asked of the SM's share of L2 and DRAM."""
    level, sectors, dram = (word >> LEVEL_SHIFT) & 3, (word >> SECTORS_SHIFT) & 255, (word >> DRAM_SHIFT) & 255
    part, servers = ((word >> PART_SHIFT) & (PARTS - 1)) + 1, lane.servers
    if sectors == 0:
        return here
    leave = here + TICKS
    if kind == STORE or kind == ATOMIC:  # noqa: SIM109 (Numba would make a tuple)
        leave = later(get(servers, SERVER.port_free), leave) + get(m, NUMBER.store_sector) * sectors
        put(servers, SERVER.port_free, leave)
    cost = get(m, NUMBER.l2_atomic) if kind == ATOMIC else get(m, NUMBER.l2_sector)
    answer = later(get(servers, SERVER.l2_free), leave + get(m, NUMBER.request)) + cost * sectors
    put(servers, SERVER.l2_free, answer)
    read = answer
    if dram:
        read = later(get(servers, SERVER.dram_free), answer) + get(m, NUMBER.dram_sector) * dram
        put(servers, SERVER.dram_free, read)
    if kind == STORE:
        return answer + get(m, NUMBER.l2_reply)
    length = get(m, NUMBER.reply_sector) * sectors
    answer = later(get(servers, SERVER.reply_free), answer - length) + length
    put(servers, SERVER.reply_free, answer)
    answer = later(answer, read) + get(m, NUMBER.l2_reply)
    if level == DRAM:
        answer = answer + portion(get(m, NUMBER.dram_latency), part)
    return answer


@jit
def answered(lane, streams, m, kind, access, here):
    """When access number `access` is answered that the first level has at `here`. The first of a fill asks for what
    all of it wait for, whichever did in the walk."""
    word, fill = np.int64(streams.accesses[access]), streams.fills[access]
    if not fill:
        return beyond_l1d(lane, m, kind, word, here)
    if not lane.asked[fill]:
        lane.asked[fill] = 1
        put(lane.arrivals, fill, beyond_l1d(lane, m, kind, np.int64(streams.fill_words[fill]), here))
    return later(here, get(lane.arrivals, fill))


@jit
def with_code(lane, streams, m, late, ready):
    """`ready`, not before late instruction line `late` is there; the first that waits for it asks for it."""
    fill = streams.late_fills[late]
    if not lane.asked[fill]:
        lane.asked[fill] = 1
        put(lane.arrivals, fill, ready + code_delay(m, np.int64(streams.fill_words[fill])))
    return later(ready, get(lane.arrivals, fill))


@jit
def code_delay(m, answer):
    """How late an instruction line is: four sectors, from L2 or from DRAM."""
    level, part = answer & 3, (answer >> 2) + 1
    sector = get(m, NUMBER.l2_sector) + get(m, NUMBER.reply_sector)
    l2 = get(m, NUMBER.request) + sector * 4 + get(m, NUMBER.l2_reply) + TICKS
    if level == DRAM:
        return l2 + portion(get(m, NUMBER.dram_latency) + get(m, NUMBER.dram_sector) * 4, part)
    return portion(l2, part)


@jit
def use_memory(lane, streams, shape, m, warp, g, arrive, latency):
    """The result of a memory instruction that comes to the load/store unit at `arrive`."""
    word = np.int64(streams.accesses[warp.access])
    warp.access += 1
    held = (word & OCCUPIES_MASK) * TICKS
    begin = later(arrive, get(lane.servers, SERVER.memory_free))
    put(lane.servers, SERVER.memory_free, begin + held)
    first = g * shape.memory_queue
    for n in range(first + shape.memory_queue - 1, first, -1):
        put(lane.memory_starts, n, get(lane.memory_starts, n - 1))
    put(lane.memory_starts, first, begin)
    here = begin + latency + (held - TICKS)
    if shape.perfect:
        return here
    kind, access = streams.lane_items[np.uint64(warp.item)].access, warp.access - 1
    return answered(lane, streams, m, kind, access, here)


@jit
def use_special(lane, streams, unit, begin_k, arrive):
    """The result of an instruction that comes to special unit `unit` (an index of Lane.special_free) at `arrive`."""
    begin = later(arrive, get(lane.special_free, unit))
    put(lane.special_free, unit, begin + get(streams.terms, begin_k + TERM.occupies))
    return begin + get(streams.terms, begin_k + TERM.latency)


@jit
def use_pools(lane, streams, slot, g, terms, start):
    """The work of an item's instructions goes to their pools; returns how late it begins, at most."""
    arrive = start + TO_UNIT
    delay = start - start
    for n in range(POOL_COUNT):
        if lane.pools[slot] & (1 << n):
            begin = later(arrive, get(lane.pool_free, POOL_COUNT * g + n))
            delay = later(delay, begin - arrive)
            put(lane.pool_free, POOL_COUNT * g + n, begin + get(streams.terms, terms + TERM.sp + n))
    return delay


@jit
def fetched(lane, m, item, start):
    """When the front end has the next item."""
    ready = start + item.front * TICKS
    if item.fetches:
        granted = later(get(lane.servers, SERVER.fetch_free), ready - TO_ISSUE)
        put(lane.servers, SERVER.fetch_free, granted + get(m, NUMBER.fetch) * item.fetches)
        ready = later(ready, granted + TO_ISSUE)
    return ready


@jit
def remember(times, first, room, number, result):
    """Result `number` of a warp."""
    put(times, first + number % room, result)


@jit
def wait_for(times, first, room, count, mask, ready):
    """`ready`, not before the results of `mask` are there."""
    n = count - 1
    while mask:
        if mask & 1:
            ready = later(ready, get(times, first + n % room))
        mask >>= 1
        n -= 1
    return ready


@jit
def wait(lane, streams, slot, warp, item, terms, start, delay, ready):
    """`ready`, not before what the warp's next item needs."""
    if item.next:
        ready = later(ready, start + get(streams.terms, terms + TERM.next) + delay)
    ready = later(ready, get(lane.floor, slot))
    if item.after_next:
        put(lane.floor, slot, start + get(streams.terms, terms + TERM.after_next) + delay)
    else:
        put(lane.floor, slot, start - start)
    ready = wait_for(lane.loads, slot * LOADS, LOADS, warp.far, np.int64(item.wait_far), ready)
    return wait_for(lane.results, slot * RESULTS, RESULTS, warp.near, np.int64(item.wait_near), ready)


@jit
def load_item(lane, streams, slot, warp):
    """The slot learns what its next item needs."""
    item = streams.lane_items[np.uint64(warp.item)]
    lane.units[slot], lane.pools[slot] = item.unit, item.pools


@jit
def is_late(streams, warp):
    """Is the instruction line of a slot's next item late? Then it is not again."""
    late = streams.late_begins[warp.late] <= streams.lane_items[np.uint64(warp.item)].begins
    warp.late += late
    return late


@jit
def issue(lane, streams, shape, m, s, slot, progress):
    """A scheduler issues the next item of a slot's warp."""
    warp, start = lane.warps[slot], get(lane.begins, s)
    item, terms, g = streams.lane_items[np.uint64(warp.item)], warp.item * len(TERMS), s if shape.sub_cores else 0
    arrive, result = start + (item.unit_offset * TICKS + TO_UNIT), start - start
    if item.unit == MEMORY:
        result = use_memory(lane, streams, shape, m, warp, g, arrive, get(streams.terms, terms + TERM.latency))
    elif item.unit:
        result = use_special(lane, streams, SPECIALS * g + item.unit - MEMORY - 1, terms, arrive)
    delay = use_pools(lane, streams, slot, g, terms, start)
    ready = fetched(lane, m, item, start)
    if item.far:
        remember(lane.loads, slot * LOADS, LOADS, warp.far, result)
        warp.far += 1
    if item.near:
        remember(lane.results, slot * RESULTS, RESULTS, warp.near, result)
        warp.near += 1
    ready = wait(lane, streams, slot, warp, item, terms, start, delay, ready)
    drain = later(get(lane.drain, slot), result)
    if item.drain:
        drain = later(drain, start + get(streams.terms, terms + TERM.drain))
    put(lane.drain, slot, drain)
    put(lane.clock, s, start + item.cycles * TICKS)
    progress.issued += 1
    if item.exit:
        leave(lane, shape, m, slot, start + item.cycles * TICKS, progress)
        return
    warp.item += 1
    load_item(lane, streams, slot, warp)
    if not shape.perfect and is_late(streams, warp):
        ready = with_code(lane, streams, m, warp.late - 1, ready)
    wake(lane, slot, ready)
    if item.barrier:
        warp.state, lane.due[slot] = WAITING, FAR_OFF
        lane.blocks[warp.block].waiting += 1
        open_barrier(lane, shape, warp.block, start + item.cycles * TICKS)


@jit
def leave(lane, shape, m, slot, time, progress):
    """A warp has issued its last item, up to `time`."""
    warp = lane.warps[slot]
    warp.state, lane.due[slot] = GONE, FAR_OFF
    b = warp.block
    drain = later(get(lane.drain, slot), time + get(m, NUMBER.retire) - TICKS)
    put(lane.drained, b, later(get(lane.drained, b), drain))
    lane.blocks[b].running -= 1
    progress.running -= 1
    if lane.blocks[b].running:
        open_barrier(lane, shape, b, time)
        return
    put(lane.servers, SERVER.end, later(get(lane.servers, SERVER.end), get(lane.drained, b)))
    put(lane.drained, b, get(lane.drained, b) + get(m, NUMBER.block_launch))
    progress.freed = 1


@jit
def open_barrier(lane, shape, b, time):
    """If all warps of block `b` wait at their barrier, they go on."""
    block = lane.blocks[b]
    if block.waiting < block.running:
        return
    block.waiting = 0
    for w in range(b * shape.warps, (b + 1) * shape.warps):
        slot = (w % shape.schedulers) * shape.rows + w // shape.schedulers
        if lane.warps[slot].state == WAITING:
            lane.warps[slot].state = RUNNING
            wake(lane, slot, later(get(lane.ready, slot), time))
            lane.stale[w % shape.schedulers] = 1


@jit
def enter(lane, streams, shape, m, b, k, number, time):
    """Warp `number` of the launch begins in warp slot `k` of block slot `b`, dispatched at `time`."""
    w, zero = b * shape.warps + k, time - time
    slot = (w % shape.schedulers) * shape.rows + w // shape.schedulers
    warp = lane.warps[slot]
    warp.item, warp.access = streams.starts[number], streams.access_starts[number]
    warp.late, warp.state, warp.block = streams.late_starts[number], RUNNING, b
    warp.far = warp.near = 0
    load_item(lane, streams, slot, warp)
    ready = time + get(m, NUMBER.first_issue)
    if not shape.perfect and is_late(streams, warp):
        ready = with_code(lane, streams, m, warp.late - 1, ready)
    wake(lane, slot, ready)
    lane.stale[w % shape.schedulers] = 1
    put(lane.floor, slot, zero)
    put(lane.drain, slot, zero)
    for n in range(LOADS):
        put(lane.loads, slot * LOADS + n, zero)
    for n in range(RESULTS):
        put(lane.results, slot * RESULTS + n, zero)


@jit
def refill(lane, streams, shape, m, progress):
    """Free slots take the lane's next thread blocks, one after the other."""
    progress.freed = 0
    for b in range(shape.residents):
        if lane.blocks[b].running or progress.next == progress.stop:
            continue
        time = later(get(lane.drained, b) + TICKS, get(lane.servers, SERVER.dispatched) + get(m, NUMBER.dispatch))
        put(lane.servers, SERVER.dispatched, time)
        put(lane.drained, b, time - time - TICKS)
        first = np.int64(streams.dealt[progress.next]) * shape.warps
        for k in range(shape.warps):
            enter(lane, streams, shape, m, b, k, first + k, time)
        lane.blocks[b].running, lane.blocks[b].waiting = shape.warps, 0
        progress.running += shape.warps
        progress.next += 1


@jit
def step(lane, streams, shape, m, progress):
    """Schedulers that are due in the same cycle issue an item each; blocks that are done leave, and others come."""
    now = FAR_OFF
    for s in range(shape.schedulers):
        now = min(now, pick(lane, shape, m, s))
    for s in range(shape.schedulers):
        if lane.picked[s, 0] < now + TICKS:
            lane.last[s], lane.stale[s] = lane.picked[s, 1], 1
            issue(lane, streams, shape, m, s, s * shape.rows + lane.picked[s, 1], progress)
    if progress.freed:
        refill(lane, streams, shape, m, progress)


@jit
def clear(lane):
    """An SM before its first thread block; every time is zero already."""
    before = get(lane.servers, SERVER.dispatched) - TICKS
    for w in range(len(lane.warps)):
        lane.warps[w].state, lane.due[w], lane.units[w], lane.pools[w] = GONE, FAR_OFF, 0, 0
    lane.stale[:] = 1
    lane.pool_bounds[0] = 0  # of what needs none
    for b in range(len(lane.blocks)):
        lane.blocks[b].running, lane.blocks[b].waiting = 0, 0
        put(lane.drained, b, before)
    for n in range(len(lane.memory_starts)):
        put(lane.memory_starts, n, before)
    put(lane.servers, SERVER.dispatched, before)
    put(lane.servers, SERVER.end, before)
    lane.last[:] = 0


def run_lanes(lane, streams, shapes, machines, progresses, ends, stopped):
    """Lanes, one after the other, to their ends, or until `stopped` is set."""
    shape, steps = shapes[0], np.int64(0)
    for n in range(len(progresses)):
        m = machines[n]
        for times in (lane.clock, lane.servers, lane.special_free, lane.pool_free):
            zero(times)
        clear(lane)
        progress = progresses[n]
        refill(lane, streams, shape, m, progress)
        while progress.running:
            step(lane, streams, shape, m, progress)
            steps += 1
            if steps % CHECK_STEPS == 0 and stopped[0]:
                return
        put(ends, n, get(lane.servers, SERVER.end))
