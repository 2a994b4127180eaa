"""Kernel sampling: a launch like one already simulated is not simulated. Photon, section 4.3, Figure 12."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from sampling.estimate import Estimate, Part, around
from sampling.photon.bbv import Analysis, distance
from sampling.protocol import LaunchShape
from sampling.selection import MODEL_ERROR


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
    proportion to the warps, if units are full: the middle is taken, and the interval holds both.
    """

    threshold: float = 0.05
    size_tolerance: float = 0.1
    request_tolerance: float = 0.1
    ipc_error: float = MODEL_ERROR
    known: list[KnownLaunch] = field(default_factory=list)
    name = "kernel"

    def __post_init__(self) -> None:
        self._of_kernel: dict[str, list[int]] = {}
        for number, launch in enumerate(self.known):
            self._of_kernel.setdefault(launch.shape.kernel, []).append(number)

    def remember(self, launch: KnownLaunch) -> None:
        """Make a launch available to later ones."""
        self._of_kernel.setdefault(launch.shape.kernel, []).append(len(self.known))
        self.known.append(launch)

    def match(self, analysis: Analysis, shape: LaunchShape) -> int | None:
        """Number of the known launch to predict from, or None. Different kernels have no basic block in common."""
        others = [
            (abs(shape.warps - self.known[number].shape.warps), number)
            for number in self._of_kernel.get(shape.kernel, ())
            if self._comparable(shape, self.known[number].shape)
            and analysis.alike(self.known[number].analysis, self.request_tolerance)
        ]
        for _, alike in groupby(sorted(others), key=lambda other: other[0]):
            apart = [(distance(analysis.gpu_bbv, self.known[n].analysis.gpu_bbv), n) for _, n in alike]
            if min(apart)[0] < self.threshold:
                return min(apart)[1]
        return None

    def _comparable(self, a: LaunchShape, b: LaunchShape) -> bool:
        fewest, most = sorted((a.warps, b.warps))
        if fewest < a.cores or fewest == most:
            return fewest == most
        if a.held_at_once or b.held_at_once:
            return a.held_at_once == b.held_at_once and most <= (1.0 + self.size_tolerance) * fewest
        return True

    def predict(self, analysis: Analysis, shape: LaunchShape, number: int) -> Estimate:
        """Cycles from a match: #insts = #insts' x #insts_sample / #insts'_sample, at the IPC of the match.

        Both samples are 1 % of the warps rounded up to thread blocks, so they are taken per warp and scaled by warps.
        """
        other = self.known[number]
        ratio = (analysis.instructions / analysis.warps) / (other.analysis.instructions / other.analysis.warps)
        warps = shape.warps / other.shape.warps
        instructions = other.instructions * ratio * warps
        exponent = 0.5 if shape.held_at_once else 1.0
        cycles = other.estimate.total * ratio * warps**exponent
        apart = distance(analysis.gpu_bbv, other.analysis.gpu_bbv)
        same = apart == 0.0 and shape.warps == other.shape.warps
        relative = np.hypot(other.estimate.relative_half_width / 2, 0.2 * self.ipc_error if same else self.ipc_error)
        either = abs(warps**0.5 - 1.0) if shape.held_at_once else 0.0
        return around(
            self.name,
            cycles,
            cycles * float(relative + apart + either),
            basis="model",
            detailed_fraction=0.0,
            functional_fraction=min(analysis.warps / shape.warps, 1.0),
            parts=(
                Part(name=shape.name, how=f"kernel (as {other.shape.name})", instructions=instructions, cycles=cycles),
            ),
        )
