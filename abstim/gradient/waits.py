"""The events of a launch and what each may have waited for (docs/timing-rules.md, by rule), as flat arrays of edges.

An edge says: not before its parent, plus `constant`, plus `scale` x a term. Edges that the engine's times contradict
are left out; where none explains an event's time, one of them takes the rest as a frozen remainder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.engine.rules import ALLOCATE_CYCLES, DISPATCH_CYCLES, READ_STEPS, RETIRE_CYCLES, START_CYCLES
from abstim.engine.simulation import Simulation
from abstim.engine.state import MEM
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from abstim.gradient.events import NONE, Issues, earlier, issues_of, latest_result, ports_of
from abstim.gradient.parameter_vector import FAMILIES, INDEX, path_term, terms, values_of
from precharacterize.classify import Kind
from precharacterize.table import UNITS, WRITE_BACK_CYCLES

if TYPE_CHECKING:
    from jaxtyping import Float64, Int16, Int32, Int64


TOLERANCE = 1e-6  # cycles


@dataclass(frozen=True)
class Edges:
    """One possible edge an event: the parent's number (NONE: no edge), and what it adds to the parent's time."""

    parent: Int64[np.ndarray, " event"]
    constant: Float64[np.ndarray, " event"] | Int64[np.ndarray, " event"] | float = 0.0
    term: Int64[np.ndarray, " event"] | int = 0
    scale: Float64[np.ndarray, " event"] | float = 1.0


@dataclass(frozen=True)
class Network:
    """Edges by event: those of event n are `first[n]` .. `first[n + 1]` - 1.

    `slack`: cycles an edge came too early to bind at the base point. `order`: events by time, the last one `final`.
    """

    order: Int64[np.ndarray, " event"]
    first: Int64[np.ndarray, " event_plus_1"]
    parent: Int32[np.ndarray, " edge"]
    slack: Float64[np.ndarray, " edge"]
    term: Int16[np.ndarray, " edge"]
    scale: Float64[np.ndarray, " edge"]
    final: int


class NetworkBuilder:
    """Events are numbered in the order they are added; of those of one time a later one may wait for an earlier one."""

    def __init__(self, base_terms: Float64[np.ndarray, " term"], times: Int64[np.ndarray, " event"]) -> None:
        self.base_terms, self.times = base_terms, times
        self.parts: list[tuple[np.ndarray, ...]] = []
        self.counts: list[np.ndarray] = []

    def slacks(self, event: Int64[np.ndarray, " event"], edges: Edges) -> Float64[np.ndarray, " event"]:
        """Cycles between what an edge asks for and the event's time; infinite where there is no edge."""
        delay = np.asarray(edges.constant) + np.asarray(edges.scale) * self.base_terms[edges.term]
        slack = self.times[event] - self.times[edges.parent] - delay
        return np.where(edges.parent >= 0, slack, np.inf)

    def add(
        self,
        event: Int64[np.ndarray, " event"],
        options: list[Edges],
        preferred: Int64[np.ndarray, " event"] | None = None,
    ) -> None:
        """Add events, each with one edge an option. Where none of an event's edges is tight, its `preferred` option
        becomes so, or the tightest if that is NONE or has no edge."""
        slack = np.stack([self.slacks(event, o) for o in options], 1)
        slack[slack < -TOLERANCE] = np.inf
        slack[slack < TOLERANCE] = 0.0
        tightest = slack.argmin(1)
        rows = np.arange(len(event))
        loose = (slack[rows, tightest] > TOLERANCE) & np.isfinite(slack[rows, tightest])
        chosen = tightest if preferred is None else np.where(preferred >= 0, preferred, tightest)
        chosen = np.where(np.isfinite(slack[rows, chosen]), chosen, tightest)
        slack[rows[loose], chosen[loose]] = 0.0
        there = np.isfinite(slack)
        shape = slack.shape
        columns = [
            np.stack([np.broadcast_to(np.asarray(getattr(o, name)), shape[:1]) for o in options], 1)[there]
            for name in ("parent", "term", "scale")
        ]
        self.counts.append(there.sum(1))
        self.parts.append((slack[there], *columns))

    def network(self) -> Network:
        """All events added, the last one being the end of the launch."""
        slack, parent, term, scale = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        first = np.concatenate([[0], np.cumsum(np.concatenate(self.counts))])
        return Network(
            order=np.argsort(self.times, kind="stable"), first=first, parent=parent.astype(np.int32), slack=slack,
            term=term.astype(np.int16), scale=scale.astype(np.float64), final=len(self.times) - 1,
        )  # fmt: skip


def maybe(present: np.ndarray, event: np.ndarray) -> Int64[np.ndarray, " event"]:
    """`event` where present, else NONE."""
    return np.where(present, event, NONE)


FETCH, CONST, LOAD, STORE, ATOMIC = range(len(FAMILIES))
FAMILY_OF = {
    Kind.PARAM_LOAD: CONST, Kind.CONST_LOAD: CONST, Kind.GLOBAL_LOAD: LOAD, Kind.GLOBAL_STORE: STORE,
    Kind.GLOBAL_ATOMIC: ATOMIC,
}  # fmt: skip
ENTRY_CYCLES = np.array([0, 0, 1, 1, 0])  # of a family: into the delay in front of the tags
LONGEST_HIT_CYCLES = 32  # a hit that takes longer waits for a line on its way
ROUNDED_CYCLES = 2  # the engine rounds service times down
RESPONSE, L2, DRAM = 0, 1, 2  # servers
WINDOW_CYCLES = 256  # over which a server's load is looked at
FIRST_LATENCY = 1 + INDEX[f"latency_cycles.{INSTRUCTION_CLASSES[0]}"]
SHARED = 1 + INDEX["shared_latency_cycles"]


def result_edges(issues: Issues, launch: Simulation, gpu: Gpu, latency_class, build: NetworkBuilder, at) -> list[Edges]:
    """From the start on the unit by the latencies on the way; and, where that leaves a wait in a queue, from the result
    before in the same queue."""
    alu = launch.inputs.table.unit[issues.instruction] != MEM
    term = np.where(alu, FIRST_LATENCY + latency_class[issues.instruction], 0)
    shared = (issues.kind >= Kind.SHARED_LOAD) & (issues.kind <= Kind.SHARED_ATOMIC)
    taken = issues.result - issues.start
    term[shared & (taken > build.base_terms[SHARED])] = SHARED
    constant = np.where(alu, WRITE_BACK_CYCLES, 0)
    queued = np.zeros(len(term), bool)
    family = np.full(len(term), NONE)
    for kind, number in FAMILY_OF.items():
        family[issues.kind == kind] = number
    through = np.flatnonzero((family >= 0) & (taken > 1))
    level = _levels(issues, through, family[through], gpu, build)
    term[through] = path_term(family[through], level)
    constant[through] = ENTRY_CYCLES[family[through]]
    rest = taken - constant - build.base_terms[term]
    queued[through] = rest[through] > np.where(level == 0, LONGEST_HIT_CYCLES, 0)
    constant = np.minimum(constant, taken - build.base_terms[term])  # the engine rounds service times down
    first = Edges(at.start + np.arange(len(term)), constant, term)
    chain = _queue(issues, through, level, queued[through], rest[through], gpu, at)
    wait = np.full(len(term), NONE), np.zeros(len(term)), np.zeros(len(term), np.int64), np.ones(len(term))
    for whole, part in zip(wait, chain, strict=True):
        whole[through] = part
    return [first, Edges(wait[0], wait[1], wait[2], wait[3])]


def _levels(issues: Issues, k: Int64[np.ndarray, " access"], family, gpu: Gpu, build: NetworkBuilder):
    """The last of LEVELS each access asked; never one that takes longer than it took."""
    misses = {name: counts[k] for name, counts in issues.misses.items()}
    if gpu.spec.perfect_memory:
        missed = (family == ATOMIC) | (family == STORE) | (family == CONST) | (misses["l1d_misses"] > 0)
        level = missed.astype(np.int64)
    else:
        level = (misses["l2_accesses"] > 0).astype(np.int64)
        read = (misses["dram_reads"] > 0) & (family != STORE)
        level = np.where(read & (level > 0), 3, level)
    taken = issues.result[k] - issues.start[k] - ENTRY_CYCLES[family]
    for highest in (3, 2, 1):
        too_long = build.base_terms[path_term(family, level)] > taken + ROUNDED_CYCLES
        level = np.where((level == highest) & too_long, highest - 1, level)
    return level


def fetch_term(unexplained, fetched, gpu: Gpu, build: NetworkBuilder) -> Int64[np.ndarray, " issue"]:
    """The term of a fetch whose wait nothing else explains and an instruction line from L2 or DRAM does."""
    if gpu.spec.perfect_memory:
        return np.zeros(len(unexplained), np.int64)
    term = np.zeros(len(unexplained), np.int64)
    for level in (1, 2, 3):
        way = path_term(FETCH, level)
        term[fetched & (unexplained > build.base_terms[way] - ROUNDED_CYCLES)] = way
    return term


def _queue(issues: Issues, k, level, queued, rest, gpu: Gpu, at):
    """(parent, constant, term, scale) of the edge from the result before in the queue an access waited in.

    Between two results of a busy server lies service, in proportion to its service time. An SM's response path, and a
    line on its way, are the SM's own; DRAM and L2 are queues of all SMs.
    """
    result, sm = issues.result[k], issues.sm[k]
    server = _busiest(issues, k, level, gpu)
    parent, gap = np.full(len(k), NONE), np.zeros(len(k))
    for number, reaches in ((RESPONSE, level >= 0), (L2, level >= 1), (DRAM, level >= 2)):
        before, distance = _before(result, np.where(reaches, 0, -1 - np.arange(len(k))) if number else sm)
        mine = server == number
        parent[mine], gap[mine] = before[mine], distance[mine]
    there = queued & (parent >= 0) & (gap <= rest)
    name = np.where(server == DRAM, INDEX["dram_sector_cycles"], _slice_service(issues, k))
    service = values_of(gpu)[name]
    fixed = (server == RESPONSE) | (service <= 0)
    scale = np.where(fixed, 1.0, gap / np.where(fixed, 1.0, service))
    parent = maybe(there, at.result + k[parent])
    return parent, np.where(fixed, gap, 0.0), np.where(fixed, 0, 1 + name), scale


def _slice_service(issues: Issues, k) -> Int64[np.ndarray, " access"]:
    """The parameter that says how long an L2 slice serves a sector of each access."""
    atomic = issues.kind[k] == Kind.GLOBAL_ATOMIC
    return np.where(atomic, INDEX["l2_atomic_cycles"], INDEX["l2_sector_cycles"])


def _busiest(issues: Issues, k, level, gpu: Gpu) -> Int64[np.ndarray, " access"]:
    """The server with most to do, of those an access came by, in the cycles before its result."""
    spec, params, result = gpu.spec, gpu.params, issues.result[k]
    asked, read = issues.misses["l2_accesses"][k], np.where(level >= 2, issues.misses["dram_reads"][k], 0)
    if spec.perfect_memory:
        return np.full(len(k), RESPONSE)
    everyone = np.zeros(len(k), np.int64)
    in_slices = asked * values_of(gpu)[_slice_service(issues, k)]
    beyond = np.where(level >= 2, params.dram_latency_cycles + params.dram_reply_cycles, params.l2_reply_cycles)
    served = np.maximum(result - beyond, 0)
    load = np.stack([
        _recent(result, issues.sm[k], asked),
        _recent(served, everyone, in_slices) / (spec.dram_channels * spec.l2_slices_per_channel),
        _recent(served, everyone, read) * params.dram_sector_cycles / spec.dram_channels,
    ])  # fmt: skip
    load[L2, level < 1], load[DRAM, level < 2] = -1, -1
    return load.argmax(0)


def _recent(result, group, amount):
    """Sum of `amount` over the accesses of the same group whose result came in the WINDOW_CYCLES up to each result."""
    key = group * (int(result.max(initial=0)) + 2 * WINDOW_CYCLES) + WINDOW_CYCLES + result
    order = np.argsort(key, kind="stable")
    total = np.concatenate([[0], np.cumsum(amount[order])])
    upto = np.searchsorted(key[order], key, "right")
    return total[upto] - total[np.searchsorted(key[order], key - WINDOW_CYCLES, "right")]


def _before(result, group):
    """The access whose result came just before in the same group, and how many cycles before; NONE: none."""
    order = np.lexsort((result, group))
    found = np.full(len(result), NONE)
    same = group[order[1:]] == group[order[:-1]]
    found[order[1:]] = np.where(same, order[:-1], NONE)
    return found, np.where(found >= 0, result - result[found], 0)


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
