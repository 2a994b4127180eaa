"""One launch on any GPUs by the occupancy model: what several of them share is made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from abstim.engine.design_point import caches_machine, refuse_unsupported
from abstim.gpu.config import Gpu
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.cache_walk import FOUND, MOST_USES, TOLD_SM, USE, Told, Uses, Walk
from abstim.occupancy_vector.design_points import Reading, layout_of, reading_of
from abstim.occupancy_vector.items import as_read, check_field, code_of, cut, empty_items, warps_of, work_a_cycle
from abstim.occupancy_vector.lanes import FEW_ITEMS, compiled, cycles_of, run
from abstim.occupancy_vector.lent import Lent
from abstim.occupancy_vector.scratch import caches_of, chosen_of, composed, lane_of, working
from abstim.progress import in_parallel
from abstim.session.session import Session
from functional.arrays import Int64
from functional.jit.machine_code import WHOLE, Held, Native
from functional.traces.line_record import in_phases, without_phases
from precharacterize.tensor_work import refuse_commits

if TYPE_CHECKING:
    from abstim.engine.simulation import LaunchInputs
    from abstim.occupancy_vector.items import Sorted

MOST_KEPT, MOST_ENDED = 64, 1 << 12  # walks, and cuts, of a launch; design points that are done
MOST_COMPARED = 16  # walks of a launch
ALL_WORK = 1 << 62
Made = TypeVar("Made")
LaunchOutcome = dict[str, int]  # by the names of LAUNCH_OUTCOME
time_launch = Native(
    "abstim.occupancy_vector.launch_kernel", "time_launch", "abstim: compiling the occupancy-vector engine", WHOLE
)


digest = Native("abstim.occupancy_vector.answer_kernel", "digest")
AGREES = [Native("abstim.occupancy_vector.walk_uses", name) for name in ("l1d_agrees", "l2_agrees")]


@dataclass
class Shared:
    """What design points share, made by the first that needs it: who is to make it holds its `turn`."""

    lent: Lent
    is_made: bool = field(default=False, kw_only=True)
    code: Held | None = field(default=None, kw_only=True)  # it was made of
    turn: Lock = field(default_factory=Lock, kw_only=True)


@dataclass
class Walked(Shared):
    """A launch, dealt and walked through the caches of a design point, Told."""

    touch: tuple  # what warps' accesses, and paths, follow from
    key: tuple  # what decides it, but for `where`
    where: tuple  # `in_caches`
    fill_count: int = 0
    late_count: int = 0
    uses: tuple[Lent, list[bool]] | None = None  # Uses, and of which caches others may be compared with them
    machine: Held | None = None  # MACHINE of a GPU that it was made for
    _digest: bytes = b""

    def is_as(self, other: Walked) -> None:
        """It finds the same, for the same reasons."""
        self.lent, self.fill_count, self.late_count = other.lent, other.fill_count, other.late_count
        self._digest, self.is_made = other._digest, True

    @property
    def told(self) -> Told:
        """What lanes read of it."""
        found: Told = self.lent.value
        fills = {name: getattr(found, name)[: self.fill_count] for name in ("fill_words", "fill_behind", "fill_trips")}
        lates = {name: getattr(found, name)[: self.late_count] for name in ("late_begins", "late_fills")}
        return found._replace(**fills, **lates)

    def digest(self, warps: Sorted, warps_per_block: int) -> bytes:
        """Of all that the lanes of a launch are told: those of other caches may be told the same."""
        if not self._digest:
            found = np.empty(2, np.uint64)
            offsets = warps.lent.held.value.offsets
            digest(self.lent.held, offsets, warps_per_block, self.fill_count, self.late_count, found)
            self._digest = found.tobytes()
        return self._digest


class Timed(NamedTuple):
    """`cycles`: launch latency included; `stepped`: share of its items that were issued for it; what all SMs ask of L2
    and DRAM, how long they hold the load/store unit, and those serve them."""

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
    warps: Sorted
    cut: Shared  # Items, of all GPUs that agree in `Reading.items`; those that caches are walked with
    nominal: Shared
    walked: Walked

    @property
    def gpu(self) -> Gpu:
        """Of the launch."""
        return self.reading.gpu

    @property
    def sm_count(self) -> int:
        """SMs that have work."""
        return int(self.walked.lent.rows[0, 1])

    @property
    def chosen(self) -> Int64[np.ndarray, " lane"]:
        """SMs whose lanes are run: those that may be the last to end."""
        return np.flatnonzero(self.walked.told.sms["is_run"])

    @property
    def lanes(self) -> rec.Lanes:
        """Those that are run."""
        _, lanes = self.of.follow(self, 0)
        items, told, warps = self.cut.lent.value, self.walked.told, self.warps.value
        count = int(items.offsets[-1])
        streams = rec.Streams(
            items.rows, items.lane_items[:count], items.terms[: count * len(rec.TERMS)], items.starts,
            warps.offsets[:-1], *told[2:],
        )  # fmt: skip
        sms = self.chosen
        first, stops = (told.sms[name][sms].astype(np.int32) for name in ("first", "stop"))
        layout = layout_of(self.gpu, self.inputs.trace.warps_per_block, self.residents, streams.lane_items)
        return rec.Lanes(layout, lanes.machines[sms], self.residents, streams, first, stops)


class TimedLaunch:
    """A launch. `latency_of`: as of `items.cut`, for who asks for derivatives."""

    def __init__(self, session: Session, number: int, latency_of: Int64[np.ndarray, " instr"] | None = None) -> None:
        self.session, self.number, self.latency_of, self._lock = session, number, latency_of, Lock()
        self.launch, trace = session.launch(number), session.traces.trace(number)
        touched = session.once_of(number, trace, ("touched", number), lambda: in_phases(trace.records).any())
        self.trace = without_phases(trace) if touched else trace
        self._warps: dict[tuple, Sorted] = {}
        self._cut: dict[tuple, Shared] = {}
        self._nominal: dict[tuple, Shared] = {}
        self._walked: dict[tuple, Walked] = {}
        self._ended: dict[tuple, LaunchOutcome] = {}  # of points that lanes see as one

    def design_point(self, gpu: Gpu) -> DesignPoint:
        """The launch on a GPU, ready to run. Raises InputError for a GPU that cannot run it."""
        session, number, own = self.session, self.number, reading_of(gpu)
        residents, inputs = session.blocks_per_sm(number, gpu), session.inputs(number, gpu, self.trace)
        table, trace = inputs.table, inputs.trace
        traced = session.once_of(number, trace, ("traced", number), lambda: as_read(trace))
        touch = (id(session.timed_code(number, gpu)), own.touching)  # a session keeps its timed code
        refuse_unsupported(gpu, table, trace.warps_per_block, residents)
        refuse_commits(table, "occupancy")
        with self._lock:
            warps = _kept(self._warps, touch, lambda: warps_of(table, trace, gpu, traced))
            made = _kept(self._cut, (touch, own.items), lambda: self._new_cut(inputs, warps, gpu))
            nominal = _kept(
                self._nominal, (touch, own.walked_items),
                lambda: Shared(empty_items(warps, timed=False), is_made=gpu.spec.perfect_memory),
            )  # fmt: skip
            walking = touch, own.caches, residents
            walked = _kept(
                self._walked, (*walking, own.in_caches),
                lambda: Walked(_new_told(warps, inputs, gpu), touch, walking, own.in_caches),
            )  # fmt: skip
        return DesignPoint(self, own, residents, inputs, warps, made, nominal, walked)

    def _new_cut(self, inputs: LaunchInputs, warps: Sorted, gpu: Gpu) -> Shared:
        if self.latency_of is None:
            return Shared(empty_items(warps))
        return Shared(cut(inputs.table, warps, gpu, self.latency_of), is_made=True)

    def times(self, points: Sequence[DesignPoint], threads: int | None = None) -> list[Timed]:
        """The launch on design points of its own. Deterministic; cycles of a point do not depend on the others.

        Raises InputError for a launch that lanes cannot hold."""
        if len(points) == 1:
            return [_timed(points[0], self._run(points[0], threads))]
        keys = in_parallel(lambda k: self._key(points[k]), len(points), threads=threads)
        left = {key: point for key, point in zip(keys, points, strict=True) if key not in self._ended}
        outcomes = in_parallel(lambda k: self._run([*left.values()][k], 1), len(left), threads=threads)
        for key, outcome in zip(left, outcomes, strict=True):
            self._ended[key] = outcome
        found = [_timed(point, self._ended[key]) for key, point in zip(keys, points, strict=True)]
        for old in list(self._ended)[:-MOST_ENDED]:
            del self._ended[old]
        return found

    def _key(self, point: DesignPoint) -> tuple:
        """Points of one key are one to the lanes."""
        _, lanes = self.follow(point, 0)
        per_block, walked = self.trace.warps_per_block, point.walked
        shape = point.reading.held(per_block, point.residents).value.lanes
        numbers = blake2b(lanes.machines[: point.sm_count].tobytes(), digest_size=16).digest()
        return walked.touch, walked.digest(point.warps, per_block), point.reading.items, shape.tobytes(), numbers

    def _run(self, point: DesignPoint, threads: int | None) -> LaunchOutcome:
        out, _ = self.follow(point, 0 if not compiled() else ALL_WORK if threads == 1 else FEW_ITEMS)
        if out["is_run"]:
            return out
        found = run(point.lanes, threads)
        return out | {"end": int(found.end.max()), "stepped": int(found.issued.sum())}

    def follow(self, point: DesignPoint, most_work: int) -> tuple[LaunchOutcome, rec.Chosen]:
        """Do what is still to be done of a design point, lanes included where they issue at most so many items, and
        the lanes that are run."""
        own = point.nominal, point.walked, point.cut  # in one order: nobody waits for who waits for him
        if all(one.is_made for one in own):
            return self._follow(point, most_work)
        with ExitStack() as turns:
            for one in own:
                one.turn.acquire()
                if one.is_made:
                    one.turn.release()
                else:
                    turns.callback(one.turn.release)
            return self._follow(point, most_work)

    def _follow(self, point: DesignPoint, most_work: int) -> tuple[LaunchOutcome, rec.Chosen]:
        table, warps, gpu, walked = point.inputs.table, point.warps, point.gpu, point.walked
        others = [] if walked.is_made else self._others(walked)
        if same := next((other for other in others if _agree(point, other)), None):
            walked.is_as(same)
        per_block, told = point.inputs.trace.warps_per_block, walked.lent
        plan = rec.Plan(
            not point.nominal.is_made, not walked.is_made, not point.cut.is_made, per_block, point.residents,
            walked.fill_count, most_work,
        )  # fmt: skip
        if plan.cuts or not point.cut.code:  # else nobody looks at it
            point.cut.code = code_of(table, gpu, work_a_cycle(table, warps, gpu) if plan.cuts else ())
        fills = int(told.rows[Told._fields.index("fill_words"), 1])
        lane, lanes = lane_of(point.reading, per_block, point.residents, fills), chosen_of(gpu)
        cut_items, accesses = point.cut.lent.held, (warps.lent.held, slice(2, 3))
        items = (cut_items, slice(3)), (cut_items, slice(4, None))
        streams = composed(rec.Streams, *items, accesses, (told.held, slice(2, None)))
        (scratch, answers), caches = room_of(point), caches_of(point.reading, bool(plan.walks))
        uses = Lent(Uses, (USE, USE), (MOST_USES * bool(plan.walks and others),) * 2)
        time_launch(
            plan, point.reading.held(per_block, point.residents), point.cut.code, warps.traced, warps.lent.held,
            point.nominal.lent.held, point.cut.lent.held, _walk_of(point, answers, uses.held), told.held, streams,
            scratch, caches, lane, lanes,
        )  # fmt: skip
        out = dict(zip(rec.LAUNCH_OUTCOME.names or (), lanes.value.outs.item(), strict=True))
        if out["misfits"]:
            cut(table, warps, gpu)
        if out["longest"] >= 1 << rec.OCCUPIES_BITS:
            check_field("occupies", lanes.value.outs["longest"], rec.OCCUPIES_BITS)
        if plan.walks:
            walked.fill_count, walked.late_count = out["fills"], out["lates"]
            if others:
                self._keep(walked, uses, (out["l1d_uses"], out["l2_uses"]))
        point.nominal.is_made = walked.is_made = point.cut.is_made = True
        return out, lanes.value

    def _others(self, walked: Walked) -> list[Walked]:
        """Walks that would be the same if their caches answered the same, the latest first."""
        with self._lock:
            return [own for own in reversed(self._walked.values()) if own.key == walked.key and own is not walked]

    def _keep(self, walked: Walked, uses: Lent, counts: tuple[int, int]) -> None:
        """Uses of a walk, which others are compared with; the oldest make room."""
        noted = [count <= MOST_USES for count in counts]
        uses.fit(tuple(count * known for count, known in zip(counts, noted, strict=True)))
        walked.uses = uses, noted
        with self._lock:
            for old in [own for own in self._walked.values() if own.uses][:-MOST_COMPARED]:
                old.uses = None


def _agree(point: DesignPoint, other: Walked) -> bool:
    """Would the caches of a point answer as those of a walk? Then it is the point's, too."""
    if not (kept := other.uses):  # which may be gone when it is asked for again
        return False
    (uses, noted), places = kept, zip(other.where, point.walked.where, strict=True)
    changed = [k for k, (there, here) in enumerate(places) if there != here]
    return all(noted[k] for k in changed) and all(_answers(point, AGREES[k], uses) for k in changed)


def _answers(point: DesignPoint, agrees: Native, uses: Lent) -> bool:
    """Would the point's L1D, or L2, answer as at these uses?"""
    found = np.zeros(1, np.int64)
    agrees(*_machine_of(point).value, caches_of(point.reading, True), uses.held, found)
    return bool(found[0])


def _timed(point: DesignPoint, out: LaunchOutcome) -> Timed:
    cycles, served = cycles_of(out["end"]), (out["l2_ticks"] / rec.TICKS, out["dram_ticks"] / rec.TICKS)
    cycles += int(point.gpu.params.launch_latency_cycles)
    return Timed(cycles, out["stepped"] / out["work"], out["sectors"], out["dram_sectors"], out["held"], *served)


def room_of(point: DesignPoint) -> tuple[Held, Held]:
    """What a launch is timed in, of this thread."""
    warps, per_block = point.warps, point.inputs.trace.warps_per_block
    count, fetches = len(point.inputs.trace.warp_instructions), _fetches(warps, point.gpu) + warps.warps
    registers, slots = point.inputs.table.register_count, point.residents * per_block
    sizes = warps.longest, registers, count // per_block, count, point.residents, slots, warps.accesses + 1, fetches
    return working(point.gpu.spec.sm_count, sizes)


def _walk_of(point: DesignPoint, answers: Held, uses: Held) -> Held:
    """A launch's Walk, whose answers, and uses, lie there until another one's do."""
    warps = point.warps
    return composed(
        Walk, (_machine_of(point), slice(1)), (point.nominal.lent.held, slice(1, 4)), (warps.lent.held, slice(3)),
        (warps.traced, slice(2, 4)), (point.walked.lent.held, slice(2, 3)), (answers, slice(5)),
        (uses, slice(2)),
    )  # fmt: skip


def _machine_of(point: DesignPoint) -> Held:
    """The detailed engine's record of a GPU, as far as caches go: of the first that the walk was asked for."""
    inputs, walked = point.inputs, point.walked
    sizes = inputs.trace.warps_per_block, point.residents, inputs.shared_bytes
    walked.machine = walked.machine or _machine(point.gpu, *sizes)
    return walked.machine


@lru_cache(1 << 10)  # points of a sweep, whose launches come one after the other
def _machine(gpu: Gpu, warps_per_block: int, residents: int, shared_bytes: int) -> Held:
    return Held((caches_machine(gpu, warps_per_block, residents, shared_bytes),))


def _fetches(warps: Sorted, gpu: Gpu) -> int:
    """Items at most, whose lines are fetched."""
    return 0 if gpu.spec.perfect_memory else warps.instructions


_TOLD = TOLD_SM, FOUND, *[np.int32] * 11


def _new_told(warps: Sorted, inputs: LaunchInputs, gpu: Gpu) -> Lent:
    """Room for what a walk finds. Memory is touched as far as there is something."""
    count, accesses, fetches = warps.warps, warps.accesses + 1, _fetches(warps, gpu)
    blocks = count // inputs.trace.warps_per_block
    lates, fills = fetches + count, 1 + accesses + fetches
    sizes = 1, blocks, accesses, accesses, count, lates, lates, *[fills] * 3, blocks, accesses
    return Lent(Told, _TOLD, (min(gpu.spec.sm_count, blocks), *sizes))


def _kept(known: dict[tuple, Made], key: tuple, make: Callable[[], Made]) -> Made:
    """What is kept under a key, made if it is not; the oldest makes room."""
    if key not in known:
        if len(known) == MOST_KEPT:
            del known[next(iter(known))]
        known[key] = make()
    return known[key]
