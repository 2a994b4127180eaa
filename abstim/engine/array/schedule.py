"""The schedulers of an SM: who issues, who flushes, and why nobody does (rules 1 and 2)."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from abstim.engine.array.policies import Oldest
from abstim.engine.array.ports import port_free
from abstim.engine.array.state import FLUSH, HELD, MEMORY, NEVER, PORT_SHIFT, RUN, WANT, Launch, State, has, put
from abstim.engine.compiled.layout import BARRIER_WAIT, EMPTY, ISSUED, MEMORY_WAIT, NOT_READY, UNIT_BUSY

SLOT_BITS = 6
NOBODY = jnp.iinfo(jnp.int32).max
# Reasons for an idle turn, by rank: the highest that holds for a warp of the scheduler counts
IDLE_REASONS = (EMPTY, BARRIER_WAIT, NOT_READY, MEMORY_WAIT, UNIT_BUSY)
BLOCKED = IDLE_REASONS.index(UNIT_BUSY)


class Turn(NamedTuple):
    """The next turn that is worth a look, in every lane."""

    now: Bool[Array, " lane"]
    scheduler: Int32[Array, " lane"]
    place: Int32[Array, " lane"]  # in the order of this cycle; NEVER: none is
    ranks: Int32[Array, "scheduler lane"]  # of IDLE_REASONS, what the warps of each scheduler wait for


def places(s: State, c: Launch) -> Int32[Array, "scheduler lane"]:
    """When each scheduler has its turn in this cycle: their order rotates. NEVER for one that does not exist."""
    count = c.machine["schedulers"]
    numbers = jnp.arange(len(s.idle_since), dtype=jnp.int32)[:, None]
    return jnp.where(numbers < count, (numbers - (s.clock - 1) % count + count) % count, NEVER)


def ranks(s: State, c: Launch) -> Int32[Array, "scheduler lane"]:
    """Per scheduler the rank (in IDLE_REASONS) of what its warps wait for; BLOCKED: one of them can be visited."""
    waits = jnp.where(s.ready <= s.clock, BLOCKED, jnp.where(has(s.status, MEMORY), 3, 2))
    rank = jnp.where(has(s.status, RUN), jnp.where(has(s.status, HELD), 1, waits), 0)
    return jnp.stack([jnp.max(jnp.where(c.scheduler_of == k, rank, 0), 0) for k in range(len(s.idle_since))])


def next_turn(s: State, c: Launch, policy: Oldest) -> Turn:
    """The first scheduler, in the order of this cycle, that has not had its turn and has a warp to visit."""
    place, rank = places(s, c), ranks(s, c)
    worth = (rank == BLOCKED) | policy.visits_every_cycle
    key = jnp.min(jnp.where(worth & (place >= s.turn), place, NEVER), 0)
    numbers = jnp.arange(len(place), dtype=jnp.int32)[:, None]
    return Turn(key < NEVER, jnp.max(jnp.where(place == key, numbers, 0), 0), key, rank)


def take_turn(
    s: State, c: Launch, policy: Oldest, turn: Turn
) -> tuple[State, Bool[Array, " lane"], Int32[Array, " lane"]]:
    """Visit the scheduler's warps; returns (state, does one issue, its slot).

    The turns before this one were idle and are booked so; if nobody issues, this one waits for `end_turns`.
    """
    s = policy.begin(s, c, turn.scheduler, s.clock, turn.now)
    time, keys = s.clock, policy.keys(s, c, turn.scheduler)
    slots = jnp.arange(len(s.ready), dtype=jnp.int32)[:, None]
    running = has(s.status, RUN) & ~has(s.status, HELD)
    visited = (c.scheduler_of == turn.scheduler) & running & (keys < NEVER) & (s.ready <= time) & turn.now
    able = visited & ~has(s.status, FLUSH) & (port_free_of(s) <= time)
    ranked = (keys << SLOT_BITS) | slots
    best = jnp.min(jnp.where(able, ranked, NOBODY), 0)
    issues = best < NOBODY
    flushed = visited & has(s.status, FLUSH) & (ranked < best)
    s = s._replace(
        status=jnp.where(flushed, (s.status & ~(FLUSH | MEMORY)) | WANT, s.status),
        ready=jnp.where(flushed, NEVER, s.ready),
    )
    place = places(s, c)
    s = idle(s, (place >= s.turn) & turn.now & (place < turn.place), turn.ranks)
    slot = jnp.where(issues, best & ((1 << SLOT_BITS) - 1), 0)
    s = policy.issued(s, c, turn.scheduler, slot, issues)
    s = book_issue(s, turn.scheduler, issues)
    s = s._replace(
        last=put(s.last, turn.scheduler, slot, issues),
        turn=jnp.where(turn.now, turn.place + issues, s.turn),
        issued=s.issued | issues,
    )
    return s, issues, slot


def port_free_of(s: State) -> Int32[Array, "slot lane"]:
    """First cycle in which the port of each warp's next instruction has a free dispatch register."""
    free, port = port_free(s), s.status >> PORT_SHIFT
    return jnp.where(port == 0, free[0], jnp.where(port == 1, free[1], free[2]))


def book_issue(s: State, scheduler: Array, issues: Array) -> State:
    """Charge the idle cycles before an issue, and the issue."""
    acts = (jnp.arange(len(s.idle_since), dtype=jnp.int32)[:, None] == scheduler) & issues
    s = charge(s, acts)
    return s._replace(
        issue_slots=s.issue_slots.at[ISSUED].add(acts.astype(jnp.int32)),
        idle_since=jnp.where(acts, s.clock + 1, s.idle_since),
    )


def end_turns(
    s: State, c: Launch, policy: Oldest, turn: Turn, issues: Array, free: Bool[Array, " lane"]
) -> tuple[State, Bool[Array, " lane"]]:
    """Book `turn` as idle where nobody issued, and the rest where nothing is left to visit.

    `free`: lanes that are not busy with a memory instruction. Returns (state, is the cycle over).
    """
    acted = turn.now & ~issues
    first = s.turn
    s = s._replace(turn=jnp.where(acted, turn.place + 1, first))
    after, place = next_turn(s, c, policy), places(s, c)
    over = free & ~after.now
    idle_turns = (place >= first) & ((acted & (place < s.turn)) | (over & (place < NEVER)))
    return idle(s, idle_turns, after.ranks), over


def idle(s: State, turns: Bool[Array, "scheduler lane"], rank: Int32[Array, "scheduler lane"]) -> State:
    """Idle turns: charge the cycles before them, and note what they wait for."""
    reason = jnp.array(IDLE_REASONS, jnp.int32)[rank]
    return charge(s, turns)._replace(idle_reason=jnp.where(turns, reason, s.idle_reason))


def charge(s: State, turns: Bool[Array, "scheduler lane"]) -> State:
    """Book idle cycles up to now under the reason last seen."""
    cycles = jnp.where(turns, s.clock - s.idle_since, 0)
    reasons = jnp.arange(len(s.issue_slots), dtype=jnp.int32)[:, None, None]
    return s._replace(
        issue_slots=s.issue_slots + jnp.where(s.idle_reason == reasons, cycles, 0),
        idle_since=jnp.where(turns, s.clock, s.idle_since),
    )
