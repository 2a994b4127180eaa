"""A warp after an issue: results, next instruction, barrier, exit (rules 3, 7, 8 and 9)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from abstim.engine.array.memory import has_records, is_shared
from abstim.engine.array.ports import Issue
from abstim.engine.array.state import (
    EXITING,
    FLUSH,
    HELD,
    MEMORY,
    NEVER,
    PORT_SHIFT,
    RUN,
    WANT,
    Code,
    Launch,
    Row,
    State,
    flat,
    has,
    put,
    put_flat,
    take,
)  # fmt: skip
from abstim.engine.compiled.layout import FROM_ALU, FROM_GLOBAL, FROM_NEAR, FROM_PARAM, WHEEL
from abstim.engine.compiled.retire import RETIRE_CYCLES
from precharacterize.classify import Kind


def complete(s: State, c: Launch, issue: Issue, result: Int32[Array, " lane"]) -> State:
    """Finish the instructions of `issue`, whose results are there at `result`."""
    now, slot, kind = issue.now, issue.slot, issue.code[:, Code.KIND]
    s = write_back(s, c, issue, result)
    drained = jnp.maximum(take(s.drained, slot), result)
    following, last = next_instruction(c, issue)
    leaves = now & last
    drained = jnp.where(leaves, jnp.maximum(drained, s.clock + RETIRE_CYCLES), drained)
    atomic = (kind == Kind.SHARED_ATOMIC) | (kind == Kind.GLOBAL_ATOMIC)
    not_before = jnp.where(atomic, result - 1, jnp.where(kind == Kind.FENCE, drained, 0))
    status, ready, row = follow(s, c, issue, following, not_before)
    barrier = now & ~last & (kind == Kind.BARRIER)
    status = jnp.where(barrier, status | HELD, status)
    status = jnp.where(last, EXITING, status)
    ready = jnp.where(last, NEVER, ready)
    s = s._replace(
        drained=put(s.drained, slot, drained, now),
        not_before=put(s.not_before, slot, not_before, now & ~last),
        status=put(s.status, slot, status, now),
        ready=put(s.ready, slot, ready, now),
        look=put(s.look, slot, look_at(ready, s.clock), now),
        warp=put(s.warp, slot, row, now),
    )
    arrives = barrier | leaves
    block = slot // c.warps_per_block
    parts = (s.status, s.ready, s.not_before, s.look)
    parts = lax.cond(arrives.any(), release, lambda c, *a: a[3:], c, s.clock, block, arrives, *parts)
    return s._replace(status=parts[0], ready=parts[1], not_before=parts[2], look=parts[3])


def write_back(s: State, c: Launch, issue: Issue, result: Array) -> State:
    """Book the banks of the results and set the scoreboard: free cycle * 4 + origin of the value."""
    kind, slot, ring = issue.code[:, Code.KIND], issue.slot, s.due.shape[0]
    near = jnp.where(kind > Kind.PARAM_LOAD, FROM_NEAR, FROM_ALU)
    origin = jnp.where(kind == Kind.PARAM_LOAD, FROM_PARAM, jnp.where(kind >= Kind.GLOBAL_LOAD, FROM_GLOBAL, near))
    entry = result * 4 + origin
    numbers, registers = c.write_banks[issue.instr].T, c.writes[issue.instr].T
    bank = ((numbers + slot) & (c.machine["banks"] - 1)) * ring + (result & (ring - 1))
    per_slot = s.registers.shape[1]
    return s._replace(
        banks=put(s.banks, bank, jnp.broadcast_to(result, bank.shape), issue.now & (numbers >= 0), unique=False),
        registers=put_flat(s.registers, slot * per_slot + registers, entry, issue.now & (registers >= 0)),
    )


def next_instruction(c: Launch, issue: Issue) -> tuple[Int32[Array, "lane field"], Bool[Array, " lane"]]:
    """The warp's row moved to its next instruction, and whether there is none."""
    row, kind = issue.row, issue.code[:, Code.KIND]
    pc, event = row[:, Row.PC] + 1, row[:, Row.EVENT]
    ends = pc >= row[:, Row.STOP]
    event = jnp.where(ends, event + 1, event)
    last = ends & (event >= row[:, Row.EVENT_END])
    bounds = c.bounds[c.blocks[jnp.where(ends & ~last, event, 0)]]
    record, moves = row[:, Row.RECORD], has_records(kind)
    records = jnp.where(moves, c.groups[jnp.where(moves, record, 0), 0] + 1, record)
    changed = {
        Row.PC: jnp.where(ends, bounds[:, 0], pc),
        Row.STOP: jnp.where(ends, bounds[:, 1], row[:, Row.STOP]),
        Row.EVENT: event,
        Row.RECORD: records,
        Row.CONFLICT: row[:, Row.CONFLICT] + is_shared(kind),
        Row.BUFFERED: row[:, Row.BUFFERED] - 1,
    }
    return with_columns(row, changed), last


def with_columns(row: Array, changed: dict[Row, Array]) -> Array:
    """`row` with some of its columns replaced."""
    return jnp.stack([changed.get(f, row[:, f]).astype(jnp.int32) for f in Row], -1)


def scoreboard(s: State, slot: Array, registers: Int32[Array, "wait lane"]) -> Int32[Array, "wait lane"]:
    """Entries of registers of the warps in `slot`; 0 where there is none (-1)."""
    place = jnp.where(registers >= 0, slot * s.registers.shape[1] + registers, 0)
    return jnp.where(registers >= 0, take(flat(s.registers), place), 0)


def operands(s: State, c: Launch, slot: Array, instr: Array) -> tuple[Array, Array]:
    """(cycle in which the registers of an instruction are free, 1 if the one that is last comes from memory)."""
    entries = scoreboard(s, slot, c.waits[instr].T)
    last = jnp.argmax(entries >> 2, 0)[None]
    entry = jnp.take_along_axis(entries, last, 0)[0]
    return entry >> 2, (entry & 3 != FROM_ALU).astype(jnp.int32)


def long_wait(s: State, c: Launch, slot: Array, instr: Array) -> Array:
    """Until when an instruction counts as waiting for a long operation: for ever after a global access."""
    entries = scoreboard(s, slot, c.long_waits[instr].T)
    origin = entries & 3
    until = jnp.where(origin == FROM_GLOBAL, NEVER, jnp.where(origin == FROM_PARAM, entries >> 2, 0))
    return jnp.max(until, 0)


def readiness(front_end: Array, not_before: Array, operands: Array, from_memory: Array) -> tuple[Array, Array]:
    """(`ready` of a warp whose next instruction is at hand from `front_end`, is it memory it waits for)."""
    ready = jnp.maximum(front_end, not_before)
    memory = jnp.where(operands > ready, from_memory != 0, not_before > front_end)
    return jnp.maximum(ready, operands), memory


def follow(s: State, c: Launch, issue: Issue, row: Array, not_before: Array) -> tuple[Array, Array, Array]:
    """(status, ready, row) of the issuing warps: sequential, other lanes after an exit, or a taken branch."""
    following = row[:, Row.PC]
    time, left = s.clock, row[:, Row.BUFFERED] > 0
    sequential = following == issue.instr + 1
    wrong_path = ~sequential & (issue.code[:, Code.KIND] != Kind.EXIT)
    free, from_memory = operands(s, c, issue.slot, following)
    ready, memory = readiness(time + 1, not_before, free, from_memory)
    at_hand = left & (sequential | wrong_path)
    next_pc = c.code[following, Code.PC]
    row = with_columns(
        row,
        {
            Row.OPERANDS: free,
            Row.FROM_MEMORY: from_memory,
            Row.NEXT_PC: next_pc,
            Row.LONG: long_wait(s, c, issue.slot, following),
            Row.WRONG_LONG: long_wait(s, c, issue.slot, jnp.minimum(issue.instr + 1, c.code_length - 1)),
            Row.FETCH_PC: jnp.where(wrong_path, issue.code[:, Code.PC] + 1, next_pc),
        },
    )
    status = RUN | (c.code[following, Code.UNIT] << PORT_SHIFT)
    status = status | jnp.where(wrong_path, FLUSH, 0) | jnp.where(at_hand, 0, WANT)
    status = status | jnp.where(at_hand & sequential & memory, MEMORY, 0)
    return status, jnp.where(at_hand, jnp.where(sequential, ready, time + 1), NEVER), row


def look_at(ready: Array, time: Array) -> Array:
    """The next cycle spent on a warp that waits until `ready`."""
    return jnp.minimum(ready, time + WHEEL - 1)


def release(
    c: Launch, time: Array, block: Array, arrives: Array, status: Array, ready: Array, not_before: Array, look: Array
) -> tuple[Array, Array, Array, Array]:
    """Where a warp of `block` has just reached a barrier or its end: let go if nobody of the block is missing."""
    mine = (c.block_of[:, None] == block) & arrives & has(status, RUN)
    complete = ~(mine & ~has(status, HELD)).any(0)
    freed = mine & complete
    ready = jnp.where(freed, jnp.maximum(ready, time), ready)
    return (
        jnp.where(freed, status & ~HELD, status),
        ready,
        jnp.where(freed, jnp.maximum(not_before, time), not_before),
        jnp.where(freed, look_at(ready, time), look),
    )
