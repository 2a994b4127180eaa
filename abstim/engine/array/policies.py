"""Warp scheduling policies: how a scheduler ranks its warp slots (rule 2). A smaller key goes first.

A policy sees the state, the number of the scheduler whose turn it is in every lane, and returns a key a slot, `NEVER` for a slot that
has no part in this turn. Keys stay below LIMIT_WARPS.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from abstim.engine.array.state import Launch, State, take


class Oldest:
    """Launch order."""

    visits_every_cycle = False

    def begin(self, s: State, c: Launch, scheduler: Array, time: Array, turn: Bool[Array, " lane"]) -> State:
        """What happens before a turn in the lanes where `turn` holds."""
        return s

    def keys(self, s: State, c: Launch, scheduler: Array) -> Int32[Array, "slot lane"]:
        """Rank of every slot of the scheduler."""
        return s.age

    def issued(self, s: State, c: Launch, scheduler: Array, slot: Array, now: Bool[Array, " lane"]) -> State:
        """What an issue changes in the order."""
        return s

    def launched(self, s: State, mine: Bool[Array, "slot lane"], place: Array) -> Int32[Array, "slot lane"]:
        """`State.age` once the warps of a block, `place` in it, are in the slots `mine`."""
        return jnp.where(mine, s.launched + place, s.age)


class Gto(Oldest):
    """The slot issued last, then launch order."""

    def keys(self, s: State, c: Launch, scheduler: Array) -> Int32[Array, "slot lane"]:
        slots = jnp.arange(len(s.ready), dtype=jnp.int32)[:, None]
        return jnp.where(slots == take(s.last, scheduler), -1, s.age)


class Lrr(Oldest):
    """Slot order, cyclic, beginning after the slot issued last."""

    def keys(self, s: State, c: Launch, scheduler: Array) -> Int32[Array, "slot lane"]:
        schedulers, slots = c.machine["schedulers"], c.machine["warp_slots"]
        place = jnp.arange(len(s.ready), dtype=jnp.int32)[:, None] // schedulers
        last = take(s.last, scheduler)
        after = jnp.where(last >= 0, last // schedulers, -1) + 1
        count = (slots - scheduler + schedulers - 1) // schedulers
        return jnp.where(place >= after, place - after, place - after + count)


POLICIES = {"gto": Gto(), "lrr": Lrr(), "oldest": Oldest()}
