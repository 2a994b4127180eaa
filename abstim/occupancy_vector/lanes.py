"""Launches on design points as lanes, run together: the engine proper (docs/occupancy-vector.md, "Lanes")."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Int32, Int64

from abstim.analytic.kept_programs import kept_programs
from abstim.occupancy_vector.lane_state import NEVER, TICKS, Layout, Machine, State, Streams, new_state
from abstim.occupancy_vector.read_items import read_words
from abstim.occupancy_vector.scheduler_step import refill, step
from functional.errors import InputError

BLOCK_SLOTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
LANE_BUCKET = 8  # lanes are padded to a power of two times this
LIMIT_TICKS = NEVER // 2  # beyond it times could come near NEVER
MOST_ITEMS = (1 << 31) - 1  # positions are 32 bits wide


class Lanes(NamedTuple):
    """Lanes of one layout. Lanes with one signature and one machine do the same."""

    layout: Layout
    machine: Machine
    streams: Streams
    first: Int32[np.ndarray, " lane"]
    stop: Int32[np.ndarray, " lane"]
    signatures: list[bytes]


class Outcome(NamedTuple):
    """What a lane says: the tick its last warp left, and how many items it issued."""

    end: Int64[np.ndarray, " lane"]
    issued: Int32[np.ndarray, " lane"]


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


def lanes_left(state: State) -> Array:
    """Has any lane work left?"""
    return jnp.any(state.running > 0) | jnp.any(state.next_block < state.stop_block)


def latest(state: State) -> Array:
    """The latest time a scheduler or a server has come to: stores run ahead of the clocks."""
    lanes = (
        state.clock.max(0), state.special_free.max((0, 1)), state.pool_free.max((0, 1)), state.memory_free,
        state.fetch_free, state.l2_free, state.dram_free, state.port_free, state.reply_free,
    )  # fmt: skip
    return jnp.max(jnp.stack(lanes))


@partial(jax.jit, static_argnames=("layout",))
def run_words(machine: Machine, streams: Streams, first: Array, stop: Array, layout: Layout) -> State:
    """All lanes to their ends; times in the type of the machine's numbers."""
    read = read_words(streams.words)
    state = new_state(layout, first, stop, machine.request.dtype)
    state = refill(state, machine, streams, read, layout)

    def goes_on(state: State) -> Array:
        return lanes_left(state) & (latest(state) < LIMIT_TICKS)

    return lax.while_loop(goes_on, lambda s: step(s, machine, streams, read, layout), state)


def run(lanes: Lanes) -> Outcome:
    """Run lanes; equal ones once."""
    distinct, of = _distinct(lanes)
    found = _run_distinct(
        lanes._replace(
            machine=Machine(*(column[distinct] for column in lanes.machine)),
            first=lanes.first[distinct],
            stop=lanes.stop[distinct],
        )
    )
    return Outcome(found.end[of], found.issued[of])


def _distinct(lanes: Lanes) -> tuple[Int64[np.ndarray, " distinct"], Int64[np.ndarray, " lane"]]:
    """(the first of each kind of lane, which of those each lane is)"""
    numbers = np.stack([column for name, column in lanes.machine._asdict().items() if name != "warp_base"], -1)
    seen: dict[tuple[bytes, bytes], int] = {}
    keys = zip(lanes.signatures, (row.tobytes() for row in numbers), strict=True)
    of = np.array([seen.setdefault(key, len(seen)) for key in keys], np.int64)
    return np.unique(of, return_index=True)[1], of


def _run_distinct(lanes: Lanes) -> Outcome:
    count = len(lanes.first)
    padded = LANE_BUCKET
    while padded < count:
        padded *= 2
    rows = np.minimum(np.arange(padded), count - 1)
    idle = np.arange(padded) >= count
    stop = np.where(idle, lanes.first[rows], lanes.stop[rows]).astype(np.int32)
    machine = Machine(*(jnp.asarray(column[rows]) for column in lanes.machine))
    with kept_programs():
        state = run_words(machine, _bucketed(lanes.streams), lanes.first[rows], stop, lanes.layout)
    if int(latest(state)) >= LIMIT_TICKS:
        raise InputError(
            f"the occupancy model counts up to {LIMIT_TICKS // TICKS:,} cycles a launch, and this one takes longer; "
            "use --model detailed"
        )
    return Outcome(np.asarray(state.end)[:count].astype(np.int64), np.asarray(state.issued)[:count])


def _bucketed(streams: Streams) -> Streams:
    """Padded to powers of two, so that compiled programs serve many launches."""

    def padded(values: np.ndarray) -> np.ndarray:
        room = 1 << max(6, (len(values) - 1).bit_length())
        return np.concatenate([values, np.zeros((room - len(values), *values.shape[1:]), values.dtype)])

    return Streams(*(padded(np.asarray(column)) for column in streams))


def cycles_of(ticks: Int64[np.ndarray, " lane"]) -> Int64[np.ndarray, " lane"]:
    """Whole cycles, the one in which the last warp left included."""
    return -(-ticks // TICKS) + 1


def joined(parts: Sequence[Lanes]) -> Lanes:
    """Lanes of one layout as one batch; parts may share their streams."""
    places: dict[int, tuple[int, int, int]] = {}
    streams: list[Streams] = []
    length = np.zeros(3, np.int64)  # words, warps, thread blocks
    for part in parts:
        if id(part.streams) not in places:
            places[id(part.streams)] = (int(length[0]), int(length[1]), int(length[2]))
            streams.append(part.streams)
            length += (len(part.streams.words), len(part.streams.starts), len(part.streams.dealt))
    if length.max() > MOST_ITEMS:
        raise InputError(f"{length.max():,} items at once are more than the {MOST_ITEMS:,} the occupancy model holds")
    shifts = [places[id(part.streams)] for part in parts]
    machines = [
        part.machine._replace(warp_base=part.machine.warp_base + np.int32(warps))
        for part, (_, warps, _) in zip(parts, shifts, strict=True)
    ]
    return Lanes(
        parts[0].layout,
        Machine(*(np.concatenate(column) for column in zip(*machines, strict=True))),
        Streams(
            np.concatenate([s.words for s in streams]),
            np.concatenate([s.starts + np.int32(places[id(s)][0]) for s in streams]),
            np.concatenate([s.first_levels for s in streams]),
            np.concatenate([s.dealt for s in streams]),
        ),
        np.concatenate([part.first + np.int32(blocks) for part, (_, _, blocks) in zip(parts, shifts, strict=True)]),
        np.concatenate([part.stop + np.int32(blocks) for part, (_, _, blocks) in zip(parts, shifts, strict=True)]),
        [signature for part in parts for signature in part.signatures],
    )
