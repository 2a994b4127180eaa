"""Launches on design points as lanes, run together (docs/occupancy-vector.md, "Lanes")."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from abstim.occupancy_vector.compiled_lanes import run_compiled
from abstim.occupancy_vector.lane_records import TICKS, Lanes, Outcome

if TYPE_CHECKING:
    from jaxtyping import Int64

BLOCK_SLOTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)


def deal(instructions: Int64[np.ndarray, " tb"], sm_count: int, residents: int) -> list[Int64[np.ndarray, " own"]]:
    """Thread blocks of each SM, in order: the next goes to the slot that is expected to be free first, when each takes
    as long as it has instructions; ties go round the SMs. SMs that get none are left out."""
    dealt: list[list[int]] = [[] for _ in range(min(sm_count, len(instructions)))]
    slots = [(0, k, sm) for k in range(residents) for sm in range(len(dealt))]
    for block, length in enumerate(instructions.tolist()):
        time, k, sm = heapq.heappop(slots)
        dealt[sm].append(block)
        heapq.heappush(slots, (time + length, k, sm))
    return [np.array(blocks, np.int64) for blocks in dealt]


def block_slots(residents: int) -> int:
    """Slots to make room for: few different numbers, so that compiled programs serve many launches."""
    return next(count for count in BLOCK_SLOTS if count >= residents)


def run(parts: Sequence[Lanes], threads: int | None = None) -> list[Outcome]:
    """Run the lanes of every part, on at most so many threads (None: one a core); equal ones once."""
    seen: dict[tuple, tuple[int, int]] = {}
    own: list[list[int]] = [[] for _ in parts]  # the lanes of each part that are the first of their kind
    places = []
    for k, part in enumerate(parts):
        for n, signature in enumerate(part.signatures):
            key = (part.layout, part.residents, part.machine[n].tobytes(), signature)
            is_new = key not in seen
            if is_new:
                seen[key] = k, len(own[k])
                own[k].append(n)
            places.append((*seen[key], is_new))
    found = run_compiled([_chosen(part, lanes) for part, lanes in zip(parts, own, strict=True)], threads)
    stops = np.cumsum([len(part.first) for part in parts])
    outcomes = [
        Outcome(found[k].end[n : n + 1], found[k].issued[n : n + 1], np.array([is_new])) for k, n, is_new in places
    ]
    return [
        Outcome(*(np.concatenate(column) for column in zip(*outcomes[stop - len(part.first) : stop], strict=True)))
        for part, stop in zip(parts, stops, strict=True)
    ]


def _chosen(part: Lanes, lanes: list[int]) -> Lanes:
    return part._replace(
        machine=part.machine[lanes], first=part.first[lanes], stop=part.stop[lanes],
        signatures=[part.signatures[n] for n in lanes],
    )  # fmt: skip


def cycles_of(ticks: Int64[np.ndarray, " lane"]) -> Int64[np.ndarray, " lane"]:
    """Whole cycles, the one in which the last warp left included."""
    return -(-ticks // TICKS) + 1
