"""A launch on one design point, in one go or thread block by thread block: what sampling watches and stops."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int64

from abstim.engine.design_point import code_of, machine_of, streams_of
from abstim.engine.initial_state import new_state
from abstim.engine.inputs import COUNTERS, EngineResult, LaunchInputs
from abstim.engine.kept_caches import Caches
from abstim.engine.state import EMPTY, ISSUE
from abstim.engine.unsupported import refuse_unsupported
from abstim.gpu.config import Gpu
from functional.disk.machine_code import Native

WINDOWS, WINDOW_CYCLES = 1 << 14, 64  # of `simulate`: a million cycles; of longer launches no history is kept

_run_grid = Native("abstim.engine.event_loop", "run_grid", "compiling the timing engine for this CPU: some 20 s, once")


class Simulation:
    """The state of one launch on one design point. Raises InputError for what the engine cannot time.

    `room`: thread blocks the launch will have at most, if the trace grows on the way (`extend`). `windows` counts of
    issued warp instructions are kept, each over `window_cycles` (a power of two), the last one over all that is left.
    """

    def __init__(
        self, inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, *, caches: Caches | None = None, room: int = 0,
        windows: int = 0, window_cycles: int = 64,
    ) -> None:  # fmt: skip
        trace, table = inputs.trace, inputs.table
        refuse_unsupported(gpu, table, trace.warps_per_block, blocks_per_sm)
        self.inputs, self.gpu = inputs, gpu
        self.room = max(room, len(trace.thread_blocks))
        machine = machine_of(gpu, trace.warps_per_block, blocks_per_sm, table, inputs.shared_bytes)
        self.state = new_state(machine, self.room, windows, window_cycles)
        if caches is not None:
            caches.put(self.state)

    def extend(self, inputs: LaunchInputs) -> None:
        """Go on with a longer trace, whose first thread blocks are those of the one before."""
        self.inputs = replace(inputs, table=self.inputs.table)

    def run(self, positions: Int64[np.ndarray, " tb"], *, drain: bool, log_rows: int = 0) -> np.ndarray:
        """Hand out thread blocks (positions in the trace) in this order, as slots free; with `drain` run to the end,
        else to the dispatch of the last one. Returns the log: an ISSUE an issue, the first `log_rows` of them."""
        code, operands = code_of(self.inputs.table)
        streams, offsets = streams_of(self.inputs.trace, self.inputs.table, operands)
        log, launch = np.empty(log_rows, ISSUE), self.state.record.launch
        launch["logged"] = 0
        self.state.l1d.accesses["row"] = 0  # what is still on its way has its row in the log of an earlier call
        state = self.state._replace(record=self.state.record._replace(log=log))
        _run_grid(state, code, streams, offsets, np.ascontiguousarray(positions, np.int64), drain)
        return log[: int(launch["logged"])]

    @property
    def machine(self) -> np.ndarray:
        """The design point's numbers, a MACHINE record."""
        return self.state.machine

    @property
    def clock_cycles(self) -> int:
        """Cycle of the last dispatch."""
        return int(self.state.record.launch["clock"])

    @property
    def blocks(self) -> np.ndarray:
        """THREAD_BLOCK [position]: `sm`, `dispatch_cycle` and `retire_cycle` of each; -1: not yet."""
        return self.state.record.blocks

    @property
    def warps(self) -> np.ndarray:
        """WARP [position]: `issue_cycle`, of its first issue, and `retire_cycle`; -1: not yet."""
        return self.state.record.warps

    @property
    def windows(self) -> Int64[np.ndarray, " window"]:
        """Warp instructions issued, a window each."""
        return self.state.record.windows

    @property
    def counters(self) -> dict[str, int]:
        """COUNTERS so far, all SMs together."""
        return {name: int(self.state.sms[name].sum()) for name in COUNTERS}

    @property
    def l2_fill(self) -> float:
        """Share of L2's lines in use; 1 with perfect memory, which has none."""
        tag = self.state.shared.l2.tag
        return np.count_nonzero(tag) / len(tag) if len(tag) else 1.0

    def history(self, most: int = 100) -> dict[str, Any]:
        """A drained launch over time, in at most `most` windows of equal length; {} if they did not last.

        Keys: `window_cycles`; and, one entry a window, `warp_instructions` issued and `resident_warp_cycles`, those of
        warps between their first issue and their retirement.
        """
        fine, last = 1 << int(self.state.record.launch["window_log2"]), int(self.state.sms["last_exit"].max())
        if last // fine >= len(self.windows):
            return {}
        width = fine * -(-(last // fine + 1) // most)
        starts = np.arange(0, last + 1, width)
        issued = np.add.reduceat(self.windows, starts // fine)
        lived = self.warps[self.warps["retire_cycle"] >= 0]
        begun = np.bincount(lived["issue_cycle"], minlength=last + 2)
        gone = np.bincount(lived["retire_cycle"] + 1, minlength=last + 2)
        resident = np.add.reduceat(np.cumsum(begun - gone)[: last + 1], starts)
        return {
            "window_cycles": width, "warp_instructions": issued.tolist(), "resident_warp_cycles": resident.tolist(),
        }  # fmt: skip

    def leave(self, caches: Caches) -> None:
        """Keep what the caches hold for the next launch."""
        caches.take(self.state)

    def result(self) -> EngineResult:
        """Read a drained launch. Scheduler cycles nobody booked (before, between, after blocks) are empty ones."""
        sms, spec = self.state.sms, self.gpu.spec
        sm_cycles = sms["last_exit"] + 1 + int(self.gpu.params.launch_latency_cycles)
        cycles = int(sm_cycles.max())
        slots = sms["slots"].copy()
        slots[:, EMPTY] += cycles * spec.schedulers_per_sm - slots.sum(1)
        resident = sms["resident_warp_cycles"].copy()
        history = self.history() if len(self.windows) else {}
        return EngineResult(cycles, sm_cycles, slots, resident, self.counters, history)


def simulate(
    inputs: LaunchInputs,
    points: Sequence[Gpu],
    blocks_per_sm: Sequence[int],
    caches: Sequence[Caches] | None = None,
    threads: int | None = None,
) -> list[EngineResult]:
    """Time a launch on every design point, on as many threads as there are CPUs; `blocks_per_sm[k]` is the occupancy of
    `points[k]`, `caches[k]` what it finds there (see `simulate_point`)."""

    def one(k: int) -> EngineResult:
        return simulate_point(inputs, points[k], blocks_per_sm[k], caches[k] if caches else None)

    if len(points) == 1 or threads == 1:
        return [one(k) for k in range(len(points))]
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        return list(pool.map(one, range(len(points))))


def simulate_point(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, caches: Caches | None = None) -> EngineResult:
    """Cycles of a launch on one design point, which finds `caches` as they were left (None: empty) and leaves them as
    they are after it. Releases the interpreter lock while it runs."""
    launch = Simulation(inputs, gpu, blocks_per_sm, caches=caches, windows=WINDOWS, window_cycles=WINDOW_CYCLES)
    launch.run(np.arange(len(inputs.trace.thread_blocks)), drain=True)
    if caches is not None:
        launch.leave(caches)
    return launch.result()
