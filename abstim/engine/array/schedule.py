"""A scheduler's turn: who issues, who flushes, and why nobody does (rules 1 and 2)."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from abstim.engine.array.policies import Oldest
from abstim.engine.array.ports import port_free
from abstim.engine.array.state import (
    FLUSH, HELD, MEMORY, NEVER, PORT_SHIFT, RUN, WANT, Launch, State, has, put, take,
)  # fmt: skip
from abstim.engine.compiled.layout import BARRIER_WAIT, EMPTY, ISSUED, MEMORY_WAIT, NOT_READY, UNIT_BUSY

SLOT_BITS = 6
# Reasons a turn was idle, by rank: the highest that holds for any warp is the turn's
IDLE_REASONS = (EMPTY, BARRIER_WAIT, NOT_READY, MEMORY_WAIT, UNIT_BUSY)


class Turn(NamedTuple):
    """The turn of one scheduler in every lane that has one left in its cycle."""

    now: Bool[Array, " lane"]
    scheduler: Int32[Array, " lane"]
    place: Int32[Array, " lane"]  # in the order of this cycle


def next_turn(s: State, c: Launch) -> Turn:
    """The first scheduler, in the order of this cycle, that has not acted yet and has something to look at."""
    count = c.machine["schedulers"]
    places = jnp.arange(len(s.wake), dtype=jnp.int32)[:, None]
    order = (s.clock - 1 + count + places) % count  # count: the clock may be 0
    able = (places >= s.turn) & (places < count) & (take(s.wake, order) <= s.clock)
    place = jnp.argmax(able, 0).astype(jnp.int32)
    return Turn(able.any(0), (s.clock - 1 + count + place) % count, place)


def take_turn(
    s: State, c: Launch, policy: Oldest, turn: Turn
) -> tuple[State, Bool[Array, " lane"], Int32[Array, " lane"]]:
    """Visit the scheduler's warps; returns (state, does one issue, its slot). An idle turn is over with this."""
    s = policy.begin(s, c, turn.scheduler, s.clock, turn.now)
    time, keys = s.clock, policy.keys(s, c, turn.scheduler)
    slots = jnp.arange(len(s.ready), dtype=jnp.int32)[:, None]
    mine = (c.scheduler_of == turn.scheduler) & has(s.status, RUN) & (keys < NEVER) & turn.now
    held = mine & has(s.status, HELD)
    looked_at = mine & ~held
    visited = looked_at & (s.ready <= time)
    ports = port_free(s)
    port = s.status >> PORT_SHIFT
    free = jnp.where(port == 0, ports[0], jnp.where(port == 1, ports[1], ports[2]))
    wrong_path = visited & has(s.status, FLUSH)
    blocked = visited & ~has(s.status, FLUSH) & (free > time)
    able = visited & ~has(s.status, FLUSH) & (free <= time)
    ranked = (keys << SLOT_BITS) | slots
    best = jnp.min(jnp.where(able, ranked, jnp.iinfo(jnp.int32).max), 0)
    found = best < jnp.iinfo(jnp.int32).max
    flushed = wrong_path & (ranked < best)
    waiting = looked_at & (s.ready > time)
    from_memory = waiting & has(s.status, MEMORY)
    rank = jnp.where(blocked, 4, jnp.where(from_memory, 3, jnp.where(waiting | flushed, 2, jnp.where(held, 1, 0))))
    wake = jnp.min(jnp.where(waiting, s.ready, jnp.where(blocked, free, NEVER)), 0)
    s = s._replace(
        status=jnp.where(flushed, (s.status & ~(FLUSH | MEMORY)) | WANT, s.status),
        ready=jnp.where(flushed, NEVER, s.ready),
    )
    reason = jnp.array(IDLE_REASONS, jnp.int32)[jnp.max(rank, 0)]
    s = settle(s, turn, found, reason, jnp.where(policy.visits_every_cycle, time + 1, wake))
    slot = best & ((1 << SLOT_BITS) - 1)
    issues = turn.now & found
    s = policy.issued(s, c, turn.scheduler, jnp.where(issues, slot, 0), issues)
    s = s._replace(last=put(s.last, turn.scheduler, slot, issues), turn=jnp.where(turn.now, turn.place + 1, s.turn))
    return s, issues, jnp.where(issues, slot, 0)


def settle(s: State, turn: Turn, found: Array, reason: Array, wake: Array) -> State:
    """Account for the cycles since the last turn, and say when the next one is worth having."""
    time, number = s.clock, turn.scheduler
    idle = jnp.where(turn.now, time - take(s.idle_since, number), 0)
    acting = (jnp.arange(len(s.wake), dtype=jnp.int32)[:, None] == number) & turn.now
    reasons = jnp.arange(len(s.issue_slots), dtype=jnp.int32)[:, None, None]
    booked = jnp.where(acting & (s.idle_reason == reasons), idle, 0) + jnp.where(acting & found & (reasons == ISSUED), 1, 0)
    return s._replace(
        issue_slots=s.issue_slots + booked,
        idle_since=jnp.where(acting, jnp.where(found, time + 1, time), s.idle_since),
        idle_reason=jnp.where(acting & ~found, reason, s.idle_reason),
        wake=jnp.where(acting, jnp.where(found, time + 1, wake), s.wake),
    )
