"""Intra-launch sampling: homogeneous regions are entered, warmed up, skipped and left. TBPoint, section IV-B2."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.estimate import Estimate, Part, around, exact
from sampling.photon.launch_in_progress import Run
from sampling.protocol import Observation, Simulator
from sampling.statistics import t_quantile
from sampling.tbpoint.regions import NO_REGION, Region, identify, region_of

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class IntraLaunch:
    """Clustering at 0.2, variation factor 0.3, warming until two sampling units' IPC differ by less than 10 %.

    `times`: how often in a row; the paper's 1 can take the first waves, in step and on cold caches, for steady.

    Launch cycles = cycles simulated + skipped instructions / IPC of their region (Table IV). The interval assumes
    the largest error the paper saw (`assumed_error`; section V-C) and adds how far the last two units were apart.
    """

    sigma: float = 0.2
    variation_factor: float = 0.3
    warming: float = 0.1
    times: int = 1
    assumed_error: float = 0.14
    name = "TBPoint intra-launch"

    def launch(
        self,
        simulator: Simulator,
        requests: Float64[np.ndarray, " tb"],
        instructions: Float64[np.ndarray, " tb"],
    ) -> Estimate:
        """One launch, from the functional profile of every thread block: memory requests and warp instructions."""
        table = identify(
            np.asarray(requests, float),
            np.asarray(instructions, float),
            simulator.shape.wave_blocks,
            self.sigma,
            self.variation_factor,
        )
        return _Sampling(self, simulator, table, np.asarray(instructions, float)).run()


class _SamplingUnits:
    """The interval from the dispatch to the retirement of a specified thread block; at its end another is specified.

    That is the first one dispatched from then on. It may still be in flight while later ones retire: then we wait.
    """

    def __init__(self, start_cycles: float) -> None:
        self.start = start_cycles
        self.retired: list[tuple[float, int, float]] = []  # dispatch cycle, thread block, retire cycle
        self.ipcs: list[float] = []

    def note(self, seen: Observation, instructions_at: Callable[[float], float], known_cycles: float) -> None:
        """Close every unit whose specified block has retired; instructions are known until `known_cycles`."""
        columns = (seen.block_dispatch_cycles, seen.blocks, seen.block_retire_cycles)
        self.retired += zip(*(column.tolist() for column in columns), strict=True)
        waiting = list(zip(seen.resident_dispatch_cycles.tolist(), seen.resident_blocks.tolist(), strict=True))
        while True:
            self.retired = [block for block in self.retired if block[0] >= self.start]
            in_flight = [block for block in waiting if block[0] >= self.start]
            if not self.retired or min(in_flight, default=(np.inf, 0)) < min(self.retired):
                return
            dispatch, _, retire = min(self.retired)
            if retire > known_cycles:
                return
            if retire > dispatch:
                self.ipcs.append((instructions_at(retire) - instructions_at(dispatch)) / (retire - dispatch))
            self.start = max(retire, np.nextafter(dispatch, np.inf))

    def settled(self, threshold: float, times: int) -> bool:
        """Whether IPC changed by less than the threshold from unit to unit, this many times in a row."""
        last = np.array(self.ipcs[-times - 1 :])
        return len(last) > times and bool((np.abs(np.diff(last)) < threshold * last[:-1]).all())


@dataclass(frozen=True, slots=True)
class _Skipped:
    """The part of a region that was left out, and the IPC of the last two sampling units before it."""

    region: Region
    first: int  # thread block
    before: float
    ipc: float

    @property
    def apart(self) -> float:
        """Relative difference of the two."""
        return abs(self.ipc - self.before) / self.before


class _Sampling:
    """One launch under way."""

    def __init__(
        self, method: IntraLaunch, simulator: Simulator, table: list[Region], instructions: Float64[np.ndarray, " tb"]
    ) -> None:
        self.method, self.simulator, self.table, self.instructions = method, simulator, table, instructions
        self.region = region_of(table, simulator.shape.thread_blocks)
        self.launch = Run(simulator)
        self.issued = [0.0]  # running total at the end of every window
        self.skipped: list[_Skipped] = []
        self.simulated = 0.0

    def run(self) -> Estimate:
        """Thread blocks in order, a few at a time, leaving out what a settled region allows."""
        chunk = max(1, self.simulator.shape.wave_blocks // 4)
        place = 0
        while place < len(self.region):
            number = self.region[place]
            place = self._plain(place, chunk) if number == NO_REGION else self._inside(self.table[number], place, chunk)
        return self._estimate(self.launch.finish())

    def _plain(self, place: int, chunk: int) -> int:
        outside = np.flatnonzero(self.region[place : place + chunk] != NO_REGION)
        end = min(place + (int(outside[0]) if len(outside) else chunk), len(self.region))
        self._step(np.arange(place, end))
        return end

    def _inside(self, region: Region, place: int, chunk: int) -> int:
        """Warm a region up until it settles, then leave out the rest of it."""
        units: _SamplingUnits | None = None
        while place <= region.last:
            end = min(place + chunk, region.last + 1)
            seen = self._step(np.arange(place, end))
            place = end
            if self.launch.warm_since is None:
                units = None
            elif units is None and bool((seen.resident_blocks >= region.first).all()):
                units = _SamplingUnits(seen.clock_cycles)
            if units is not None:
                units.note(seen, self._issued_at, (len(self.issued) - 1) * self.simulator.shape.window_cycles)
                if units.settled(self.method.warming, self.method.times) and place <= region.last:
                    self.skipped.append(_Skipped(region, place, *units.ipcs[-2:]))
                    return region.last + 1
        return place

    def _step(self, thread_blocks: Int64[np.ndarray, " tb"]) -> Observation:
        seen = self.launch.step(thread_blocks)
        self.simulated += float(self.instructions[thread_blocks].sum())
        self.issued += (self.issued[-1] + np.cumsum(seen.window_instructions)).tolist()
        return seen

    def _issued_at(self, cycle: float) -> float:
        """Instructions issued until a cycle; within a window in proportion."""
        windows = np.arange(len(self.issued)) * self.simulator.shape.window_cycles
        return float(np.interp(cycle, windows, self.issued))

    def _estimate(self, cycles: float) -> Estimate:
        whole = float(self.instructions.sum())
        parts = [Part(name="simulated", how="detailed", instructions=self.simulated, cycles=cycles)]
        variance = 0.0
        for skip in self.skipped:
            left = float(self.instructions[skip.first : skip.region.last + 1].sum())
            name, how = f"thread blocks {skip.first}-{skip.region.last}", f"region {skip.region.cluster}"
            parts.append(Part(name=name, how=how, instructions=left, cycles=left / skip.ipc))
            variance += (left / skip.ipc * (self.method.assumed_error + skip.apart) / t_quantile(math.inf)) ** 2
        if not self.skipped:
            return exact(self.method.name, cycles, tuple(parts))
        total = sum(part.cycles for part in parts)
        return around(
            self.method.name,
            total,
            math.sqrt(variance),
            basis="model",
            detailed_fraction=self.simulated / whole,
            parts=tuple(parts),
        )
