"""What a lane holds: one SM of one design point. Every array's last axis but that of `rows` is the lanes.

Times are in ticks, 64 to a cycle, whole numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from abstim.occupancy_vector.lane_records import LOADS, NEVER, POOL_COUNT, RESULTS, SPECIALS, TICKS, Layout

if TYPE_CHECKING:
    from jaxtyping import Int32, Num

AnyArray = Array | np.ndarray  # on the host or not


class Machine(NamedTuple):
    """The numbers of the design point a lane belongs to, in ticks."""

    request: Num[AnyArray, " lane"]  # L1D to an L2 slice
    l2_sector: Num[AnyArray, " lane"]  # of the SM's share of L2
    l2_reply: Num[AnyArray, " lane"]
    l2_atomic: Num[AnyArray, " lane"]
    dram_sector: Num[AnyArray, " lane"]  # of the SM's share of DRAM
    dram_latency: Num[AnyArray, " lane"]  # beyond L2's
    reply_sector: Num[AnyArray, " lane"]  # into the SM
    store_sector: Num[AnyArray, " lane"]  # out of the SM
    fetch: Num[AnyArray, " lane"]  # a slot of the fetch stage
    pool_slack: Num[AnyArray, " lane"]  # work that may wait before a pool
    special_slack: Num[AnyArray, " lane"]
    block_launch: Num[AnyArray, " lane"]  # from a thread block's end to the dispatch of the next, beyond a cycle
    first_issue: Num[AnyArray, " lane"]  # from a thread block's dispatch
    retire: Num[AnyArray, " lane"]  # from a warp's last issue to its end
    residents: Int32[AnyArray, " lane"]  # thread blocks at once
    warp_base: Int32[AnyArray, " lane"]  # of the lane's launch in Words.starts
    fill_word_base: Int32[AnyArray, " lane"]  # of its fills in Words.fill_words
    fill_base: Int32[AnyArray, " lane"]  # of its design point's fills in State.arrivals


class Words(NamedTuple):
    """What lanes read: `lane_records.Streams` of all design points, items as words."""

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
    kind: Int32[Array, "scheduler row lane"]  # what the next item needs: `scheduler_step.kind_of`
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
    layout: Layout, first: Int32[Array, " lane"], stop: Int32[Array, " lane"], arrivals: Num[Array, " point_fill"]
) -> State:
    """All slots free; thread blocks `first` .. `stop` - 1 of Words.dealt are still to come."""
    lanes, dtype = len(first), arrivals.dtype
    slots = (layout.schedulers, layout.rows, lanes)

    def times(*shape: int) -> Array:
        return jnp.zeros((*shape, lanes), dtype)

    def counts(*shape: int) -> Array:
        return jnp.zeros((*shape, lanes), jnp.int32)

    return State(
        ready=jnp.full(slots, NEVER, dtype),
        kind=jnp.zeros(slots, jnp.int32),
        rows=jnp.zeros((layout.schedulers * layout.rows * lanes, FIELDS), dtype),
        loads=jnp.zeros(layout.schedulers * layout.rows * lanes * LOADS, dtype),
        results=jnp.zeros(layout.schedulers * layout.rows * lanes * RESULTS, dtype),
        last=counts(layout.schedulers),
        clock=times(layout.schedulers),
        running=counts(layout.blocks),
        waiting=counts(layout.blocks),
        drained=times(layout.blocks) - TICKS,
        memory_free=times(),
        memory_starts=times(layout.memory_queue, layout.groups) - TICKS,
        special_free=times(SPECIALS, layout.groups),
        pool_free=times(POOL_COUNT, layout.groups),
        fetch_free=times(),
        l2_free=times(),
        dram_free=times(),
        port_free=times(),
        reply_free=times(),
        arrivals=arrivals,
        next_block=first,
        stop_block=stop,
        dispatched=times() - TICKS,
        end=times() - TICKS,
        issued=counts(),
    )
