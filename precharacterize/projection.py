"""A trace of PTX blocks as a trace of timed blocks (docs/machine-code.md). The walk over its warps is in
`projection_walk`, apart because it loads a compiler."""

from collections import namedtuple
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from functional.jit.machine_code import Native
from functional.traces.line_record import MORE, count_of, in_phases, line_of, without_phases
from functional.traces.trace import OFFSETS, STREAMS, Trace, offsets_of
from precharacterize.classify import Operations
from precharacterize.timed_code import TimedCode

# A trace's arrays, and those of a TimedCode
_tuple_of: Any = namedtuple  # its fields are not spelled out, as the type checker would have them
Given = _tuple_of("Given", (*STREAMS, *OFFSETS))
Rules = _tuple_of("Rules", [f.name for f in fields(TimedCode) if f.name not in ("table", "description", "origins")])


class Scratch(NamedTuple):
    """Of one warp: what has been said of each event, where its accesses begin; of one timed block: events it covers."""

    emitted: np.ndarray
    matched: np.ndarray  # [stream, access]: a timed instruction makes it
    first_access: np.ndarray  # [event, stream]
    record_start: np.ndarray  # by access
    found: np.ndarray  # by cover
    gathered: np.ndarray  # records of accesses made one
    span: np.ndarray  # the warp's first event, the end of its events, the end of its passes, accesses with records


class Made(NamedTuple):
    """The projected trace; `at` is the next place in each stream."""

    blocks: np.ndarray
    masks: np.ndarray
    records: np.ndarray
    conflicts: np.ndarray
    at: np.ndarray
    counts: np.ndarray


_COUNTS = 10  # see Projected
_RECORDS = 1 << 12  # of one warp instruction, several accesses made one
_walk = Native("precharacterize.projection_walk", "walk")


@dataclass(frozen=True)
class Projected:
    """A trace of timed blocks, with counts over its warps: instructions timed, those of them that are machine code,
    memory accesses of the PTX other than constants (those to shared memory last), those of them that a timed
    instruction makes, and operations of all threads. `waits_kept`: the share of waits at `mbarrier`s; the others take
    no time."""

    trace: Trace
    instructions: int
    machine_instructions: int
    accesses: tuple[int, int]
    matched_accesses: tuple[int, int]
    operations: Operations
    waits_kept: float = 1.0


def project(trace: Trace, code: TimedCode) -> Projected:
    """The trace as the timed code's. Instruction counts stay those of the PTX; which words stores leave out is lost."""
    given = Given(*(np.ascontiguousarray(getattr(trace, name)) for name in Given._fields))
    rules = Rules(*(np.ascontiguousarray(getattr(code, name)) for name in Rules._fields))
    scratch, warps = _scratch(given, rules), len(trace.block_offsets) - 1
    offsets, counts = np.zeros((warps + 1, 3), np.int64), np.zeros(_COUNTS, np.int64)
    _walk(given, rules, scratch, _made(np.zeros(3, np.int64), counts), offsets, 0)
    offsets = np.cumsum(offsets, axis=0)
    counts[:] = 0
    made = _made(offsets[-1], counts)
    _walk(given, rules, scratch, made, offsets, 1)
    streams: dict[str, Any] = {name: getattr(made, name) for name in STREAMS}
    cuts: dict[str, Any] = {name: offsets[:, k].copy() for k, name in enumerate(OFFSETS)}
    instructions, machine, *both, own, shared = counts[:6].tolist()
    filled = {name: getattr(trace, name)[:0] for name in ("partial_at", "partial_words")}
    made_of = replace(trace, **streams, **cuts, **filled)
    kept = _waits_kept(trace, made_of)
    made_of = made_of if kept else without_phases(made_of)
    operations = Operations(*counts[6:].tolist())
    return Projected(made_of, instructions, machine, (both[0], both[1]), (own, shared), operations, kept)


def _waits_kept(given: Trace, made: Trace) -> float:
    """The share of waits at `mbarrier`s that a projected trace has, if each warp makes all of its arrivals and what it
    has is in order; else 0: who waits for an arrival that is lost would wait for ever."""
    before, after = (in_phases(trace.records) for trace in (given, made))
    own, new = given.records[before] | MORE, made.records[after] | MORE
    places = offsets_of(before)[given.record_offsets], offsets_of(after)[made.record_offsets]
    if np.array_equal(own, new) and np.array_equal(places[0], places[1]):
        return 1.0
    for start, stop, first, end in zip(places[0], places[0][1:], places[1], places[1][1:], strict=False):
        left, found = own[start:stop].tolist(), new[first:end].tolist()
        rest = iter(left)
        if not all(record in rest for record in found) or _arrivals(left) != _arrivals(found):
            return 0.0
    return (len(new) - _arrivals(new.tolist())) / max(1, len(own) - _arrivals(own.tolist()))


def _arrivals(records: list[int]) -> int:
    return sum(not count_of(line_of(record)) for record in records)


def _made(sizes: np.ndarray, counts: np.ndarray) -> Made:
    events, records, passes = sizes.tolist()
    streams = np.zeros(events, np.uint16), np.zeros(events, np.uint32), np.zeros(records, np.uint32)
    return Made(*streams, np.zeros(passes, np.uint8), np.zeros(3, np.int64), counts)


def _scratch(given: Any, rules: Any) -> Scratch:
    events = int(np.diff(given.block_offsets).max(initial=0)) + 1
    records = int(np.diff(given.record_offsets).max(initial=0)) + 2
    covers = int(np.diff(rules.covers_at).max(initial=0)) + 1
    accesses = max(records, int(np.diff(given.conflict_offsets).max(initial=0)) + 2)
    of_events = np.zeros(events, np.uint64), np.zeros((2, accesses), np.bool_), np.zeros((events, 2), np.int64)
    of_blocks = np.zeros(covers, np.int64), np.zeros(_RECORDS, np.uint32), np.zeros(4, np.int64)
    return Scratch(*of_events, np.zeros(records, np.int64), *of_blocks)
