"""What a trace says of `mbarrier`s, among the line records of an instruction: arrivals and waits.

A record's line is PHASE_WINDOW_LINE + (barrier << 17 | phase << 9 | count). Barriers are numbered within their thread
block in the order of their first use, phases from 0 modulo 256. A count of 0 is an arrival of the warp, or of a copy
of its own, in that phase; else the warp waits until so many arrivals of its thread block have been made in it. What
thread blocks of a cluster do for each other is not in the trace.

The functions on numbers can be compiled by Numba as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from functional.traces.line_record import ALL_SECTORS, LINE_SHIFT, MORE, SECTOR_SHIFT, line_of, more_follow
from functional.traces.trace import PARAM_WINDOW_LINE, PHASE_WINDOW_LINE, Trace

if TYPE_CHECKING:
    from jaxtyping import Bool, UInt32

_COUNT_BITS, _PHASE_BITS, _BARRIER_BITS = 9, 8, 7
MOST_COUNT, PHASES, BARRIERS = (1 << _COUNT_BITS) - 1, 1 << _PHASE_BITS, 1 << _BARRIER_BITS
_BARRIER_SHIFT = _COUNT_BITS + _PHASE_BITS


def phase_record(barrier: int, phase: int, count: int) -> int:
    """The record of an arrival (count 0), or of a wait for so many."""
    line = PHASE_WINDOW_LINE + (barrier << _BARRIER_SHIFT | phase % PHASES << _COUNT_BITS | count)
    return line << LINE_SHIFT | ALL_SECTORS << SECTOR_SHIFT


def is_phase(line: Any) -> Any:
    """Is it the line of such a record?"""
    return (line >= PHASE_WINDOW_LINE) & (line < PARAM_WINDOW_LINE)


def barrier_of(line: Any) -> Any:
    """Number of the barrier."""
    return (line - PHASE_WINDOW_LINE) >> _BARRIER_SHIFT


def phase_of(line: Any) -> Any:
    """Number of the phase, modulo PHASES."""
    return ((line - PHASE_WINDOW_LINE) >> _COUNT_BITS) & (PHASES - 1)


def count_of(line: Any) -> Any:
    """Arrivals that are waited for; 0: this is one."""
    return (line - PHASE_WINDOW_LINE) & MOST_COUNT


def in_phases(records: UInt32[np.ndarray, " record"]) -> Bool[np.ndarray, " record"]:
    """Which of them are of this kind."""
    return is_phase(line_of(records.astype(np.int64)))


def barriers_in(trace: Trace) -> int:
    """One more than the highest number of a barrier that a trace has arrivals or waits of."""
    lines = line_of(trace.records[in_phases(trace.records)].astype(np.int64))
    return int(barrier_of(lines).max(initial=-1)) + 1


def without_phases(trace: Trace) -> Trace:
    """The trace without arrivals and waits: what is left says only which memory was touched."""
    phases = in_phases(trace.records)
    if not phases.any():
        return trace
    records, kept = trace.records.copy(), ~phases
    last = more_follow(records) == 0
    access = np.cumsum(last) - last  # number of the access of each record
    kept_of = np.bincount(access[kept], minlength=int(access[-1]) + 1)
    alone = phases & last & (kept_of[access] == 0)  # nothing else is left of an access: it keeps an empty record
    records[alone] = 0
    kept |= alone
    ends = np.ones(len(records), bool)
    chosen = np.flatnonzero(kept)
    ends[chosen[:-1]] = access[chosen[1:]] != access[chosen[:-1]]
    records = np.where(ends, records & ~np.uint32(MORE), records | np.uint32(MORE))[kept]
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    return replace(trace, records=records, record_offsets=before[trace.record_offsets])
