"""Lanes as arrays: one JAX program over all of them, on whatever JAX computes on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from abstim.analytic.kept_programs import kept_programs
from abstim.occupancy_vector.items import words_of
from abstim.occupancy_vector.lane_records import LIMIT_TICKS, NEVER, NUMBERS, TICKS, Lanes, Layout, Outcome, outcome_of
from abstim.occupancy_vector.lane_state import Machine, State, Words, new_state
from abstim.occupancy_vector.scheduler_step import refill, step
from functional.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Int32

LANE_BUCKET = 8  # lanes are padded to a power of two times this
MOST_ITEMS = (1 << 31) - 1  # positions are 32 bits wide


def run_arrays(parts: Sequence[Lanes]) -> list[Outcome]:
    """Run every lane of every part, those of one layout together. Raises InputError for what arrays cannot hold."""
    found: list[Outcome] = [outcome_of(np.zeros(0, np.int64), np.zeros(0, np.int64))] * len(parts)
    for layout in dict.fromkeys(part.layout for part in parts):
        numbers = [k for k, part in enumerate(parts) if part.layout == layout]
        end, issued, _ = _run_layout(layout, [parts[k] for k in numbers])
        stops = np.cumsum([len(parts[k].first) for k in numbers])[:-1]
        for k, *own in zip(numbers, np.split(end, stops), np.split(issued, stops), strict=True):
            found[k] = outcome_of(*own)
    return found


def _run_layout(layout: Layout, parts: Sequence[Lanes]) -> Outcome:
    words, machine, first, stop = joined(parts)
    count = len(first)
    padded = LANE_BUCKET
    while padded < count:
        padded *= 2
    rows = np.minimum(np.arange(padded), count - 1)
    ends = np.where(np.arange(padded) < count, stop[rows], first[rows]).astype(np.int32)  # idle lanes have no blocks
    numbers = Machine(*(jnp.asarray(column[rows]) for column in machine))
    with kept_programs():
        state = run_words(numbers, _bucketed(words), first[rows], ends, _arrivals(parts), layout)
    if int(latest(state)) >= LIMIT_TICKS:
        raise InputError(
            f"the arrays of the occupancy model count up to {LIMIT_TICKS // TICKS:,} cycles a launch, and this one "
            "takes longer; use --model detailed"
        )
    return outcome_of(np.asarray(state.end)[:count].astype(np.int64), np.asarray(state.issued)[:count].astype(np.int64))


@partial(jax.jit, static_argnames=("layout",))
def run_words(machine: Machine, words: Words, first: Array, stop: Array, arrivals: Array, layout: Layout) -> State:
    """All lanes to their ends; times in the type of the machine's numbers."""
    state = new_state(layout, first, stop, arrivals)
    state = refill(state, machine, words, layout)

    def goes_on(state: State) -> Array:
        return lanes_left(state) & (latest(state) < LIMIT_TICKS)

    return lax.while_loop(goes_on, lambda s: step(s, machine, words, layout), state)


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


def _room(count: int) -> int:
    return 1 << max(6, (count - 1).bit_length())


def _arrivals(parts: Sequence[Lanes]) -> Int32[np.ndarray, " point_fill"]:
    """Nothing is asked for yet."""
    return np.full(_room(sum(len(part.streams.fill_words) for part in parts)), NEVER, np.int32)


def _bucketed(words: Words) -> Words:
    """Padded to powers of two, so that compiled programs serve many launches."""

    def padded(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.zeros((_room(len(values)) - len(values), *values.shape[1:]), values.dtype)])

    return Words(*(padded(np.asarray(column)) for column in words))


class _Pile:
    """Arrays one behind the other, each there once."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._starts: dict[int, int] = {}
        self._length = 0

    def start_of(self, array: np.ndarray) -> int:
        """Where an array begins, which is put there if it is not yet."""
        if id(array) not in self._starts:
            self._starts[id(array)] = self._length
            self.arrays.append(array)
            self._length += len(array)
        return self._starts[id(array)]


def joined(
    parts: Sequence[Lanes],
) -> tuple[Words, Machine, Int32[np.ndarray, " lane"], Int32[np.ndarray, " lane"]]:
    """Words and numbers of all lanes, and where each one's thread blocks begin and end. Parts may share streams."""
    items, accesses, fills, lates, late_fills, fill_words, dealt = (_Pile() for _ in range(7))
    warps: list[tuple[np.ndarray, ...]] = []
    bases, first, stop, base = [], [], [], np.zeros(3, np.int64)  # of warps, words of fills, fills
    for part in parts:
        own = part.streams
        late = lates.start_of(own.late_begins)
        late_fills.start_of(own.late_fills)
        fills.start_of(own.fills)
        base[1] = fill_words.start_of(own.fill_words)
        warps.append(
            (own.starts + items.start_of(own.items), own.access_starts + accesses.start_of(own.accesses),
             own.late_starts + late)
        )  # fmt: skip
        blocks = dealt.start_of(own.dealt)
        first.append(part.first + blocks)
        stop.append(part.stop + blocks)
        bases.append(np.repeat(base[None], len(part.first), 0))
        base += [len(own.starts), 0, len(own.fill_words)]
    piles = [np.concatenate(pile.arrays) for pile in (accesses, fills, lates, late_fills, fill_words, dealt)]
    if max(map(len, (*piles, *items.arrays))) > MOST_ITEMS or base.max() > MOST_ITEMS:
        raise InputError(f"more than the {MOST_ITEMS:,} items, accesses or warps at once that arrays hold")
    starts = [np.concatenate(column).astype(np.int32) for column in zip(*warps, strict=True)]
    rows = np.concatenate([words_of(one) for one in items.arrays])
    words = Words(rows, starts[0], piles[0], piles[1], starts[1], starts[2], piles[2], piles[3], piles[4], piles[5])
    return words, _machine(parts, bases), _int32(first), _int32(stop)


def _int32(arrays: Sequence[np.ndarray]) -> Int32[np.ndarray, " lane"]:
    return np.concatenate(arrays).astype(np.int32)


def _machine(parts: Sequence[Lanes], bases: Sequence[np.ndarray]) -> Machine:
    counts = [len(part.first) for part in parts]
    numbers = np.concatenate([part.machine for part in parts]).astype(np.int32)
    residents = np.repeat([part.residents for part in parts], counts).astype(np.int32)
    columns = {name: numbers[:, k] for k, name in enumerate(NUMBERS)}
    warps, fill_words, fills = _int32(bases).T
    return Machine(**columns, residents=residents, warp_base=warps, fill_word_base=fill_words, fill_base=fills)
