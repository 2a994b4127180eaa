"""Items and accesses as a step reads them, from their words."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from abstim.occupancy_vector.items import WORDS
from abstim.occupancy_vector.lane_records import ACCESS_WORD, LATE_WORD, TICKS, WORK_A_CYCLE
from abstim.occupancy_vector.lane_state import AnyArray

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
    sp: Array
    int: Array
    latency: Array
    occupies: Array
    access: Array
    begins: Array


class Access(NamedTuple):
    """Fields of ACCESS_WORD; times in ticks."""

    occupies: Array
    level: Array
    sectors: Array
    dram_sectors: Array
    part: Array


class Late(NamedTuple):
    """Fields of LATE_WORD."""

    level: Array
    part: Array


def _fields(word: Array, fields: tuple[tuple[str, int], ...]) -> dict[str, Array]:
    values, shift = {}, 0
    for name, bits in fields:
        value = lax.shift_right_logical(word, jnp.int32(shift)) & jnp.int32((1 << bits) - 1)
        scale = TICKS if name in _IN_CYCLES else TICKS // WORK_A_CYCLE if name in ("sp", "int") else 1
        values[name] = value * scale
        shift += bits
    return values


def read_item(words: AnyArray, position: Array) -> Item:
    """Items as their words have them."""
    rows = words[position]
    values: dict[str, Array] = {}
    for number, fields in enumerate(WORDS):
        values |= _fields(rows[..., number], fields)
    return Item(**values)


def read_access(words: AnyArray, position: AnyArray) -> Access:
    """Accesses as their words have them."""
    return Access(**_fields(jnp.asarray(words)[position], ACCESS_WORD))


def read_late(words: AnyArray, position: AnyArray) -> Late:
    """Late instruction lines as their words have them."""
    return Late(**_fields(jnp.asarray(words)[position], LATE_WORD))
