"""Warp scheduling policies: how a scheduler ranks its warp slots (rule 2). A smaller key goes first.

A policy sees the state and the number of the scheduler whose turn it is in every lane, and returns a key a slot,
`NEVER` for a slot that has no part in this turn. Keys stay below LIMIT_WARPS.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from abstim.engine.array.state import FLUSH, HELD, MISS, NEVER, RUN, WANT, Launch, Row, State, has, take


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
        """What the issue of a warp in `slot`, in the lanes where `now` holds, changes in the order."""
        return s

    def first_age(self, slots: np.ndarray, schedulers: np.ndarray) -> np.ndarray:
        """`State.age` at cycle 0."""
        return 0 * slots + 0 * schedulers

    def launched(self, s: State, c: Launch, mine: Bool[Array, "slot lane"], place: Array) -> State:
        """What the warps of a new block, `place` in it, change in the slots `mine`."""
        return s._replace(age=jnp.where(mine, s.launched + place, s.age))


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


class TwoLevel(Oldest):
    """A queue of active slots and one of pending ones; `State.age` is the place in both, active first."""

    visits_every_cycle = True

    def first_age(self, slots: np.ndarray, schedulers: np.ndarray) -> np.ndarray:
        """Slot order."""
        return (slots // schedulers).astype(np.int32)

    def launched(self, s: State, c: Launch, mine: Bool[Array, "slot lane"], place: Array) -> State:
        """Slots keep their places; a new warp has no registers that a long operation wrote."""
        return s._replace(registers=jnp.where(mine[:, None], 0, s.registers))

    def begin(self, s: State, c: Launch, scheduler: Array, time: Array, turn: Bool[Array, " lane"]) -> State:
        """Slots that cannot issue soon go to the tail of pending, as many from its head become active."""
        mine = (c.scheduler_of == scheduler) & turn & self.exists(s, c)
        active = mine & (s.age < c.machine["active_warps"])
        row = s.warp
        at_hand = ~has(s.status, WANT | MISS) & (row[..., Row.FRONT_END] <= time)
        until = jnp.where(has(s.status, FLUSH), row[..., Row.WRONG_LONG], row[..., Row.LONG])
        stays = has(s.status, RUN) & ~has(s.status, HELD) & (s.not_before <= time) & ~(at_hand & (until > time))
        demoted, kept = active & ~stays, active & stays
        total, count = mine.sum(0, dtype=jnp.int32), demoted.sum(0, dtype=jnp.int32)
        before_kept, before_demoted = self.before(kept, s.age), self.before(demoted, s.age)
        age = jnp.where(kept, before_kept, jnp.where(demoted, total - count + before_demoted, s.age - count))
        return s._replace(age=jnp.where(mine, age, s.age))

    def before(self, members: Bool[Array, "slot lane"], age: Array) -> Int32[Array, "slot lane"]:
        """How many `members` of the queue stand before each slot."""
        return (members[:, None] & (age[:, None] < age[None])).sum(0, dtype=jnp.int32)

    def exists(self, s: State, c: Launch) -> Bool[Array, "slot lane"]:
        """Slots that the design point has."""
        return jnp.arange(len(s.ready), dtype=jnp.int32)[:, None] < c.machine["warp_slots"]

    def keys(self, s: State, c: Launch, scheduler: Array) -> Int32[Array, "slot lane"]:
        """Active slots in order."""
        return jnp.where(s.age < c.machine["active_warps"], s.age, NEVER)

    def issued(self, s: State, c: Launch, scheduler: Array, slot: Array, now: Bool[Array, " lane"]) -> State:
        """Active goes on behind the slot that issued."""
        mine = (c.scheduler_of == scheduler) & now & self.exists(s, c)
        active = jnp.minimum(c.machine["active_warps"], mine.sum(0, dtype=jnp.int32))
        rotated = s.age - take(s.age, slot) - 1
        rotated = jnp.where(rotated < 0, rotated + active, rotated)
        return s._replace(age=jnp.where(mine & (s.age < active), rotated, s.age))


POLICIES = {"gto": Gto(), "lrr": Lrr(), "oldest": Oldest(), "two_level": TwoLevel()}
