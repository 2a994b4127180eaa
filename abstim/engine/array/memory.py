"""Memory instructions: cycles on the load/store unit, and one transaction a step through the caches (rules 4, 5)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int32

from abstim.engine.array.ports import Issue
from abstim.engine.array.state import NEVER, Access, Code, Launch, Row, State, put, take
from functional.trace import LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE
from precharacterize.classify import Kind

L1D_ACCESSES, L1D_MISSES, CONST_ACCESSES, CONST_MISSES = range(4)  # rows of State.counters


def is_shared(kind: Array) -> Array:
    """Does the instruction take its cycles from the conflict stream?"""
    return (kind >= Kind.SHARED_LOAD) & (kind <= Kind.SHARED_ATOMIC)


def has_records(kind: Array) -> Array:
    """Does the instruction have line records?"""
    return (kind >= Kind.PARAM_LOAD) & ~is_shared(kind)


def transactions(sectors: Array, kind: Array, code: Array, m: dict[str, Array]) -> Array:
    """Transactions (constant lines) of a record with these sector bits."""
    variant = variant_of(kind, code, m)
    low, high = sectors & 3, sectors >> 2
    halves = (low != 0).astype(jnp.int32) + (high != 0)
    bits = (low & 1) + (low >> 1) + (high & 1) + (high >> 1)
    return jnp.where(variant == 0, 1, jnp.where(variant == 1, halves, bits))


def variant_of(kind: Array, code: Array, m: dict[str, Array]) -> Array:
    """How records make transactions: 0 one each, 1 one a 64 B half, 2 one a 32 B sector."""
    size = code[:, Code.ACCESS_BYTES]
    general = jnp.where((m["sector_coalescing"] != 0) | (size == 1), 2, jnp.where(size == 2, 1, 0))
    return jnp.where(kind <= Kind.CONST_LOAD, jnp.where(m["const_line_bytes"] >= 128, 0, 1), general)


class Demand:
    """What the issued instructions ask of memory. `fixed`: cycles from start to result without transactions."""

    def __init__(self, c: Launch, issue: Issue) -> None:
        m, kind = c.machine, issue.code[:, Code.KIND]
        shared, first = is_shared(kind), issue.row[:, Row.RECORD]
        passes = jnp.where(shared, c.conflicts[jnp.where(shared, issue.row[:, Row.CONFLICT], 0)], 0)
        self.records = has_records(kind)
        self.first = jnp.where(self.records, first, 0)
        group = c.groups[self.first]
        word = c.records[self.first]
        lanes = (word >> 1) & 15 != 0
        generic_shared = lanes & ((word >> 5) == SHARED_WINDOW_LINE)
        self.end = group[:, 0]
        count = jnp.take_along_axis(group, 1 + variant_of(kind, issue.code, m)[:, None], 1)[:, 0]
        count = jnp.where(self.records & lanes, count, 0)
        self.busy = jnp.maximum(1, jnp.where(shared, passes, count))
        self.transactions = jnp.where(generic_shared, 0, count)
        window = generic_shared & self.records
        passes = jnp.where(window, self.end - self.first + 1, passes)
        self.fixed = jnp.where(passes > 0, m["shared_cycles"] + passes - 1, 1)


def begin_access(s: State, c: Launch, issue: Issue, demand: Demand, start: Array) -> Access:
    """The access state of lanes whose instruction has transactions; unchanged elsewhere."""
    kind, m = issue.code[:, Code.KIND], c.machine
    begins = issue.now & (demand.transactions > 0)
    general = jnp.where(kind == Kind.GLOBAL_ATOMIC, m["atomic_cycles"] - m["miss_cycles"], m["l1d_cycles"] + 1)
    hit = start + jnp.where(kind <= Kind.CONST_LOAD, m["const_cycles"], general)
    values = Access(demand.transactions, demand.end, jnp.zeros_like(start), hit, start, issue.slot)
    return Access(*(jnp.where(begins, new, old) for new, old in zip(values, s.access, strict=True)))


def transact(s: State, c: Launch, code: Int32[Array, "lane column"]) -> State:
    """One transaction of every lane that has an access under way; `code` is that instruction's."""
    m, kind, access = c.machine, code[:, Code.KIND], s.access
    going = access.left > 0
    word = c.records[jnp.where(going, access.record, 0)]
    sectors, line = ((word >> 1) & 15).astype(jnp.int32), (word >> 5).astype(jnp.int32)
    const = kind <= Kind.CONST_LOAD
    halves = const & (m["const_line_bytes"] < 128)
    half = jnp.where((sectors & 3 == 0) | (access.part > 0), 1, 0)
    load = const | (kind == Kind.GLOBAL_LOAD) | ((kind == Kind.GLOBAL_STORE) & (line >= LOCAL_WINDOW_LINE))
    looks_up = going & (kind != Kind.GLOBAL_ATOMIC)
    s, done = look_up(s, c, const, jnp.where(halves, 2 * line + half, line), access.hit, going, looks_up, load)
    part = access.part + 1
    same = part < transactions(sectors, kind, code, m)
    following = Access(
        left=access.left - 1,
        record=jnp.where(same, access.record, access.record - 1),
        part=jnp.where(same, part, 0),
        hit=access.hit + 1,
        done=jnp.maximum(access.done, done),
        slot=access.slot,
    )
    return s._replace(access=Access(*(jnp.where(going, n, o) for n, o in zip(following, access, strict=True))))


def set_of(m: dict[str, Array], const: Array, line: Array) -> tuple[Array, Array]:
    """(first line of the set in `State.data`, ways): the constant cache is linear, L1D linear or hashed."""
    sets, ways = jnp.where(const, m["const_sets"], m["l1d_sets"]), jnp.where(const, m["const_ways"], m["l1d_ways"])
    upper = ((line >> 6) & 7) | (((line >> 10) & 1) << 3) | (((line >> 12) & 1) << 4)
    index = jnp.where(~const & (m["l1d_index"] == 1), line ^ upper, line) & (sets - 1)
    return jnp.where(const, 0, m["const_sets"] * m["const_ways"]) + index * ways, ways


def find(cache: Array, first: Array, ways: Array, way: Array, line: Array) -> tuple[Array, Array, Array]:
    """(is the line there, its place or that of the least recently used, its fill cycle).

    `way` is 0, 1, ... to the most ways of any lane.
    """
    way = way[:, None]
    place = jnp.minimum(first + way, cache.shape[0] - 1)
    rows = take(cache, place)  # [way, lane, three]
    within = way < ways
    match = within & (rows[..., 0] == line)
    hit = match.any(0)
    order = jnp.where(match, -2, jnp.where(within, rows[..., 1], NEVER))
    chosen = jnp.argmin(order, 0).astype(jnp.int32)
    return hit, first + chosen, jnp.take_along_axis(rows[..., 2], chosen[None], 0)[0]


def look_up(
    s: State, c: Launch, const: Array, line: Array, time: Array, going: Array, looks_up: Array, load: Array
) -> tuple[State, Int32[Array, " lane"]]:
    """Result cycle of one transaction whose hit result is at `time`, with everything it changes."""
    m = c.machine
    first, ways = set_of(m, const, line)
    hit, place, filled = find(s.data, first, ways, c.data_way, line)
    hit = hit & looks_up
    out = jnp.maximum(time + m["miss_cycles"], s.response_free)
    responds = going & ~(load & hit)
    evicts = hit & ~load
    stamp = s.stamp + (going & load)
    row = jnp.stack([line, stamp, jnp.where(hit, filled, out)], -1)
    row = jnp.where(evicts[:, None], -1, row)
    missed = looks_up & ~hit
    counts = [looks_up & ~const, missed & ~const, looks_up & const, missed & const]
    counters = s.counters.at[:4].add(jnp.stack(counts).astype(jnp.int32))
    s = s._replace(
        data=put(s.data, place, row, (going & load) | evicts),
        stamp=stamp,
        response_free=jnp.where(responds, out + 1, s.response_free),
        counters=counters,
    )
    return s, jnp.where(load & hit, jnp.maximum(time, filled), out)
