"""Kernel sampling: a launch like one already simulated is not simulated. Photon, section 4.3, Figure 12."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    """

    threshold: float = 0.05
    ipc_error: float = MODEL_ERROR
    known: list[KnownLaunch] = field(default_factory=list)
    name = "kernel"

    def remember(self, launch: KnownLaunch) -> None:
        """Make a launch available to later ones."""
        self.known.append(launch)

    def match(self, analysis: Analysis, shape: LaunchShape) -> int | None:
        """Number of the known launch to predict from, or None."""
        candidates = []
        for number, other in enumerate(self.known):
            few = min(shape.warps, other.shape.warps) < shape.cores
            if few and shape.warps != other.shape.warps:
                continue
            apart = distance(analysis.gpu_bbv, other.analysis.gpu_bbv)
            if apart < self.threshold:
                candidates.append((abs(shape.warps - other.shape.warps), apart, number))
        return min(candidates)[2] if candidates else None

    def predict(self, analysis: Analysis, shape: LaunchShape, number: int) -> Estimate:
        """Cycles from a match: #insts = #insts' x #insts_sample / #insts'_sample, at the IPC of the match.

        Both samples are 1 % of the warps rounded up to thread blocks, so they are taken per warp and scaled by warps.
        """
        other = self.known[number]
        ratio = (analysis.instructions / analysis.warps) / (other.analysis.instructions / other.analysis.warps)
        instructions = other.instructions * ratio * shape.warps / other.shape.warps
        cycles = other.estimate.total * instructions / other.instructions
        apart = distance(analysis.gpu_bbv, other.analysis.gpu_bbv)
        same = apart == 0.0 and shape.warps == other.shape.warps
        relative = np.hypot(other.estimate.relative_half_width / 2, 0.2 * self.ipc_error if same else self.ipc_error)
        return around(
            self.name,
            cycles,
            cycles * float(relative + apart),
            basis="model",
            detailed_fraction=0.0,
            functional_fraction=min(analysis.warps / shape.warps, 1.0),
            parts=(
                Part(name=shape.name, how=f"kernel (as {other.shape.name})", instructions=instructions, cycles=cycles),
            ),
        )
