"""A lane from its first thread block to its last, compiled (docs/occupancy-vector.md, "A step")."""

from itertools import accumulate

import numpy as np

from abstim.engine.warp_slots import ONE, bit, lowest
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.ready_slots import next_issue, prefetch, ready_at, units_changed, youngest
from abstim.occupancy_vector.times import at, chosen, get, has_slopes, later, portion, put, term
from functional.jit.marked import zero

TO_UNIT = rec.TO_UNIT_CYCLES * rec.TICKS
LEVEL_SHIFT, SECTORS_SHIFT, DRAM_SHIFT, PART_SHIFT = accumulate(bits for _, bits in rec.ACCESS_WORD[:-1])
OCCUPIES_MASK = (1 << LEVEL_SHIFT) - 1
POOL_COUNT = len(rec.POOLS)
CHECK_STEPS = 1 << 12  # between two looks at whether the caller has had enough


def memory_start(lane, shape, g, back):
    """When the memory instruction of a group started that is `back` before its next one."""
    place = lane.schedulers[g].place - back
    return get(lane.starts, g * shape.memory_queue + (place if place >= 0 else place + shape.memory_queue))


def unit_free(g, needed):
    """Index of Lane.times: when a special unit, or a pool, of a group is free."""
    return rec.UNIT_FREE + g * rec.NEEDS + needed


def begin_of(lane, streams, shape, m, s, slot):
    """When a scheduler issues what a slot has next; the tick is SCHEDULER.horizon."""
    item, g = streams.lane_items[lane.warps[slot].item], s if shape.sub_cores else 0
    time = later(get(lane.times, rec.CLOCK + s), get(lane.slot_times, slot * rec.SLOT_TIMES + rec.READY))
    if item.unit == rec.MEMORY:
        time = later(time, memory_start(lane, shape, g, shape.memory_queue))
    elif shape.holding:
        time = later(time, memory_start(lane, shape, g, shape.holding) - TO_UNIT)
    if item.unit > rec.MEMORY:
        time = later(time, get(lane.times, unit_free(g, item.unit - rec.MEMORY)) - get(m, rec.NUMBER.special_slack))
    for n in range(POOL_COUNT):
        if item.needs & (1 << (rec.NEEDS_POOL + n)):
            free = get(lane.times, unit_free(g, rec.NEEDS_POOL + n))
            time = later(time, free - at(get(m, rec.NUMBER.pool_slack)) - TO_UNIT)
    return time


def overtaken(lane, streams, m, kind):
    """How much later the last sector of a load or store is answered than by the order in which they come to the tags:
    as long as those of others that leave the SM before it hold the slowest server."""
    if kind != rec.LOAD and kind != rec.STORE:
        return get(m, rec.NUMBER.load_sector) * 0
    late = streams.turns[lane.progress[0].turn]
    lane.progress[0].turn += 1
    return later(get(m, rec.NUMBER.load_sector), get(m, rec.NUMBER.l2_sector)) * late


def beyond_l1d(lane, streams, m, kind, word, here):
    """When an access is answered that the first level has at `here`: sectors asked of the SM's share of L2 and DRAM."""
    level, sectors, dram = (word >> LEVEL_SHIFT) & 3, (word >> SECTORS_SHIFT) & 255, (word >> DRAM_SHIFT) & 255
    part, servers = ((word >> PART_SHIFT) & (rec.MOST_PARTS - 1)) + 1, lane.times
    if sectors == 0:
        return here
    writes = kind == rec.STORE or kind == rec.ATOMIC
    leaves = later(get(servers, rec.SERVER.port_free), here + rec.TICKS)
    left = leaves + (get(m, rec.NUMBER.store_sector) if writes else get(m, rec.NUMBER.load_sector)) * sectors
    put(servers, rec.SERVER.port_free, left)
    begin = later(get(servers, rec.SERVER.l2_free), leaves + get(m, rec.NUMBER.request))
    cost = get(m, rec.NUMBER.l2_atomic) if kind == rec.ATOMIC else get(m, rec.NUMBER.l2_sector)
    answer = later(begin + cost * sectors, left + get(m, rec.NUMBER.request))
    put(servers, rec.SERVER.l2_free, answer)
    read = answer
    if dram:
        read = later(get(servers, rec.SERVER.dram_free), answer) + get(m, rec.NUMBER.dram_sector) * dram
        put(servers, rec.SERVER.dram_free, read)
    length = (get(m, rec.NUMBER.store_reply) if kind == rec.STORE else get(m, rec.NUMBER.reply_sector)) * sectors
    replied = later(get(servers, rec.SERVER.reply_free), answer - length) + length
    put(servers, rec.SERVER.reply_free, replied)
    answer = (replied if kind == rec.STORE else later(replied, read)) + get(m, rec.NUMBER.l2_reply)
    if level == rec.DRAM:
        answer = answer + portion(get(m, rec.NUMBER.dram_latency), part)
    answer = answer + overtaken(lane, streams, m, kind)
    if kind == rec.LOAD:
        put(lane.recent, lane.progress[0].asks & (rec.RECENT - 1), answer)
        lane.progress[0].asks += 1
    return answer


def answered(lane, streams, m, kind, access, here):
    """When access number `access` is answered that the first level has at `here`. The first of a fill asks for what
    all of it wait for, whichever did in the walk."""
    word, fill = streams.accesses[access], streams.fills[access]
    if not fill:
        return beyond_l1d(lane, streams, m, kind, word, here)
    own = abs(fill)
    if not lane.asked[own]:
        ask(lane, streams, m, kind, own, here)
        return later(here, get(lane.arrivals, own))
    answer = later(here, get(lane.arrivals, own))
    if fill < 0:
        hold(lane, answer - here)
    return answer


def ask(lane, streams, m, kind, fill, here):
    """The first access of a fill meets the tags: its first lines when they take it, its last when all it waits for is
    there, and so long the load/store unit waits, too."""
    lane.asked[fill] = 1
    word, behind, trips = streams.fill_words[fill], streams.fill_behind[fill], streams.fill_trips[fill]
    last, trip = here, trip_cycles(m, word)
    if behind:
        last = get(lane.recent, (lane.progress[0].asks - behind) & (rec.RECENT - 1))
        last = later(here, last - portion(get(m, rec.NUMBER.dram_latency), behind >> rec.BACK_BITS))
    answer = beyond_l1d(lane, streams, m, kind, word, here)
    if behind:
        answer = later(answer, last + trip)
    if behind or trips:
        hold(lane, last - here + trip * trips)
        answer = answer + trip * trips
    put(lane.arrivals, fill, answer)


def trip_cycles(m, word):
    """To where an access is answered and back, if nobody else asks."""
    way = get(m, rec.NUMBER.request) + get(m, rec.NUMBER.l2_reply) + rec.TICKS
    if (word >> LEVEL_SHIFT) & 3 == rec.DRAM:
        way = way + get(m, rec.NUMBER.dram_latency)
    return way


def hold(lane, time):
    """The load/store unit takes nothing for so much longer."""
    put(lane.times, rec.SERVER.memory_free, get(lane.times, rec.SERVER.memory_free) + time)


def with_code(lane, streams, m, late, fetched):
    """When late instruction line `late` is there, for a warp that fetches it by `fetched`; the first that waits for it
    asks for it. Those who wait fetch it one after the other."""
    fill = streams.late_fills[late]
    if not lane.asked[fill]:
        lane.asked[fill] = 1
        put(lane.arrivals, fill, beyond_l1d(lane, streams, m, rec.CONSTANT, streams.fill_words[fill], fetched))
        put(lane.times, rec.SERVER.line_there, get(lane.arrivals, fill))
    there = get(lane.arrivals, fill)
    if at(fetched) < at(there):
        put(lane.arrivals, fill, there + get(m, rec.NUMBER.fetch))
        put(lane.times, rec.SERVER.line_served, there + get(m, rec.NUMBER.fetch))
    return later(fetched, there)


def use_memory(lane, streams, shape, m, warp, g, arrive, latency):
    """The result of a memory instruction that comes to the load/store unit at `arrive`."""
    word = streams.accesses[warp.access]
    warp.access += 1
    held = (word & OCCUPIES_MASK) * rec.TICKS
    begin = later(arrive, get(lane.times, rec.SERVER.memory_free))
    put(lane.times, rec.SERVER.memory_free, begin + held)
    own, bounds = lane.schedulers[g], g * rec.NEEDS
    put(lane.starts, g * shape.memory_queue + own.place, begin)
    own.place = own.place + 1 if own.place + 1 < shape.memory_queue else 0
    lane.bounds[bounds + rec.NEEDS_MEMORY] = at(memory_start(lane, shape, g, shape.memory_queue))
    if shape.holding:
        lane.bounds[bounds + rec.NEEDS_COLLECTOR] = at(memory_start(lane, shape, g, shape.holding)) - TO_UNIT
    here = begin + latency + (held - rec.TICKS)
    if shape.perfect:
        return here
    kind, access = streams.lane_items[warp.item].access, warp.access - 1
    return answered(lane, streams, m, kind, access, here)


def use_special(lane, streams, m, g, needed, begin_k, arrive):
    """The result of an instruction that comes to a special unit at `arrive`."""
    begin = later(arrive, get(lane.times, unit_free(g, needed)))
    free = begin + term(streams.terms, begin_k + rec.TERM.occupies)
    put(lane.times, unit_free(g, needed), free)
    lane.bounds[g * rec.NEEDS + needed] = at(free) - at(get(m, rec.NUMBER.special_slack))
    return begin + term(streams.terms, begin_k + rec.TERM.latency)


def use_pools(lane, streams, m, needs, g, terms, start):
    """The work of an item's instructions goes to their pools; returns how late it begins, at most."""
    arrive = start + TO_UNIT
    delay = start - start
    for n in range(POOL_COUNT):
        needed = rec.NEEDS_POOL + n
        works, before = needs & (1 << needed), get(lane.times, unit_free(g, needed))
        begin = later(arrive, before)
        delay = chosen(works, later(delay, begin - arrive), delay)
        free = chosen(works, begin + term(streams.terms, terms + rec.TERM.sp + n), before)
        put(lane.times, unit_free(g, needed), free)
        lane.bounds[g * rec.NEEDS + needed] = at(free) - at(get(m, rec.NUMBER.pool_slack)) - TO_UNIT
    return delay


def fetch(lane, m, item, start):
    """When the front end has the next item."""
    ready, cost = start + item.front * rec.TICKS, get(m, rec.NUMBER.fetch)
    before, asked = get(lane.times, rec.SERVER.fetch_free), start + item.fetch_by * rec.TICKS  # the item's last one
    if at(get(lane.times, rec.SERVER.line_there)) <= at(asked):
        asked = later(asked, get(lane.times, rec.SERVER.line_served))
    granted = later(asked, before + cost * (item.fetches - 1))
    put(lane.times, rec.SERVER.fetch_free, chosen(item.fetches, granted + cost, before))
    waits = (later(start, before) - start) * item.fetches
    return chosen(item.fetches, later(ready + waits, granted + (item.front - item.fetch_by) * rec.TICKS), ready)


def wait_for(times, first, room, count, mask, ready):
    """`ready`, not before the results of `mask` are there; `room`: a power of two."""
    left = np.uint64(mask)
    while left:
        ready = later(ready, get(times, first + ((count - 1 - lowest(left)) & (room - 1))))
        left &= left - ONE
    return ready


def wait(lane, streams, times, warp, item, terms, start, delay, ready):
    """`ready`, not before what the warp's next item needs; `times`: the slot's first of Lane.slot_times."""
    behind = start + delay
    ready = chosen(item.next, later(ready, behind + term(streams.terms, terms + rec.TERM.next)), ready)
    ready = later(ready, get(lane.slot_times, times + rec.FLOOR))
    after_next = chosen(item.after_next, behind + term(streams.terms, terms + rec.TERM.after_next), start - start)
    put(lane.slot_times, times + rec.FLOOR, after_next)
    ready = wait_for(lane.slot_times, times + rec.FAR_RESULTS, rec.LOADS, warp.far, item.wait_far, ready)
    return wait_for(lane.slot_times, times + rec.NEAR_RESULTS, rec.RESULTS, warp.near, item.wait_near, ready)


def remember(lane, times, warp, item, result):
    """The result of an item is the latest of the far, or near, ones of its warp."""
    if item.far:
        put(lane.slot_times, times + rec.FAR_RESULTS + (warp.far & (rec.LOADS - 1)), result)
        warp.far += 1
    if item.near:
        put(lane.slot_times, times + rec.NEAR_RESULTS + (warp.near & (rec.RESULTS - 1)), result)
        warp.near += 1


def is_late(streams, warp):
    """Is the instruction line of a slot's next item late? Then it is not again."""
    late = streams.late_begins[warp.late] <= streams.lane_items[warp.item].begins
    warp.late += late
    return late


def next_item(lane, streams, shape, m, s, row, slot, warp, fetched, ready):
    """A warp can come to its next item at `ready`: returns when it does, its instruction line, which it fetches by
    `fetched`, considered."""
    lane.needs[s * rec.MOST_SLOTS + row] = streams.lane_items[warp.item].needs
    if not shape.perfect and is_late(streams, warp):
        ready = later(ready, with_code(lane, streams, m, warp.late - 1, fetched))
    put(lane.slot_times, slot * rec.SLOT_TIMES + rec.READY, ready)
    return ready


def issue(lane, streams, shape, m, s, progress):
    """A scheduler issues the next item of the slot that was picked."""
    own, g = lane.schedulers[s], s if shape.sub_cores else 0
    row, slot = own.picked, s * shape.rows + own.picked
    warp, start, times = lane.warps[slot], begins(lane, s), slot * rec.SLOT_TIMES
    item, terms = streams.lane_items[warp.item], warp.item * len(rec.TERMS)
    own.last = row
    own.ready &= ~bit(row)
    arrive, result = start + (item.unit_offset * rec.TICKS + TO_UNIT), start - start
    if item.unit == rec.MEMORY:
        result = use_memory(lane, streams, shape, m, warp, g, arrive, term(streams.terms, terms + rec.TERM.latency))
    elif item.unit:
        result = use_special(lane, streams, m, g, item.unit - rec.MEMORY, terms, arrive)
    delay = use_pools(lane, streams, m, item.needs, g, terms, start)
    fetched = fetch(lane, m, item, start)
    remember(lane, times, warp, item, result)
    ready = wait(lane, streams, times, warp, item, terms, start, delay, fetched)
    drain = later(get(lane.slot_times, times + rec.DRAIN), result)
    drain = later(drain, start + term(streams.terms, terms + rec.TERM.drain))
    put(lane.slot_times, times + rec.DRAIN, drain)
    after = start + item.cycles * rec.TICKS
    put(lane.times, rec.CLOCK + s, after)
    own.clock = own.horizon = at(after)
    progress.issued += 1
    if item.exit:
        leave(lane, shape, m, slot, drain, after, progress)
        return
    warp.item += 1
    prefetch(streams.lane_items, warp.item + 1)
    prefetch(streams.terms, (warp.item + 1) * len(rec.TERMS))
    ready = next_item(lane, streams, shape, m, s, row, slot, warp, fetched, ready)
    if item.barrier:
        warp.state, lane.due[slot] = rec.WAITING, rec.FAR_OFF
        lane.blocks[warp.block].waiting += 1
        open_barrier(lane, shape, warp.block, after)
    else:
        ready_at(lane, shape, s, row, at(ready))


def leave(lane, shape, m, slot, drain, time, progress):
    """A warp, whose results are there at `drain`, has issued its last item, up to `time`."""
    warp = lane.warps[slot]
    warp.state, lane.due[slot] = rec.GONE, rec.FAR_OFF
    b, drained = warp.block, rec.DRAINED + warp.block
    drain = later(drain, time + get(m, rec.NUMBER.retire) - rec.TICKS)
    put(lane.times, drained, later(get(lane.times, drained), drain))
    lane.blocks[b].running -= 1
    progress.running -= 1
    if lane.blocks[b].running:
        open_barrier(lane, shape, b, time)
        return
    put(lane.times, rec.SERVER.end, later(get(lane.times, rec.SERVER.end), get(lane.times, drained)))
    put(lane.times, drained, get(lane.times, drained) + get(m, rec.NUMBER.block_launch))
    progress.freed = 1


def open_barrier(lane, shape, b, time):
    """If all warps of block `b` wait at their barrier, they go on."""
    block = lane.blocks[b]
    if block.waiting < block.running:
        return
    block.waiting = 0
    for w in range(b * shape.warps, (b + 1) * shape.warps):
        s, row = w % shape.schedulers, w // shape.schedulers
        slot = s * shape.rows + row
        if lane.warps[slot].state == rec.WAITING:
            lane.warps[slot].state = rec.RUNNING
            ready = later(get(lane.slot_times, slot * rec.SLOT_TIMES + rec.READY), time)
            put(lane.slot_times, slot * rec.SLOT_TIMES + rec.READY, ready)
            ready_at(lane, shape, s, row, at(ready))


def enter(lane, streams, shape, m, b, k, number, time):
    """Warp `number` of the launch begins in warp slot `k` of block slot `b`, dispatched at `time`."""
    w = b * shape.warps + k
    s, row = w % shape.schedulers, w // shape.schedulers
    slot = s * shape.rows + row
    warp = lane.warps[slot]
    warp.item, warp.access = streams.starts[number], streams.access_starts[number]
    warp.late, warp.state, warp.block = streams.late_starts[number], rec.RUNNING, b
    warp.far = warp.near = 0
    for n in range(slot * rec.SLOT_TIMES, (slot + 1) * rec.SLOT_TIMES):
        put(lane.slot_times, n, 0)
    first = time + get(m, rec.NUMBER.first_issue)
    ready = next_item(lane, streams, shape, m, s, row, slot, warp, first, first)
    youngest(lane, shape, s, row)
    ready_at(lane, shape, s, row, at(ready))


def refill(lane, streams, shape, m, progress):
    """Free slots take the lane's next thread blocks, one after the other."""
    progress.freed = 0
    for b in range(shape.residents):
        if lane.blocks[b].running or progress.next == progress.stop:
            continue
        time = later(
            get(lane.times, rec.DRAINED + b) + rec.TICKS,
            get(lane.times, rec.SERVER.dispatched) + get(m, rec.NUMBER.dispatch),
        )
        put(lane.times, rec.SERVER.dispatched, time)
        put(lane.times, rec.DRAINED + b, -rec.TICKS)
        first = streams.dealt[progress.next] * shape.warps
        for k in range(shape.warps):
            enter(lane, streams, shape, m, b, k, first + k, time)
        lane.blocks[b].running, lane.blocks[b].waiting = shape.warps, 0
        progress.running += shape.warps
        progress.next += 1


def begins(lane, s):
    """When a scheduler issues what was picked."""
    return get(lane.times, rec.BEGINS + s)


def step(lane, streams, shape, m, progress):
    """Schedulers that are due in the same cycle issue an item each; blocks that are done leave, and others come."""
    now = next_issue(lane, shape)
    for s in range(shape.schedulers):
        own = lane.schedulers[s]
        if own.horizon < now + rec.TICKS:
            if has_slopes(lane.times):
                put(lane.times, rec.BEGINS + s, begin_of(lane, streams, shape, m, s, s * shape.rows + own.picked))
            else:
                put(lane.times, rec.BEGINS + s, own.horizon)
    for s in range(shape.schedulers):
        if lane.schedulers[s].horizon < now + rec.TICKS:
            issue(lane, streams, shape, m, s, progress)
            units_changed(lane, shape, s)
    if progress.freed:
        refill(lane, streams, shape, m, progress)


def clear(lane):
    """An SM before its first thread block."""
    zero(lane.times)
    zero(lane.recent)
    zero(lane.older)
    for b in range(len(lane.blocks)):
        lane.blocks[b].running, lane.blocks[b].waiting = 0, 0
        put(lane.times, rec.DRAINED + b, -rec.TICKS)
    for n in range(len(lane.starts)):
        put(lane.starts, n, -rec.TICKS)
    put(lane.times, rec.SERVER.dispatched, -rec.TICKS)
    put(lane.times, rec.SERVER.end, -rec.TICKS)
    for w in range(len(lane.warps)):
        lane.warps[w].state, lane.due[w] = rec.GONE, rec.FAR_OFF
    for s in range(len(lane.schedulers)):
        own = lane.schedulers[s]
        own.horizon = own.clock = own.last = own.sure = own.place = 0
        own.first = 0
    lane.needs[:] = 0
    lane.bounds[:] = 0


def run_some(lane, streams, shape, machines, own, fills, ends, issued, stopped):
    """As `run_lanes`, of points with so many fills."""
    steps, point, progress = 0, -1, lane.progress[0]
    for n in range(len(own)):
        m = machines[own[n].machine]
        clear(lane)
        if own[n].point != point:
            zero(lane.asked, fills)
            point = own[n].point
        progress.next, progress.stop = own[n].first, own[n].stop
        progress.issued = progress.running = progress.asks = 0
        progress.turn = streams.turn_starts[own[n].first]
        refill(lane, streams, shape, m, progress)
        while progress.running:
            step(lane, streams, shape, m, progress)
            steps += 1
            if steps % CHECK_STEPS == 0 and stopped[0]:
                return
        put(ends, n, get(lane.times, rec.SERVER.end))
        issued[n] = progress.issued


def run_lanes(lane, streams, shapes, machines, own, ends, issued, stopped):
    """Lanes, one after the other, to their ends, or until `stopped` is set. `own`: OWN of each; those of a design point
    lie together."""
    run_some(lane, streams, shapes[0], machines, own, len(streams.fill_words), ends, issued, stopped)
