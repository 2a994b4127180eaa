"""One step: in every lane that may run, one scheduler's turn, or one transaction of the access it has begun."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from abstim.engine.array import frontend, grid, memory, ports
from abstim.engine.array.policies import POLICIES, Oldest
from abstim.engine.array.schedule import end_turns, next_turn, take_turn
from abstim.engine.array.state import LIMIT_CYCLES, Code, Launch, Row, State, take
from abstim.engine.array.warp import complete
from abstim.engine.compiled.layout import MEM


@partial(jax.jit, static_argnames="policy", donate_argnums=0)
def run(s: State, c: Launch, steps: Array, policy: str) -> State:
    """Up to `steps` steps, fewer if every lane is done or one is over the limit."""

    def goes_on(carry: tuple[Array, State]) -> Array:
        n, s = carry
        return (n < steps) & unfinished(s, c).any() & (s.clock.max() < LIMIT_CYCLES)

    return lax.while_loop(goes_on, lambda carry: (carry[0] + 1, step(carry[1], c, POLICIES[policy])), (0, s))[1]


def unfinished(s: State, c: Launch) -> Array:
    """Lanes with warps, or with blocks to come."""
    return (s.live > 0) | grid.blocks_left(s, c)


def step(s: State, c: Launch, policy: Oldest) -> State:
    """Advance every lane by one turn."""
    s = grid.dispatch(s, c, policy)
    active = grid.can_run(s, c)
    resumed = active & (s.access.left > 0)
    turn = next_turn(s, c, policy)
    turn = turn._replace(now=turn.now & active & ~resumed)
    s, issues, slot = take_turn(s, c, policy, turn)
    s, issue, result = execute(s, c, issues, jnp.where(resumed, s.access.slot, slot), resumed)
    s = complete(s, c, issue, result)
    s, over = end_turns(s, c, policy, turn, issues, active & (s.access.left == 0))
    s = frontend.fetch_stage(s, c, over)
    return frontend.next_cycle(s, c, policy, over)


def execute(s: State, c: Launch, issues: Array, slot: Array, resumed: Array) -> tuple[State, ports.Issue, Array]:
    """Issue, and make one transaction; returns what is complete with this step, and its result cycles."""
    row = take(s.warp, slot)
    instr = row[:, Row.PC]
    code = c.code[instr]
    issue = ports.Issue(issues, s.clock, slot, instr, row, code)
    demand = memory.Demand(c, issue)
    s, start = ports.start(s, c, issue, demand.busy)
    s = s._replace(access=memory.begin_access(s, c, issue, demand, start))
    s = memory.transact(s, c, code)
    through_memory = resumed | (demand.transactions > 0)
    on_unit = jnp.where(code[:, Code.UNIT] == MEM, demand.fixed, code[:, Code.LATENCY] + 2)
    result = jnp.where(through_memory, s.access.done, start + on_unit)
    done = (issues | resumed) & (s.access.left == 0)
    return s, issue._replace(now=done), result
