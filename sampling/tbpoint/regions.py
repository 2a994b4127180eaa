"""Homogeneous regions: runs of epochs whose thread blocks stall alike. TBPoint, section IV-B1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.tbpoint.inter import complete_linkage

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

NO_REGION = -1


@dataclass(frozen=True, slots=True)
class Region:
    """A row of the homogeneous region table (Table III); `last` is included."""

    first: int
    last: int
    cluster: int

    @property
    def thread_blocks(self) -> int:
        """How many."""
        return self.last - self.first + 1


def identify(
    requests: Float64[np.ndarray, " tb"],
    instructions: Float64[np.ndarray, " tb"],
    occupancy: int,
    sigma: float = 0.2,
    variation_factor: float = 0.3,
) -> list[Region]:
    """The homogeneous region table from memory requests and warp instructions of every thread block.

    An epoch is as many consecutive thread blocks as run at once (Equation 4). Its feature is the mean stall
    probability of its blocks, requests over instructions (Equation 5), clustered at `sigma`. An epoch whose CoV of
    requests or of instructions exceeds `variation_factor` holds outliers and belongs to no cluster. A region is a run
    of consecutive epochs of one cluster.
    """
    starts = np.arange(0, len(requests), occupancy)
    probability = _mean(requests / np.maximum(instructions, 1), starts)
    outliers = np.maximum(_variation(requests, starts), _variation(instructions, starts)) > variation_factor
    clusters = complete_linkage(probability[:, None], sigma)
    clusters = np.where(outliers, NO_REGION, clusters)
    ends = np.append(starts[1:], len(requests))
    breaks = np.flatnonzero(np.diff(clusters)) + 1
    runs = zip(np.append(0, breaks), np.append(breaks, len(starts)), strict=True)
    return [
        Region(int(starts[first]), int(ends[last - 1]) - 1, int(clusters[first]))
        for first, last in runs
        if clusters[first] != NO_REGION
    ]


def region_of(regions: list[Region], thread_blocks: int) -> Int64[np.ndarray, " tb"]:
    """Position in the table of every thread block's region, or NO_REGION."""
    found = np.full(thread_blocks, NO_REGION)
    for number, region in enumerate(regions):
        found[region.first : region.last + 1] = number
    return found


def _mean(values: Float64[np.ndarray, " tb"], starts: Int64[np.ndarray, " epoch"]) -> Float64[np.ndarray, " epoch"]:
    return np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))


def _variation(
    values: Float64[np.ndarray, " tb"], starts: Int64[np.ndarray, " epoch"]
) -> Float64[np.ndarray, " epoch"]:
    mean = _mean(values, starts)
    square = np.maximum(_mean(values**2, starts) - mean**2, 0.0)
    return np.sqrt(square) / np.where(mean == 0, 1, mean)
