"""A launch on one design point: timed in one go or thread block by thread block, or its caches warmed without time."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Any
from weakref import finalize

import numpy as np

from abstim.engine.alike_blocks import EVERY_BLOCK_ITS_OWN, kinds_of
from abstim.engine.behind_sms import TRAFFIC
from abstim.engine.deadlock import deadlock
from abstim.engine.design_point import known_of, machine_of, prepared, refuse_unsupported, streams_of, written_words
from abstim.engine.initial_state import Beside, Memory, new_kernels, new_record
from abstim.engine.kept_caches import Caches
from abstim.engine.state import CROSSINGS, EMPTY, ISSUE, MACHINE, NEVER, OVER, State, Team
from abstim.gpu.config import Gpu
from functional.arrays import Int64
from functional.errors import InputError
from functional.jit.machine_code import Staged
from functional.jit.marked import INT, Array, Known, layout, words_of
from functional.traces.line_record import ALL_SECTORS, FIRST_GLOBAL_LINE, SECTOR_SHIFT, is_data, line_of, with_places
from functional.traces.trace import Trace
from precharacterize import LatencyTable

COUNTERS = (
    *(f"{cache}_{what}" for cache in ("l1d", "const", "l1i", "l2") for what in ("accesses", "misses")),
    *("dram_reads", "dram_writes", "l1t_accesses", "l1t_misses"),
)


@dataclass(frozen=True)
class LaunchInputs:
    """One launch: what its program costs and what it did. The trace must hold every thread block, in launch order."""

    table: LatencyTable
    trace: Trace
    shared_bytes: int = 0  # static and dynamic, a thread block
    registers: int = 0  # a thread
    cluster_blocks: int = 1  # thread blocks of a cluster
    order: Int64[np.ndarray, " tb"] | None = None  # positions by cluster and rank; None: that of the trace
    module: str = ""  # what its program counters count the instructions of; "": the program


@dataclass(frozen=True)
class EngineResult:
    """One launch on one design point.

    `cycles` counts from the launch to the cycle after the last warp has left, `sm_cycles` the same an SM;
    `issue_slots` are scheduler cycles by reason (abstim.session.result.SLOT_REASONS), cycles x schedulers in every
    row."""

    cycles: int
    sm_cycles: Int64[np.ndarray, " sm"]
    issue_slots: Int64[np.ndarray, "sm reason"]
    resident_warp_cycles: Int64[np.ndarray, " sm"]
    counters: dict[str, int]  # COUNTERS, all SMs together
    history: dict[str, Any] = field(default_factory=dict)  # over time: Simulation.history; {} if it was not kept


WINDOWS, WINDOW_CYCLES = 1 << 14, 64  # of `simulate`: a million cycles; of longer launches no history is kept
THREAD_WARP_INSTRUCTIONS = 1 << 12  # fewer take as long as to start a thread that runs them
BEHIND_SMS = frozenset(TRAFFIC.names or ())  # counters that the memory side keeps
# Of an SM, what those that do the same have in common; their other caches count for themselves
OF_EQUAL_SMS = ("clock", "last_exit", "slots", "resident_warp_cycles", "l1i_accesses", "l1i_misses")
RECENT_LINES = 1 << 10  # that stand for L1D while thread blocks are left out

_COMPILING = "compiling the timing engine for this CPU: a few seconds, once for each kind of GPU"
_run_grid = Staged("abstim.engine.event_loop", "run_grid", (State, INT, INT, INT), _COMPILING)
_RECORDS, _WRITTEN = Array("one", np.uint32), Array("one", np.uint8)
_LINES, _BANKS = Array("one"), Array("channel bank")
_LAUNCH_WORD = layout(State)["record"].word
_touch = Staged("abstim.engine.tag_walk", "touch", (State, _RECORDS, _RECORDS, _WRITTEN, INT, _LINES))
_resume = Staged("abstim.engine.coupling", "resume", (State, Array("part column"), INT))
_walk = Staged("abstim.engine.tag_walk", "walk", (State, INT, INT))
_controllers = Staged("abstim.engine.tag_walk", "controllers", (Array("", MACHINE), _LINES, _BANKS))


class Simulation:
    """The state of one launch on one design point. Raises InputError for what the engine cannot time.

    `room`: thread blocks the launch will have at most, if the trace grows on the way (`extend`). `windows` counts of
    issued warp instructions are kept, each over `window_cycles` (a power of two), the last one over all that is left.
    `threads` run the SMs, if the launch is large enough for that to pay; their number changes no result.
    `coupled_cycles`: warps may wait for who executes them (coupling.py), and SMs run for so many cycles at most before
    he is asked. `beside`: the launch is several, side by side, which are run once, to the end; thread blocks differ in
    what they take of an SM. `kinds` of thread blocks: SMs that do the same are run once (equal_sms.py)."""

    def __init__(
        self, inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, *, caches: Caches | None = None, room: int = 0,
        windows: int = 0, window_cycles: int = 64, threads: int = 1, coupled_cycles: int = 0,
        beside: Beside | None = None, kinds: Int64[np.ndarray, " tb"] = EVERY_BLOCK_ITS_OWN,
    ) -> None:  # fmt: skip
        trace, self._alone = inputs.trace, beside is None
        if caches is not None and self._alone:
            line = gpu.pipeline.fetch_line_instructions
            inputs = replace(inputs, table=caches.placed(inputs.table, inputs.module, line))
        shape = trace.warps_per_block, blocks_per_sm, inputs.shared_bytes
        turns = not self._alone or inputs.cluster_blocks > 1
        self._prepared = prepared(gpu, inputs.table, *shape, turns, inputs.cluster_blocks)
        self.machine = self._prepared.machine  # the numbers of the design point, a MACHINE
        if coupled_cycles:
            self.machine = self.machine.copy()
            self.machine["window_cycles"] = min(coupled_cycles, int(self.machine["window_cycles"]))
        self.inputs, self.gpu = inputs, gpu
        self.room = max(room, len(trace.thread_blocks))
        self._members = members_of(trace, gpu, threads)
        record = new_record(self.room, beside or alone(inputs, self.room), windows, window_cycles)
        memory = Memory.unused()
        state, record.launch["begun"] = memory.take(self.machine, self._prepared.sizes)
        finalize(self, memory.give_back, state, self._prepared.latency_cycles + 1, caches is not None).atexit = False
        record.launch["coupled"] = coupled_cycles
        if len(kinds):
            record = record._replace(alike=kinds, windows=np.zeros(gpu.spec.sm_count * windows, np.int64))
        self.state = state._replace(record=record)
        self.blocks = record.blocks  # THREAD_BLOCK [position]: `sm`, `dispatch_cycle`, `retire_cycle`; -1: not yet
        self.warps = record.warps  # WARP [position]: `issue_cycle`, of its first issue, and `retire_cycle`; -1: not yet
        self.windows = record.windows  # warp instructions issued, a window each
        self.kernels = record.kernels  # KERNEL, of those side by side
        if caches is not None:
            caches.put(self.state)

    def extend(self, inputs: LaunchInputs) -> None:
        """Go on with a longer trace, whose first thread blocks are those of the one before."""
        self.inputs = replace(inputs, table=self.inputs.table)

    def run(self, positions: Int64[np.ndarray, " tb"], *, drain: bool, log_rows: int = 0) -> np.ndarray:
        """Hand out thread blocks (positions in the trace) in this order, as slots free; with `drain` run to the end,
        else to the dispatch of the last one. Returns the log: an ISSUE an issue, the first `log_rows` of them."""
        if self.inputs.order is not None:
            if len(positions) < len(self.inputs.order):
                raise InputError("a launch whose thread blocks come in clusters is timed as a whole")
            positions = self.inputs.order
        log, launch = np.empty(log_rows, ISSUE), self.state.record.launch
        if launch["logged"]:  # what is still on its way has its row in the log of an earlier call
            self.state.l1d.accesses["row"] = 0
        launch["logged"] = 0
        members = 1 if log_rows else self._members  # rows of the log stand in the order in which SMs are gone through
        known = self._put(np.ascontiguousarray(positions, np.int64), log)
        if self._alone:
            self.state.record.kernels[0]["next"], self.state.record.kernels[0]["stop"] = 0, len(positions)
        _run_together(members, known, self.state, int(drain))
        if len(self.state.record.alike):
            self._describe_followers(positions)
        if launch["crowded"]:
            raise InputError(
                f"an SM makes more than {CROSSINGS:,} arrivals in other thread blocks in a window of cycles"
            )
        if launch["deadlocked"]:
            raise InputError(deadlock(self.state, self.inputs.trace.records))
        return log[: int(launch["logged"])]

    def _describe_followers(self, order: np.ndarray) -> None:
        """What was not run has done what those did that it follows."""
        sms, each = self.state.sm, self.inputs.trace.warps_per_block
        led = np.where(sms["follows"], sms["follows"] - 1, np.arange(len(sms)))
        if len(self.windows):
            rows = self.windows.reshape(len(sms), -1)
            used = min(rows.shape[1], (int(sms["last_exit"].max()) >> int(self.state.record.launch["window_log2"])) + 1)
            rows[0, :used] = rows[led, :used].sum(0)
            self.windows = rows[0]
        own = order[np.argsort(self.blocks["sm"][order], kind="stable")]  # SM by SM, as they came to each
        own = own[self.blocks["sm"][own] >= 0]
        sm = self.blocks["sm"][own]
        first = np.searchsorted(sm, np.arange(len(sms)))
        theirs = own[np.arange(len(own)) + (first[led] - first)[sm]]
        self.blocks["retire_cycle"][own] = self.blocks["retire_cycle"][theirs]
        for name in ("issue_cycle", "retire_cycle"):
            cycles = self.warps[name].reshape(-1, each)
            cycles[own] = cycles[theirs]
        for name in OF_EQUAL_SMS:
            sms[name] = sms[name][led]

    def _put(self, order: np.ndarray, log: np.ndarray) -> Known:
        """Tell compiled code of what it is to run. Returns what is known of it."""
        code, operands, known = self._prepared[2:5]
        streams, offsets = streams_of(self.inputs.trace, self.inputs.table, operands)
        self._launch = self.state.record._replace(log=log), code, streams, offsets, order  # which live until it has
        self.state.contexts[:, _LAUNCH_WORD:] = words_of(self._launch)
        return known

    def run_to(self, positions: Int64[np.ndarray, " tb"], cycle: int) -> int:
        """Like `run` with `drain`, but pause at the end of the last window before `cycle`, and of one at least. Returns
        how many thread blocks were handed out; `finished` says whether any are left on the GPU. Real memory only:
        perfect memory has no windows."""
        launch = self.state.record.launch
        launch["pause"] = max(cycle, int(launch["limit"]), int(self.machine["window_cycles"]))
        try:
            self.run(positions, drain=True)
        finally:
            launch["pause"] = NEVER
        return int(launch["handed_out"])

    def resume(self, parts: Int64[np.ndarray, "part column"], cycle: int) -> None:
        """Warps that wait go on in a cycle, each with a part of the trace: a row of `coupling.COLUMNS`."""
        known = self._put(np.zeros(0, np.int64), np.empty(0, ISSUE))
        _resume(known, self.state.contexts.ctypes.data, parts, cycle)

    @property
    def paused_cycle(self) -> int:
        """The last one that a paused launch has run."""
        return int(self.state.record.launch["limit"] - self.machine["window_cycles"])

    @property
    def finished(self) -> bool:
        """Is no warp left on the GPU?"""
        return not self.state.sm["live"].any()

    def leave_out(self, trace: Trace, written: np.ndarray) -> None:
        """What thread blocks that will never be handed out would have left in L2: their trace, and which of its line
        records are of stores and atomics. Takes no time."""
        if not self.machine["perfect_memory"]:
            recent = np.full(RECENT_LINES, -1, np.int64)
            contexts = self.state.contexts.ctypes.data
            records = np.ascontiguousarray(with_places(trace, int(self.machine["local_places"])))
            told = records, written_words(trace), written.astype(np.uint8)
            _touch(self._prepared.known, contexts, *told, FIRST_GLOBAL_LINE, recent)

    @property
    def clock_cycles(self) -> int:
        """Cycle of the last dispatch."""
        return int(self.state.record.launch["clock"])

    @property
    def counters(self) -> dict[str, int]:
        """COUNTERS so far, all SMs together."""
        sms, traffic = self.state.sm, self.state.shared.traffic
        return {name: int((traffic if name in BEHIND_SMS else sms)[name].sum()) for name in COUNTERS}

    @property
    def l2_fill(self) -> float:
        """Share of L2's lines in use; 1 with perfect memory, which has none."""
        tag = self.state.shared.l2.tag
        return np.count_nonzero(tag) / len(tag) if len(tag) else 1.0

    @property
    def l2_lines(self) -> int:
        """Lines that L2 has room for; 0 with perfect memory."""
        return len(self.state.shared.l2.tag)

    def history(self, most: int = 100) -> dict[str, Any]:
        """A drained launch over time, in at most `most` windows of equal length; {} if they did not last.

        Keys: `window_cycles`; and, one entry a window, `warp_instructions` issued and `resident_warp_cycles`, those of
        warps between their first issue and their retirement."""
        fine, last = 1 << int(self.state.record.launch["window_log2"]), int(self.state.sm["last_exit"].max())
        if last // fine >= len(self.windows):
            return {}
        width = fine * -(-(last // fine + 1) // most)
        starts = np.arange(0, last + 1, width)
        issued = np.add.reduceat(self.windows[: last // fine + 1], starts // fine)
        lengths, lived = np.diff(starts, append=last + 1), self.warps["retire_cycle"] >= 0
        begun, gone = (self.warps[name][lived] for name in ("issue_cycle", "retire_cycle"))
        resident = cycles_since(begun, lengths) - cycles_since(gone + 1, lengths)
        return {
            "window_cycles": width, "warp_instructions": issued.tolist(), "resident_warp_cycles": resident.tolist(),
        }  # fmt: skip

    def leave(self, caches: Caches) -> None:
        """Keep what the caches hold for the next launch."""
        caches.take(self.state)

    def result(self) -> EngineResult:
        """Read a drained launch. Scheduler cycles nobody booked (before, between, after blocks) are empty ones."""
        sms, spec = self.state.sm, self.gpu.spec
        ends = sms["last_exit"]
        if self.machine["posted_stores"]:  # no warp waits for them, but a launch is not over before L2 has them
            last = self.state.shared.traffic["last_ended"]
            ends = np.maximum(ends, np.where(last > 0, last + self.machine["hit_delay"], 0))
        sm_cycles = ends + 1 + int(self.gpu.params.launch_latency_cycles)
        cycles = int(sm_cycles.max() if self._alone else max(ends.max() + 1, self.kernels["end"].max()))
        slots = sms["slots"].copy()
        slots[:, EMPTY] += cycles * spec.schedulers_per_sm - slots.sum(1)
        resident = sms["resident_warp_cycles"].copy()
        history = self.history() if len(self.windows) else {}
        return EngineResult(cycles, sm_cycles, slots, resident, self.counters, history)


def cycles_since(events: Int64[np.ndarray, " e"], lengths: Int64[np.ndarray, " w"]) -> Int64[np.ndarray, " w"]:
    """Of windows of so many cycles, all but the last of one length: the cycles in each from events on, together."""
    at, count = events // lengths[0], len(lengths)
    late = np.bincount(at, events - at * lengths[0], count)[:count]
    return np.bincount(at, minlength=count)[:count].cumsum() * lengths - late.astype(np.int64)


def alone(inputs: LaunchInputs, room: int) -> Beside:
    """A launch that nothing is beside, of so many thread blocks at most."""
    kernels, warps_per_block = new_kernels(1), inputs.trace.warps_per_block
    kernels["warps_per_block"], kernels["registers"] = warps_per_block, inputs.registers
    kernels["stop"], kernels["cluster_blocks"], kernels["needs"][:, 0] = room, inputs.cluster_blocks, 1
    return Beside(kernels, np.zeros(0, np.int64), room * warps_per_block)


def members_of(trace: Trace, gpu: Gpu, threads: int) -> int:
    """How many of `threads` a launch is worth."""
    return max(1, min(threads, gpu.spec.sm_count, int(trace.warp_instructions.sum()) // THREAD_WARP_INSTRUCTIONS))


def begin_team(team: Team, members: int) -> None:
    """Before the first round of so many threads: each begins with as many SMs that stand side by side."""
    for words in team:
        words[:] = 0
    tasks = len(team.owner)
    team.owner[:] = np.arange(tasks) * members // tasks


def _run_together(members: int, known: Known, state: State, drain: int) -> None:
    """`run_grid` on several threads, of which this one leads."""
    team, words = state.team, state.contexts.ctypes.data
    begin_team(team, members)
    others = [
        Thread(target=_run_grid, args=(known, words, drain, member, members), daemon=True)
        for member in range(1, members)
    ]
    try:
        for other in others:
            other.start()
        _run_grid(known, words, drain, 0, members)
    finally:
        team.round[0] = OVER  # the leader says so itself, if nothing goes wrong
        for other in others:
            if other.ident:
                other.join()


def simulate_point(
    inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, caches: Caches | None = None, threads: int = 1,
    watch: Callable[[Simulation], None] = lambda launch: None,
) -> EngineResult:  # fmt: skip
    """Cycles of a launch on one design point, which finds `caches` as they were left (None: empty) and leaves them as
    they are after it. `threads` share its SMs, if it is large. Releases the interpreter lock while it runs; `watch` is
    shown the simulation before, whose `blocks` other threads may read meanwhile."""
    kinds = kinds_of(inputs.trace, gpu) if caches is None and inputs.cluster_blocks == 1 else EVERY_BLOCK_ITS_OWN
    launch = Simulation(
        inputs, gpu, blocks_per_sm, caches=caches, windows=WINDOWS, window_cycles=WINDOW_CYCLES, threads=threads,
        kinds=kinds,
    )  # fmt: skip
    watch(launch)
    launch.run(np.arange(len(inputs.trace.thread_blocks)), drain=True)
    if caches is not None:
        launch.leave(caches)
    return launch.result()


SECTOR_BITS = np.uint32(ALL_SECTORS << SECTOR_SHIFT)  # of a record


def warm(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, caches: Caches, share: float = 1.0) -> None:
    """Send the memory accesses and instruction lines of the last `share` of a launch's thread blocks through the tags.

    Each resident warp makes one memory access in turn, where in a launch their order is that of time. Releases the
    interpreter lock while it runs."""
    launch = Simulation(inputs, gpu, blocks_per_sm, caches=caches)
    known = launch._put(np.zeros(0, np.int64), np.empty(0, ISSUE))
    blocks = len(inputs.trace.thread_blocks)
    first = blocks - int(np.ceil(min(max(share, 0.0), 1.0) * blocks))
    _walk(known, launch.state.contexts.ctypes.data, first, blocks)
    launch.leave(caches)


def warm_code(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, caches: Caches) -> None:
    """Send what a launch's first wave reads of instructions and constants through the tags: no lane of its other
    accesses is active."""
    records = inputs.trace.records
    records = np.where(is_data(line_of(records)), records & ~SECTOR_BITS, records)
    inputs = replace(inputs, trace=replace(inputs.trace, records=records))
    resident = blocks_per_sm * gpu.spec.sm_count / len(inputs.trace.thread_blocks)
    warm(inputs, gpu, blocks_per_sm, caches, resident)


def bank_loads(
    inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, lines: Int64[np.ndarray, " line"]
) -> Int64[np.ndarray, "controller bank"]:
    """How many of some lines each bank of each memory controller holds."""
    refuse_unsupported(gpu, inputs.table, inputs.trace.warps_per_block, blocks_per_sm)
    machine = machine_of(gpu, inputs.trace.warps_per_block, blocks_per_sm, inputs.table, inputs.shared_bytes)
    found = np.zeros((gpu.spec.dram_channels, gpu.spec.dram_banks), np.int64)
    _controllers(known_of(machine), machine, lines.astype(np.int64), found)
    return found
