"""A memory instruction's way through the SM and its share of L2 and DRAM (docs/occupancy-vector.md, "Memory")."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from abstim.occupancy_vector.item_records import ATOMIC, DRAM, STORE
from abstim.occupancy_vector.lane_records import NEVER, PARTS, TICKS, Layout
from abstim.occupancy_vector.lane_state import AnyArray, Machine, State, Words
from abstim.occupancy_vector.read_items import Access, Item, Late, read_access, read_late


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
    state: State, machine: Machine, words: Words, start: Array, item: Item, position: Array, layout: Layout
) -> Memory:
    """A memory instruction that starts on the load/store unit at `start`, all lanes [lane]; `position`: its access."""
    access = read_access(words.accesses, position)
    here = Memory(
        start + item.latency + access.occupies - TICKS, start + access.occupies, state.l2_free, state.dram_free,
        state.port_free, state.reply_free, jnp.zeros(len(start), bool),
    )  # fmt: skip
    if layout.perfect_memory:
        return here
    fill = words.fills[position]
    arrival = state.arrivals[machine.fill_base + fill]
    asker = read_access(words.fill_words, machine.fill_word_base + fill)
    asked = Access(*(jnp.where(fill > 0, ours, own) for ours, own in zip(asker, access, strict=True)))
    went = beyond_l1d(state, machine, item, asked, here)
    waits = (fill > 0) & (arrival < NEVER)
    joined = here._replace(result=jnp.maximum(here.result, arrival))
    found = Memory(*(jnp.where(waits, ours, own) for ours, own in zip(joined, went, strict=True)))
    return found._replace(asks=(fill > 0) & ~waits)


def beyond_l1d(state: State, machine: Machine, item: Item, access: Access, here: Memory) -> Memory:
    """Sectors asked of L2 and DRAM, each a server of which the SM has a share."""
    asks, out = access.sectors > 0, (item.access == STORE) | (item.access == ATOMIC)
    leave = here.result + TICKS
    port = jnp.maximum(state.port_free, leave) + access.sectors * machine.store_sector
    leave = jnp.where(out, port, leave)
    cost = jnp.where(item.access == ATOMIC, machine.l2_atomic, machine.l2_sector)
    l2 = jnp.maximum(state.l2_free, leave + machine.request) + access.sectors * cost
    dram = jnp.maximum(state.dram_free, l2) + access.dram_sectors * machine.dram_sector
    stores = item.access == STORE
    length = access.sectors * machine.reply_sector
    reply = jnp.maximum(state.reply_free, l2 - length) + length
    read = jnp.where(access.dram_sectors > 0, dram, l2)
    beyond = jnp.where(access.level == DRAM, portion(machine.dram_latency, access.part), 0)
    answer = jnp.where(stores, l2, jnp.maximum(reply, read) + beyond) + machine.l2_reply
    return here._replace(
        result=jnp.where(asks, answer, here.result),
        l2=jnp.where(asks, l2, state.l2_free),
        dram=jnp.where(asks & (access.dram_sectors > 0), dram, state.dram_free),
        port=jnp.where(asks & out, port, state.port_free),
        reply=jnp.where(asks & ~stores, reply, state.reply_free),
    )


def portion(time: AnyArray, part: Array) -> AnyArray:
    """`part` + 1 of PARTS of a stretch of time, in whole ticks."""
    return time * (part + 1) // PARTS


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
    asks = is_late & (state.arrivals[own] == NEVER)
    arrivals = state.arrivals.at[jnp.where(asks, own, none)].min(ready + delay, mode="drop")
    return is_late, jnp.where(is_late, jnp.maximum(ready, arrivals[own]), ready), arrivals


def code_delay(machine: Machine, late: Late) -> Array:
    """How late an instruction line is: four sectors, from L2 or from DRAM."""
    l2 = machine.request + 4 * (machine.l2_sector + machine.reply_sector) + machine.l2_reply + TICKS
    dram = portion(machine.dram_latency + 4 * machine.dram_sector, late.part)
    return jnp.where(late.level == DRAM, l2 + dram, portion(l2, late.part))
