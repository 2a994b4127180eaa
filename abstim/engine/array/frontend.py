"""The fetch stage of a cycle, and the step to the next one (rules 6 and 9)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from abstim.engine.array.memory import find
from abstim.engine.array.policies import Oldest
from abstim.engine.array.schedule import port_free_of
from abstim.engine.array.state import (
    EXITING,
    FLUSH,
    HELD,
    MEMORY,
    MISS,
    NEVER,
    RUN,
    WANT,
    Launch,
    Row,
    State,
    has,
    put,
    take,
)  # fmt: skip
from abstim.engine.array.warp import look_at, readiness, with_columns
from abstim.engine.compiled.layout import EMPTY

L1I_ACCESSES, L1I_MISSES = 4, 5  # rows of State.counters
AGE_RANGE = 1 << 20  # a line that is back is fetched long before it has waited so many cycles
NO_SLOT = jnp.iinfo(jnp.int32).max


def fetch_stage(s: State, c: Launch, now: Bool[Array, " lane"]) -> State:
    """The fetch stage, in the lanes where `now` holds."""
    time, count = s.clock, c.machine["warp_slots"]
    slots = jnp.arange(len(s.ready), dtype=jnp.int32)[:, None]
    back = now & has(s.status, MISS) & (s.line_back <= time)
    oldest = jnp.min(jnp.where(back, (s.line_back - time + AGE_RANGE) * 64 + slots, NO_SLOT), 0)
    returns = oldest < NO_SLOT
    place = slots - s.last_fetched - 1
    place = jnp.where(place < 0, place + count, place)
    nearest = jnp.min(jnp.where(now & has(s.status, WANT) & ~returns, place, NO_SLOT), 0)
    fetches = nearest < NO_SLOT
    gone = now & ~returns & has(s.status, EXITING) & (s.drained <= time) & (place < jnp.where(fetches, nearest, count))
    slot = jnp.where(returns, oldest & 63, (s.last_fetched + 1 + jnp.where(fetches, nearest, 0)) % count)
    row = take_row(s, slot)
    there, s = look_up(s, c, row[:, Row.FETCH_PC], fetches)
    s = s._replace(last_fetched=jnp.where(fetches, slot, s.last_fetched))
    s = deliver(s, c, slot, row, returns | (fetches & (there <= time)))
    missed = fetches & (there > time)
    status = take(s.status, slot)
    s = s._replace(
        status=put(s.status, slot, (status & ~WANT) | MISS, missed),
        line_back=put(s.line_back, slot, there, missed),
    )
    return notice(s, c, gone)


def take_row(s: State, slot: Array) -> Int32[Array, "lane field"]:
    """The warp's row; FETCH_PC is what it fetches now."""
    row = take(s.warp, slot)
    pc = jnp.where(has(take(s.status, slot), FLUSH), row[:, Row.FETCH_PC], row[:, Row.NEXT_PC])
    return with_columns(row, {Row.FETCH_PC: pc})


def look_up(s: State, c: Launch, pc: Array, fetches: Array) -> tuple[Int32[Array, " lane"], State]:
    """Cycle in which the instruction line of `pc` is there: now on a hit."""
    m = c.machine
    line, time = pc // m["fetch_line"], s.clock
    first = (line & (m["l1i_sets"] - 1)) * m["l1i_ways"]
    hit, place, filled = find(s.l1i, first, m["l1i_ways"], c.l1i_way, line)
    there = jnp.where(hit, filled, time + m["l1i_miss_cycles"])
    stamp = s.stamp + fetches
    counts = jnp.stack([fetches, fetches & ~hit]).astype(jnp.int32)
    s = s._replace(
        l1i=put(s.l1i, place, jnp.stack([line, stamp, there], -1), fetches),
        stamp=stamp,
        counters=s.counters.at[L1I_ACCESSES : L1I_MISSES + 1].add(counts),
    )
    return jnp.maximum(time, there), s


def deliver(s: State, c: Launch, slot: Array, row: Array, now: Bool[Array, " lane"]) -> State:
    """A fetch pair reaches the warp: decoded in the next cycle, issued in the one after."""
    line, front_end = c.machine["fetch_line"], s.clock + 2
    status = take(s.status, slot) & ~(WANT | MISS)
    pair = jnp.minimum(c.machine["fetch_width"], line - row[:, Row.FETCH_PC] % line)
    ready, memory = readiness(front_end, take(s.not_before, slot), row[:, Row.OPERANDS], row[:, Row.FROM_MEMORY])
    wrong_path = has(status, FLUSH)
    ready = jnp.where(wrong_path, front_end, ready)
    status = jnp.where(wrong_path, status, jnp.where(memory, status | MEMORY, status & ~MEMORY))
    return s._replace(
        status=put(s.status, slot, status, now),
        ready=put(s.ready, slot, ready, now),
        look=put(s.look, slot, look_at(ready, s.clock), now),
        warp=put(s.warp, slot, with_columns(row, {Row.BUFFERED: pair, Row.FRONT_END: front_end}), now),
    )


def notice(s: State, c: Launch, gone: Bool[Array, "slot lane"]) -> State:
    """Drained warps leave; with the last one of a block its slot is free."""
    return lax.cond(gone.any(), remove, lambda s, c, gone: s, s, c, gone)


def remove(s: State, c: Launch, gone: Bool[Array, "slot lane"]) -> State:
    """`notice` where there is something to notice."""
    time, any_gone = s.clock, gone.any(0)
    blocks = jnp.arange(len(s.block_live), dtype=jnp.int32)[:, None]
    one_hot = (c.block_of[None] == blocks).astype(jnp.int32)  # [block, slot]
    leaving = one_hot @ gone.astype(jnp.int32)
    left = s.block_live - leaving
    empty = (left == 0) & (s.block_live > 0)
    live = s.live - gone.sum(0, dtype=jnp.int32)
    horizon = jnp.minimum(s.horizon, jnp.maximum(time, s.last_dispatch + 1))
    return s._replace(
        status=jnp.where(gone, 0, s.status),
        live=live,
        last_exit=jnp.where(any_gone, time, s.last_exit),
        block_live=left,
        block_free=jnp.where(empty, time, s.block_free),
        resident=s.resident + leaving * (time - s.block_start),
        horizon=jnp.where(empty.any(0), horizon, s.horizon),
        idle_reason=jnp.where(any_gone & (live == 0), EMPTY, s.idle_reason),
    )


def next_cycle(s: State, c: Launch, policy: Oldest, now: Bool[Array, " lane"]) -> State:
    """Move the clock to the next cycle in which something can happen: the cycles the compiled engine visits."""
    time, status = s.clock, s.status
    waits_to_issue = has(status, RUN) & ~has(status, HELD | WANT | MISS)
    look = jnp.where((s.look <= time) & (s.ready > time), look_at(s.ready, time), s.look)
    visitable = waits_to_issue & (s.ready <= time)
    event = jnp.where(visitable, port_free_of(s), jnp.where(waits_to_issue, look, NEVER))
    event = jnp.where(has(status, WANT), 0, jnp.where(has(status, MISS), s.line_back, event))
    event = jnp.where(has(status, EXITING), s.drained, event)
    at_once = policy.visits_every_cycle | (s.issued & visitable.any(0)) | (s.live == 0)
    following = jnp.where(at_once, time + 1, jnp.maximum(time + 1, jnp.min(event, 0)))
    return s._replace(
        clock=jnp.where(now, following, time),
        look=jnp.where(now, look, s.look),
        turn=jnp.where(now, 0, s.turn),
        issued=s.issued & ~now,
    )
