"""Everything the analytic model needs of a launch, in one record, by one compiled look at its trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import lt
from threading import local
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.analytic import lone_warp
from abstim.analytic.block_path import BlockPath
from abstim.analytic.line_sample import LEAST_PLACES, WANTED_SHIFT, Lines
from abstim.analytic.lone_warp import CLASSES, LATENCIES, LONG_CYCLES, LOOK_UP, Kinds, Reading, TimedCode, Walk, Walking
from abstim.analytic.look import LEADER, MOST_SMS, SHAPE, SUMMARY, Looked, Marks, Read, Scratch, Tables
from abstim.analytic.model import PREDICTION, Summary, residents_of
from abstim.analytic.point import points_of
from abstim.analytic.reuse_distance import DISTANCE_BINS, ROWS, miss_matrix, reuse_of
from abstim.analytic.row_visits import VISIT_BINS
from abstim.engine.accesses import element_segment
from abstim.engine.design_point import caches_machine, streams_of
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from functional.arrays import Float, Int32
from functional.jit.machine_code import Held
from functional.traces.line_record import ALL_SECTORS, without_phases
from functional.traces.trace import SECTOR_BYTES, Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind, latency_class
from precharacterize.synchronisation import NONE
from precharacterize.tensor_work import refuse_commits

if TYPE_CHECKING:
    from abstim.session.session import Session
    from functional.programs.program import Program

MOST_INSTRUCTIONS = 4_000_000  # warp instructions looked at; of a longer launch the first thread blocks stand for all
LEAST_WALKED = 1 << 10  # of them, of those walked one by one
MOST_PHASES = 1 << 12  # of warps that are walked, from barrier to barrier
LEAST_LINES = 1 << 8  # whose uses are looked at

SM_NODES = (2, 7, 23, 79)  # SM counts (no multiples of a usual grid width) and thread blocks an SM
RESIDENT_NODES = (1, 2, 4, 8, 16, 32)  # for which reuse distances are taken, where no points are known


CLASS_NUMBERS = {name: number for number, name in enumerate(INSTRUCTION_CLASSES)}
# By `Kind`: what line records do; of memory instructions the position in LATENCIES, if all accesses hit
ACTIONS = np.array([lone_warp.action_of(kind) for kind in Kind])
NEAR = [lone_warp.CONST if kind < Kind.SHARED_LOAD else lone_warp.SHARED for kind in Kind]
BEYOND = np.where(ACTIONS, lone_warp.LOAD + ACTIONS - LOOK_UP, NEAR)  # STORE and ATOMIC are behind LOAD

_of_thread = local()


def scratch_for(*sizes: int) -> Held:
    """Of this thread, with room for a launch: line records, warps, thread blocks; instructions of a warp, registers,
    lines and basic blocks of code."""
    held, room = getattr(_of_thread, "scratch", (None, (0,) * len(sizes)))
    if held is None or any(map(lt, room, sizes)):
        room = tuple(map(max, room, sizes))
        records, warps, blocks, longest, registers, code_lines, code_blocks = room
        places, bits = max(LEAST_PLACES, 1 << (2 * records).bit_length()), 32 - WANTED_SHIFT
        lines = Lines(
            np.empty(places, np.int32), np.empty(records, np.int64), np.empty(records, np.int32),
            np.empty(1 << bits - 3, np.uint8),
        )  # fmt: skip
        read = Read(np.empty(warps, np.int32), np.empty(warps, LEADER), np.empty(records, np.int32))
        phases = warps + MOST_PHASES
        kinds = Kinds(
            np.empty((warps, 2), np.int64), np.empty((phases + 1, 6)), np.empty(phases),
            np.empty((phases, len(LATENCIES))), np.empty((phases, 2), np.int64), np.empty((records + 1, 2), np.int64),
        )  # fmt: skip
        walking = Walking(
            np.empty(longest + 1, lone_warp.NODE), np.empty(registers, np.int64), np.empty(code_lines, np.int8),
            np.empty(longest + 2, np.int64), np.empty(longest + 1, np.int64), np.empty(5),
        )  # fmt: skip
        path = BlockPath(np.empty(len(LATENCIES)), np.empty(1))
        marks = Marks(
            np.empty(blocks, np.int64), np.empty(blocks, np.uint8), np.empty(code_blocks, np.int64),
            np.empty(MOST_SMS, np.int64), np.empty((records + 1, 3), np.int32),
        )  # fmt: skip
        held = Held(Scratch(lines, reuse_of(*room[:3]), read, Walk(kinds, walking), path, marks))
        _of_thread.scratch = held, room
    return held


Values = Sequence[float]
Nodes = Callable[[Values, Values], Tables]


def own_nodes(sms: Values, residents: Values) -> Tables:
    """Room for the tables of some points, by their SMs and thread blocks on each: what is said of a point does not
    depend on the others."""
    nodes = sorted(set(sms)), sorted(set(residents))
    asked = {(nodes[0].index(s), nodes[1].index(k)) for s, k in set(zip(sms, residents, strict=True))}
    marks = [[(s, k) in asked for k in range(len(nodes[1]) + 1)] for s in range(len(nodes[0]) + 1)]
    first, last = (min(int(n), MOST_SMS - 1) for n in (nodes[0][0], nodes[0][-1]))
    return _room([[*own, own[-1] + 1] for own in nodes], np.array(marks, np.uint8), (first, last + 1))


def nodes_around(sms: Values, residents: Values) -> Tables:
    """The same for all GPUs, exact for those that are as the one point is; as much room whatever that is, for JAX."""
    nodes = [sorted({*own, *grid}) for own, grid in ((sms, SM_NODES), (residents, RESIDENT_NODES))]
    shape = len(SM_NODES) + 1, len(RESIDENT_NODES) + 1
    filled = [[*own, *own[-1:] * (count - len(own))] for own, count in zip(nodes, shape, strict=True)]
    return _room(filled, np.ones(shape, np.uint8), (1, MOST_SMS))


def _room(nodes: Sequence[Values], asked: np.ndarray, dealt: tuple[int, int]) -> Tables:
    count = np.count_nonzero(asked)
    of_each = np.zeros((count, 2), np.int32), np.zeros(count), np.zeros(count), np.zeros((count, VISIT_BINS))
    sms, residents = (np.array(own, float) for own in nodes)
    numbers, misses = np.zeros(asked.shape, np.int32), np.zeros((count, ROWS, DISTANCE_BINS), np.float32)
    return Tables(sms, residents, asked, np.array(dealt), numbers, *of_each, misses)


class Asked(NamedTuple):
    """What compiled code fills in of a launch, for some points."""

    work: np.ndarray  # SUMMARY
    tables: Tables
    most_instructions: int  # these three: named above
    least_walked: int
    least_lines: int
    points: np.ndarray  # POINT
    matrix: Float[np.ndarray, "ways size bin"]
    found: np.ndarray  # PREDICTION


class Asking:
    """POINTs for which launches are looked at; room is kept for the next launch of a program that fills an SM alike."""

    def __init__(self, points: np.ndarray, nodes: Nodes = own_nodes) -> None:
        self.points, self._nodes = points, nodes
        self._residents: dict[tuple[int, ...], tuple[float, ...]] = {}  # by SHAPE
        self._held: dict[tuple, Held] = {}
        self._looked: dict[Held, Given] = {}

    def of(self, given: Given) -> tuple[Held, bool]:
        """Room for a launch; is it filled, by one before that is alike?"""
        residents = self._residents.get(given.shape) or self._residents.setdefault(given.shape, self._of_shape(given))
        key = given.code, residents
        held = self._held.get(key) or self._held.setdefault(key, self._room(residents))
        before, self._looked[held] = self._looked.get(held), given
        if before is not None and before.is_like(given):
            return held, True
        given.say_shape(held.value.work)
        return held, False

    def _of_shape(self, given: Given) -> tuple[float, ...]:
        work, residents = np.zeros((), SUMMARY), np.empty(len(self.points))
        given.say_shape(work)
        residents_of(work, self.points, residents)
        return tuple(residents.tolist())

    def _room(self, residents: tuple[float, ...]) -> Held:
        tables = self._nodes(self.points["sm_count"].tolist(), residents)
        limits, predictions = (MOST_INSTRUCTIONS, LEAST_WALKED, LEAST_LINES), np.empty(len(self.points), PREDICTION)
        return Held(Asked(np.zeros((), SUMMARY), tables, *limits, self.points, miss_matrix(), predictions))


class Given(NamedTuple):
    """A launch as compiled code is given it, for GPUs that read traces alike."""

    code: Held  # TimedCode
    launch: Held  # Looked
    reading: Held  # Reading
    sizes: tuple[int, ...]  # what room it needs: see `scratch_for`
    shape: tuple[int, ...]  # SHAPE

    def is_like(self, other: Given) -> bool:
        """Does a launch of the same program do the same, on the same lines?"""
        if self is other or (self.sizes, self.shape) != (other.sizes, other.shape):
            return self is other
        own, others = ((*n.launch.value.streams[:3], *n.launch.value.offsets) for n in (self, other))
        return all(a.tobytes() == b.tobytes() for a, b in zip(own, others, strict=True))

    def say_shape(self, work: np.ndarray) -> None:
        """In a SUMMARY."""
        for name, value in zip(SHAPE, self.shape, strict=True):
            work[name] = value


def given_of(session: Session, number: int, gpu: Gpu, trace: Trace) -> Given:
    """A launch, whose trace this is. Raises InputError for a program that this model cannot time."""
    table, launch = session.table(number, gpu), session.launch(number)
    own_code = ("formula code", id(table), gpu), lambda: timed_code(launch.program, table, gpu)  # tables are held
    code, reading = session.once(*own_code)
    own = session.accessed(number, trace, table, gpu)
    own = without_phases(own) if (table.copies != NONE).any() else own
    looked = Looked(*streams_of(own, table), own.warp_instructions, own.warps_per_block, len(own.thread_blocks))
    longest, lines = int(own.warp_instructions.max()), int(table.pcs.max(initial=0)) // reading.value.fetch_line + 1
    sizes = len(own.records), len(own.warp_instructions), looked.blocks, longest, table.register_count, lines
    shape = launch.thread_blocks, trace.warps_per_block, session.registers(number).count, launch.shared_bytes
    return Given(code, Held(looked), reading, (*sizes, len(table.block_start)), (*shape, reading.value.bypass))


def kept(summary: Summary) -> Summary:
    """A copy, without room for tables that were not made because others are the same."""
    count, tables = int(summary.tables.numbers.max()) + 1, summary.tables
    return Summary(
        summary.work.copy(), Tables(*(own.copy() for own in tables[:5]), *(own[:count].copy() for own in tables[5:]))
    )


def timed_code(program: Program, table: LatencyTable, gpu: Gpu) -> tuple[Held, Held]:
    """What all launches of a program have in common: TimedCode and Reading. Of a GPU it takes what belongs to the
    trace's reading: coalescing, fetch width, L1I line, and the latencies at which the longest paths are searched."""
    refuse_commits(table, "analytic")
    pipeline, base = gpu.pipeline, base_latencies(gpu)
    missing = np.isin(LATENCIES, ("load", "store", "atomic", "fetch_miss", "const_miss"))
    (rows, operands), steps = _code(program, table, gpu), _steps(table, gpu)
    chosen = (steps["bytes"] > 0) | (steps["awaited"] > 0)
    first_step = np.append(0, np.cumsum(chosen))[np.append(table.block_start, len(chosen))]
    code = TimedCode(rows, operands, base + LONG_CYCLES * missing, first_step, steps[chosen])
    spec, fetched = gpu.spec, (pipeline.instructions_per_fetch, pipeline.fetch_line_instructions)
    besides = 0 if spec.l1d_sectored or spec.l1d_bypass else ALL_SECTORS
    drops = spec.l1d_write in ("local_back", "evict")
    merges = spec.l2_mshr_merges if spec.coalescing == "sector" and not spec.l2_coalesces else MOST_SMS
    taken = besides, int(drops), int(spec.l1d_bypass), merges
    return Held(code), Held(Reading(*fetched, *taken, caches_machine(gpu, 1, 1)))


@lru_cache(128)
def base_latencies(gpu: Gpu) -> Float[np.ndarray, " latency"]:
    """Of a GPU whose first-level caches always hit, in the order of LATENCIES."""
    params, const = gpu.params, gpu.params.const_latency_cycles
    beyond = {
        "shared": params.shared_latency_cycles, "const": const, "load": params.l1d_latency_cycles,
        "store": params.l1d_latency_cycles, "atomic": params.atomic_latency_cycles, "const_miss": const, "one": 1,
    }  # fmt: skip
    own = {name: gpu.pipeline.operation(name).latency_cycles for name in INSTRUCTION_CLASSES}
    return np.array([(own | beyond).get(name, 0) for name in LATENCIES], float)


def _steps(table: LatencyTable, gpu: Gpu) -> np.ndarray:
    """STEP of every instruction."""
    steps = np.zeros(len(table.kind), lone_warp.STEP)
    steps["action"] = ACTIONS[table.kind]
    on_lines = (table.kind >= Kind.PARAM_LOAD) & ~np.isin(table.kind, range(Kind.SHARED_LOAD, Kind.SHARED_ATOMIC + 1))
    steps["bytes"][on_lines] = SECTOR_BYTES
    if gpu.spec.coalescing == "fermi":
        accesses = zip(table.kind[on_lines].tolist(), table.access_bytes[on_lines].tolist(), strict=True)
        steps["bytes"][on_lines] = [element_segment(*own) for own in accesses]
    loads = np.where(table.kind[:, None] >= Kind.GLOBAL_LOAD, table.writes, -1)
    bits = np.zeros(table.register_count + 1, np.uint64)  # of each register, and of none
    loaded = np.unique(loads[loads >= 0])
    bits[loaded] = np.uint64(1) << (np.arange(len(loaded), dtype=np.uint64) % np.uint64(64))
    steps["awaited"], steps["loaded"] = (np.bitwise_or.reduce(bits[own], axis=1) for own in (table.waits, loads))
    return steps


def _code(program: Program, table: LatencyTable, gpu: Gpu) -> tuple[np.ndarray, Int32[np.ndarray, " operand"]]:
    """CODE, and its operands."""
    latency, code = base_latencies(gpu), np.zeros(len(table.unit), lone_warp.CODE)
    computes = table.kind < Kind.PARAM_LOAD
    classes = [latency_class(program.instructions[n]) for n in np.flatnonzero(computes).tolist()]
    code["latency"] = BEYOND[table.kind]
    code["latency"][computes] = [CLASS_NUMBERS.get(name, CLASS_NUMBERS["other"]) for name in classes]
    code["fixed"] = table.result_cycles - latency[code["latency"].clip(max=lone_warp.LOAD)]  # which that of others has
    code["kind"], code["pc"], code["bytes"] = table.kind, table.pcs, table.access_bytes
    operands, count = list[np.ndarray](), 0
    for name, registers in (("waits", table.waits), ("writes", table.writes)):
        operands.append(registers[registers >= 0])
        code[f"{name}_end"] = count + np.cumsum((registers >= 0).sum(1))
        code[f"{name}_at"], count = np.append(count, code[f"{name}_end"][:-1]), count + len(operands[-1])
    held = np.append(points_of([gpu])["initiation_cycles"], np.inf)[code["latency"].clip(0, CLASSES)]
    code["times"] = (table.initiation_cycles // held.clip(1)).clip(1)
    return code, np.concatenate(operands, dtype=np.int32)
