"""TBPoint (Huang, Nai, Kim, Lee, IPDPS 2014): representative launches, and homogeneous regions inside them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.estimate import Estimate, Part, around, exact
from sampling.launch_in_progress import Run
from sampling.protocol import Observation, Simulator
from sampling.selection import Profile, Selection, by_instructions, first_of_each
from sampling.statistics import numbered, t_quantile

PerBlock = Float64[np.ndarray, " tb"]
_MOST_POINTS = 4000  # of one hierarchical clustering, whose memory grows with the square


@dataclass(frozen=True)
class InterLaunch:
    """Hierarchical clustering of Equation 2's vectors at sigma = 0.1; the launch nearest each centre is simulated.

    Launches of different kernels share no cluster (not in the paper: two kernels may differ in what no feature shows).
    Total CPI weighs each representative's CPI by its cluster's instructions (Table IV). The interval takes the spread
    of CPI in a cluster from the profile's cycles where it has them, else assumes it is as large as sigma allows the
    instructions to be apart: a large share of those of small launches."""

    sigma: float = 0.1
    name = "TBPoint inter-launch"

    def select(self, profile: Profile) -> Selection:
        """One launch a cluster. Raises SamplingError if the profile misses one of the four features."""
        vectors = inter_features(profile, self.name)
        strata = complete_linkage(vectors, self.sigma)
        if profile.kernels is not None:
            strata = strata * (int(profile.kernels.max()) + 1) + profile.kernels
        strata = numbered(strata.tolist())
        spread = self.sigma / np.minimum(np.bincount(strata, vectors[:, 1]) / np.bincount(strata), 1.0)
        return by_instructions(self.name, profile, strata, nearest_to_centre(vectors, strata), spread)


def inter_features(profile: Profile, method: str) -> Float64[np.ndarray, "launch 4"]:
    """Equation 2: thread instructions, warp instructions, memory requests, each over its average; CoV of block size."""
    threads, requests = (profile.need(name, method) for name in ("thread_instructions", "memory_requests"))
    columns = threads, np.asarray(profile.instructions, float), requests
    scaled = [column / (column.mean() or 1.0) for column in columns]
    return np.stack([*scaled, profile.need("block_size_variation", method)], axis=1)


def complete_linkage(vectors: Float64[np.ndarray, "n d"], sigma: float) -> Int64[np.ndarray, " n"]:
    """Clusters whose points are at most `sigma` apart, by complete linkage. Equal points are clustered once. Where even
    the distinct ones are too many, points of one cell of a grid of pitch sigma / 8 (doubled until they fit) count as
    one; a cluster may then exceed sigma by a cell's diagonal."""
    from scipy.cluster.hierarchy import fcluster, linkage

    pitch = sigma / 8
    points, inverse = np.unique(vectors, axis=0, return_inverse=True)
    while len(points) > _MOST_POINTS:
        points, inverse = np.unique(np.floor(vectors / pitch), axis=0, return_inverse=True)
        points = points * pitch
        pitch *= 2
    if len(points) == 1:
        return np.zeros(len(vectors), np.int64)
    return fcluster(linkage(points, "complete"), sigma, "distance")[inverse.reshape(-1)].astype(np.int64) - 1


def nearest_to_centre(vectors: Float64[np.ndarray, "n d"], strata: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " h"]:
    """In every cluster the point nearest its mean; of equals the first."""
    members = np.bincount(strata)
    centres = np.stack([np.bincount(strata, column) / members for column in vectors.T], axis=1)
    return first_of_each(strata, ((vectors - centres[strata]) ** 2).sum(1).round(15))


NO_REGION = -1


@dataclass(frozen=True, slots=True)
class Region:
    """A row of the homogeneous region table (Table III); `last` is included."""

    first: int
    last: int
    cluster: int


def identify(
    requests: PerBlock, instructions: PerBlock, occupancy: int, sigma: float = 0.2, variation_factor: float = 0.3
) -> list[Region]:
    """The homogeneous region table from memory requests and warp instructions of every thread block.

    An epoch is as many consecutive thread blocks as run at once (Equation 4). Its feature is the mean stall
    probability of its blocks, requests over instructions (Equation 5), clustered at `sigma`. An epoch whose CoV of
    requests or of instructions exceeds `variation_factor` holds outliers and belongs to no cluster. A region is a run
    of consecutive epochs of one cluster."""
    starts = np.arange(0, len(requests), occupancy)
    probability = _mean(requests / np.maximum(instructions, 1), starts)
    outliers = np.maximum(_variation(requests, starts), _variation(instructions, starts)) > variation_factor
    clusters = complete_linkage(probability[:, None], sigma)
    clusters = np.where(outliers, NO_REGION, clusters)
    ends = np.append(starts[1:], len(requests))
    breaks = np.flatnonzero(np.diff(clusters)) + 1
    runs = zip(np.append(0, breaks), np.append(breaks, len(starts)), strict=True)
    return [Region(int(starts[i]), int(ends[j - 1]) - 1, int(clusters[i])) for i, j in runs if clusters[i] != NO_REGION]


def region_of(regions: list[Region], thread_blocks: int) -> Int64[np.ndarray, " tb"]:
    """Position in the table of every thread block's region, or NO_REGION."""
    found = np.full(thread_blocks, NO_REGION)
    for number, region in enumerate(regions):
        found[region.first : region.last + 1] = number
    return found


def _mean(values: PerBlock, starts: Int64[np.ndarray, " epoch"]) -> Float64[np.ndarray, " epoch"]:
    return np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))


def _variation(values: PerBlock, starts: Int64[np.ndarray, " epoch"]) -> Float64[np.ndarray, " epoch"]:
    mean = _mean(values, starts)
    square = np.maximum(_mean(values**2, starts) - mean**2, 0.0)
    return np.sqrt(square) / np.where(mean == 0, 1, mean)


@dataclass(frozen=True)
class IntraLaunch:
    """Clustering at 0.2, variation factor 0.3, warming until two sampling units' IPC differ by less than 10 %.

    `times`: how often in a row; the paper's 1 can take the first waves, in step and on cold caches, for steady.

    Launch cycles = cycles simulated + skipped instructions / IPC of their region (Table IV). The interval assumes
    the largest error the paper saw (`assumed_error`; section V-C) and adds how far the last two units were apart."""

    sigma: float = 0.2
    variation_factor: float = 0.3
    warming: float = 0.1
    times: int = 1
    assumed_error: float = 0.14
    name = "TBPoint intra-launch"

    def launch(self, simulator: Simulator, requests: PerBlock, instructions: PerBlock) -> Estimate:
        """One launch, from the functional profile of every thread block: memory requests and warp instructions."""
        requests, instructions = np.asarray(requests, float), np.asarray(instructions, float)
        table = identify(requests, instructions, simulator.shape.wave_blocks, self.sigma, self.variation_factor)
        return _Sampling(self, simulator, table, instructions).run()


class _SamplingUnits:
    """The interval from the dispatch to the retirement of a specified thread block; at its end another is specified.
    That is the first one dispatched from then on. It may still be in flight while later ones retire: then we wait."""

    def __init__(self, start_cycles: float) -> None:
        self.start = start_cycles
        self.retired: list[tuple[float, int, float]] = []  # dispatch cycle, thread block, retire cycle
        self.ipcs: list[float] = []

    def note(self, seen: Observation, instructions_at: Callable[[float], float], known_cycles: float) -> None:
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
        last = np.array(self.ipcs[-times - 1 :])
        return len(last) > times and bool((np.abs(np.diff(last)) < threshold * last[:-1]).all())


@dataclass(frozen=True, slots=True)
class _Skipped:
    region: Region
    first: int  # thread block
    before: float
    ipc: float


class _Sampling:
    def __init__(self, method: IntraLaunch, simulator: Simulator, table: list[Region], instructions: PerBlock) -> None:
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
            apart = abs(skip.ipc - skip.before) / skip.before
            variance += (left / skip.ipc * (self.method.assumed_error + apart) / t_quantile(math.inf)) ** 2
        if not self.skipped:
            return exact(self.method.name, cycles, tuple(parts))
        total = sum(part.cycles for part in parts)
        error, done = math.sqrt(variance), self.simulated / whole
        return around(self.method.name, total, error, basis="model", detailed_fraction=done, parts=tuple(parts))
