"""Items as a step reads them, from their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from abstim.occupancy_vector.items import WORDS, WORK_A_CYCLE
from abstim.occupancy_vector.lane_state import TICKS, AnyArray

_IN_CYCLES = frozenset({"cycles", "front", "next", "after_next", "unit_offset", "drain", "latency", "occupies"})


class Item(NamedTuple):
    """Fields of WORDS; times and work in ticks."""

    cycles: Array
    front: Array
    next: Array
    after_next: Array
    unit: Array
    unit_offset: Array
    far: Array
    near: Array
    wait_far: Array
    wait_near: Array
    barrier: Array
    exit: Array
    drain: Array
    fetches: Array
    fetch_level: Array
    sp: Array
    int: Array
    latency: Array
    occupies: Array
    level: Array
    sectors: Array
    dram_sectors: Array
    access: Array


Read = Callable[[Array], Item]  # positions -> items


def read_words(words: AnyArray) -> Read:
    """Items as their words have them."""

    def read(position: Array) -> Item:
        rows = words[position]
        values = {}
        for number, fields in enumerate(WORDS):
            shift = 0
            for name, bits in fields:
                value = lax.shift_right_logical(rows[..., number], jnp.int32(shift)) & jnp.int32((1 << bits) - 1)
                shift += bits
                scale = TICKS if name in _IN_CYCLES else TICKS // WORK_A_CYCLE if name in ("sp", "int") else 1
                values[name] = value * scale
        return Item(**values)

    return read
