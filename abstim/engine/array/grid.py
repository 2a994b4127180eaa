"""Thread blocks to SMs (rule 10). Lanes of one design point wait for each other only here."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from abstim.engine.array.policies import Oldest
from abstim.engine.array.state import NEVER, PORT_SHIFT, RUN, WANT, Code, Launch, Row, State


def blocks_left(s: State, c: Launch) -> Bool[Array, " lane"]:
    """Has the lane's design point thread blocks that no SM has taken?"""
    return (s.next_block < c.block_count)[c.point]


def can_run(s: State, c: Launch) -> Bool[Array, " lane"]:
    """Lanes that may go on: up to and including the cycle in which a thread block may come in."""
    return (s.live > 0) & ((s.clock <= s.horizon) | ~blocks_left(s, c))


def dispatch(s: State, c: Launch, policy: Oldest) -> State:
    """Hand out at most one thread block a design point, where it is certain who takes it."""
    waiting = ~can_run(s, c) & blocks_left(s, c)
    return lax.cond(waiting.any(), lambda s, c, w: hand_out(s, c, policy, w), lambda s, c, w: s, s, c, waiting)


def hand_out(s: State, c: Launch, policy: Oldest, waiting: Array) -> State:
    """Launch in the lane with the earliest dispatch of its point, once no running lane can be as early."""
    soonest = jnp.minimum(s.horizon, jnp.maximum(s.clock, s.last_dispatch + 1))
    turn = (c.sm - s.last_taker[c.point] - 1) % c.sm_count[c.point]
    offer = of_points(c, jnp.where(waiting, s.horizon, NEVER)).min(1)
    others = of_points(c, jnp.where(waiting, NEVER, soonest)).min(1)
    first = waiting & (s.horizon == offer[c.point]) & (others > offer)[c.point]
    chosen = of_points(c, jnp.where(first, turn, NEVER)).min(1)
    takes = first & (turn == chosen[c.point])
    taken = of_points(c, jnp.where(takes, 0, NEVER)).min(1) == 0
    taker = of_points(c, jnp.where(takes, c.sm, NEVER)).min(1)
    s = launch(s, c, policy, takes, s.next_block[c.point])
    return s._replace(next_block=s.next_block + taken, last_taker=jnp.where(taken, taker, s.last_taker))


def of_points(c: Launch, values: Int32[Array, " lane"]) -> Int32[Array, "point sm"]:
    """A lane's values, by design point; NEVER where a point has no such SM."""
    return values.at[c.lanes_of_point].get(mode="fill", fill_value=NEVER)


def launch(s: State, c: Launch, policy: Oldest, takes: Bool[Array, " lane"], block: Int32[Array, " lane"]) -> State:
    """Thread block `block` enters the lowest free slot at the end of cycle `horizon`."""
    time, width = s.horizon, c.warps_per_block
    slots = jnp.arange(len(s.ready), dtype=jnp.int32)[:, None]
    blocks = jnp.arange(len(s.block_free), dtype=jnp.int32)[:, None]
    chosen = jnp.argmax(s.block_free <= time, 0).astype(jnp.int32)
    entered = (blocks == chosen) & takes
    mine = (c.block_of[:, None] == chosen) & takes
    place = slots % width
    warp = jnp.where(mine, block * width + place, 0)
    rows = first_rows(c, warp)
    status = RUN | WANT | (c.code[rows[..., Row.PC], Code.UNIT] << PORT_SHIFT)
    block_free = jnp.where(entered, NEVER, s.block_free)
    dispatched = jnp.where(takes, time, s.last_dispatch)
    s = policy.launched(s, c, mine, place)
    return s._replace(
        status=jnp.where(mine, status, s.status),
        ready=jnp.where(mine, NEVER, s.ready),
        drained=jnp.where(mine, 0, s.drained),
        not_before=jnp.where(mine, 0, s.not_before),
        warp=jnp.where(mine[..., None], rows, s.warp),
        launched=jnp.where(takes, s.launched + width, s.launched),
        block_live=jnp.where(entered, width, s.block_live),
        block_free=block_free,
        block_start=jnp.where(entered, time, s.block_start),
        last_dispatch=dispatched,
        horizon=jnp.where(takes, jnp.maximum(block_free.min(0), dispatched + 1), s.horizon),
        clock=jnp.where(takes, jnp.where(s.live > 0, jnp.minimum(s.clock, time + 1), time + 1), s.clock),
        turn=jnp.where(takes, 0, s.turn),
        live=jnp.where(takes, s.live + width, s.live),
    )


def first_rows(c: Launch, warp: Int32[Array, "slot lane"]) -> Int32[Array, "slot lane field"]:
    """Rows of warps of the trace before their first instruction."""
    begin, end = c.offsets[warp], c.offsets[warp + 1]
    bounds = c.bounds[c.blocks[begin[..., 0]]]
    pc = c.code[bounds[..., 0], Code.PC]
    columns = {
        Row.PC: bounds[..., 0],
        Row.STOP: bounds[..., 1],
        Row.EVENT: begin[..., 0],
        Row.EVENT_END: end[..., 0],
        Row.RECORD: begin[..., 1],
        Row.CONFLICT: begin[..., 2],
        Row.FETCH_PC: pc,
        Row.NEXT_PC: pc,
    }
    return jnp.stack([columns.get(f, jnp.zeros_like(pc)) for f in Row], -1)
