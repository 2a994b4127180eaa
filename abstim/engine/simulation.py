"""A launch that can be run thread block by thread block: what sampling watches and stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int64

from abstim.engine.design_point import code_of, lay_out_record, machine_of, streams_of
from abstim.engine.entries import run_grid
from abstim.engine.inputs import COUNTERS, EngineResult, LaunchInputs
from abstim.engine.kept_caches import Caches
from abstim.engine.layout import EMPTY, GRID, new_state
from abstim.gpu.config import Gpu


class Simulation:
    """The state of one launch on one design point.

    `room`: thread blocks the launch will have at most, if the trace grows on the way (`extend`). `windows` counts of
    issued warp instructions are kept, each over `window_cycles` (a power of two), the last one over all that is left.
    """

    def __init__(
        self, inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, *, caches: Caches | None = None, room: int = 0,
        windows: int = 0, window_cycles: int = 64,
    ) -> None:  # fmt: skip
        trace, table = inputs.trace, inputs.table
        self.inputs, self.gpu = inputs, gpu
        self.machine = machine_of(gpu, trace.warps_per_block, blocks_per_sm, table, inputs.shared_bytes)
        self.room = max(room, len(trace.thread_blocks))
        words = lay_out_record(self.machine, self.room, windows, window_cycles)
        self.sms, self.heaps = new_state(self.machine)
        self.far = np.zeros(words, np.int64)
        self.far[int(self.machine["blocks_at"]) : int(self.machine["windows_at"])] = -1
        self.grid = np.zeros(1, GRID)
        if caches is not None:
            caches.put(self.machine, self.sms, self.heaps, self.far)

    def extend(self, inputs: LaunchInputs) -> None:
        """Go on with a longer trace, whose first thread blocks are those of the one before."""
        self.inputs = replace(inputs, table=self.inputs.table)

    def run(
        self, positions: Int64[np.ndarray, " tb"], *, drain: bool, log_rows: int = 0
    ) -> Int64[np.ndarray, "issue column"]:
        """Hand out thread blocks (positions in the trace) in this order, as slots free; with `drain` run to the end,
        else to the dispatch of the last one. Returns a row of LOG_COLUMNS an issue, the first `log_rows` of them."""
        code, operands = code_of(self.inputs.table)
        streams, offsets = streams_of(self.inputs.trace, self.inputs.table, operands, log_rows)
        self.grid["logged"] = 0
        run_grid(
            self.sms, self.heaps, self.far, self.machine, code, streams, offsets, self.grid[0],
            np.ascontiguousarray(positions, np.int64), drain,
        )  # fmt: skip
        return streams.log[: int(self.grid["logged"][0])]

    @property
    def clock_cycles(self) -> int:
        """Cycle of the last dispatch."""
        return int(self.grid["clock"][0])

    @property
    def blocks(self) -> Int64[np.ndarray, "position 3"]:
        """SM, dispatch cycle and retirement cycle of each thread block; -1: not yet."""
        at = int(self.machine["blocks_at"])
        return self.far[at : at + 3 * self.room].reshape(-1, 3)

    @property
    def warps(self) -> Int64[np.ndarray, "warp 2"]:
        """Cycles of a warp's first issue and of its retirement; -1: not yet."""
        return self.far[int(self.machine["warps_at"]) : int(self.machine["windows_at"])].reshape(-1, 2)

    @property
    def windows(self) -> Int64[np.ndarray, " window"]:
        """Warp instructions issued, a window each."""
        at = int(self.machine["windows_at"])
        return self.far[at : at + int(self.machine["windows"])]

    def history(self, most: int = 100) -> dict[str, Any]:
        """A drained launch over time, in at most `most` windows of equal length; {} if they did not last.

        Keys: `window_cycles`; and, one entry a window, `warp_instructions` issued and `resident_warp_cycles`, those of
        warps between their first issue and their retirement.
        """
        fine, last = 1 << int(self.machine["window_log2"]), int(self.sms["last_exit"].max())
        if last // fine >= len(self.windows):
            return {}
        width = fine * -(-(last // fine + 1) // most)
        starts = np.arange(0, last + 1, width)
        issued = np.add.reduceat(self.windows, starts // fine)
        lived = self.warps[self.warps[:, 1] >= 0]
        begun, gone = (np.bincount(times, minlength=last + 2) for times in (lived[:, 0], lived[:, 1] + 1))
        resident = np.add.reduceat(np.cumsum(begun - gone)[: last + 1], starts)
        return {
            "window_cycles": width, "warp_instructions": issued.tolist(), "resident_warp_cycles": resident.tolist(),
        }  # fmt: skip

    def leave(self, caches: Caches) -> None:
        """Keep what the caches hold for the next launch."""
        caches.take(self.machine, self.sms, self.heaps, self.far)

    def result(self) -> EngineResult:
        """Read a drained launch. Scheduler cycles nobody booked (before, between, after blocks) are empty ones."""
        sms, spec = self.sms, self.gpu.spec
        sm_cycles = sms["last_exit"] + 1 + int(self.gpu.params.launch_latency_cycles)
        cycles = int(sm_cycles.max())
        slots = sms["slots"].copy()
        slots[:, EMPTY] += cycles * spec.schedulers_per_sm - slots.sum(1)
        counters = {name: int(sms[name].sum()) for name in COUNTERS}
        resident = sms["resident_warp_cycles"].copy()
        return EngineResult(cycles, sm_cycles, slots, resident, counters, self.history() if len(self.windows) else {})
