"""Arrays that the compiled parts of the occupancy model work in: those of a thread, which serve launch after launch."""

from __future__ import annotations

from collections.abc import Callable
from threading import local
from typing import Any, NamedTuple, TypeVar

import numpy as np

from abstim.gpu.config import Gpu
from abstim.occupancy_vector import cache_walk
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.design_points import Reading, sharing_of
from abstim.occupancy_vector.items import new_cutting
from abstim.occupancy_vector.lanes import new_lane
from functional.jit.machine_code import Held

Made = TypeVar("Made")
QUEUE = rec.whole_numbers("time blocks")  # of an SM: when its next slot is free; thread blocks so far
MOST_KEPT = 4  # arrays of a kind


class Dealer(NamedTuple):
    """What thread blocks are dealt with."""

    queues: np.ndarray  # QUEUE, by SM
    heap: np.ndarray  # SMs, that of the next slot first
    lengths: np.ndarray  # of the latest thread blocks, as many as an SM holds, a ring an SM
    sm_of: np.ndarray  # by thread block


class Scratch(NamedTuple):
    """What is of no use once a launch is timed."""

    cutting: rec.Cutting
    dealer: Dealer
    sms: np.ndarray  # cache_walk.SM
    slots: np.ndarray  # cache_walk.SLOT, of all SMs
    telling: cache_walk.Telling
    sharing: rec.Sharing
    numbers: np.ndarray  # NUMBERS of lanes, in cycles


class Sizes(NamedTuple):
    """Of arrays, at least."""

    longest: int  # instructions of a path
    registers: int
    blocks: int
    warps: int
    residents: int  # thread blocks of an SM
    slots: int  # of warps of an SM
    accesses: int
    fetches: int


class Working(NamedTuple):
    """Scratch, and the arrays of a walk that are its results."""

    scratch: Held  # of a Scratch
    answers: np.ndarray
    fetch_offsets: np.ndarray
    fetch_waits: np.ndarray
    fetch_askers: np.ndarray


_OF_THREAD = local()


def _kept(kind: str, key: tuple, sizes: tuple[int, ...], make: Callable[..., Made]) -> Made:
    """What `make` makes of sizes, kept as long as no larger one is asked for."""
    known: dict[tuple, tuple[tuple[int, ...], Any]] = vars(_OF_THREAD).setdefault(kind, {})
    there, made = known.get(key, ((0,) * len(sizes), None))
    if made is None or any(size > most for size, most in zip(sizes, there, strict=True)):
        most = tuple(most if size <= most else max(size, 2 * most) for size, most in zip(sizes, there, strict=True))
        if len(known) == MOST_KEPT and key not in known:
            del known[next(iter(known))]
        known[key] = most, (made := make(*most))
    return made


def caches_of(own: Reading, walks: bool) -> Held:
    """Caches of a GPU; if nobody `walks`, of any."""
    known = vars(_OF_THREAD).get("caches", {})
    if known and not walks:
        return next(iter(known.values()))[1]
    spec, lines = own.gpu.spec, ("l1d", "const", "l1i", "l2")
    geometry = tuple(getattr(spec, f"{name}_{what}") for name in lines for what in ("sets", "ways"))
    rest = spec.sm_count, spec.dram_channels, spec.l2_slices_per_channel, spec.dram_banks, spec.l1d_mshrs, own.waiting
    return _kept("caches", (*geometry, *rest), (), lambda: Held(cache_walk.empty_caches(own.gpu, own.waiting)))


def working(sm_count: int, sizes: Sizes) -> Working:
    """For launches on so many SMs."""
    return _kept("working", (sm_count,), sizes, lambda *most: _new(sm_count, Sizes(*most)))


def _new(sm_count: int, sizes: Sizes) -> Working:
    whole = np.int64
    dealer = Dealer(
        np.zeros(sm_count, QUEUE), np.zeros(sm_count, whole), np.zeros(sm_count * sizes.residents, whole),
        np.zeros(sizes.blocks, whole),
    )  # fmt: skip
    telling = cache_walk.Telling(
        np.empty(sizes.fetches, np.int32), np.empty(sizes.accesses, np.int32), np.empty(sizes.accesses, np.uint8)
    )
    scratch = Scratch(
        new_cutting(sizes.registers, sizes.longest), dealer,
        np.zeros(sm_count, cache_walk.SM), np.zeros(sm_count * sizes.slots, cache_walk.SLOT), telling,
        sharing_of(sm_count), np.zeros((sm_count, len(rec.NUMBERS))),
    )  # fmt: skip
    return Working(
        Held(scratch), np.empty(sizes.accesses, cache_walk.ANSWER), np.empty(sizes.warps + 1, whole),
        np.empty(sizes.fetches, np.uint16), np.empty(sizes.fetches, np.int32),
    )  # fmt: skip


def kinds_of(gpu: Gpu) -> Held:
    """Kinds, of as many lanes as there are SMs."""
    sm_count = gpu.spec.sm_count

    def make() -> Held:
        machines = [np.zeros((sm_count, len(rec.NUMBERS)), np.int64) for _ in range(2)]
        kinds, ends, issued = (np.zeros(sm_count, np.int64) for _ in range(3))
        return Held(rec.Kinds(machines[0], kinds, machines[1], np.zeros(sm_count, rec.OWN), ends, issued))

    return _kept("kinds", (sm_count,), (), make)


def lane_of(own: Reading, warps_per_block: int, residents: int, fills: int) -> Held:
    """A lane's state, of at most so many fills."""
    shape = own.held(warps_per_block, residents).value.lanes
    return _kept("lane", tuple(shape[0].tolist()), (fills,), lambda most: Held(new_lane(shape, most)))
