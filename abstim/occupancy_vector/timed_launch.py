"""One launch on any GPUs by the occupancy model: what several of them share is made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from abstim.engine.design_point import caches_machine, refuse_unsupported
from abstim.gpu.config import Gpu
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.cache_walk import FOUND, NOMINAL_CYCLES, TOLD_SM, Walk
from abstim.occupancy_vector.design_points import Reading, layout_of, reading_of
from abstim.occupancy_vector.items import (
    Items,
    Warps,
    check_field,
    code_of,
    cut,
    empty_items,
    instructions_of,
    timed_rows,
    warps_of,
)
from abstim.occupancy_vector.lanes import FEW_ITEMS, chosen, compiled, cycles_of, run
from abstim.occupancy_vector.scratch import caches_of, kinds_of, lane_of, working
from abstim.progress import in_parallel
from abstim.session.session import Session
from functional.arrays import Int32, Int64
from functional.jit.machine_code import Held, Native
from functional.traces.line_record import without_phases
from precharacterize.tensor_work import refuse_commits

if TYPE_CHECKING:
    from abstim.engine.simulation import LaunchInputs

MOST_KEPT, MOST_ENDED = 64, 256  # walks, and cuts, of a launch; design points that are done, with their cuts
ALL_WORK = 1 << 62
Made = TypeVar("Made")
time_launch = Native(
    "abstim.occupancy_vector.launch_kernel", "time_launch", "abstim: compiling the occupancy-vector engine"
)


@dataclass
class CutItems:
    """A launch as a GPU's pipeline and fetch see it: the same for all GPUs that agree in `Reading.items`."""

    items: Items
    is_cut: bool = False


@dataclass
class Walked:
    """A launch, dealt and walked through the caches of a design point, as its lanes read it: see Streams."""

    told: np.ndarray  # TOLD_SM
    found: np.ndarray  # FOUND
    dealt: Int32[np.ndarray, " position"]
    accesses: Int32[np.ndarray, " access"]
    fills: Int32[np.ndarray, " access"]
    late_starts: Int32[np.ndarray, " warp"]
    late_begins: Int32[np.ndarray, " late"]
    late_fills: Int32[np.ndarray, " late"]
    fill_words: Int32[np.ndarray, " fill"]
    fill_behind: Int32[np.ndarray, " fill"]
    fill_trips: Int32[np.ndarray, " fill"]
    fill_count: int = field(default=0, init=False)
    late_count: int = field(default=0, init=False)
    is_walked: bool = field(default=False, init=False)

    @cached_property
    def digest(self) -> bytes:
        """Of all that lanes read of it."""
        found = blake2b(self.told.tobytes(), digest_size=16)
        for column, stop in (
            (self.dealt, None), (self.accesses, -1), (self.fills, -1), (self.late_starts, None),
            (self.late_begins, self.late_count), (self.late_fills, self.late_count), (self.fill_words, self.fill_count),
            (self.fill_behind, self.fill_count), (self.fill_trips, self.fill_count),
        ):  # fmt: skip
            found.update(column[:stop].data)
        return found.digest()


class Timed(NamedTuple):
    """`cycles`: launch latency included; `stepped`: share of its items that were issued for it, and not for an equal
    lane; what all SMs ask of L2 and DRAM, how long they hold the load/store unit, and those serve them."""

    cycles: int
    stepped: float
    sectors: int
    dram_sectors: int
    held_cycles: int
    l2_cycles: float
    dram_cycles: float


class DesignPoint(NamedTuple):
    """A launch on a GPU."""

    of: TimedLaunch
    reading: Reading
    residents: int  # thread blocks an SM holds
    inputs: LaunchInputs
    warps: Warps
    cut: CutItems
    nominal: CutItems
    walked: Walked

    @property
    def gpu(self) -> Gpu:
        """Of the launch."""
        return self.reading.gpu

    @property
    def sm_count(self) -> int:
        """SMs that have work."""
        return len(self.walked.told)

    def streams(self, starts: Int64[np.ndarray, " warp"]) -> rec.Streams:
        """What its lanes read; what of it is not made yet is room."""
        items, walked = self.cut.items, self.walked
        return rec.Streams(
            items.rows, items.lane_items, items.terms, starts, walked.accesses, walked.fills, self.warps.offsets,
            walked.late_starts, walked.late_begins, walked.late_fills, walked.fill_words, walked.fill_behind,
            walked.fill_trips, walked.dealt,
        )  # fmt: skip

    @property
    def firsts(self) -> Int64[np.ndarray, " lane"]:
        """Lanes that are the first of those that do the same."""
        return np.flatnonzero(self.walked.told["like"] == np.arange(self.sm_count))

    @property
    def lanes(self) -> rec.Lanes:
        """All of them."""
        _, kinds = self.of.follow(self, 0)
        items, walked, warps = self.cut.items, self.walked, self.warps
        own, count, stop = self.streams(items.offsets[warps.paths]), int(items.offsets[-1]), walked.fill_count
        fills = {name: getattr(own, name)[:stop] for name in ("fill_words", "fill_behind", "fill_trips")}
        items = items._replace(lane_items=items.lane_items[:count], terms=items.terms[: count * len(rec.TERMS)])
        own = own._replace(
            lane_items=items.lane_items, terms=items.terms, access_starts=warps.offsets[:-1], **fills
        )  # fmt: skip
        first, stops = (walked.told[name].astype(np.int32) for name in ("first", "stop"))
        layout = layout_of(self.gpu, self.inputs.trace.warps_per_block, self.residents, items.lane_items)
        return rec.Lanes(layout, kinds.machines[: len(first)].copy(), self.residents, own, first, stops)


class TimedLaunch:
    """A launch. `latency_of`: as of `items.cut`, for who asks for derivatives."""

    def __init__(self, session: Session, number: int, latency_of: Int64[np.ndarray, " instr"] | None = None) -> None:
        self.session, self.number, self.latency_of, self._lock = session, number, latency_of, Lock()
        self.launch, self.trace = session.launch(number), without_phases(session.traces.trace(number))
        self._warps: dict[tuple, Warps] = {}
        self._cut: dict[tuple, CutItems] = {}
        self._nominal: dict[tuple, CutItems] = {}
        self._walked: dict[tuple, Walked] = {}
        self._ended: dict[tuple, tuple[CutItems, np.ndarray]] = {}  # of points that lanes see as one

    def design_point(self, gpu: Gpu) -> DesignPoint:
        """The launch on a GPU, ready to run. Raises InputError for a GPU that cannot run it."""
        session, number, own = self.session, self.number, reading_of(gpu)
        residents, inputs = session.blocks_per_sm(number, gpu), session.inputs(number, gpu, self.trace)
        table, trace = inputs.table, inputs.trace
        touch = (id(session.timed_code(number, gpu)), *own.touching)  # a session keeps its timed code
        refuse_unsupported(gpu, table, trace.warps_per_block, residents)
        refuse_commits(table, "occupancy")
        with self._lock:
            warps = _kept(self._warps, touch, lambda: warps_of(table, trace, gpu))
            made = _kept(self._cut, (touch, own.items), lambda: self._new_cut(inputs, warps, gpu))
            nominal = _kept(self._nominal, (touch, own.walked_items), lambda: CutItems(empty_items(warps)))
            walking = touch, own.caches, residents
            walked = _kept(self._walked, walking, lambda: _new_walked(warps, inputs, gpu))
        return DesignPoint(self, own, residents, inputs, warps, made, nominal, walked)

    def _new_cut(self, inputs: LaunchInputs, warps: Warps, gpu: Gpu) -> CutItems:
        if self.latency_of is None:
            return CutItems(empty_items(warps))
        return CutItems(cut(inputs.table, inputs.trace, warps, gpu, self.latency_of), True)

    def times(self, points: Sequence[DesignPoint], threads: int | None = None) -> list[Timed]:
        """The launch on design points of its own. Deterministic; cycles of a point do not depend on the others.

        Raises InputError for a launch that lanes cannot hold."""
        if len(points) == 1:
            return [_timed(points[0], self._run(points[0], threads))]
        keys = [self._key(point) for point in points]
        left = {key: point for key, point in zip(keys, points, strict=True) if key not in self._ended}
        outcomes = in_parallel(lambda k: self._run([*left.values()][k], 1), len(left), threads=threads)
        for (key, point), outcome in zip(left.items(), outcomes, strict=True):
            self._ended[key] = point.cut, outcome  # whose id is no other's as long as it is here
        found = [_timed(point, self._ended[key][1]) for key, point in zip(keys, points, strict=True)]
        for old in list(self._ended)[:-MOST_ENDED]:
            del self._ended[old]
        return found

    def _key(self, point: DesignPoint) -> tuple:
        """Points of one key are one to the lanes."""
        _, kinds = self.follow(point, 0)
        shape = point.reading.held(self.trace.warps_per_block, point.residents).value.lanes
        machines = kinds.machines[: point.sm_count].tobytes()
        return id(point.cut), blake2b(shape.tobytes() + machines + point.walked.digest, digest_size=16).digest()

    def _run(self, point: DesignPoint, threads: int | None) -> np.ndarray:
        """A LAUNCH_OUTCOME."""
        out, kinds = self.follow(point, 0 if not compiled() else ALL_WORK if threads == 1 else FEW_ITEMS)
        if not out["is_run"]:
            own = kinds.kinds[: point.sm_count].copy()
            found = run(chosen(point.lanes, point.firsts), threads)
            out["end"], out["stepped"], out["issued"] = found.end.max(), found.issued.sum(), found.issued[own].sum()
        return out

    def follow(self, point: DesignPoint, most_work: int) -> tuple[np.ndarray, rec.Kinds]:
        """Do what is still to be done of a design point, lanes included where they issue at most so many items: a
        LAUNCH_OUTCOME, and the lanes that differ."""
        is_made = point.cut.is_cut and point.walked.is_walked
        with nullcontext() if is_made else self._lock:
            return self._follow(point, most_work)

    def _follow(self, point: DesignPoint, most_work: int) -> tuple[np.ndarray, rec.Kinds]:
        trace, table, warps, gpu = point.inputs.trace, point.inputs.table, point.warps, point.gpu
        walked, items, per_block = point.walked, point.cut.items, trace.warps_per_block
        plan = rec.Plan(
            not (walked.is_walked or point.nominal.is_cut or gpu.spec.perfect_memory), not walked.is_walked,
            not point.cut.is_cut, per_block, point.residents, walked.fill_count, most_work,
        )  # fmt: skip
        rows, scratch = instructions_of(table, warps, gpu) if plan.cuts else timed_rows(table, gpu), room_of(point)[0]
        lane, kinds = lane_of(point.reading, per_block, point.residents, len(walked.fill_words)), kinds_of(gpu)
        streams, outs = point.streams(np.empty(len(warps.paths), np.int64)), np.zeros(1, rec.LAUNCH_OUTCOME)
        time_launch(
            plan, point.reading.held(per_block, point.residents), code_of(table, trace, rows), warps,
            point.nominal.items, items, walk_of(point), walked.told, walked.found, streams, scratch,
            caches_of(point.reading, bool(plan.walks)), lane, kinds, np.zeros(1, np.int64), outs,
        )  # fmt: skip
        out = outs[0]
        if out["misfits"]:
            cut(table, trace, warps, gpu)
        check_field("occupies", outs["longest"], rec.OCCUPIES_BITS)
        point.nominal.is_cut |= bool(plan.cuts_nominal)
        point.cut.is_cut = walked.is_walked = True
        if plan.walks:
            walked.fill_count, walked.late_count = int(out["fills"]), int(out["lates"])
        return out, kinds.value


def _timed(point: DesignPoint, out: np.ndarray) -> Timed:
    l2, dram = (float(out[name]) / rec.TICKS for name in ("l2_ticks", "dram_ticks"))
    return Timed(
        int(cycles_of(out["end"])) + int(point.gpu.params.launch_latency_cycles), float(out["stepped"] / out["issued"]),
        int(out["sectors"]), int(out["dram_sectors"]), int(out["held"]), l2, dram,
    )  # fmt: skip


def room_of(point: DesignPoint) -> tuple[Held, tuple[np.ndarray, ...]]:
    """What a launch is timed in, of this thread."""
    warps, per_block = point.warps, point.inputs.trace.warps_per_block
    count, accesses, fetches = len(warps.paths), len(warps.accesses), len(point.walked.late_begins)
    longest, registers, slots = int(warps.lengths.max()), point.inputs.table.register_count, point.residents * per_block
    sizes = longest, registers, count // per_block, count, point.residents, slots, accesses, fetches
    return working(point.gpu.spec.sm_count, sizes)


def walk_of(point: DesignPoint) -> Walk:
    """A launch's walk, whose answers lie there until another one's do."""
    inputs, warps, items = point.inputs, point.warps, point.nominal.items
    machine = caches_machine(point.gpu, inputs.trace.warps_per_block, point.residents, inputs.shared_bytes)
    return Walk(
        machine, items.lane_items, items.offsets, warps.paths, warps.accesses, warps.offsets,
        inputs.trace.records, point.walked.dealt, NOMINAL_CYCLES, *room_of(point)[1],
    )  # fmt: skip


def _new_walked(warps: Warps, inputs: LaunchInputs, gpu: Gpu) -> Walked:
    """Room for what a walk finds. Memory is touched as far as there is something."""
    count, accesses, blocks = len(warps.paths), len(warps.accesses), len(warps.paths) // inputs.trace.warps_per_block
    fetches = 0 if gpu.spec.perfect_memory else int(warps.lengths.sum())
    lates, fills, sms = fetches + count, 1 + accesses + fetches, min(gpu.spec.sm_count, blocks)
    sizes = blocks, accesses, accesses, count, lates, lates, fills, fills, fills
    return Walked(np.zeros(sms, TOLD_SM), np.zeros(1, FOUND), *(np.empty(size, np.int32) for size in sizes))


def _kept(known: dict[tuple, Made], key: tuple, make: Callable[[], Made]) -> Made:
    """What is kept under a key, made if it is not; the oldest makes room."""
    if key not in known:
        if len(known) == MOST_KEPT:
            del known[next(iter(known))]
        known[key] = make()
    return known[key]
