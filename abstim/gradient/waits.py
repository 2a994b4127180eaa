"""What every event of a launch may have waited for (docs/timing-rules.md, by rule)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.engine.rules import ALLOCATE_CYCLES, DISPATCH_CYCLES, READ_STEPS, RETIRE_CYCLES, START_CYCLES
from abstim.engine.simulation import Simulation
from abstim.engine.state import MEM
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from abstim.gradient.event_network import Edges, Network, NetworkBuilder, maybe
from abstim.gradient.events import NONE, Issues, earlier, issues_of, latest_result, ports_of
from abstim.gradient.memory_terms import fetch_term, result_edges
from abstim.gradient.parameter_vector import INDEX, terms, values_of
from precharacterize.classify import Kind
from precharacterize.table import UNITS

if TYPE_CHECKING:
    from jaxtyping import Int64

ORIGIN = 0
LONGEST_ACCESS_CYCLES = 32  # transactions of one access; a unit busy for longer waits for the memory behind it
ISSUE_TO_START = ALLOCATE_CYCLES + READ_STEPS + START_CYCLES  # cycles, without registers to read; with them one more
FIRST_INITIATION = 1 + INDEX[f"initiation_cycles.{INSTRUCTION_CLASSES[0]}"]


class Numbers(NamedTuple):
    """Where the events of each sort begin; within a cycle events wait only for those with lower numbers."""

    result: int
    start: int
    issue: int
    gone: int  # one a warp
    block: int  # one a thread block
    final: int


def network_of(log: np.ndarray, launch: Simulation, gpu: Gpu, latency_class: np.ndarray) -> Network:
    """The events of a finished launch whose every issue is in the log."""
    issues = issues_of(log, launch)
    n, warps, blocks = len(log), len(launch.warps), launch.room
    at = Numbers(1, 1 + n, 1 + 2 * n, 1 + 3 * n, 1 + 3 * n + warps, 1 + 3 * n + warps + blocks)
    gone, retired = launch.warps["retire_cycle"], launch.blocks["retire_cycle"]
    last = gone.max() + int(gpu.params.launch_latency_cycles)
    times = np.concatenate([[0], issues.result, issues.start, issues.time, gone, retired, [last]])
    build = NetworkBuilder(terms(gpu.spec.perfect_memory) @ values_of(gpu), times)
    build.add(np.array([ORIGIN]), [Edges(np.array([NONE]))])
    slot = np.ascontiguousarray(log["slot"])
    build.add(at.result + np.arange(n), result_edges(issues, launch, gpu, latency_class, build, at))
    _add_starts(build, at, issues, launch, gpu, latency_class, slot)
    _add_issues(build, at, issues, launch, gpu, slot)
    _add_ends(build, at, issues, launch)
    return build.network()


def _add_starts(build, at: Numbers, issues: Issues, launch: Simulation, gpu: Gpu, latency_class, slot) -> None:
    """Rules 3 and 4: operands, the instructions before on the same port, the unit, memory that pushes back."""
    table, i = launch.inputs.table, issues.instruction
    port, _ = ports_of(issues, table, gpu, slot)
    memory = table.unit[i] == MEM
    reads = (table.read_banks[i] >= 0).any(1)
    width, units = _port_values(gpu, issues, table)
    event = at.start + np.arange(len(i))
    before, on_unit = earlier(port), _back(port, units)
    initiation = np.where(memory | (on_unit < 0), 0, FIRST_INITIATION + latency_class[i[on_unit]])
    pipeline = np.minimum(ISSUE_TO_START + reads, issues.start - issues.time)
    options = [
        Edges(maybe(before >= 0, at.start + before), memory.astype(float)),
        Edges(maybe(~memory & (on_unit >= 0), at.start + on_unit), 0.0, initiation),
        Edges(at.issue + np.arange(len(i)), pipeline),
        Edges(maybe((w := _back(port, width)) >= 0, at.start + w), 1.0),
    ]
    least = np.min([build.slacks(event, o) + 1e9 * (build.slacks(event, o) < 0) for o in options], 0)
    arrived = latest_result(issues, issues.kind >= Kind.GLOBAL_LOAD, issues.sm, issues.start)
    blocked = memory & (arrived >= 0) & (least > LONGEST_ACCESS_CYCLES)
    build.add(event, [*options, Edges(maybe(blocked, at.result + arrived))])


def _port_values(gpu: Gpu, issues: Issues, table):
    """Width of each issue's port, and how many units are behind it."""
    spec = gpu.spec
    groups = spec.schedulers_per_sm if spec.sub_cores else 1
    count = [spec.sp_units, spec.sfu_units, spec.lsu_units, spec.int_units, spec.dp_units, spec.tensor_units]
    unit = table.unit[issues.instruction]
    width = np.array([max(1, getattr(spec, f"{name}_port_width") // groups) for name in UNITS])
    units = np.array([max(1, c if k == MEM else c // groups) for k, c in enumerate(count)])
    return width[unit], units[unit]


def _back(group: np.ndarray, back: np.ndarray) -> Int64[np.ndarray, " issue"]:
    """`earlier(group, back)` with another `back` an issue."""
    found = np.full(len(group), NONE)
    for distance in np.unique(back):
        mine = back == distance
        found[mine] = earlier(group, int(distance))[mine]
    return found


def _add_issues(build, at: Numbers, issues: Issues, launch: Simulation, gpu: Gpu, slot) -> None:
    """Rules 2, 3, 6, 7, 8 and 10: the scheduler, the port, fetch, registers, barriers, atomics, dispatch."""
    table, k = launch.inputs.table, np.arange(len(issues.time))
    port, scheduler = ports_of(issues, table, gpu, slot)
    width, _ = _port_values(gpu, issues, table)
    collectors = launch.machine["collectors"][table.unit[issues.instruction]]
    before, event = issues.before_in_warp, at.issue + k
    turn, in_front = earlier(scheduler), _back(port, width)
    behind = _back(port, 2 * width + collectors)
    front = np.where(before >= 0, at.issue + before, _freed_by(issues, launch, at))
    gap = np.where(before >= 0, issues.front_end_gap, DISPATCH_CYCLES)
    gap = np.where(front == ORIGIN, 0, np.minimum(gap, issues.time - build.times[front]))
    atomic = (before >= 0) & np.isin(issues.kind[before], (Kind.SHARED_ATOMIC, Kind.GLOBAL_ATOMIC))
    wait = issues.result[before] - 1 - issues.start[before]
    options = [
        Edges(maybe(turn >= 0, at.issue + turn), np.where(issues.time == issues.time[turn], 0.0, 1.0)),
        Edges(maybe(in_front >= 0, at.issue + in_front), np.where(issues.time == issues.time[in_front], 0.0, 1.0)),
        Edges(maybe(behind >= 0, at.start + behind)),
        Edges(front, gap),
        Edges(maybe(issues.released_by >= 0, at.issue + issues.released_by)),
        Edges(maybe(atomic, at.start + before), wait),
        *(Edges(maybe(w >= 0, at.result + w)) for w in issues.writers.T),
    ]
    fetched = issues.front_end_gap != 1
    least = np.min([np.where((s := build.slacks(event, o)) < 0, np.inf, s) for o in options], 0)
    arithmetic = table.unit[issues.instruction] != MEM  # what else holds those up is in the options
    missed = fetched & (least > 0) & ((issues.lines_missed > 0) | arithmetic)
    wait = np.where(missed, build.slacks(event, options[3]), least)
    term = fetch_term(wait, fetched, gpu, build)
    options[3] = Edges(front, gap, term)
    delayed = (term > 0) & (wait > build.base_terms[term] + LONGEST_ACCESS_CYCLES)
    line = latest_result(issues, issues.misses["dram_reads"] > 0, 0 * issues.sm, issues.time)
    options.append(Edges(maybe(delayed & (line >= 0), at.result + line)))
    build.add(event, options, np.where(fetched & ~delayed, 3, NONE))


def _freed_by(issues: Issues, launch: Simulation, at: Numbers) -> Int64[np.ndarray, " issue"]:
    """The thread block that left the SM last before each issue's block came in; ORIGIN if none had."""
    sm, dispatch, retired = (launch.blocks[name] for name in ("sm", "dispatch_cycle", "retire_cycle"))
    span = int(retired.max()) + 1
    key = sm * span + retired
    order = np.argsort(key, kind="stable")
    place = np.searchsorted(key[order], sm * span + dispatch, "right") - 1
    found = order[np.maximum(place, 0)]
    block = np.where((place >= 0) & (sm[found] == sm), at.block + found, ORIGIN)
    return block[issues.warp // int(launch.machine["warps_per_block"])]


def _add_ends(build, at: Numbers, issues: Issues, launch: Simulation) -> None:
    """Rule 9: a warp is gone when all its results are there, a block with its last warp, the launch with the last."""
    warps, per_block = len(launch.warps), int(launch.machine["warps_per_block"])
    order = np.lexsort((issues.result, issues.warp))
    final = np.flatnonzero(np.diff(issues.warp[order], append=-1))
    longest = np.empty(warps, np.int64)
    longest[issues.warp[order[final]]] = order[final]
    last = np.empty(warps, np.int64)
    last[issues.warp[issues.last_in_warp]] = np.flatnonzero(issues.last_in_warp)
    build.add(at.gone + np.arange(warps), [Edges(at.issue + last, float(RETIRE_CYCLES)), Edges(at.result + longest)])
    members = at.gone + np.arange(warps).reshape(-1, per_block)
    build.add(at.block + np.arange(launch.room), [Edges(column) for column in members.T])
    by_time = np.argsort(launch.warps["retire_cycle"], kind="stable")
    on_sm = launch.blocks["sm"][np.arange(warps) // per_block]
    last_on_sm = dict(zip(on_sm[by_time].tolist(), by_time.tolist(), strict=True)).values()
    launched = 1 + INDEX["launch_latency_cycles"]
    build.add(np.array([at.final]), [Edges(np.array([at.gone + w]), 0.0, launched) for w in last_on_sm])
