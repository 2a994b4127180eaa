"""From issue to the start on a unit: collectors, register banks, units, result buses (rules 3 and 4)."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from abstim.engine.array.state import NEVER, Code, Launch, State, flat, put, put_flat, take
from abstim.engine.compiled.layout import MEM, RING, SP

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
    """Send the issued instructions down their ports; returns the cycle they start. `busy`: cycles on the load/store unit."""
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
    banks, operands = read_operands(s.banks, c, issue, allocated)
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


def read_operands(banks: Array, c: Launch, issue: Issue, allocated: Array) -> tuple[Array, Int32[Array, " lane"]]:
    """Book a bank and a cycle for every register read; returns the cycle in which all are at hand.

    Reads of one instruction from one bank are served in turn: each takes the free cycle after its predecessors' ones.
    """
    registers = c.reads[issue.instr].T  # [read, lane]
    reading = (registers >= 0) & issue.now
    bank = (registers + issue.slot) & (c.machine["banks"] - 1)
    earlier = [sum((bank[j] == bank[k]) & (registers[j] >= 0) for j in range(k)) for k in range(len(registers))]
    rank = jnp.stack([jnp.zeros_like(issue.slot) + e for e in earlier]).astype(jnp.int32)  # free cycles to leave out
    window = jnp.arange(WINDOW, dtype=jnp.int32)[:, None, None]

    def search(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        first, rank, found = carry
        times = first + window
        free = take(banks, bank * RING + (times & (RING - 1))) != times
        count = jnp.cumsum(free, 0, dtype=jnp.int32)
        hit = free & (count == rank + 1)
        at = jnp.min(jnp.where(hit, times, NEVER), 0)
        found = jnp.where(found < NEVER, found, at)
        return first + WINDOW, rank - count[-1], found

    state = (jnp.broadcast_to(allocated + 1, rank.shape), rank, jnp.where(reading, NEVER, 0).astype(jnp.int32))
    _, _, found = lax.while_loop(lambda carry: (carry[2] == NEVER).any(), search, state)
    banks = put(banks, bank * RING + (found & (RING - 1)), found, reading)
    return banks, jnp.maximum(allocated + 1, jnp.max(jnp.where(reading, found + 1, 0), 0))


def find_unit(s: State, c: Launch, issue: Issue, earliest: Array) -> tuple[Array, Array, Int32[Array, " lane"]]:
    """Book a unit from the first cycle in which one is free and its result finds a bus; returns (due, unit, cycle).

    An entry of `due` is ((cycle // ring) * 32 + results in that cycle, set of the units they leave, SFU above SP).
    """
    m, port = c.machine, issue.code[:, Code.UNIT]
    latency, ring = issue.code[:, Code.LATENCY], s.due.shape[0]
    units = jnp.arange(s.unit_free.shape[1], dtype=jnp.int32)[:, None]
    free_at = take(flat(s.unit_free), port * len(units) + units)  # [unit, lane]
    free_at = jnp.where(units < take(m["units"], port), free_at, NEVER)
    begin = jnp.maximum(earliest, jnp.min(free_at, 0))
    searching = issue.now & (port != MEM)
    window = jnp.arange(WINDOW, dtype=jnp.int32)[:, None]

    def look(first: Array) -> tuple[Array, Array, Array]:
        times = first + window  # [window, lane]
        entry = take(s.due, (times + latency) & (ring - 1))
        mine = (entry[..., 0] >> 5) == (times + latency) // ring
        results = jnp.where(mine, entry[..., 0] & 31, 0)
        leaving = jnp.where(mine, entry[..., 1], 0) >> (16 * port)
        able = (free_at[None] <= times[:, None]) & ((leaving[:, None] >> units[None]) & 1 == 0)  # [window, unit, lane]
        unit = jnp.min(jnp.where(able, units[None], NEVER), 1)
        ok = (unit < NEVER) & (results < m["result_bus"])
        return ok, unit, times

    def search(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        first, begin, unit = carry
        ok, units_free, times = look(first)
        at = jnp.argmax(ok, 0)[None]
        new = ok.any(0) & (begin == NEVER)
        begin = jnp.where(new, jnp.take_along_axis(times, at, 0)[0], begin)
        unit = jnp.where(new, jnp.take_along_axis(units_free, at, 0)[0], unit)
        return first + WINDOW, begin, unit

    state = (begin, jnp.where(searching, NEVER, begin), jnp.zeros_like(begin))
    _, begin, unit = lax.while_loop(lambda carry: (carry[1] == NEVER).any(), search, state)
    at, tag = (begin + latency) & (ring - 1), (begin + latency) // ring
    entry = take(s.due, at)
    same = (entry[:, 0] >> 5) == tag
    booked = jnp.stack(
        [
            jnp.where(same, entry[:, 0], tag << 5) + 1,
            jnp.where(same, entry[:, 1], 0) | (1 << (unit + 16 * port)),
        ],
        -1,
    )
    return put(s.due, at, booked, searching), unit, begin
