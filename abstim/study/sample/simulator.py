"""`sampling.protocol.Simulator` on the timing engine, and the basic blocks that its log of issues tells of."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from abstim.engine.kept_caches import Caches
from abstim.engine.simulation import Simulation
from abstim.engine.state import NEVER
from abstim.gpu.config import Gpu
from abstim.session.session import Session
from abstim.study.sample import counts
from abstim.study.sample.on_demand import ThreadBlocks
from functional.arrays import Float64, Int64
from functional.traces.trace import Trace
from precharacterize.classify import Kind, kinds_of
from sampling import LaunchShape, Observation, Simulator


@dataclass(frozen=True, slots=True)
class BlockEvents:
    """Executions of basic blocks, in order of retirement."""

    blocks: Int64[np.ndarray, " event"]
    issue_cycles: Int64[np.ndarray, " event"]
    retire_cycles: Int64[np.ndarray, " event"]


class Watch:
    """What a launch's log has said so far. A basic block retires when its warp issues the first instruction of the next
    one, the last one when the warp retires (Photon, section 3)."""

    def __init__(
        self, block_start: Int64[np.ndarray, " basic_block"], classes: Int64[np.ndarray, " instruction"], warps: int
    ) -> None:
        self.block_at = np.full(len(classes), -1)
        self.block_at[block_start] = np.arange(len(block_start))
        self.classes = classes
        self.open_block = np.full(warps, -1)  # of every warp
        self.open_cycle = np.zeros(warps, np.int64)
        self.latency_sum, self.seen = np.zeros(len(classes)), np.zeros(len(classes))

    def read(self, log: np.ndarray, retired: Int64[np.ndarray, "warp 2"]) -> BlockEvents:
        """Take in what was issued since; `retired`: warps that are gone now, each with its cycle."""
        instructions, results = log["instruction"].astype(np.intp), log["result_cycle"]
        known = results < NEVER  # not of what is still on its way: the mean is without those
        took = np.where(known, results - log["cycle"], 0)
        self.latency_sum += np.bincount(instructions, took, len(self.classes))
        self.seen += np.bincount(instructions, known, len(self.classes))
        first = log[np.flatnonzero(self.block_at[instructions] >= 0)]
        warps = np.concatenate([first["warp"], retired[:, 0]])
        cycles = np.concatenate([first["cycle"], retired[:, 1]])
        blocks = np.concatenate([self.block_at[first["instruction"]], np.full(len(retired), -1)])
        order = np.argsort(warps, kind="stable")
        return self._close(warps[order], cycles[order], blocks[order])

    def _close(self, warps: np.ndarray, cycles: np.ndarray, blocks: np.ndarray) -> BlockEvents:
        """Rows, warp by warp, in which a block begins (or -1: nothing more does) and the one before it ends."""
        begins = np.ones(len(warps), bool)
        begins[1:] = warps[1:] != warps[:-1]
        ended, since = np.roll(blocks, 1), np.roll(cycles, 1)
        ended[begins], since[begins] = self.open_block[warps[begins]], self.open_cycle[warps[begins]]
        last = np.roll(begins, -1)
        self.open_block[warps[last]], self.open_cycle[warps[last]] = blocks[last], cycles[last]
        real = ended >= 0
        order = np.argsort(cycles[real], kind="stable")
        return BlockEvents(ended[real][order], since[real][order], cycles[real][order])

    @property
    def class_latency_cycles(self) -> Float64[np.ndarray, " class"]:
        """Mean cycles from issue to result; NaN for a class never seen."""
        sums, seen = np.bincount(self.classes, self.latency_sum), np.bincount(self.classes, self.seen)
        return np.divide(sums, seen, out=np.full(len(seen), np.nan), where=seen > 0)


WINDOW_CYCLES = 128
WINDOWS = {1: 1 << 24, WINDOW_CYCLES: 1 << 20}  # by their cycles; the last one is over all that is left
# Of thread blocks that are left out, as many line records go through L2 as it has lines, times this
RECORDS_A_LINE, BLOCKS_AT_ONCE = 16, 64
IDLE = 0.1  # share of the time below which DRAM decides nothing
_NONE = np.empty(0, np.int64)


class EngineSimulator(Simulator):
    """One launch on one GPU. Thread blocks that are never stepped are never executed.

    `basic_blocks`: observe these too, from a log of every issue. All cycles include the launch latency. `spent` is told
    the seconds of a stage; `caches` says what the launch finds in them (None: nothing). The window of the `shape` is
    one of WINDOWS. Positions are those of the trace."""

    launch: Simulation
    watch: Watch | None

    def __init__(
        self, session: Session, number: int, gpu: Gpu, thread_blocks: ThreadBlocks, shape: LaunchShape,
        basic_blocks: bool, spent: Callable[[str, float], None], caches: Callable[[], Caches | None],
    ) -> None:  # fmt: skip
        self.session, self.number, self.gpu, self.thread_blocks = session, number, gpu, thread_blocks
        self.shape, self.basic_blocks, self._spent, self._caches = shape, basic_blocks, spent, caches
        self.windows = WINDOWS[shape.window_cycles]
        self.latency = int(gpu.params.launch_latency_cycles)
        self.idle_windows = round(self.latency / shape.window_cycles)  # before anything is dispatched
        self.history: list[tuple[float, float]] = []  # clock, warp instructions a cycle since the step before

    def begin(self) -> None:
        """Nothing dispatched, caches as they are found."""
        self.thread_blocks.at(np.zeros(1, np.int64))  # the engine needs a trace to lay out its state
        self.launch = self.session.simulation(
            self.number, self.gpu, self.thread_blocks.trace, self._caches(), room=self.shape.thread_blocks,
            windows=self.windows, window_cycles=self.shape.window_cycles,
        )  # fmt: skip
        self.resident, self.running, self.log = _NONE, _NONE, _NONE  # thread blocks and warps in order of dispatch
        self.instructions = 0  # of warps: those of all dispatched thread blocks
        self.unissued = 0  # of these, those that the log has not shown
        self.told = 0  # windows
        self.watch, self.initial_latency_cycles = None, np.empty(0)
        if self.basic_blocks:
            program, table = self.thread_blocks.launch.program, self.launch.inputs.table
            self.watch = Watch(table.block_start, counts.instruction_classes(program), self.shape.warps)
            self.initial_latency_cycles = counts.initial_latencies(program, table, self.gpu.params)

    def forget(self) -> None:
        """See the protocol: the log of issues is what costs."""
        self.watch, self.log = None, _NONE

    def step(self, thread_blocks: Int64[np.ndarray, " tb"]) -> Observation:
        """See the protocol."""
        positions = self.thread_blocks.at(np.asarray(thread_blocks, np.int64))
        if len(self.launch.inputs.trace.thread_blocks) < self.thread_blocks.executed:
            self.launch.extend(self.session.inputs(self.number, self.gpu, self.thread_blocks.trace))
        self._run(positions, drain=False)
        return self._observe(self.launch.clock_cycles)

    def leave_out(self, thread_blocks: Int64[np.ndarray, " tb"]) -> None:
        """See the protocol. Of what is left out the latest line records stand for all: L2 holds no more."""
        started = perf_counter()
        program = self.thread_blocks.launch.program
        most, kinds = RECORDS_A_LINE * self.launch.l2_lines, np.array(kinds_of(program))
        pieces: list[Trace] = []
        for last in range(len(thread_blocks), 0, -BLOCKS_AT_ONCE):
            if sum(len(piece.records) for piece in pieces) < most:
                some = np.asarray(thread_blocks[max(last - BLOCKS_AT_ONCE, 0) : last], np.int64)
                positions = np.sort(self.thread_blocks.at(some))  # those that have not been are executed
                assert self.thread_blocks.trace is not None
                pieces.append(counts.part_of(self.thread_blocks.trace, positions))
        for piece in reversed(pieces):
            made_by, _ = counts.kinds_of_records(program, piece, kinds)
            self.launch.leave_out(piece, np.isin(made_by, (Kind.GLOBAL_STORE, Kind.GLOBAL_ATOMIC)))
        self._spent("time", perf_counter() - started)

    def advance(self, cycles: int) -> Observation:
        """See the protocol; with perfect memory to the end."""
        if self.gpu.spec.perfect_memory:
            return self.result()
        started = perf_counter()
        since = max(self.launch.clock_cycles, self.launch.paused_cycle)
        self.launch.run_to(_NONE, since + cycles)
        self._spent("time", perf_counter() - started)
        return self.result() if self.launch.finished else self._observe(max(since, self.launch.paused_cycle))

    def result(self) -> Observation:
        """See the protocol; `clock_cycles` is the engine's own figure, the cycle after the last warp has left."""
        self._run(_NONE, drain=True)
        return self._observe(self.launch.result().cycles - self.latency)

    def _run(self, positions: Int64[np.ndarray, " tb"], drain: bool) -> None:
        started = perf_counter()
        trace = self.launch.inputs.trace
        warps = counts.warps_of(trace, positions)
        dispatched = int(trace.warp_instructions[warps].sum())
        self.instructions += dispatched
        self.unissued += dispatched
        self.resident = np.concatenate([self.resident, positions])
        self.running = np.concatenate([self.running, warps])
        rows = self.unissued if self.watch is not None else 0
        self.log = self.launch.run(positions, drain=drain, log_rows=rows)
        self.unissued -= len(self.log)
        self._spent("time", perf_counter() - started)

    def _observe(self, clock: int) -> Observation:
        launch = self.launch
        retired, self.resident = _retired(self.resident, launch.blocks, clock)
        warps, self.running = _retired(self.running, launch.warps, clock)
        events = BlockEvents(_NONE, _NONE, _NONE)
        if self.watch is not None:
            events = self.watch.read(self.log, np.stack([warps, launch.warps["retire_cycle"][warps]], axis=1))
        ids = launch.inputs.trace.thread_blocks
        blocks, times = launch.blocks, launch.warps[warps]
        each, channels = self.gpu.params.dram_sector_cycles, self.gpu.spec.dram_channels
        # would DRAM stay idle even if every access to L2 went there?
        idle = launch.counters["l2_accesses"] * each < IDLE * clock * channels
        return Observation(
            clock_cycles=float(clock + self.latency),
            blocks=ids[retired],
            block_dispatch_cycles=blocks["dispatch_cycle"][retired] + float(self.latency),
            block_retire_cycles=blocks["retire_cycle"][retired] + float(self.latency),
            resident_dispatch_cycles=blocks["dispatch_cycle"][self.resident] + float(self.latency),
            resident_blocks=ids[self.resident],
            dispatched_instructions=float(self.instructions),
            warp_issue_cycles=times["issue_cycle"] + float(self.latency),
            warp_retire_cycles=times["retire_cycle"] + float(self.latency),
            basic_blocks=events.blocks,
            basic_block_issue_cycles=events.issue_cycles + float(self.latency),
            basic_block_retire_cycles=events.retire_cycles + float(self.latency),
            window_instructions=self._windows(clock),
            class_latency_cycles=np.empty(0) if self.watch is None else self.watch.class_latency_cycles,
            initial_latency_cycles=self.initial_latency_cycles,
            cache_fill=1.0 if idle else launch.l2_fill,
            memory_read_cycles=launch.counters["dram_reads"] * each / channels,
            memory_write_cycles=launch.counters["dram_writes"] * each / channels,
            counters={name: float(count) for name, count in launch.counters.items()},
        )

    def _windows(self, clock: int) -> np.ndarray:
        width = self.shape.window_cycles
        whole = min(clock // width, self.windows - 1)
        issued = self.launch.windows[self.told : whole].astype(float)
        if len(issued):
            if not self.history:
                self.history.append((float(self.latency), 0.0))
            self.history.append((float(clock + self.latency), float(issued.mean()) / width))
        idle = np.zeros(self.idle_windows if self.told == 0 and whole else 0)
        self.told = max(self.told, whole)
        return np.concatenate([idle, issued])


def _retired(positions: np.ndarray, moments: np.ndarray, clock: int) -> tuple[np.ndarray, np.ndarray]:
    """Those that have retired by then, in the order in which they did, and the others."""
    cycles = moments["retire_cycle"][positions]
    gone = (cycles >= 0) & (cycles <= clock)
    return positions[gone][np.argsort(cycles[gone], kind="stable")], positions[~gone]
