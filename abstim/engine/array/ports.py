"""From issue to the start on a unit: collectors, register banks, units, result buses (rules 3 and 4)."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from abstim.engine.array.state import NEVER, Code, Launch, State, flat, put, put_flat, take
from abstim.engine.compiled.layout import MEM, SP

WINDOW = 4  # cycles looked at in one go for a free place


class Issue(NamedTuple):
    """What issues in this step. Lanes in which nothing issues hold numbers without meaning."""

    now: Bool[Array, " lane"]
    time: Int32[Array, " lane"]
    slot: Int32[Array, " lane"]
    instr: Int32[Array, " lane"]
    row: Int32[Array, "lane field"]  # the warp's
    code: Int32[Array, "lane column"]  # the instruction's


def port_free(s: State) -> Int32[Array, "port lane"]:
    """First cycle in which an instruction can issue to each port."""
    ports, width, _ = s.port_alloc.shape
    return take(flat(s.port_alloc), jnp.arange(ports, dtype=jnp.int32)[:, None] * width + s.port_position)


def start(s: State, c: Launch, issue: Issue, busy: Array) -> tuple[State, Int32[Array, " lane"]]:
    """Send the issued instructions down their ports; returns the cycle they start.

    `busy`: cycles that those for the load/store unit keep it.
    """
    m, port = c.machine, issue.code[:, Code.UNIT]
    _, width, _ = s.port_alloc.shape
    place = port * width + take(s.port_position, port)
    previous = take(flat(s.port_alloc), place)
    rows = port * s.collector.shape[1] + jnp.arange(s.collector.shape[1], dtype=jnp.int32)[:, None]
    releases = take(flat(s.collector), rows)
    collector, release = jnp.argmin(releases, 0).astype(jnp.int32), jnp.min(releases, 0)
    allocated = jnp.maximum(issue.time + 1, release)
    widths = take(m["port_width"], port)
    allocated = jnp.where(widths == 1, jnp.maximum(allocated, previous + 1), allocated)
    banks, operands = read_operands(s, c, issue, allocated)
    dispatched = jnp.maximum(operands, take(flat(s.port_start), place))
    earliest = jnp.where(port == SP, jnp.maximum(dispatched + 1, s.last_sp_start), dispatched + 1)
    due, unit, begin = find_unit(s, c, issue, earliest)
    taken = jnp.where(port == MEM, busy, issue.code[:, Code.INITIATION])
    position = take(s.port_position, port) + 1
    now = issue.now
    s = s._replace(
        banks=banks,
        due=due,
        unit_free=put_flat(s.unit_free, port * s.unit_free.shape[1] + unit, begin + taken, now),
        last_sp_start=jnp.where(now & (port == SP), begin, s.last_sp_start),
        port_alloc=put_flat(s.port_alloc, place, allocated, now),
        port_start=put_flat(s.port_start, place, begin, now),
        port_position=put(s.port_position, port, jnp.where(position < widths, position, 0), now),
        collector=put_flat(s.collector, port * s.collector.shape[1] + collector, dispatched, now),
    )
    return s, begin


def read_operands(s: State, c: Launch, issue: Issue, allocated: Array) -> tuple[Array, Int32[Array, " lane"]]:
    """Book a bank and a cycle for every register read; returns the cycle in which all are at hand.

    Reads of one instruction from one bank are served in turn: each takes the free cycle after its predecessors' ones.
    """
    registers = c.reads[issue.instr].T  # [read, lane]
    reading = (registers >= 0) & issue.now
    banks, ring = s.banks, s.due.shape[0]
    bank = (registers + issue.slot) & (c.machine["banks"] - 1)
    earlier = [sum((bank[j] == bank[k]) & (registers[j] >= 0) for j in range(k)) for k in range(len(registers))]
    rank = jnp.stack([jnp.zeros_like(issue.slot) + e for e in earlier]).astype(jnp.int32)  # free cycles to leave out
    window = jnp.arange(WINDOW, dtype=jnp.int32)[:, None, None]

    def search(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        first, rank, found = carry
        times = first + window
        free = take(banks, bank * ring + (times & (ring - 1))) != times
        count = jnp.cumsum(free, 0, dtype=jnp.int32)
        hit = free & (count == rank + 1)
        at = jnp.min(jnp.where(hit, times, NEVER), 0)
        found = jnp.where(found < NEVER, found, at)
        return first + WINDOW, rank - count[-1], found

    state = (jnp.broadcast_to(allocated + 1, rank.shape), rank, jnp.where(reading, NEVER, 0).astype(jnp.int32))
    _, _, found = lax.while_loop(lambda carry: (carry[2] == NEVER).any(), search, state)
    banks = put(banks, bank * ring + (found & (ring - 1)), found, reading)
    return banks, jnp.maximum(allocated + 1, jnp.max(jnp.where(reading, found + 1, 0), 0))


def find_unit(s: State, c: Launch, issue: Issue, earliest: Array) -> tuple[Array, Array, Int32[Array, " lane"]]:
    """Book a unit from the first cycle in which one is free and its result finds a bus; returns (due, unit, cycle).

    The load/store unit, whose results need no bus, is the first of its port.
    """
    port = issue.code[:, Code.UNIT]
    units = jnp.arange(s.unit_free.shape[1], dtype=jnp.int32)[:, None]
    free_at = take(flat(s.unit_free), port * len(units) + units)
    free_at = jnp.where(units < take(c.machine["units"], port), free_at, NEVER)
    begin = jnp.maximum(earliest, jnp.min(free_at, 0))
    searching = issue.now & (port != MEM)

    def search(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        first, begin, unit = carry
        times = first + jnp.arange(WINDOW, dtype=jnp.int32)[:, None]
        free_unit = unit_free_at(s, c, issue, free_at, times)
        at = jnp.argmax(free_unit < NEVER, 0)[None]
        new = (free_unit < NEVER).any(0) & (begin == NEVER)
        begin = jnp.where(new, jnp.take_along_axis(times, at, 0)[0], begin)
        unit = jnp.where(new, jnp.take_along_axis(free_unit, at, 0)[0], unit)
        return first + WINDOW, begin, unit

    state = (begin, jnp.where(searching, NEVER, begin), jnp.zeros_like(begin))
    _, begin, unit = lax.while_loop(lambda carry: (carry[1] == NEVER).any(), search, state)
    return book_result(s, issue, unit, begin + issue.code[:, Code.LATENCY], searching), unit, begin


def results_due(s: State, time: Array) -> tuple[Array, Array]:
    """(results due at `time`, set of the units they leave: SFU above SP). Entries begin with the cycle."""
    ring = s.due.shape[0]
    entry = take(s.due, time & (ring - 1))
    mine = (entry[..., 0] >> 5) == time // ring
    return jnp.where(mine, entry[..., 0] & 31, 0), jnp.where(mine, entry[..., 1], 0)


def unit_free_at(
    s: State, c: Launch, issue: Issue, free_at: Int32[Array, "unit lane"], times: Int32[Array, "window lane"]
) -> Int32[Array, "window lane"]:
    """The lowest unit that can take the instruction in each cycle and whose result finds a bus; NEVER: none."""
    port, units = issue.code[:, Code.UNIT], jnp.arange(len(free_at), dtype=jnp.int32)[:, None]
    results, leaving = results_due(s, times + issue.code[:, Code.LATENCY])
    leaving = leaving >> (16 * port)
    able = (free_at[None] <= times[:, None]) & ((leaving[:, None] >> units[None]) & 1 == 0)
    able = able & (results < c.machine["result_bus"])[:, None]
    return jnp.min(jnp.where(able, units[None], NEVER), 1)


def book_result(s: State, issue: Issue, unit: Array, time: Array, where: Array) -> Array:
    """`State.due` with a result of `unit` at `time`."""
    ring, port = s.due.shape[0], issue.code[:, Code.UNIT]
    results, leaving = results_due(s, time)
    entry = jnp.stack([(time // ring << 5) + results + 1, leaving | (1 << (unit + 16 * port))], -1)
    return put(s.due, time & (ring - 1), entry, where)
