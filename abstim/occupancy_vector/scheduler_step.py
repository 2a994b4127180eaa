"""One step of all lanes: each scheduler issues at most one item (docs/occupancy-vector.md, "A step")."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from abstim.engine.rules import DECODE_CYCLES
from abstim.occupancy_vector.item_records import DOUBLE, MEMORY, SFU, TENSOR, TO_UNIT_CYCLES
from abstim.occupancy_vector.lane_records import LOADS, NEVER, RESULTS, TICKS, Layout
from abstim.occupancy_vector.lane_state import AnyArray, Machine, Row, State, Words, packed, row_of
from abstim.occupancy_vector.memory_share import through_memory, with_code
from abstim.occupancy_vector.read_items import Item, read_item

WINDOW = TICKS  # schedulers that are due in the same cycle issue in one step
TO_UNIT, TO_ISSUE = TO_UNIT_CYCLES * TICKS, DECODE_CYCLES * TICKS
SPECIAL_UNITS = (SFU, DOUBLE, TENSOR)
# What `State.kind` says of a slot: its next item's special unit, the pools it works; of the warp, is it at a barrier
UNIT_BITS = 7
POOL_BITS = (1 << 3, 1 << 4)
WAITING = 1 << 5


def kind_of(item: Item) -> Array:
    """What an item needs, as `State.kind` holds it."""
    pools = jnp.where(item.sp > 0, POOL_BITS[0], 0) | jnp.where(item.int > 0, POOL_BITS[1], 0)
    return item.unit | pools


def group_of(scheduler: Array, layout: Layout) -> Array | int:
    """Which units a scheduler has."""
    return scheduler if layout.sub_cores else 0


def earliest(state: State, machine: Machine, layout: Layout) -> Array:
    """When each slot could issue, as the units stand, [scheduler, row, lane]."""
    found, kind = state.ready, state.kind
    unit = kind & UNIT_BITS
    found = jnp.where(unit == MEMORY, jnp.maximum(found, state.memory_starts[-1][:, None]), found)
    if layout.holding:
        held = (state.memory_starts[layout.holding - 1] - TO_UNIT)[:, None]
        found = jnp.where(unit == MEMORY, found, jnp.maximum(found, held))
    for n, own in enumerate(SPECIAL_UNITS):
        if layout.specials[n]:
            free = (state.special_free[n] - machine.special_slack)[:, None]
            found = jnp.where(unit == own, jnp.maximum(found, free), found)
    for n, bit in enumerate(POOL_BITS):
        if layout.pools[n]:
            free = (state.pool_free[n] - machine.pool_slack - TO_UNIT)[:, None]
            found = jnp.where((kind & bit) > 0, jnp.maximum(found, free), found)
    return jnp.where((kind & WAITING) > 0, NEVER, found)


def pick(can: Array, now: Array, last: Array, layout: Layout) -> Array:
    """The row of each scheduler whose turn it is, of those that can issue at `now`; rows: none; [scheduler, lane]."""
    row = jnp.arange(layout.rows, dtype=jnp.int32)[:, None]
    can_now = can <= now[:, None]
    if layout.priority:
        return jnp.min(jnp.where(can_now, row, layout.rows), 1)
    turn = row - last[:, None] - 1
    turn = jnp.min(jnp.where(can_now, jnp.where(turn < 0, turn + layout.rows, turn), layout.rows), 1)
    chosen = turn + last + 1
    chosen = jnp.where(chosen >= layout.rows, chosen - layout.rows, chosen)
    return jnp.where(turn == layout.rows, layout.rows, chosen)


def step(state: State, machine: Machine, words: Words, layout: Layout) -> State:
    """Each scheduler that is due issues one item; blocks that are done leave, and others come."""
    can = earliest(state, machine, layout)
    first = jnp.maximum(state.clock, jnp.min(can, 1))
    due = (first < jnp.min(first, 0) + WINDOW) & (first < NEVER)
    rows = jnp.where(due, pick(can, first, state.last, layout), layout.rows)

    nothing = jnp.full_like(rows, -1)

    def one(scheduler: Array, carry: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
        state, opened, times = carry
        row, start = rows[scheduler], first[scheduler]
        state, block, time = issue(state, machine, words, layout, scheduler, row, start)
        return state, opened.at[scheduler].set(block), times.at[scheduler].set(time)

    state, opened, times = lax.fori_loop(0, layout.schedulers, one, (state, nothing, first))
    state = lax.cond(
        jnp.any(opened >= 0), partial(release, layout=layout), lambda state, *_: state, state, opened, times
    )
    return refill_if_room(state, machine, words, layout)


class Issued(NamedTuple):
    """What an issue changes of the servers, and of its warp; [lane] each."""

    state: State
    result: Array  # when the special unit's result is there
    delay: Array  # of what pools compute


def issue(
    state: State, machine: Machine, words: Words, layout: Layout, scheduler: Array, row: Array, start: Array
) -> tuple[State, Array, Array]:
    """Scheduler issues the next item of slot `row` at `start`; `rows`: it issues nothing. Also returns the block whose
    barrier opens, or -1, and when."""
    go = row < layout.rows
    lanes = len(row)
    slot = (scheduler * layout.rows + jnp.minimum(row, layout.rows - 1)) * lanes + jnp.arange(lanes, dtype=jnp.int32)
    old = row_of(state.rows[slot])
    position = old.position.astype(jnp.int32)
    item, after = read_item(words.items, position), read_item(words.items, position + 1)
    went = use_units(state, machine, words, layout, scheduler, go, start, item, old)
    state, new, ready = next_ready(went, machine, go, slot, start, item, old)
    if not layout.perfect_memory:
        goes_on = go & (item.exit == 0)
        late, ready, arrivals = with_code(state, machine, words, old.late, after.begins, ready, goes_on)
        new, state = new._replace(late=old.late + late), state._replace(arrivals=arrivals)
    block = (row * layout.schedulers + scheduler) // layout.warps
    here = jnp.arange(layout.rows, dtype=jnp.int32)[:, None] == row
    leaves = item.exit > 0
    kind = kind_of(after) | jnp.where(item.barrier > 0, WAITING, 0)
    state = state._replace(
        ready=state.ready.at[scheduler].set(jnp.where(here, jnp.where(leaves, NEVER, ready), state.ready[scheduler])),
        kind=state.kind.at[scheduler].set(jnp.where(here, kind, state.kind[scheduler])),
        rows=state.rows.at[slot].set(
            jnp.where(go[:, None], packed(new), packed(old)), unique_indices=True, mode="promise_in_bounds"
        ),
        last=state.last.at[scheduler].set(jnp.where(go, row, state.last[scheduler])),
        clock=state.clock.at[scheduler].set(jnp.where(go, start + item.cycles, state.clock[scheduler])),
        issued=state.issued + go,
    )
    return meet(state, machine, layout, go, block, item, start + item.cycles, new.drain)


def use_units(
    state: State,
    machine: Machine,
    words: Words,
    layout: Layout,
    scheduler: Array,
    go: Array,
    start: Array,
    item: Item,
    old: Row,
) -> Issued:
    """An item's instructions on their units."""
    group = group_of(scheduler, layout)
    result, delay = jnp.zeros_like(start), jnp.zeros_like(start)
    arrive = start + item.unit_offset + TO_UNIT
    on_memory = go & (item.unit == MEMORY)
    begins = jnp.maximum(arrive, state.memory_free)
    position = old.access.astype(jnp.int32)
    way = through_memory(state, machine, words, begins, item, position, layout)
    result = jnp.where(item.unit == MEMORY, way.result, result)
    fetches = jnp.where(go, item.fetches, 0)

    def if_memory(new: Array, before: Array) -> Array:
        return jnp.where(on_memory, new, before)

    starts = jnp.concatenate([begins[None], state.memory_starts[:-1, group]])
    asking = jnp.where(on_memory & way.asks, machine.fill_base + words.fills[position], len(state.arrivals))
    changed = state._replace(
        memory_free=if_memory(way.free, state.memory_free),
        memory_starts=state.memory_starts.at[:, group].set(if_memory(starts, state.memory_starts[:, group])),
        l2_free=if_memory(way.l2, state.l2_free),
        dram_free=if_memory(way.dram, state.dram_free),
        port_free=if_memory(way.port, state.port_free),
        reply_free=if_memory(way.reply, state.reply_free),
        arrivals=state.arrivals.at[asking].set(way.result, mode="drop"),
        fetch_free=jnp.where(
            fetches > 0,
            jnp.maximum(state.fetch_free, start + item.front - TO_ISSUE) + fetches * machine.fetch,
            state.fetch_free,
        ),
    )
    special_free = state.special_free
    for n, unit in enumerate(SPECIAL_UNITS):
        if layout.specials[n]:
            free, uses = state.special_free[n, group], item.unit == unit
            begins = jnp.maximum(arrive, free)
            result = jnp.where(uses, begins + item.latency, result)
            special_free = special_free.at[n, group].set(jnp.where(go & uses, begins + item.occupies, free))
    pool_free = state.pool_free
    for n, work in enumerate((item.sp, item.int)):
        if layout.pools[n]:
            free, arrives = state.pool_free[n, group], start + TO_UNIT
            begins = jnp.maximum(arrives, free)
            delay = jnp.where(work > 0, jnp.maximum(delay, begins - arrives), delay)
            pool_free = pool_free.at[n, group].set(jnp.where(go & (work > 0), begins + work, free))
    return Issued(changed._replace(special_free=special_free, pool_free=pool_free), result, delay)


def remember(times: Array, first: Array, room: int, count: Array, result: Array, here: Array) -> Array:
    """`times` with one more result of a slot whose own begin at `first`, where `here`."""
    place = first + count.astype(jnp.int32) % room
    newest = jnp.where(here, result, times[place])
    return times.at[place].set(newest, unique_indices=True, mode="promise_in_bounds")


def waited(ready: Array, times: Array, first: Array, room: int, count: Array, mask: Array) -> Array:
    """`ready`, not before the results of `mask` are there."""
    back = jnp.arange(room, dtype=jnp.int32)[:, None]
    values = times[first + (count.astype(jnp.int32) - 1 - back) % room]
    return jnp.maximum(ready, jnp.max(jnp.where((mask >> back) & 1, values, 0), 0))


def next_ready(
    went: Issued, machine: Machine, go: Array, slot: Array, start: Array, item: Item, old: Row
) -> tuple[State, Row, Array]:
    """The warp after an issue: what it remembers, and when its next item is ready."""
    first, first_near = slot * LOADS, slot * RESULTS
    loads = remember(went.state.loads, first, LOADS, old.far, went.result, go & (item.far > 0))
    results = remember(went.state.results, first_near, RESULTS, old.near, went.result, go & (item.near > 0))
    new = old._replace(
        position=old.position + 1, access=old.access + (item.unit == MEMORY), far=old.far + item.far,
        near=old.near + item.near,
    )  # fmt: skip
    fetched = went.state.fetch_free - item.fetches * machine.fetch + TO_ISSUE
    ready = jnp.maximum(start + item.front, jnp.where(item.fetches > 0, fetched, 0))
    ready = jnp.maximum(ready, jnp.where(item.next > 0, start + item.next + went.delay, 0))
    ready = waited(jnp.maximum(ready, old.floor), loads, first, LOADS, new.far, item.wait_far)
    ready = waited(ready, results, first_near, RESULTS, new.near, item.wait_near)
    floor = jnp.where(item.after_next > 0, start + item.after_next + went.delay, 0)
    drain = jnp.maximum(old.drain, jnp.maximum(went.result, jnp.where(item.drain > 0, start + item.drain, 0)))
    drain = jnp.where(item.exit > 0, jnp.maximum(drain, start + item.cycles - TICKS + machine.retire), drain)
    return went.state._replace(loads=loads, results=results), new._replace(floor=floor, drain=drain), ready


def meet(
    state: State, machine: Machine, layout: Layout, go: Array, block: Array, item: Item, time: Array, drain: Array
) -> tuple[State, Array, Array]:
    """A warp that has come to a barrier or to its end: the last one opens the barrier, or ends the block."""
    number = jnp.arange(layout.blocks, dtype=jnp.int32)[:, None]
    here = (number == block) & go
    leaves, comes = here & (item.exit > 0), here & (item.barrier > 0)
    running, waiting = state.running - leaves, state.waiting + comes
    drained = jnp.where(leaves, jnp.maximum(state.drained, drain), state.drained)
    opens = (leaves | comes) & (waiting == running) & (running > 0)
    ends = leaves & (running == 0)
    state = state._replace(
        running=running,
        waiting=jnp.where(opens, 0, waiting),
        drained=jnp.where(ends, drained + machine.block_launch, drained),
        end=jnp.maximum(state.end, jnp.max(jnp.where(ends, drained, -TICKS), 0)),
    )
    return state, jnp.where(jnp.any(opens, 0), block, -1), time


def release(state: State, opened: Array, times: Array, layout: Layout) -> State:
    """Warps go on behind barriers that have opened: `opened` [scheduler, lane] blocks at `times`."""
    slot = jnp.arange(layout.rows, dtype=jnp.int32)[None, :] * layout.schedulers
    block = ((slot + jnp.arange(layout.schedulers, dtype=jnp.int32)[:, None]) // layout.warps)[..., None]
    ready, kind = state.ready, state.kind
    for s in range(layout.schedulers):
        here = (block == opened[s]) & ((state.kind & WAITING) > 0)
        ready = jnp.where(here, jnp.maximum(ready, times[s]), ready)
        kind = jnp.where(here, kind & ~WAITING, kind)
    return state._replace(ready=ready, kind=kind)


def refill_if_room(state: State, machine: Machine, words: Words, layout: Layout) -> State:
    """`refill`, where a lane has a free slot and a thread block for it."""
    number = jnp.arange(layout.blocks, dtype=jnp.int32)[:, None]
    room = (state.running == 0) & (number < machine.residents) & (state.next_block < state.stop_block)

    return lax.cond(jnp.any(room), partial(refill, layout=layout), lambda state, *_: state, state, machine, words)


def refill(state: State, machine: Machine, words: Words, layout: Layout) -> State:
    """Free slots take the lane's next thread blocks, one a cycle."""
    number = jnp.arange(layout.blocks, dtype=jnp.int32)[:, None]
    free = (state.running == 0) & (number < machine.residents)
    rank = jnp.cumsum(free, 0, dtype=jnp.int32) - free
    place = state.next_block + rank
    takes = free & (place < state.stop_block)
    soonest = jnp.where(takes, jnp.maximum(state.drained, state.dispatched) + TICKS * (1 - rank), -NEVER)
    time = lax.cummax(soonest, 0) + TICKS * rank  # each a cycle after the one before, at the earliest
    block = words.dealt[jnp.where(takes, place, 0)]
    warp = machine.warp_base + block[:, None] * layout.warps + jnp.arange(layout.warps, dtype=jnp.int32)[:, None]
    here, warps = to_slots(takes, layout), to_slots(warp, layout)
    position, late = words.starts[warps], words.late_starts[warps]
    item = read_item(words.items, position)
    ready = to_slots(time + machine.first_issue, layout)
    if not layout.perfect_memory:
        is_late, ready, arrivals = with_code(state, machine, words, late, item.begins, ready, here)
        late, state = late + is_late, state._replace(arrivals=arrivals)
    rows = state.rows.reshape(*here.shape, -1)
    first = jnp.stack([position, words.access_starts[warps], late], -1).astype(rows.dtype)
    empty = jnp.zeros_like(rows).at[..., :3].set(first)

    def cleared(times: Array) -> Array:
        return jnp.where(here[..., None], 0, times.reshape(*here.shape, -1)).reshape(times.shape)

    return state._replace(
        ready=jnp.where(here, ready, state.ready),
        kind=jnp.where(here, kind_of(item), state.kind),
        rows=jnp.where(here[..., None], empty, rows).reshape(state.rows.shape),
        loads=cleared(state.loads),
        results=cleared(state.results),
        running=jnp.where(takes, layout.warps, state.running),
        drained=jnp.where(takes, -TICKS, state.drained),
        next_block=state.next_block + jnp.sum(takes, 0, dtype=jnp.int32),
        dispatched=jnp.maximum(state.dispatched, jnp.max(jnp.where(takes, time, -TICKS), 0)),
    )


def to_slots(values: AnyArray, layout: Layout) -> Array:
    """[block, lane] or [block, warp, lane] as [scheduler, row, lane]; zero where a slot belongs to no block."""
    lanes = values.shape[-1]
    wide = jnp.asarray(values if values.ndim == 3 else values[:, None])
    flat = jnp.broadcast_to(wide, (layout.blocks, layout.warps, lanes)).reshape(layout.blocks * layout.warps, lanes)
    flat = jnp.pad(flat, ((0, layout.rows * layout.schedulers - len(flat)), (0, 0)))
    return flat.reshape(layout.rows, layout.schedulers, lanes).swapaxes(0, 1)
