"""Clusters: which thread blocks of a chunk belong together, and how their shared memory is addressed from each other.

Each block of a cluster has RANK_BYTES of 32-bit shared addresses, by its rank: so its own variables begin there, too.
PTX leaves the numbers open, but programs clear the lowest bit of the rank in an address to reach the first block of a
pair (`Sm100MmaPeerBitMask` of CUTLASS), so that they are those of the hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from functional.errors import InputError
from functional.isa.windows import RANK_BYTES
from functional.launches.launch import Launch

if TYPE_CHECKING:
    from jaxtyping import Int64


class Clusters:
    """Of the thread blocks (linear ids) of a chunk. Blocks are numbered by their place in it, clusters from 0.

    `rank` [block]: of a block in its cluster; `cluster` [block]: the number of its cluster; `members` [cluster, rank].
    """

    def __init__(self, launch: Launch, thread_blocks: Int64[np.ndarray, " block"]) -> None:
        numbers, self.rank = places(launch, thread_blocks)
        self.extents = launch.cluster
        self.size = launch.cluster.total
        _, self.cluster = np.unique(numbers, return_inverse=True)
        self.members = np.zeros((len(thread_blocks) // self.size, self.size), np.int64)
        self.members[self.cluster, self.rank] = np.arange(len(thread_blocks))
        self.first_address = (self.rank * RANK_BYTES).astype(np.uint64)  # [block]: of its own shared memory

    def pair(self, block: int) -> tuple[int, int]:
        """The blocks of even and of odd rank of the pair of a block. Raises ValueError where there is none."""
        if self.size % 2:
            raise ValueError(f"a cluster of {self.size} thread blocks has no pairs of them")
        first = int(self.rank[block]) // 2 * 2
        even, odd = self.members[self.cluster[block], first : first + 2].tolist()
        return even, odd


def places(
    launch: Launch, thread_blocks: Int64[np.ndarray, " block"]
) -> tuple[Int64[np.ndarray, " block"], Int64[np.ndarray, " block"]]:
    """(the linear number of its cluster in the grid, its rank in it) of each thread block."""
    number, rank = np.zeros_like(thread_blocks), np.zeros_like(thread_blocks)
    left, before, below = thread_blocks, 1, 1
    for extent, own in zip(launch.grid, launch.cluster, strict=True):
        along, left = left % extent, left // extent
        number, before = number + along // own * before, before * (extent // own)
        rank, below = rank + along % own * below, below * own
    return number, rank


def check_whole(launch: Launch, thread_blocks: Int64[np.ndarray, " block"]) -> None:
    """Raise InputError if some but not all blocks of a cluster are there: they run together."""
    _, counts = np.unique(places(launch, thread_blocks)[0], return_counts=True)
    if counts.size and counts.min() < launch.cluster.total:
        raise InputError(
            f"kernel '{launch.program.name}' runs in clusters of {launch.cluster} thread blocks: none of a cluster can "
            "be left out"
        )


def chunk_stops(launch: Launch, thread_blocks: Int64[np.ndarray, " block"], most: int) -> list[int]:
    """Where to cut a list of blocks so that chunks have about `most` blocks and no cluster is cut."""
    count, allowed = len(thread_blocks), np.ones(len(thread_blocks) + 1, bool)
    if launch.cluster.total > 1:
        _, first, number = np.unique(places(launch, thread_blocks)[0], return_index=True, return_inverse=True)
        last = np.zeros_like(first)
        np.maximum.at(last, number, np.arange(count))
        inside = np.zeros(count + 2, np.int64)
        np.add.at(inside, first + 1, 1)
        np.add.at(inside, last + 1, -1)
        allowed = np.cumsum(inside)[: count + 1] == 0
    stops, at = list[int](), 0
    while at < count:
        wanted = min(at + most, count)
        back = np.flatnonzero(allowed[at + 1 : wanted + 1])  # the last cut within the size, else the first behind it
        at += int(back[-1]) + 1 if back.size else int(np.argmax(allowed[at + 1 :])) + 1
        stops.append(at)
    return stops
