"""What every warp did when: a timeline for Perfetto or chrome://tracing, and the issue rate over time.

A process is an SM, a thread a warp slot, a slice one visit of a basic block by a warp: from the issue of its first
instruction to that of the warp's next block, or to its last issue. It says the block's line of the PTX and what the
warp waited for in it. Counters of an SM are warp instructions a cycle, and warps between their first and last issue;
those of the process `memory` are sectors of 32 B a cycle that instructions of all SMs wait for from L2, and from DRAM,
at the time of their issue. The process `launches` has a thread a stream, and a slice a launch. Times are microseconds
of the GPU's clock, as the trace-event format wants."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from abstim.session.issue_logs import STALLS, LaunchLog
from functional.arrays import Int64
from functional.keep.folder import write_output

MOST_SLICES = 200_000  # in a file, about 30 MB; more are merged
MOST_WINDOWS = 500  # of a launch
MOST_COUNTERS = 50_000  # in a file


class Slices(NamedTuple):
    """Visits of basic blocks, by warp, then time."""

    sm: Int64[np.ndarray, " slice"]
    slot: Int64[np.ndarray, " slice"]
    warp: Int64[np.ndarray, " slice"]
    block: Int64[np.ndarray, " slice"]  # of the first visit if several were merged
    start: Int64[np.ndarray, " slice"]
    stop: Int64[np.ndarray, " slice"]
    visits: Int64[np.ndarray, " slice"]
    instructions: Int64[np.ndarray, " slice"]
    stalls: Int64[np.ndarray, "slice reason"]  # cycles that the warp waited in it


def slices(launch: LaunchLog, merge: int = 1) -> Slices:
    """Basic blocks as slices; `merge` neighbouring visits of a warp become one."""
    log = launch.log
    block = np.searchsorted(launch.block_start, log.instruction, side="right") - 1
    new_warp = np.diff(log.warp, prepend=-1) != 0
    # a visit begins with another block, or where the same one starts again
    begins = new_warp | (np.diff(block, prepend=-1) != 0) | (np.diff(log.instruction, prepend=-1) <= 0)
    visit = np.cumsum(begins) - 1
    warp_of_visit = log.warp[begins]
    first_visit = np.searchsorted(warp_of_visit, warp_of_visit, side="left")
    kept = (np.arange(len(warp_of_visit)) - first_visit) % merge == 0
    first = np.flatnonzero(begins)[kept]
    group = np.cumsum(kept)[visit] - 1
    last_of_warp = np.append(np.flatnonzero(new_warp)[1:] - 1, len(log) - 1)[np.cumsum(new_warp) - 1]
    next_start = np.append(log.cycle[first[1:]], 0)
    ends_warp = np.append(np.diff(log.warp[first]) != 0, True)
    visits, instructions = (np.bincount(of, minlength=len(first)) for of in (np.cumsum(kept) - 1, group))
    where = (log.sm[first], log.slot[first], log.warp[first], block[first])
    stop = np.where(ends_warp, log.cycle[last_of_warp[first]] + 1, next_start)
    # what comes before a slice's first issue was waited in the slice before
    before = launch.stalls[first]
    stalls = np.add.reduceat(launch.stalls, first) - before if len(first) else launch.stalls
    stalls[:-1] += np.where(ends_warp[:-1, None], 0, before[1:])
    return Slices(*where, log.cycle[first], stop, visits, instructions, stalls)


def windows(log: np.recarray, cycles: int, most: int = MOST_WINDOWS) -> dict[str, Any]:
    """Issue over time, all SMs of a launch's log together, in at most `most` windows of equal length (but the last).
    Keys: `window_cycles`; and, one entry a window, `warp_instructions` issued and `resident_warp_cycles`, those of
    warps between their first and last issue."""
    width = max(1, -(-cycles // most))
    count = max(1, -(-cycles // width))
    begins = np.diff(log.warp, prepend=-1) != 0
    first, last = log.cycle[begins], log.cycle[np.append(begins, True)[1:]]
    change = np.bincount(first, minlength=cycles + 1) - np.bincount(last + 1, minlength=cycles + 1)
    resident = np.add.reduceat(np.cumsum(change)[: max(cycles, 1)], np.arange(0, max(cycles, 1), width))
    return {
        "window_cycles": width,
        "warp_instructions": np.bincount(log.cycle // width, minlength=count).tolist(),
        "resident_warp_cycles": resident.tolist(),
    }


def timeline(launches: Sequence[LaunchLog], core_clock_hz: float, most_slices: int = MOST_SLICES) -> tuple[bytes, str]:
    """Launches one after the other as trace-event JSON, and what a user should know of it ("" if all is drawn)."""
    found = [slices(launch) for launch in launches]
    visits = sum(len(s.start) for s in found)
    merge = -(-visits // most_slices)
    if merge > 1:
        found = [slices(launch, merge) for launch in launches]
    most = max(1, most_slices // max(1, len(launches)))  # what still exceeds it has that many warps
    streams = sorted({span.stream for launch in launches for span in launch.spans})
    process = max((launch.sm_count for launch in launches), default=0) + 1
    events, start = list(_names(launches, streams)), 0
    for launch, drawn in zip(launches, found, strict=True):
        events += islice(_slice_events(launch, drawn, start, 1e6 / core_clock_hz), None if merge == 1 else most)
        events += _counter_events(launch, start, 1e6 / core_clock_hz, MOST_COUNTERS // len(launches))
        events += _span_events(launch, streams, process, start, 1e6 / core_clock_hz)
        start += launch.cycles
    said = f"{visits:,} visits of basic blocks, drawn in groups of {merge} of a warp" if merge > 1 else ""
    if merge > 1 and max(len(s.start) for s in found) > most:
        said += f", the first {most:,} groups of a launch"
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ns"}), said


def write_timeline(path: Path, launches: Sequence[LaunchLog], core_clock_hz: float) -> str:
    """Write a timeline; returns what a user should know of it. Raises InputError if the file cannot be written."""
    data, said = timeline(launches, core_clock_hz)
    write_output(path, data)
    return said


def _names(launches: Sequence[LaunchLog], streams: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Metadata: what SMs, slots and streams are called, and in which order they stand."""
    sms = [f"SM {sm}" for sm in range(max((launch.sm_count for launch in launches), default=0))]
    for process, name in enumerate([*sms, "memory"]):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    pairs = {pair for launch in launches for pair in zip(launch.log.sm.tolist(), launch.log.slot.tolist(), strict=True)}
    for sm, slot in sorted(pairs):
        place: dict[str, Any] = {"ph": "M", "pid": sm, "tid": slot}
        yield place | {"name": "thread_name", "args": {"name": f"warp slot {slot}"}}
        yield place | {"name": "thread_sort_index", "args": {"sort_index": slot}}
    if streams:
        yield {"ph": "M", "name": "process_name", "pid": len(sms) + 1, "args": {"name": "launches"}}
    for number, stream in enumerate(streams):
        name = f"stream {stream}" if stream else "default stream"
        yield {"ph": "M", "name": "thread_name", "pid": len(sms) + 1, "tid": number, "args": {"name": name}}


def _span_events(
    launch: LaunchLog, streams: Sequence[str], process: int, start: int, us_per_cycle: float
) -> Iterator[dict[str, Any]]:
    for name, stream, begin, end in launch.spans:
        when = {"ts": _us(start + begin, us_per_cycle), "dur": _us(end - begin, us_per_cycle)}
        about = {"cycle": start + begin, "cycles": end - begin}
        place = {"pid": process, "tid": streams.index(stream)}
        yield {"ph": "X", "name": name, "cat": "launch"} | place | when | {"args": about}


def _slice_events(launch: LaunchLog, drawn: Slices, start: int, us_per_cycle: float) -> Iterator[dict[str, Any]]:
    rows = zip(*(column.tolist() for column in [*drawn, launch.block_line[drawn.block]]), strict=True)
    for sm, slot, warp, block, begin, end, visits, count, stalls, line in rows:
        waited = {reason.replace("_", " "): cycles for reason, cycles in zip(STALLS, stalls, strict=True) if cycles}
        name, cycles = f"BB {block}" if visits == 1 else f"BB {block} and {visits - 1} more", end - begin
        when = {"ts": _us(start + begin, us_per_cycle), "dur": _us(cycles, us_per_cycle)}
        about = {"warp": warp, "instructions": count, "cycle": begin, "cycles": cycles, "PTX line": line}
        about |= {"waited for": max(waited, key=waited.__getitem__, default="nothing"), "cycles waited": waited}
        yield {"ph": "X", "name": name, "cat": launch.name, "pid": sm, "tid": slot} | when | {"args": about}


def _counter_events(launch: LaunchLog, start: int, us_per_cycle: float, most: int) -> Iterator[dict[str, Any]]:
    log, most_windows = launch.log, max(1, min(MOST_WINDOWS, most // (2 * launch.sm_count)))
    for sm in range(launch.sm_count):
        found = windows(log[log.sm == sm], launch.cycles, most_windows)
        counts = {"warp instructions a cycle": found["warp_instructions"]}
        counts["resident warps"] = found["resident_warp_cycles"]
        yield from _rate_events(launch, sm, found["window_cycles"], counts, start, us_per_cycle)
    width = max(1, -(-launch.cycles // MOST_WINDOWS))
    sectors = {"L2 sectors a cycle": log.l2_accesses, "DRAM sectors read a cycle": log.dram_reads}
    counts = {name: np.bincount(log.cycle // width, own, -(-launch.cycles // width)) for name, own in sectors.items()}
    yield from _rate_events(launch, launch.sm_count, width, counts, start, us_per_cycle)


def _rate_events(
    launch: LaunchLog, process: int, width: int, counts: dict[str, Any], start: int, us_per_cycle: float
) -> Iterator[dict[str, Any]]:
    """What windows of so many cycles count, a cycle."""
    for name, values in counts.items():
        lengths = np.minimum(width, launch.cycles - width * np.arange(len(values)))
        for k, value in enumerate((np.asarray(values) / lengths).round(4).tolist()):
            event = {"ph": "C", "pid": process, "name": name, "ts": _us(start + k * width, us_per_cycle)}
            yield event | {"args": {"value": value}}


def _us(cycles: int, us_per_cycle: float) -> float:
    return round(cycles * us_per_cycle, 6)
