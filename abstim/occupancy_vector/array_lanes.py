"""Lanes as arrays: one JAX program over all of them, on whatever JAX computes on (docs/occupancy-vector.md, "A step").

Every array's last axis but that of `rows` is the lanes; times are in ticks, 64 to a cycle, whole numbers. It stands
beside the compiled lanes because an accelerator has no use for one lane after the other: here all take a step together,
and what a lane does not do in it is selected away.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from abstim.analytic.kept_programs import kept_programs
from abstim.engine.rules import DECODE_CYCLES
from abstim.occupancy_vector import records as rec
from functional.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Int32, Num


AnyArray = Array | np.ndarray  # on the host or not


class Machine(NamedTuple):
    """Of the design point that a lane belongs to."""

    numbers: rec.Numbers  # [lane] each
    residents: Int32[AnyArray, " lane"]  # thread blocks at once
    warp_base: Int32[AnyArray, " lane"]  # of the lane's launch in Words.starts
    fill_word_base: Int32[AnyArray, " lane"]  # of its fills in Words.fill_words
    fill_base: Int32[AnyArray, " lane"]  # of its design point's fills in State.arrivals


class Words(NamedTuple):
    """What lanes read: `records.Streams` of all design points, items as words."""

    items: Int32[AnyArray, "item word"]
    starts: Int32[AnyArray, " warp"]
    accesses: Int32[AnyArray, " access"]
    fills: Int32[AnyArray, " access"]
    access_starts: Int32[AnyArray, " warp"]
    late_starts: Int32[AnyArray, " warp"]
    late_begins: Int32[AnyArray, " late"]
    late_fills: Int32[AnyArray, " late"]
    fill_words: Int32[AnyArray, " fill"]
    dealt: Int32[AnyArray, " position"]


class Row(NamedTuple):
    """What a slot holds beside what the pick looks at; times. all but the last two are exact in any of their types."""

    position: Num[Array, " lane"]  # of the next item
    access: Num[Array, " lane"]  # of the next access
    late: Num[Array, " lane"]  # of the next late instruction line
    far: Num[Array, " lane"]  # far results so far
    near: Num[Array, " lane"]
    floor: Num[Array, " lane"]  # of the item after the next
    drain: Num[Array, " lane"]


class State(NamedTuple):
    """Of all lanes."""

    ready: Num[Array, "scheduler row lane"]
    kind: Int32[Array, "scheduler row lane"]  # what the next item needs: `kind_of`
    rows: Num[Array, "slot field"]  # a Row each, slot (scheduler x rows + row) x lanes + lane
    loads: Num[Array, " slot_load"]  # far result n of a slot is at slot x LOADS + n mod LOADS
    results: Num[Array, " slot_result"]  # the same of near ones
    last: Int32[Array, "scheduler lane"]  # row issued last
    clock: Num[Array, "scheduler lane"]
    running: Int32[Array, "block lane"]  # warps of a block that are not gone; 0: the slot is free
    waiting: Int32[Array, "block lane"]  # of them, those at the barrier
    drained: Num[Array, "block lane"]  # when the warps that are gone were
    memory_free: Num[Array, " lane"]
    memory_starts: Num[Array, "place group lane"]  # of the last memory instructions of a group of schedulers
    special_free: Num[Array, "special group lane"]
    pool_free: Num[Array, "pool group lane"]
    fetch_free: Num[Array, " lane"]
    l2_free: Num[Array, " lane"]
    dram_free: Num[Array, " lane"]
    port_free: Num[Array, " lane"]
    reply_free: Num[Array, " lane"]
    arrivals: Num[Array, " point_fill"]  # of what the accesses of a fill wait for; NEVER: not asked for
    next_block: Int32[Array, " lane"]  # positions in Words.dealt
    stop_block: Int32[Array, " lane"]
    dispatched: Num[Array, " lane"]
    end: Num[Array, " lane"]
    issued: Int32[Array, " lane"]  # items


FIELDS = len(Row._fields)  # of a Row


def row_of(values: Array) -> Row:
    """[lane, field] as a Row."""
    return Row(*(values[:, k] for k in range(FIELDS)))


def packed(row: Row) -> Array:
    """A Row as [lane, field]."""
    return jnp.stack(row, -1)


def new_state(
    layout: rec.Layout, first: Int32[Array, " lane"], stop: Int32[Array, " lane"], arrivals: Num[Array, " point_fill"]
) -> State:
    """All slots free; thread blocks `first` .. `stop` - 1 of Words.dealt are still to come."""
    lanes, dtype = len(first), arrivals.dtype
    slots = (layout.schedulers, layout.rows, lanes)

    def times(*shape: int) -> Array:
        return jnp.zeros((*shape, lanes), dtype)

    def counts(*shape: int) -> Array:
        return jnp.zeros((*shape, lanes), jnp.int32)

    return State(
        ready=jnp.full(slots, rec.NEVER, dtype),
        kind=jnp.zeros(slots, jnp.int32),
        rows=jnp.zeros((layout.schedulers * layout.rows * lanes, FIELDS), dtype),
        loads=jnp.zeros(layout.schedulers * layout.rows * lanes * rec.LOADS, dtype),
        results=jnp.zeros(layout.schedulers * layout.rows * lanes * rec.RESULTS, dtype),
        last=counts(layout.schedulers),
        clock=times(layout.schedulers),
        running=counts(layout.blocks),
        waiting=counts(layout.blocks),
        drained=times(layout.blocks) - rec.TICKS,
        memory_free=times(),
        memory_starts=times(layout.memory_queue, layout.groups) - rec.TICKS,
        special_free=times(rec.SPECIALS, layout.groups),
        pool_free=times(rec.POOL_COUNT, layout.groups),
        fetch_free=times(),
        l2_free=times(),
        dram_free=times(),
        port_free=times(),
        reply_free=times(),
        arrivals=arrivals,
        next_block=first,
        stop_block=stop,
        dispatched=times() - rec.TICKS,
        end=times() - rec.TICKS,
        issued=counts(),
    )


_IN_CYCLES = frozenset({"cycles", "front", "unit_offset", "occupies"})
ITEM_WORDS = rec.LANE_ITEM.itemsize // 4


# Items, accesses and late instruction lines as a step reads them; times and work in ticks. Of an item LANE_ITEM, of
# TERMS whether there is one, and TERMS
Item = namedtuple(
    "Item",
    "begins wait_far wait_near cycles front unit needs unit_offset fetches access far near has_next has_after_next "
    "has_drain barrier exit next after_next drain latency occupies sp int",
)
Access = namedtuple("Access", "occupies level sectors dram_sectors part")
Late = namedtuple("Late", "level part")


def words_of_items(items: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """LANE_ITEMs and their TERMS as rows of 32-bit words."""
    return np.concatenate([items.view(np.int32).reshape(-1, ITEM_WORDS), terms.reshape(-1, len(rec.TERMS))], 1)


def _fields(word: Array, fields: tuple[tuple[str, int], ...]) -> dict[str, Array]:
    values: dict[str, Array] = {}
    shift = 0
    for name, bits in fields:
        value = lax.shift_right_logical(word, jnp.int32(shift)) & jnp.int32((1 << bits) - 1)
        values[name] = value * (rec.TICKS if name in _IN_CYCLES else 1)
        shift += bits
    return values


def read_item(words: AnyArray, position: Array) -> Item:
    """Items as their words have them."""
    rows, values = words[position], []
    for name, (kind, place, *_) in (rec.LANE_ITEM.fields or {}).items():
        value = lax.shift_right_logical(rows[..., place // 4], jnp.int32(8 * (place % 4)))
        value = value & jnp.int32((1 << min(31, 8 * kind.itemsize)) - 1)
        values.append(value * (rec.TICKS if name in _IN_CYCLES else 1))
    return Item(*values, *(rows[..., ITEM_WORDS + k] for k in range(len(rec.TERMS))))


def read_access(words: AnyArray, position: AnyArray) -> Access:
    """Accesses as their words have them."""
    return Access(**_fields(jnp.asarray(words)[position], rec.ACCESS_WORD))


def read_late(words: AnyArray, position: AnyArray) -> Late:
    """Late instruction lines as their words have them."""
    return Late(**_fields(jnp.asarray(words)[position], rec.LATE_WORD))


class Memory(NamedTuple):
    """The load/store unit and what lies behind it, after a memory instruction; and when its result is there."""

    result: Array
    free: Array
    l2: Array
    dram: Array
    port: Array
    reply: Array
    asks: Array  # for what its fill waits for, which is there with the result


def through_memory(
    state: State, machine: Machine, words: Words, start: Array, item: Item, position: Array, layout: rec.Layout
) -> Memory:
    """A memory instruction that starts on the load/store unit at `start`, all lanes [lane]; `position`: its access."""
    access = read_access(words.accesses, position)
    here = Memory(
        start + item.latency + access.occupies - rec.TICKS, start + access.occupies, state.l2_free, state.dram_free,
        state.port_free, state.reply_free, jnp.zeros(len(start), bool),
    )  # fmt: skip
    if layout.perfect_memory:
        return here
    fill = words.fills[position]
    arrival = state.arrivals[machine.fill_base + fill]
    asker = read_access(words.fill_words, machine.fill_word_base + fill)
    asked = Access(*(jnp.where(fill > 0, ours, own) for ours, own in zip(asker, access, strict=True)))
    went = beyond_l1d(state, machine, item, asked, here)
    waits = (fill > 0) & (arrival < rec.NEVER)
    joined = here._replace(result=jnp.maximum(here.result, arrival))
    found = Memory(*(jnp.where(waits, ours, own) for ours, own in zip(joined, went, strict=True)))
    return found._replace(asks=(fill > 0) & ~waits)


def beyond_l1d(state: State, machine: Machine, item: Item, access: Access, here: Memory) -> Memory:
    """Sectors asked of L2 and DRAM, each a server of which the SM has a share."""
    asks, out = access.sectors > 0, (item.access == rec.STORE) | (item.access == rec.ATOMIC)
    leave = here.result + rec.TICKS
    port = jnp.maximum(state.port_free, leave) + access.sectors * machine.numbers.store_sector
    leave = jnp.where(out, port, leave)
    cost = jnp.where(item.access == rec.ATOMIC, machine.numbers.l2_atomic, machine.numbers.l2_sector)
    l2 = jnp.maximum(state.l2_free, leave + machine.numbers.request) + access.sectors * cost
    dram = jnp.maximum(state.dram_free, l2) + access.dram_sectors * machine.numbers.dram_sector
    stores = item.access == rec.STORE
    length = access.sectors * machine.numbers.reply_sector
    reply = jnp.maximum(state.reply_free, l2 - length) + length
    read = jnp.where(access.dram_sectors > 0, dram, l2)
    beyond = jnp.where(access.level == rec.DRAM, portion(machine.numbers.dram_latency, access.part), 0)
    answer = jnp.where(stores, l2, jnp.maximum(reply, read) + beyond) + machine.numbers.l2_reply
    return here._replace(
        result=jnp.where(asks, answer, here.result),
        l2=jnp.where(asks, l2, state.l2_free),
        dram=jnp.where(asks & (access.dram_sectors > 0), dram, state.dram_free),
        port=jnp.where(asks & out, port, state.port_free),
        reply=jnp.where(asks & ~stores, reply, state.reply_free),
    )


def portion(time: AnyArray, part: Array) -> AnyArray:
    """`part` + 1 of PARTS of a stretch of time, in whole ticks."""
    return time * (part + 1) // rec.PARTS


def with_code(
    state: State, machine: Machine, words: Words, late: Array, begins: Array, ready: Array, here: Array
) -> tuple[Array, Array, Array]:
    """(is it late, `ready` with it, State.arrivals) of the instruction line, the warps' `late`-th, of an item that
    begins at instruction `begins` of its warp; `here`: where there is such an item. The first that waits for a line
    asks for it. Any shape whose last axis is the lanes."""
    place = late.astype(jnp.int32)
    is_late = here & (words.late_begins[place] <= begins)
    fill = words.late_fills[place]
    own, none = machine.fill_base + fill, len(state.arrivals)
    delay = code_delay(machine, read_late(words.fill_words, machine.fill_word_base + fill))
    asks = is_late & (state.arrivals[own] == rec.NEVER)
    arrivals = state.arrivals.at[jnp.where(asks, own, none)].min(ready + delay, mode="drop")
    return is_late, jnp.where(is_late, jnp.maximum(ready, arrivals[own]), ready), arrivals


def code_delay(machine: Machine, late: Late) -> Array:
    """How late an instruction line is: four sectors, from L2 or from DRAM."""
    m = machine.numbers
    l2 = m.request + 4 * (m.l2_sector + m.reply_sector) + m.l2_reply + rec.TICKS
    dram = portion(m.dram_latency + 4 * m.dram_sector, late.part)
    return jnp.where(late.level == rec.DRAM, l2 + dram, portion(l2, late.part))


WINDOW = rec.TICKS  # schedulers that are due in the same cycle issue in one step
TO_UNIT, TO_ISSUE = rec.TO_UNIT_CYCLES * rec.TICKS, DECODE_CYCLES * rec.TICKS
SPECIAL_UNITS = (rec.SFU, rec.DOUBLE, rec.TENSOR)
# What `State.kind` says of a slot: its next item's special unit, the pools it works; of the warp, is it at a barrier
UNIT_BITS = 7
POOL_BITS = (1 << 3, 1 << 4)
WAITING = 1 << 5


def kind_of(item: Item) -> Array:
    """What an item needs, as `State.kind` holds it."""
    pools = jnp.where(item.sp > 0, POOL_BITS[0], 0) | jnp.where(item.int > 0, POOL_BITS[1], 0)
    return item.unit | pools


def group_of(scheduler: Array, layout: rec.Layout) -> Array | int:
    """Which units a scheduler has."""
    return scheduler if layout.sub_cores else 0


def earliest(state: State, machine: Machine, layout: rec.Layout) -> Array:
    """When each slot could issue, as the units stand, [scheduler, row, lane]."""
    found, kind = state.ready, state.kind
    unit = kind & UNIT_BITS
    found = jnp.where(unit == rec.MEMORY, jnp.maximum(found, state.memory_starts[-1][:, None]), found)
    if layout.holding:
        held = (state.memory_starts[layout.holding - 1] - TO_UNIT)[:, None]
        found = jnp.where(unit == rec.MEMORY, found, jnp.maximum(found, held))
    for n, own in enumerate(SPECIAL_UNITS):
        if layout.specials[n]:
            free = (state.special_free[n] - machine.numbers.special_slack)[:, None]
            found = jnp.where(unit == own, jnp.maximum(found, free), found)
    for n, bit in enumerate(POOL_BITS):
        if layout.pools[n]:
            free = (state.pool_free[n] - machine.numbers.pool_slack - TO_UNIT)[:, None]
            found = jnp.where((kind & bit) > 0, jnp.maximum(found, free), found)
    return jnp.where((kind & WAITING) > 0, rec.NEVER, found)


def pick(can: Array, now: Array, last: Array, layout: rec.Layout) -> Array:
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


def step(state: State, machine: Machine, words: Words, layout: rec.Layout) -> State:
    """Each scheduler that is due issues one item; blocks that are done leave, and others come."""
    can = earliest(state, machine, layout)
    first = jnp.maximum(state.clock, jnp.min(can, 1))
    due = (first < jnp.min(first, 0) + WINDOW) & (first < rec.NEVER)
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
    state: State, machine: Machine, words: Words, layout: rec.Layout, scheduler: Array, row: Array, start: Array
) -> tuple[State, Array, Array]:
    """Scheduler issues the next item of slot `row` at `start`; `rows`: it issues nothing. Also returns the block whose
    barrier opens, or -1, and when."""
    go = row < layout.rows
    lanes = len(row)
    slot = (scheduler * layout.rows + jnp.minimum(row, layout.rows - 1)) * lanes + jnp.arange(lanes, dtype=jnp.int32)
    old = row_of(lax.optimization_barrier(state.rows[slot]))
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
        ready=state.ready.at[scheduler].set(
            jnp.where(here, jnp.where(leaves, rec.NEVER, ready), state.ready[scheduler])
        ),
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
    layout: rec.Layout,
    scheduler: Array,
    go: Array,
    start: Array,
    item: Item,
    old: Row,
) -> Issued:
    """An item's instructions on their units."""
    group = group_of(scheduler, layout)
    result = jnp.zeros_like(start)
    arrive = start + item.unit_offset + TO_UNIT
    on_memory = go & (item.unit == rec.MEMORY)
    begins = jnp.maximum(arrive, state.memory_free)
    position = old.access.astype(jnp.int32)
    way = through_memory(state, machine, words, begins, item, position, layout)
    result = jnp.where(item.unit == rec.MEMORY, way.result, result)
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
            jnp.maximum(state.fetch_free, start + item.front - TO_ISSUE) + fetches * machine.numbers.fetch,
            state.fetch_free,
        ),
    )
    special_free, result = use_special_units(state.special_free, layout, group, go, arrive, item, result)
    pool_free, delay = use_pools(state.pool_free, layout, group, go, start + TO_UNIT, item)
    return Issued(changed._replace(special_free=special_free, pool_free=pool_free), result, delay)


def use_special_units(
    special_free: Array, layout: rec.Layout, group: Array | int, go: Array, arrive: Array, item: Item, result: Array
) -> tuple[Array, Array]:
    """An item's instruction on a special unit: when that is free again, and when the result is there."""
    for n, unit in enumerate(SPECIAL_UNITS):
        if layout.specials[n]:
            free, uses = special_free[n, group], item.unit == unit
            begins = jnp.maximum(arrive, free)
            result = jnp.where(uses, begins + item.latency, result)
            special_free = special_free.at[n, group].set(jnp.where(go & uses, begins + item.occupies, free))
    return special_free, result


def use_pools(
    pool_free: Array, layout: rec.Layout, group: Array | int, go: Array, arrives: Array, item: Item
) -> tuple[Array, Array]:
    """An item's instructions on the pools: when those are free again, and by how much they begin late."""
    delay = jnp.zeros_like(arrives)
    for n, work in enumerate((item.sp, item.int)):
        if layout.pools[n]:
            free = pool_free[n, group]
            begins = jnp.maximum(arrives, free)
            delay = jnp.where(work > 0, jnp.maximum(delay, begins - arrives), delay)
            pool_free = pool_free.at[n, group].set(jnp.where(go & (work > 0), begins + work, free))
    return pool_free, delay


def remember(times: Array, first: Array, room: int, count: Array, result: Array, here: Array) -> Array:
    """`times` with one more result of a slot whose own begin at `first`, where `here`."""
    place = first + count.astype(jnp.int32) % room
    newest = lax.optimization_barrier(jnp.where(here, result, times[place]))
    return times.at[place].set(newest, unique_indices=True, mode="promise_in_bounds")


def waited(ready: Array, times: Array, first: Array, room: int, count: Array, mask: Array) -> Array:
    """`ready`, not before the results of `mask` are there."""
    values = times.reshape(-1, room)[first // room]
    back = (count.astype(jnp.int32)[:, None] - 1 - jnp.arange(room, dtype=jnp.int32)) % room
    return jnp.maximum(ready, jnp.max(jnp.where((mask[:, None] >> back) & 1, values, 0), 1))


def next_ready(
    went: Issued, machine: Machine, go: Array, slot: Array, start: Array, item: Item, old: Row
) -> tuple[State, Row, Array]:
    """The warp after an issue: what it remembers, and when its next item is ready."""
    first, first_near = slot * rec.LOADS, slot * rec.RESULTS
    loads = remember(went.state.loads, first, rec.LOADS, old.far, went.result, go & (item.far > 0))
    results = remember(went.state.results, first_near, rec.RESULTS, old.near, went.result, go & (item.near > 0))
    new = old._replace(
        position=old.position + 1, access=old.access + (item.unit == rec.MEMORY), far=old.far + item.far,
        near=old.near + item.near,
    )  # fmt: skip
    fetched = went.state.fetch_free - item.fetches * machine.numbers.fetch + TO_ISSUE
    ready = jnp.maximum(start + item.front, jnp.where(item.fetches > 0, fetched, 0))
    ready = jnp.maximum(ready, jnp.where(item.next > 0, start + item.next + went.delay, 0))
    ready = waited(jnp.maximum(ready, old.floor), loads, first, rec.LOADS, new.far, item.wait_far)
    ready = waited(ready, results, first_near, rec.RESULTS, new.near, item.wait_near)
    floor = jnp.where(item.after_next > 0, start + item.after_next + went.delay, 0)
    drain = jnp.maximum(old.drain, jnp.maximum(went.result, jnp.where(item.drain > 0, start + item.drain, 0)))
    drain = jnp.where(
        item.exit > 0, jnp.maximum(drain, start + item.cycles - rec.TICKS + machine.numbers.retire), drain
    )
    return went.state._replace(loads=loads, results=results), new._replace(floor=floor, drain=drain), ready


def meet(
    state: State, machine: Machine, layout: rec.Layout, go: Array, block: Array, item: Item, time: Array, drain: Array
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
        drained=jnp.where(ends, drained + machine.numbers.block_launch, drained),
        end=jnp.maximum(state.end, jnp.max(jnp.where(ends, drained, -rec.TICKS), 0)),
    )
    return state, jnp.where(jnp.any(opens, 0), block, -1), time


def release(state: State, opened: Array, times: Array, layout: rec.Layout) -> State:
    """Warps go on behind barriers that have opened: `opened` [scheduler, lane] blocks at `times`."""
    slot = jnp.arange(layout.rows, dtype=jnp.int32)[None, :] * layout.schedulers
    block = ((slot + jnp.arange(layout.schedulers, dtype=jnp.int32)[:, None]) // layout.warps)[..., None]
    ready, kind = state.ready, state.kind
    for s in range(layout.schedulers):
        here = (block == opened[s]) & ((state.kind & WAITING) > 0)
        ready = jnp.where(here, jnp.maximum(ready, times[s]), ready)
        kind = jnp.where(here, kind & ~WAITING, kind)
    return state._replace(ready=ready, kind=kind)


def refill_if_room(state: State, machine: Machine, words: Words, layout: rec.Layout) -> State:
    """`refill`, where a lane has a free slot and a thread block for it."""
    number = jnp.arange(layout.blocks, dtype=jnp.int32)[:, None]
    room = (state.running == 0) & (number < machine.residents) & (state.next_block < state.stop_block)

    return lax.cond(jnp.any(room), partial(refill, layout=layout), lambda state, *_: state, state, machine, words)


def refill(state: State, machine: Machine, words: Words, layout: rec.Layout) -> State:
    """Free slots take the lane's next thread blocks, one after the other."""
    number = jnp.arange(layout.blocks, dtype=jnp.int32)[:, None]
    free = (state.running == 0) & (number < machine.residents)
    rank = jnp.cumsum(free, 0, dtype=jnp.int32) - free
    place = state.next_block + rank
    takes = free & (place < state.stop_block)
    behind = machine.numbers.dispatch * rank  # each so long after the one before, at the earliest
    soonest = jnp.maximum(state.drained + rec.TICKS - behind, state.dispatched + machine.numbers.dispatch)
    time = lax.cummax(jnp.where(takes, soonest, -rec.NEVER), 0) + behind
    block = words.dealt[jnp.where(takes, place, 0)]
    warp = machine.warp_base + block[:, None] * layout.warps + jnp.arange(layout.warps, dtype=jnp.int32)[:, None]
    here, warps = to_slots(takes, layout), to_slots(warp, layout)
    position, late = words.starts[warps], words.late_starts[warps]
    item = read_item(words.items, position)
    ready = to_slots(time + machine.numbers.first_issue, layout)
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
        drained=jnp.where(takes, -rec.TICKS, state.drained),
        next_block=state.next_block + jnp.sum(takes, 0, dtype=jnp.int32),
        dispatched=jnp.maximum(state.dispatched, jnp.max(jnp.where(takes, time, -rec.TICKS), 0)),
    )


def to_slots(values: AnyArray, layout: rec.Layout) -> Array:
    """[block, lane] or [block, warp, lane] as [scheduler, row, lane]; zero where a slot belongs to no block."""
    lanes = values.shape[-1]
    wide = jnp.asarray(values if values.ndim == 3 else values[:, None])
    flat = jnp.broadcast_to(wide, (layout.blocks, layout.warps, lanes)).reshape(layout.blocks * layout.warps, lanes)
    flat = jnp.pad(flat, ((0, layout.rows * layout.schedulers - len(flat)), (0, 0)))
    return flat.reshape(layout.rows, layout.schedulers, lanes).swapaxes(0, 1)


LANE_BUCKET = 8  # lanes are padded to a power of two times this
MOST_ITEMS = (1 << 31) - 1  # positions are 32 bits wide


def run_arrays(parts: Sequence[rec.Lanes]) -> list[rec.Outcome]:
    """Run every lane of every part, those of one layout together. Raises InputError for what arrays cannot hold."""
    found: list[rec.Outcome] = [rec.outcome_of(np.zeros(0, np.int64), np.zeros(0, np.int64))] * len(parts)
    for layout in dict.fromkeys(part.layout for part in parts):
        numbers = [k for k, part in enumerate(parts) if part.layout == layout]
        end, issued, _ = _run_layout(layout, [parts[k] for k in numbers])
        stops = np.cumsum([len(parts[k].first) for k in numbers])[:-1]
        for k, *own in zip(numbers, np.split(end, stops), np.split(issued, stops), strict=True):
            found[k] = rec.outcome_of(*own)
    return found


def _run_layout(layout: rec.Layout, parts: Sequence[rec.Lanes]) -> rec.Outcome:
    words, machine, first, stop = joined(parts)
    count = len(first)
    padded = LANE_BUCKET
    while padded < count:
        padded *= 2
    rows = np.minimum(np.arange(padded), count - 1)
    ends = np.where(np.arange(padded) < count, stop[rows], first[rows]).astype(np.int32)  # idle lanes have no blocks
    numbers = jax.tree.map(lambda column: jnp.asarray(column[rows]), machine)
    with kept_programs():
        state = run_words(numbers, _bucketed(words), first[rows], ends, _arrivals(parts), layout)
    if int(latest(state)) >= rec.LIMIT_TICKS:
        raise InputError(
            f"the arrays of the occupancy model count up to {rec.LIMIT_TICKS // rec.TICKS:,} cycles a launch, and this "
            "one takes longer; use --model detailed"
        )
    return rec.outcome_of(
        np.asarray(state.end)[:count].astype(np.int64), np.asarray(state.issued)[:count].astype(np.int64)
    )


@partial(jax.jit, static_argnames=("layout",))
def run_words(machine: Machine, words: Words, first: Array, stop: Array, arrivals: Array, layout: rec.Layout) -> State:
    """All lanes to their ends; times in the type of the machine's numbers."""
    state = new_state(layout, first, stop, arrivals)
    state = refill(state, machine, words, layout)

    def goes_on(state: State) -> Array:
        return lanes_left(state) & (latest(state) < rec.LIMIT_TICKS)

    return lax.while_loop(goes_on, lambda s: step(s, machine, words, layout), state)


def lanes_left(state: State) -> Array:
    """Has any lane work left?"""
    return jnp.any(state.running > 0) | jnp.any(state.next_block < state.stop_block)


def latest(state: State) -> Array:
    """The latest time a scheduler or a server has come to: stores run ahead of the clocks."""
    lanes = (
        state.clock.max(0), state.special_free.max((0, 1)), state.pool_free.max((0, 1)), state.memory_free,
        state.fetch_free, state.l2_free, state.dram_free, state.port_free, state.reply_free,
    )  # fmt: skip
    return jnp.max(jnp.stack(lanes))


def _room(count: int) -> int:
    return 1 << max(6, (count - 1).bit_length())


def _arrivals(parts: Sequence[rec.Lanes]) -> Int32[np.ndarray, " point_fill"]:
    """Nothing is asked for yet."""
    return np.full(_room(sum(len(part.streams.fill_words) for part in parts)), rec.NEVER, np.int32)


def _bucketed(words: Words) -> Words:
    """Padded to powers of two, so that compiled programs serve many launches."""

    def padded(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.zeros((_room(len(values)) - len(values), *values.shape[1:]), values.dtype)])

    return Words(*(padded(np.asarray(column)) for column in words))


class _Pile:
    """Arrays one behind the other, each there once."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._starts: dict[int, int] = {}
        self._length = 0

    def start_of(self, array: np.ndarray) -> int:
        """Where an array begins, which is put there if it is not yet."""
        if id(array) not in self._starts:
            self._starts[id(array)] = self._length
            self.arrays.append(array)
            self._length += len(array)
        return self._starts[id(array)]


def joined(
    parts: Sequence[rec.Lanes],
) -> tuple[Words, Machine, Int32[np.ndarray, " lane"], Int32[np.ndarray, " lane"]]:
    """Words and numbers of all lanes, and where each one's thread blocks begin and end. Parts may share streams."""
    items, terms, accesses, fills, lates, late_fills, fill_words, dealt = (_Pile() for _ in range(8))
    warps: list[tuple[np.ndarray, ...]] = []
    bases, first, stop, base = [], [], [], np.zeros(3, np.int64)  # of warps, words of fills, fills
    for part in parts:
        own = part.streams
        late = lates.start_of(own.late_begins)
        late_fills.start_of(own.late_fills)
        terms.start_of(own.terms)
        fills.start_of(own.fills)
        base[1] = fill_words.start_of(own.fill_words)
        warps.append(
            (own.starts + items.start_of(own.lane_items), own.access_starts + accesses.start_of(own.accesses),
             own.late_starts + late)
        )  # fmt: skip
        blocks = dealt.start_of(own.dealt)
        first.append(part.first + blocks)
        stop.append(part.stop + blocks)
        bases.append(np.repeat(base[None], len(part.first), 0))
        base += [len(own.starts), 0, len(own.fill_words)]
    piles = [np.concatenate(pile.arrays) for pile in (accesses, fills, lates, late_fills, fill_words, dealt)]
    if max(map(len, (*piles, *items.arrays))) > MOST_ITEMS or base.max() > MOST_ITEMS:
        raise InputError(f"more than the {MOST_ITEMS:,} items, accesses or warps at once that arrays hold")
    starts = [np.concatenate(column).astype(np.int32) for column in zip(*warps, strict=True)]
    rows = words_of_items(np.concatenate(items.arrays), np.concatenate(terms.arrays))
    words = Words(rows, starts[0], piles[0], piles[1], starts[1], starts[2], piles[2], piles[3], piles[4], piles[5])
    return words, _machine(parts, bases), _int32(first), _int32(stop)


def _int32(arrays: Sequence[np.ndarray]) -> Int32[np.ndarray, " lane"]:
    return np.concatenate(arrays).astype(np.int32)


def _machine(parts: Sequence[rec.Lanes], bases: Sequence[np.ndarray]) -> Machine:
    counts = [len(part.first) for part in parts]
    numbers = np.concatenate([part.machine for part in parts]).astype(np.int32)
    residents = np.repeat([part.residents for part in parts], counts).astype(np.int32)
    warps, fill_words, fills = _int32(bases).T
    return Machine(rec.Numbers(*numbers.T), residents, warps, fill_words, fills)
