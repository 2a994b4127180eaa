"""Photon's analysis of 1 % of a launch's warps, and launches predicted from others like them (sections 3 and 4.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.estimate import Estimate, Part, around
from sampling.protocol import Functional, LaunchShape
from sampling.selection import MODEL_ERROR

FEWEST_BLOCKS = 4
FEWEST = 8  # analysed thread blocks that say how memory was used of late


@dataclass(frozen=True, eq=False, kw_only=True)
class Analysis:
    """What a functional execution of a few thread blocks tells. No GPU changes it: keep it and reuse it ("offline").
    `gpu_bbv`: one row a warp type, its projected basic-block vector times its share of the warps, largest first."""

    gpu_bbv: Float64[np.ndarray, "warp_type d"]
    type_shares: Float64[np.ndarray, " warp_type"]  # in the order of gpu_bbv
    block_shares: Float64[np.ndarray, " basic_block"]  # of the instructions executed
    instructions: float  # warp instructions of the analysed warps
    warps: int  # analysed
    thread_blocks: Int64[np.ndarray, " tb"]  # analysed, ascending
    request_rates: Float64[np.ndarray, " tb"]  # memory requests a warp instruction of each
    line_rates: Float64[np.ndarray, " tb"]  # distinct cache lines a warp instruction of each
    footprint: float  # distinct cache lines of all analysed thread blocks, of the sum of what each has
    thread_block_instructions: Float64[np.ndarray, " tb"]  # warp instructions of each

    def instructions_from(self, dispatched: int, thread_blocks: int) -> float:
        """Warp instructions of the blocks from `dispatched` on, by those of them (or, if none, all) analysed."""
        later = self.thread_block_instructions[np.searchsorted(self.thread_blocks, dispatched) :]
        mean = later.mean() if len(later) else self.thread_block_instructions.mean()
        return float(mean) * (thread_blocks - dispatched)

    def resembles(self, retired: int, dispatched: int, tolerance: float, fewest: int = FEWEST) -> bool:
        """Whether the thread blocks from `dispatched` on use memory as the last ones before `retired` do. Equal warps
        may find data elsewhere later in the grid; their instructions do not tell, their requests do. Means of analysed
        blocks, `fewest` at least, are equal if no further apart than the tolerance and two standard errors."""
        past, future = np.searchsorted(self.thread_blocks, (retired, dispatched))
        seen, left = self.request_rates[max(past - fewest, 0) : past], self.request_rates[future:]
        if len(seen) == 0 or len(left) == 0:
            return True
        noise = 2.0 * np.hypot(seen.std() / np.sqrt(len(seen)), left.std() / np.sqrt(len(left)))
        return bool(abs(seen.mean() - left.mean()) <= tolerance * left.mean() + noise)

    def alike(self, other: Analysis, tolerance: float) -> bool:
        """Whether two launches use memory alike: as many requests and distinct lines a warp instruction, and as many of
        the lines shared by thread blocks: so coalescing and locality are the same, which basic blocks do not tell."""
        mine = (self.request_rates.mean(), self.line_rates.mean(), self.footprint)
        others = (other.request_rates.mean(), other.line_rates.mean(), other.footprint)
        return all(abs(a - b) <= tolerance * min(a, b) for a, b in zip(mine, others, strict=True))

    def columns(self) -> dict[str, np.ndarray]:
        """Every field as an array."""
        return {name: np.asarray(value) for name, value in vars(self).items()}

    @staticmethod
    def of_columns(columns: Mapping[str, np.ndarray]) -> Analysis:
        """What `columns` gave."""
        scalars = {"instructions": float, "warps": int, "footprint": float}
        return Analysis(**{name: scalars.get(name, np.asarray)(column) for name, column in columns.items()})  # type: ignore[arg-type]


def sample_blocks(shape: LaunchShape, share: float) -> Int64[np.ndarray, " tb"]:
    """Evenly spaced thread blocks that hold `share` of the warps. Whole ones, because of barriers. At least
    FEWEST_BLOCKS (not in the paper): the first block of a small grid says little of those at its edges."""
    count = min(max(FEWEST_BLOCKS, math.ceil(share * shape.thread_blocks)), shape.thread_blocks)
    return np.unique(np.linspace(0, shape.thread_blocks - 1, count).round().astype(np.int64))


def analyse(functional: Functional, shape: LaunchShape, share: float = 0.01, dimensions: int = 16) -> Analysis:
    """Execute `share` of the warps functionally and summarise them."""
    profile = functional.profile(sample_blocks(shape, share))
    types, first, members = np.unique(profile.types, return_index=True, return_counts=True)
    weighted = profile.counts * functional.block_instructions
    instructions = weighted.sum(1)
    vectors = weighted[first] / np.maximum(instructions[first], 1)[:, None]
    # fixed and random: row b does not depend on the number of blocks, and lengths are kept on average
    projection = np.random.default_rng(20231028).uniform(-1.0, 1.0, (vectors.shape[1], dimensions))
    projection *= math.sqrt(3.0 / dimensions)
    order = np.lexsort((types, -members))
    shares = members[order] / members.sum()
    by_block = (len(profile.thread_blocks), -1)
    requests = profile.memory_requests.reshape(by_block).sum(1)
    issued = instructions.reshape(by_block).sum(1)
    return Analysis(
        gpu_bbv=shares[:, None] * (vectors[order] @ projection), type_shares=shares,
        block_shares=weighted.sum(0) / max(weighted.sum(), 1), instructions=float(instructions.sum()),
        warps=len(profile.types), thread_blocks=np.asarray(profile.thread_blocks),
        request_rates=requests / np.maximum(issued, 1),
        footprint=profile.all_lines / max(float(profile.lines.sum()), 1.0),
        line_rates=profile.lines / np.maximum(issued, 1), thread_block_instructions=issued.astype(float),
    )  # fmt: skip


def distance(a: Float64[np.ndarray, "m d"], b: Float64[np.ndarray, "n d"]) -> float:
    """Sum over warp types, by weight, of the Euclidean distance of their vectors; a missing type counts as 0."""
    rows = max(len(a), len(b))
    padded = [np.vstack([v, np.zeros((rows - len(v), v.shape[1]))]) for v in (a, b)]
    return float(np.linalg.norm(padded[0] - padded[1], axis=1).sum())


@dataclass(frozen=True, eq=False, kw_only=True)
class KnownLaunch:
    """A launch whose time is known. `instructions` are those of the whole launch."""

    analysis: Analysis
    shape: LaunchShape
    instructions: float
    estimate: Estimate


@dataclass(eq=False)
class KernelSampling:
    """Match by GPU BBV, then by the nearest number of warps; keep the match's IPC, scale its instruction count.

    `threshold` bounds the distance of two GPU BBVs (the paper names no value; lengths are shares of instructions, so
    two launches with nothing in common are at most 2 apart). Launches with fewer warps than the GPU has cores match
    only an equal number of warps. The interval assumes a relative error of IPC of `ipc_error` plus the distance.

    Not in the paper: launches match only if their requests and distinct cache lines a warp instruction are within
    `request_tolerance` (inf: the paper), because the same code on other strides or data was up to 90 % off. A launch
    that the GPU holds all at once matches others of that kind only, with a number of warps within `size_tolerance`:
    there IPC grows with the warps. Its time is between that of the match, if only latencies count, and one in
    proportion to the warps, if units are full: the middle is taken, and the interval holds both."""

    threshold: float = 0.05
    size_tolerance: float = 0.1
    request_tolerance: float = 0.1
    ipc_error: float = MODEL_ERROR
    known: dict[str, list[KnownLaunch]] = field(default_factory=dict, init=False)  # by kernel
    name = "kernel"

    def remember(self, launch: KnownLaunch) -> None:
        """Make a launch available to later ones."""
        self.known.setdefault(launch.shape.kernel, []).append(launch)

    def match(self, analysis: Analysis, shape: LaunchShape) -> KnownLaunch | None:
        """The known launch to predict from, or None. Different kernels have no basic block in common."""
        others = [
            (abs(shape.warps - known.shape.warps), distance(analysis.gpu_bbv, known.analysis.gpu_bbv), known)
            for known in self.known.get(shape.kernel, ())
            if self._comparable(shape, known.shape) and analysis.alike(known.analysis, self.request_tolerance)
        ]
        near = (other for other in others if other[1] < self.threshold)
        return min(near, key=lambda other: other[:2], default=(0, 0.0, None))[2]

    def _comparable(self, a: LaunchShape, b: LaunchShape) -> bool:
        fewest, most = sorted((a.warps, b.warps))
        if fewest < a.cores or fewest == most:
            return fewest == most
        if a.held_at_once or b.held_at_once:
            return a.held_at_once == b.held_at_once and most <= (1.0 + self.size_tolerance) * fewest
        return True

    def predict(self, analysis: Analysis, shape: LaunchShape, other: KnownLaunch) -> Estimate:
        """Cycles from a match: #insts = #insts' x #insts_sample / #insts'_sample, at the IPC of the match. Both samples
        are 1 % of the warps rounded up to thread blocks, so they are taken per warp and scaled by warps."""
        ratio = (analysis.instructions / analysis.warps) / (other.analysis.instructions / other.analysis.warps)
        warps = shape.warps / other.shape.warps
        instructions = other.instructions * ratio * warps
        exponent = 0.5 if shape.held_at_once else 1.0
        cycles = other.estimate.total * ratio * warps**exponent
        apart = distance(analysis.gpu_bbv, other.analysis.gpu_bbv)
        same = apart == 0.0 and shape.warps == other.shape.warps
        relative = np.hypot(other.estimate.relative_half_width / 2, 0.2 * self.ipc_error if same else self.ipc_error)
        either = abs(warps**0.5 - 1.0) if shape.held_at_once else 0.0
        error, executed = cycles * float(relative + apart + either), min(analysis.warps / shape.warps, 1.0)
        part = Part(name=shape.name, how=f"kernel (as {other.shape.name})", instructions=instructions, cycles=cycles)
        shares = {"detailed_fraction": 0.0, "functional_fraction": executed}
        return around(self.name, cycles, error, basis="model", parts=(part,), **shares)
