"""Lanes as arrays: one JAX program over all of them, on whatever JAX computes on (docs/occupancy-vector.md, "A step").

Every array's last axis but that of `warps` is the lanes; times are in ticks, 64 to a cycle, whole numbers. It stands
beside the compiled lanes because an accelerator has no use for one lane after the other: here each issues an item a
step, and what a lane does not do in it is selected away. Arrays that a step gathers from and scatters into are read
behind an `optimization_barrier`: XLA would else read them again after the change, and so copy them."""

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, reduce
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.kept_programs import kept_programs
from functional.arrays import Bool, Int32
from functional.errors import InputError

AnyArray = Array | np.ndarray  # on the host or not
Ints = Any  # Int32[Array, " lane"], of numbers or of times in ticks; written out where an axis is another one


class Machine(NamedTuple):
    """Of the design point that a lane belongs to."""

    numbers: rec.Numbers  # [lane] each
    residents: Int32[AnyArray, " lane"]  # thread blocks at once
    first: Int32[AnyArray, " lane"]  # positions in Streams.dealt of its thread blocks
    stop: Int32[AnyArray, " lane"]
    fill_base: Int32[AnyArray, " lane"]  # of its design point's fills in State.arrivals


class Fixed(NamedTuple):
    """What a step reads, and does not change."""

    layout: rec.Layout
    machine: Machine
    words: rec.Streams  # of all design points, on the host or not; items as words: LANE_ITEM and TERMS


class Warp(NamedTuple):
    """What a slot holds beside what the pick looks at."""

    position: Ints  # of the next item
    access: Ints  # of the next access
    late: Ints  # of the next late instruction line
    floor: Ints  # of the item after the next
    drain: Ints


class State(NamedTuple):
    """Of all lanes."""

    due: Int32[Array, " slot_lane"]  # when its warp can issue; WAITS more at a barrier; GONE: there is none
    needs: Int32[Array, " slot_lane"]  # LANE_ITEM.needs of its next item
    warps: Int32[Array, "slot_lane field"]  # a Warp each
    far: Int32[Array, "slot_lane result"]  # its results, the latest first
    near: Int32[Array, "slot_lane result"]
    picked: Int32[Array, "scheduler lane"]  # rows that are still to issue in this cycle; `rows`: none
    begins: Int32[Array, "scheduler lane"]  # when they do
    last: Int32[Array, "scheduler lane"]  # row issued last
    ages: Int32[Array, " slot_lane"]  # row + rows x number of its thread block, from 1 on: lower is older
    clock: Int32[Array, "scheduler lane"]
    running: Int32[Array, "block lane"]  # warps of a block that are not gone; 0: the slot is free
    waiting: Int32[Array, "block lane"]  # of them, those at the barrier
    drained: Int32[Array, "block lane"]  # when the warps that are gone were
    memory_starts: Int32[Array, "place group lane"]  # of the last memory instructions of a group of schedulers
    unit_free: Int32[Array, "unit group lane"]  # of the SPECIALS, then of the pools
    servers: rec.Servers  # [lane] each
    recent: Int32[Array, " place_lane"]  # when the latest loads that asked have what they asked for, a ring
    asks: Ints  # loads that asked
    turn: Ints  # position in Streams.turns
    arrivals: Int32[Array, " point_fill"]  # of what the accesses of a fill wait for; NEVER: not asked for
    next_block: Ints  # position in Streams.dealt
    room: Ints  # slots of blocks that are free
    latest: Ints  # time there is
    issued: Ints  # items


WAITS, GONE = rec.NEVER, (1 << 31) - 1
TO_UNIT = rec.TO_UNIT_CYCLES * rec.TICKS
ENTER_SHARE = 16  # thread blocks come where so large a part of the lanes that are not done can take one
WRITTEN_OUT = 4  # rows of slots that a loop goes through at once
NONE = 1 << 20  # of a scheduler's rows: it issues nothing


class Sizes(NamedTuple):
    """Of arrays, beside the layout."""

    fills: int  # of all design points
    far: int = rec.LOADS  # results a warp remembers
    near: int = rec.RESULTS


def new_state(layout: rec.Layout, machine: Machine, sizes: Sizes, turn: Ints) -> State:
    """All slots free, all thread blocks still to come; `turn`: where those of each lane begin."""
    lanes = len(machine.residents)
    slots, specials = (layout.rows(layout.blocks), layout.schedulers), rec.SPECIALS + rec.POOL_COUNT

    def all_of(value: int, *shape: int) -> Array:
        return jnp.full((*shape, lanes), value, jnp.int32)

    def empty(width: int) -> Array:
        return jnp.zeros((lanes * slots[0] * slots[1], width), jnp.int32)

    never = all_of(-rec.TICKS)
    zeros = rec.Servers(*(all_of(0) for _ in rec.Servers._fields))
    return State(
        due=empty(1)[:, 0] + GONE, needs=empty(1)[:, 0], ages=empty(1)[:, 0],
        warps=empty(len(Warp._fields)), far=empty(sizes.far), near=empty(sizes.near),
        picked=all_of(NONE, slots[1]), begins=all_of(0, slots[1]), last=all_of(0, slots[1]),
        clock=all_of(0, slots[1]), running=all_of(0, layout.blocks), waiting=all_of(0, layout.blocks),
        drained=all_of(-rec.TICKS, layout.blocks),
        memory_starts=all_of(-rec.TICKS, layout.memory_queue, layout.groups),
        unit_free=all_of(0, specials, layout.groups), servers=zeros._replace(dispatched=never, end=never),
        recent=all_of(0, rec.RECENT).reshape(-1), asks=all_of(0), turn=turn,
        arrivals=jnp.full(sizes.fills, rec.NEVER, jnp.int32), next_block=jnp.asarray(machine.first),
        room=jnp.asarray(machine.residents), latest=all_of(0), issued=all_of(0),
    )  # fmt: skip


_IN_CYCLES = frozenset({"cycles", "front", "unit_offset", "occupies", "fetch_by"})
ITEM_WORDS = rec.LANE_ITEM.itemsize // 4
_PLACES: Mapping[str, Any] = rec.LANE_ITEM.fields or {}  # type and byte of each field
NEXT = ("begins", "needs")  # what an item's words have of the next one's

# Items and accesses as a step reads them; times and work in ticks. Of an item LANE_ITEM, of TERMS whether there is one;
# TERMS; NEXT
Item = namedtuple(
    "Item",
    "begins line wait_far wait_near needs cycles front unit unit_offset fetches fetch_by access far near has_next "
    "has_after_next has_drain barrier exit next after_next drain latency occupies sp int next_begins next_needs",
)
Access = namedtuple("Access", "occupies level sectors dram_sectors part")


def taken(values: AnyArray, places: Ints) -> Array:
    """Elements, or rows, of an array; outside of it the nearest, which lanes that do nothing may ask for."""
    return jnp.asarray(values).at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)


def put(values: Array, place: Array, new: Array) -> Array:
    """`values` with other elements, or rows, at places of which each is there once; what is outside is left out."""
    return values.at[place].set(new, unique_indices=True, mode="drop", wrap_negative_indices=False)


def _field(word: Array, name: str, shift: int, bits: int) -> Array:
    value = lax.shift_right_logical(word, jnp.int32(shift)) & jnp.int32((1 << min(31, bits)) - 1)
    return value * (rec.TICKS if name in _IN_CYCLES else 1)


def read(fields: tuple[tuple[str, int], ...], words: AnyArray, places: Ints) -> Iterator[Array]:
    """What words of such fields say."""
    word, shifts = taken(words, places), accumulate((bits for _, bits in fields), initial=0)
    return (_field(word, name, shift, bits) for (name, bits), shift in zip(fields, shifts, strict=False))


def lane_items(rows: Int32[Array, "*n word"], names: Iterable[str]) -> Iterator[Int32[Array, "*n"]]:
    """Fields of LANE_ITEMs."""
    for name in names:
        kind, place, *_ = _PLACES[name]
        yield _field(rows[..., place // 4], name, 8 * (place % 4), 8 * kind.itemsize)


def with_next(items: Int32[Array, "item word"]) -> Int32[Array, "item word"]:
    """LANE_ITEMs and TERMS, and what each has of the next item."""
    return jnp.concatenate([items, jnp.stack(list(lane_items(jnp.roll(items, -1, 0), NEXT)), 1)], 1)


def read_item(words: AnyArray, position: Ints) -> Item:
    """Items as their words have them."""
    rows = taken(words, position)
    return Item(*lane_items(rows, _PLACES), *(rows[..., k] for k in range(ITEM_WORDS, rows.shape[1])))


class Turn(NamedTuple):
    """Which item each lane issues in a step."""

    go: Bool[Array, " lane"]  # does it?
    scheduler: Bool[Array, "scheduler lane"]  # is it this one's turn?
    group: Bool[Array, "group lane"]
    slot: Ints
    start: Ints  # when


def of(mine: Bool[Array, "n lane"], values: Int32[Array, "*k n lane"]) -> Int32[Array, "*k lane"]:
    """Of each lane the value that is its own."""
    return jnp.max(jnp.where(mine, values, -rec.NEVER), -2)


def bounds(fixed: Fixed, state: State) -> dict[int, Int32[Array, "group lane"]]:
    """By bit of LANE_ITEM.needs: the first tick at which what needs it can issue."""
    layout, starts, numbers = fixed.layout, state.memory_starts, fixed.machine.numbers
    found = {rec.NEEDS_MEMORY: starts[-1]}
    if layout.holding:
        found[rec.NEEDS_COLLECTOR] = starts[layout.holding - 1] - TO_UNIT
    for n, used in enumerate((*layout.specials, *layout.pools)):
        special = n < rec.SPECIALS
        slack = numbers.special_slack if special else numbers.pool_slack + TO_UNIT
        if used:
            found[(rec.NEEDS_SPECIAL if special else rec.NEEDS_POOL - rec.SPECIALS) + n] = state.unit_free[n] - slack
    return found


def earliest(fixed: Fixed, state: State) -> tuple[Int32[Array, "scheduler lane"], Int32[Array, "scheduler lane"]]:
    """(when each scheduler can issue next, the row whose turn it is then)."""
    limits, rows = bounds(fixed, state).items(), len(state.due) // state.clock.size
    shape = (-1, WRITTEN_OUT, *state.clock.shape)
    due, needs, ages = (values.reshape(shape) for values in (state.due, state.needs, state.ages))

    def least(key: Callable[[Array, Array, int], Array]) -> Array:
        def with_rows(k: Array, found: Array) -> Array:
            for n in range(WRITTEN_OUT):  # written out: XLA takes the lanes of an array side by side, not its rows
                can = jnp.maximum(due[k, n], state.clock)
                for bit, bound in limits:
                    can = jnp.where(needs[k, n] & (1 << bit), jnp.maximum(can, bound), can)
                found = jnp.minimum(found, key(can, k, n))
            return found

        return lax.fori_loop(0, len(due), with_rows, jnp.full_like(state.clock, GONE))

    def turn(can: Array, k: Array, n: int) -> Array:
        row = k * WRITTEN_OUT + n
        place = ages[k, n] if fixed.layout.priority else jnp.where(row > state.last, row, row + rows)
        return jnp.where(can == begins, place, GONE)

    begins = least(lambda can, k, n: can)
    return begins, least(turn) % rows


def next_turn(fixed: Fixed, state: State) -> tuple[State, Turn]:
    """The first scheduler of each lane that is still to issue what it picked; where none is, those pick that are due in
    the same cycle."""
    begins, found = earliest(fixed, state)
    now = (begins < jnp.min(begins, 0) + rec.TICKS) & (begins < WAITS) & ~enters(fixed, state)
    left = jnp.any(state.picked < NONE, 0)
    picked = jnp.where(left, state.picked, jnp.where(now, found, NONE))
    begins = jnp.where(left, state.begins, begins)
    layout = fixed.layout
    number = jnp.arange(layout.schedulers, dtype=jnp.int32)[:, None]
    first = jnp.min(jnp.where(picked < NONE, number, layout.schedulers), 0)
    go, mine = first < layout.schedulers, number == first
    row, start = (jnp.where(go, of(mine, values), 0) for values in (picked, begins))
    group = mine if layout.sub_cores else jnp.ones((1, len(go)), bool)
    last, picked = jnp.where(mine, row, state.last), jnp.where(mine, NONE, picked)
    state = state._replace(picked=picked, begins=begins, last=last, issued=state.issued + go)
    return state, Turn(go, mine, group, row * layout.schedulers + jnp.where(go, first, 0), start)


def beyond_l1d(fixed: Fixed, state: State, kind: Ints, access: Access, here: Ints) -> tuple[Ints, rec.Servers]:
    """(when an access is answered that the first level has at `here`, the servers): sectors asked of L2 and DRAM, each
    a server of which the SM has a share."""
    servers, m = state.servers, fixed.machine.numbers
    asks, store, atomic = access.sectors > 0, kind == rec.STORE, kind == rec.ATOMIC
    leaves = jnp.maximum(servers.port_free, here + rec.TICKS)
    port = leaves + access.sectors * jnp.where(store | atomic, m.store_sector, m.load_sector)
    cost = jnp.where(atomic, m.l2_atomic, m.l2_sector)
    l2 = jnp.maximum(servers.l2_free, leaves + m.request) + access.sectors * cost
    l2 = jnp.maximum(l2, port + m.request)
    dram = jnp.maximum(servers.dram_free, l2) + access.dram_sectors * m.dram_sector
    length = access.sectors * jnp.where(store, m.store_reply, m.reply_sector)
    reply = jnp.maximum(servers.reply_free, l2 - length) + length
    read_by = jnp.where((access.dram_sectors > 0) & ~store, dram, l2)
    beyond = jnp.where(access.level == rec.DRAM, portion(m.dram_latency, access.part), 0)
    late = jnp.where(store | (kind == rec.LOAD), taken(fixed.words.turns, state.turn), 0)
    answer = jnp.maximum(reply, read_by) + beyond + m.l2_reply + late * jnp.maximum(m.load_sector, m.l2_sector)
    return jnp.where(asks, answer, here), servers._replace(
        l2_free=jnp.where(asks, l2, servers.l2_free),
        dram_free=jnp.where(asks & (access.dram_sectors > 0), dram, servers.dram_free),
        port_free=jnp.where(asks, port, servers.port_free),
        reply_free=jnp.where(asks, reply, servers.reply_free),
    )


def portion(time: Ints, part: Ints) -> Ints:
    """`part` + 1 of PARTS of a stretch of time, in whole ticks."""
    return time * (part + 1) // rec.PARTS


def answered(
    fixed: Fixed, state: State, go: Bool[Array, " lane"], kind: Ints, position: Ints, here: Ints
) -> tuple[Ints, State]:
    """(when an access at `position` is answered that the first level has at `here`, the state), where `go`. The first
    of a fill asks for what all of it wait for, once the tags take it."""
    machine, words, m = fixed.machine, fixed.words, fixed.machine.numbers
    signed = taken(words.fills, position)
    fill = jnp.abs(signed)
    place = machine.fill_base + fill
    behind, trips = taken(words.fill_behind, fill), taken(words.fill_trips, fill)
    lanes = jnp.arange(len(here), dtype=jnp.int32)
    back, ring = ((state.asks - n) % rec.RECENT * len(here) + lanes for n in (behind, 0))
    arrival, other = lax.optimization_barrier((taken(state.arrivals, place), taken(state.recent, back)))
    own = read(rec.ACCESS_WORD, words.accesses, position)
    first = read(rec.ACCESS_WORD, words.fill_words, fill)
    asked = Access(*(jnp.where(fill > 0, theirs, ours) for theirs, ours in zip(first, own, strict=True)))
    waits = (fill > 0) & (arrival < rec.NEVER)
    other = other - portion(m.dram_latency, (behind >> rec.BACK_BITS) - 1)
    last = jnp.where(is_behind := (fill > 0) & (behind > 0), jnp.maximum(here, other), here)
    answer, servers = beyond_l1d(fixed, state, kind, asked, here)
    trip = m.request + m.l2_reply + rec.TICKS + jnp.where(asked.level == rec.DRAM, m.dram_latency, 0)
    more = jnp.where(fill > 0, trips * trip, 0)
    goes = go & ~waits & (asked.sectors > 0)
    loads = goes & (kind == rec.LOAD)
    recent = put(state.recent, jnp.where(loads, ring, len(state.recent)), answer)
    answer = jnp.where(is_behind, jnp.maximum(answer, last + trip), answer) + more
    held = jnp.where(waits, jnp.where(signed < 0, jnp.maximum(arrival - here, 0), 0), last - here + more)
    asks = go & (fill > 0) & ~waits
    kept = rec.Servers(*(jnp.where(go & ~waits, new, old) for new, old in zip(servers, state.servers, strict=True)))
    kept = kept._replace(memory_free=state.servers.memory_free + jnp.where(go, held, 0))
    arrivals = put(state.arrivals, jnp.where(asks, place, len(state.arrivals)), answer)
    state = state._replace(servers=kept, arrivals=arrivals, recent=recent, asks=state.asks + loads)
    state = state._replace(turn=state.turn + (goes & ((kind == rec.LOAD) | (kind == rec.STORE))))
    return jnp.where(waits, jnp.maximum(here, arrival), answer), state


def with_code(
    fixed: Fixed, state: State, go: Bool[Array, " lane"], late: Ints, begins: Ints | int, fetched: Ints
) -> tuple[Ints, Ints, State]:
    """(is it late, when it is there, the state) of a warp's `late`-th instruction line, for the item that begins at its
    instruction `begins` and is fetched by `fetched`, where `go`. The first that waits for a line asks for it; those who
    wait fetch it one after the other."""
    words, cost = fixed.words, fixed.machine.numbers.fetch
    is_late, fill = go & (taken(words.late_begins, late) <= begins), taken(words.late_fills, late)
    place = fixed.machine.fill_base + fill
    arrival = lax.optimization_barrier(taken(state.arrivals, place))
    asks = is_late & (arrival == rec.NEVER)
    line = Access(*read(rec.ACCESS_WORD, words.fill_words, fill))
    answer, servers = beyond_l1d(fixed, state, jnp.full_like(fetched, rec.CONSTANT), line, fetched)
    servers = rec.Servers(*(jnp.where(asks, new, old) for new, old in zip(servers, state.servers, strict=True)))
    there = jnp.where(asks, answer, arrival)
    waits = is_late & (fetched < there)
    arrivals = put(
        state.arrivals, jnp.where(is_late, place, len(state.arrivals)), jnp.where(waits, there + cost, there)
    )  # fmt: skip
    servers = servers._replace(
        line_there=jnp.where(asks, answer, servers.line_there),
        line_served=jnp.where(waits, there + cost, servers.line_served),
    )
    fetched = jnp.where(is_late, jnp.maximum(fetched, there), fetched)
    return is_late, fetched, state._replace(servers=servers, arrivals=arrivals)


def use_memory(fixed: Fixed, state: State, turn: Turn, item: Item, warp: Warp, arrive: Ints) -> tuple[Ints, State]:
    """(the result of an instruction that comes to the load/store unit at `arrive`, the state)."""
    go, before = turn.go & (item.unit == rec.MEMORY), state.servers.memory_free
    held = next(read(rec.ACCESS_WORD, fixed.words.accesses, warp.access))
    begin = jnp.maximum(arrive, before)
    here = begin + item.latency + held - rec.TICKS
    starts = jnp.concatenate([jnp.broadcast_to(begin, (1, *turn.group.shape)), state.memory_starts[:-1]])
    state = state._replace(
        memory_starts=jnp.where(go & turn.group, starts, state.memory_starts),
        servers=state.servers._replace(memory_free=jnp.where(go, begin + held, before)),
    )
    perfect = fixed.layout.perfect_memory
    return (here, state) if perfect else answered(fixed, state, go, item.access, warp.access, here)


def use_units(
    layout: rec.Layout, free: Int32[Array, "unit lane"], item: Item, start: Ints
) -> tuple[Ints, Ints, Int32[Array, "unit lane"]]:
    """(the result of an item's instruction on a special unit, how late its work for pools begins, when they are free
    again)."""
    result, delay, after = jnp.zeros_like(start), jnp.zeros_like(start), list(free)
    for n, used in enumerate(layout.specials):
        if used:
            uses, begin = item.unit == rec.SFU + n, jnp.maximum(start + item.unit_offset + TO_UNIT, free[n])
            result = jnp.where(uses, begin + item.latency, result)
            after[n] = jnp.where(uses, begin + item.occupies, free[n])
    for n, (used, work) in enumerate(zip(layout.pools, (item.sp, item.int), strict=True), rec.SPECIALS):
        if used:
            begin = jnp.maximum(start + TO_UNIT, free[n])
            delay = jnp.where(work > 0, jnp.maximum(delay, begin - start - TO_UNIT), delay)
            after[n] = jnp.where(work > 0, begin + work, free[n])
    return result, delay, jnp.stack(after)


def remembered(results: Int32[Array, "lane result"], counts: Ints, result: Ints) -> Int32[Array, "lane result"]:
    """The latest results with one more, where it `counts`."""
    return jnp.where(counts[:, None], jnp.concatenate([result[:, None], results[:, :-1]], 1), results)


def waited(results: Int32[Array, "lane result"], mask: Ints) -> Ints:
    """When the results of `mask` are there."""
    bits = (mask[:, None] >> jnp.arange(results.shape[1], dtype=jnp.int32)) & 1
    return jnp.max(jnp.where(bits, results, 0), 1)


def after(fixed: Fixed, item: Item, warp: Warp, start: Ints, result: Ints, delay: Ints) -> Warp:
    """A warp after an issue."""
    drain = jnp.maximum(jnp.maximum(warp.drain, result), jnp.where(item.has_drain, start + item.drain, 0))
    gone = jnp.maximum(drain, start + item.cycles - rec.TICKS + fixed.machine.numbers.retire)
    floor = jnp.where(item.has_after_next, start + item.after_next + delay, 0)
    access = warp.access + (item.unit == rec.MEMORY)
    return Warp(warp.position + 1, access, warp.late, floor, jnp.where(item.exit, gone, drain))


def fetch_next(fixed: Fixed, servers: rec.Servers, item: Item, start: Ints) -> tuple[Ints, Ints]:
    """(when the front end has the next item, when the fetch stage is free again)."""
    before, cost, front = servers.fetch_free, fixed.machine.numbers.fetch, start + item.front
    asked = start + item.fetch_by  # the last fetch of the item
    asked = jnp.where(servers.line_there <= asked, jnp.maximum(asked, servers.line_served), asked)
    granted = jnp.maximum(asked, before + (item.fetches - 1) * cost)
    waits = (jnp.maximum(start, before) - start) * item.fetches
    fetched = jnp.maximum(front + waits, granted + item.front - item.fetch_by)
    fetches = item.fetches > 0
    return jnp.where(fetches, fetched, front), jnp.where(fetches, granted + cost, before)


def issue(fixed: Fixed, state: State, turn: Turn) -> State:
    """Every lane issues the item whose turn it is."""
    start, lanes = turn.start, len(turn.go)
    place = turn.slot * lanes + jnp.arange(lanes, dtype=jnp.int32)
    warp = Warp(*lax.optimization_barrier(tuple(taken(state.warps, place).T)))
    item = read_item(fixed.words.items, warp.position)
    result, delay, units = use_units(fixed.layout, of(turn.group, state.unit_free), item, start)
    answer, state = use_memory(fixed, state, turn, item, warp, start + item.unit_offset + TO_UNIT)
    result, state = lax.optimization_barrier((jnp.where(item.unit == rec.MEMORY, answer, result), state))
    far, near = lax.optimization_barrier((taken(state.far, place), taken(state.near, place)))
    far, near = remembered(far, item.far, result), remembered(near, item.near, result)
    fetched, fetch = fetch_next(fixed, state.servers, item, start)
    ready = reduce(
        jnp.maximum,
        (fetched, warp.floor,
         waited(far, item.wait_far), waited(near, item.wait_near),
         jnp.where(item.has_next, start + item.next + delay, 0)),
    )  # fmt: skip
    new = after(fixed, item, warp, start, result, delay)
    if not fixed.layout.perfect_memory:
        goes_on = turn.go & (item.exit == 0)
        late, there, state = with_code(fixed, state, goes_on, warp.late, item.next_begins, fetched)
        new, ready = new._replace(late=warp.late + late), jnp.maximum(ready, there)
    done = start + item.cycles
    fetch = jnp.where(turn.go, fetch, state.servers.fetch_free)
    times = (jnp.max(units, 0), done, fetch, *state.servers)
    due = jnp.where(item.exit > 0, GONE, ready + jnp.where(item.barrier > 0, WAITS, 0))
    place, rows, far, near, due = lax.optimization_barrier(
        (jnp.where(turn.go, place, len(state.due)), jnp.stack(new, -1), far, near, due)
    )
    state = state._replace(
        due=put(state.due, place, due),
        needs=put(state.needs, place, item.next_needs),
        warps=put(state.warps, place, rows),
        far=put(state.far, place, far),
        near=put(state.near, place, near),
        clock=jnp.where(turn.scheduler & turn.go, done, state.clock),
        unit_free=jnp.where(turn.group & turn.go, units[:, None], state.unit_free),
        servers=state.servers._replace(fetch_free=fetch),
        latest=jnp.where(turn.go, reduce(jnp.maximum, times, state.latest), state.latest),
    )
    return come_and_go(fixed, state, turn, item, new.drain)


def come_and_go(fixed: Fixed, state: State, turn: Turn, item: Item, drain: Ints) -> State:
    """Warps that have come to a barrier or to their ends: the last one of a block opens the barrier, or ends it."""
    block = turn.slot // fixed.layout.warps
    here = (jnp.arange(len(state.running), dtype=jnp.int32)[:, None] == block) & turn.go
    leaves, comes = here & (item.exit > 0), here & (item.barrier > 0)
    running, waiting = state.running - leaves, state.waiting + comes
    drained = jnp.where(leaves, jnp.maximum(state.drained, drain), state.drained)
    opens, ends = (leaves | comes) & (waiting == running) & (running > 0), leaves & (running == 0)
    end = jnp.max(jnp.where(ends, drained, -rec.TICKS), 0)
    opened, time = lax.optimization_barrier((jnp.where(jnp.any(opens, 0), block, -1), turn.start + item.cycles))

    def release(due: Array) -> Array:
        own = due.reshape(-1, len(opened))
        waits = (jnp.arange(len(own), dtype=jnp.int32)[:, None] // fixed.layout.warps == opened) & (own >= WAITS)
        return jnp.where(waits & (own < GONE), jnp.maximum(own - WAITS, time), own).reshape(-1)

    return state._replace(
        due=lax.cond(jnp.any(opened >= 0), release, lambda due: due, state.due),
        running=running,
        waiting=jnp.where(opens, 0, waiting),
        drained=jnp.where(ends, drained + fixed.machine.numbers.block_launch, drained),
        servers=state.servers._replace(end=jnp.maximum(state.servers.end, end)),
        room=state.room + jnp.any(ends, 0),
    )


def has_work(fixed: Fixed, state: State) -> Bool[Array, " lane"]:
    """Is a lane not done?"""
    return (state.room < fixed.machine.residents) | (state.next_block < fixed.machine.stop)


def enters(fixed: Fixed, state: State) -> Bool[Array, " lane"]:
    """Which lanes can take another thread block: none until what was picked has issued."""
    return (state.room > 0) & (state.next_block < fixed.machine.stop) & jnp.all(state.picked == NONE, 0)


def many_enter(fixed: Fixed, state: State) -> Bool[Array, ""]:
    """Do enough lanes wait for a thread block?"""
    count = jnp.sum(enters(fixed, state), dtype=jnp.int32)
    return (count > 0) & (count * ENTER_SHARE >= jnp.sum(has_work(fixed, state), dtype=jnp.int32))


def enter(fixed: Fixed, state: State) -> State:
    """The first free slot of each lane that waits for it takes the lane's next thread block."""
    layout, machine, words = fixed
    number, kth = (jnp.arange(count, dtype=jnp.int32)[:, None] for count in (layout.blocks, layout.warps))
    go, lanes = enters(fixed, state), len(state.room)
    free = jnp.min(jnp.where((state.running == 0) & (number < machine.residents), number, layout.blocks), 0)
    mine = (number == free) & go
    dispatched = state.servers.dispatched + machine.numbers.dispatch
    time = jnp.where(go, jnp.maximum(of(mine, state.drained) + rec.TICKS, dispatched), 0)
    warp = taken(words.dealt, jnp.where(go, state.next_block, 0)) * layout.warps + kth
    ready = jnp.broadcast_to(time + machine.numbers.first_issue, warp.shape)
    position, late = taken(words.starts, warp), taken(words.late_starts, warp)
    if not layout.perfect_memory:

        def fetch(k: Array, found: tuple[Array, Array, State]) -> tuple[Array, Array, State]:
            late, ready, state = found
            is_late, there, state = with_code(fixed, state, go, late[k], 0, ready[k])
            return late.at[k].add(is_late), ready.at[k].set(there), state

        late, ready, state = lax.fori_loop(0, layout.warps, fetch, (late, ready, state))
    slots = (free * layout.warps + kth) * lanes + jnp.arange(lanes, dtype=jnp.int32)
    number = state.next_block - machine.first + 1
    age = number * layout.rows(layout.blocks) + (free * layout.warps + kth) // layout.schedulers
    put_in = partial(put, place=jnp.where(go, slots, len(state.due)))
    new = Warp(position, taken(words.access_starts, warp), late, *[jnp.zeros_like(late)] * 2)
    return state._replace(
        due=put_in(state.due, new=ready),
        needs=put_in(state.needs, new=next(lane_items(taken(words.items, position), ["needs"]))),
        ages=put_in(state.ages, new=age),
        warps=put_in(state.warps, new=jnp.stack(new, -1)),
        far=put_in(state.far, new=jnp.int32(0)),
        near=put_in(state.near, new=jnp.int32(0)),
        running=jnp.where(mine, layout.warps, state.running),
        drained=jnp.where(mine, -rec.TICKS, state.drained),
        servers=state.servers._replace(dispatched=jnp.where(go, time, state.servers.dispatched)),
        next_block=state.next_block + go,
        room=state.room - go,
    )


@partial(jax.jit, static_argnames=("layout", "sizes"))
def run_words(machine: Machine, words: rec.Streams, sizes: Sizes, layout: rec.Layout) -> tuple[Array, Array, Array]:
    """(the ends of all lanes, how many items they issued, was that all)."""
    items: Any = with_next(jnp.asarray(words.items))
    fixed = Fixed(layout, machine, words._replace(items=items))

    def is_near(state: State) -> Array:
        return jnp.max(state.latest) < rec.LIMIT_TICKS

    def step(state: State) -> State:
        state = lax.while_loop(partial(many_enter, fixed), partial(enter, fixed), state)
        return issue(fixed, *next_turn(fixed, state))

    def goes_on(state: State) -> Array:
        return jnp.any(has_work(fixed, state)) & is_near(state)

    turn = taken(words.turn_starts, machine.first)
    state = lax.while_loop(goes_on, step, new_state(layout, machine, sizes, turn))
    return state.servers.end, state.issued, is_near(state)


LANE_BUCKET = 8  # lanes are padded to a power of two times this
MOST_ITEMS = (1 << 31) - 1  # positions are 32 bits wide


def run_arrays(part: rec.Lanes) -> rec.Outcome:
    """Run every lane of a part. Raises InputError for what arrays cannot hold."""
    count, streams = len(part.first), part.streams
    words = words_of(streams)
    if max(map(len, words)) > MOST_ITEMS:
        raise InputError(f"more than the {MOST_ITEMS:,} items, accesses or warps at once that arrays hold")
    rows = np.minimum(np.arange(max(LANE_BUCKET, 1 << (count - 1).bit_length())), count - 1)
    none, first = np.zeros(len(rows), np.int32), part.first[rows]
    stop = np.where(np.arange(len(rows)) < count, part.stop[rows], first)  # others idle
    numbers = rec.Numbers(*part.machine[rows].astype(np.int32).T)
    machine = Machine(numbers, none + part.residents, first, stop.astype(np.int32), none)
    waits = (int(streams.lane_items[name].max()).bit_length() for name in ("wait_far", "wait_near"))
    sizes = Sizes(_room(len(streams.fill_words)), *(1 << max(0, most - 1).bit_length() for most in waits))
    with kept_programs():
        end, issued, near = run_words(machine, rec.Streams(*map(_bucketed, words)), sizes, part.layout)
    if not near:
        most = f"the arrays of the occupancy model count up to {rec.LIMIT_TICKS // rec.TICKS:,} cycles a launch"
        raise InputError(f"{most}, and this one takes longer; use --model detailed")
    return rec.Outcome(*(np.asarray(column)[:count].astype(np.int64) for column in (end, issued)))


def words_of(streams: rec.Streams) -> rec.Streams:
    """Streams with items as words: LANE_ITEM and TERMS."""
    rows, none = streams.lane_items.view(np.int32).reshape(-1, ITEM_WORDS), np.zeros(0, np.int32)
    items = np.concatenate([rows, streams.terms.reshape(-1, len(rec.TERMS))], 1)
    return streams._replace(items=items, lane_items=none, terms=none)


def _room(count: int) -> int:
    return 1 << max(6, (count - 1).bit_length())


def _bucketed(values: np.ndarray) -> np.ndarray:
    """As 32-bit numbers, padded to a power of two, so that compiled programs serve many launches."""
    values = values.astype(np.int32)
    return np.concatenate([values, np.zeros((_room(len(values)) - len(values), *values.shape[1:]), values.dtype)])
