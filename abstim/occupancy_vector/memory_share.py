"""A memory instruction's way through the SM and its share of L2 and DRAM (docs/occupancy-vector.md, "Memory")."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from abstim.occupancy_vector.item_records import ATOMIC, DRAM, L2, STORE
from abstim.occupancy_vector.lane_records import PARTS, TICKS, Layout
from abstim.occupancy_vector.lane_state import AnyArray, Machine, State
from abstim.occupancy_vector.read_items import Access, Item, Late


class Memory(NamedTuple):
    """The load/store unit and what lies behind it, after a memory instruction; and when its result is there."""

    result: Array
    free: Array
    l2: Array
    dram: Array
    port: Array
    reply: Array
    arrival: Array


def through_memory(state: State, machine: Machine, start: Array, item: Item, access: Access, layout: Layout) -> Memory:
    """A memory instruction that starts on the load/store unit at `start`, all lanes [lane]."""
    here = Memory(
        start + item.latency + access.occupies - TICKS, start + access.occupies, state.l2_free, state.dram_free,
        state.port_free, state.reply_free, state.arrival,
    )  # fmt: skip
    return here if layout.perfect_memory else beyond_l1d(state, machine, item, access, here)


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
    waits = (access.sectors == 0) & (access.level >= L2)
    other = jnp.maximum(here.result, wait_for_another(state, machine, access, here.result))
    result = jnp.where(asks, answer, jnp.where(waits, other, here.result))
    return here._replace(
        result=result,
        l2=jnp.where(asks, l2, state.l2_free),
        dram=jnp.where(asks & (access.dram_sectors > 0), dram, state.dram_free),
        port=jnp.where(asks & out, port, state.port_free),
        reply=jnp.where(asks & ~stores, reply, state.reply_free),
        arrival=jnp.where(asks & ~stores, jnp.maximum(state.arrival, answer), state.arrival),
    )


def portion(time: AnyArray, part: Array) -> AnyArray:
    """`part` + 1 of PARTS of a stretch of time, in whole ticks."""
    return time * (part + 1) // PARTS


def wait_for_another(state: State, machine: Machine, access: Access, here: Array) -> Array:
    """When data is there that another access has asked for: part of the way, and what waits at L2 and DRAM now; not
    later than all data asked for."""
    comes = here + machine.request
    at_l2 = jnp.maximum(state.l2_free, comes)
    at_dram = jnp.maximum(state.dram_free, at_l2)
    l2 = machine.request + machine.l2_reply
    from_dram = at_dram - comes + l2 + portion(machine.dram_latency, access.part)
    wait = jnp.where(access.level == DRAM, from_dram, at_l2 - comes + portion(l2, access.part))
    return jnp.minimum(here + wait, state.arrival)


def code_delay(machine: Machine, late: Late) -> Array:
    """How late an instruction line is: four sectors, from L2 or from DRAM."""
    l2 = machine.request + 4 * (machine.l2_sector + machine.reply_sector) + machine.l2_reply + TICKS
    dram = portion(machine.dram_latency + 4 * machine.dram_sector, late.part)
    return jnp.where(late.level == DRAM, l2 + dram, portion(l2, late.part))
