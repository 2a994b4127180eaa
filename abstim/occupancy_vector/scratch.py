"""Arrays that the compiled parts of the occupancy model work in: those of a thread, which serve launch after launch."""

from collections.abc import Callable
from functools import partial
from operator import gt
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


_OF_THREAD = local()


def _kept(kind: str, key: tuple, sizes: tuple[int, ...], make: Callable[..., Made]) -> Made:
    """What `make` makes of sizes, kept as long as no larger one is asked for."""
    known: dict[tuple, tuple[tuple[int, ...], Any]] = vars(_OF_THREAD).setdefault(kind, {})
    there, made = known.get(key, ((0,) * len(sizes), None))
    if made is None or any(map(gt, sizes, there)):
        most = tuple(most if size <= most else max(size, 2 * most) for size, most in zip(sizes, there, strict=True))
        if len(known) == MOST_KEPT and key not in known:
            del known[next(iter(known))]
        known[key] = most, (made := make(*most))
    return made


def caches_of(own: Reading, walks: bool) -> Held:
    """Caches that a GPU's fit into; if nobody `walks`, any."""
    known = vars(_OF_THREAD).get("caches", {})
    if known and not walks:
        return next(iter(known.values()))[1]
    return _kept(
        "caches", own.behind, own.lines, lambda *lines: Held(cache_walk.empty_caches(own.gpu, own.waiting, *lines))
    )


def working(sm_count: int, sizes: tuple[int, ...]) -> tuple[Held, Held]:
    """For launches on so many SMs: a Scratch, and Answers. `sizes`: of `_new`, at least."""
    return _kept("working", (sm_count,), sizes, partial(_new, sm_count))


def _new(
    sm_count: int, longest: int, registers: int, blocks: int, warps: int, residents: int, slots: int, accesses: int,
    fetches: int,
) -> tuple[Held, Held]:  # fmt: skip
    """`longest`: instructions of a path; `residents`, `slots`: thread blocks and warps of an SM."""
    dealer = Dealer(*(np.zeros(n, kind) for n, kind in (
        (sm_count, QUEUE), (sm_count * residents, np.int64), (blocks, np.int64)
    )))  # fmt: skip
    telling = cache_walk.Telling(np.empty(fetches, np.int32), np.empty(accesses, np.int32))
    scratch = Scratch(
        new_cutting(registers, longest), dealer, np.zeros(sm_count, cache_walk.SM),
        np.zeros(sm_count * slots, cache_walk.SLOT), telling, sharing_of(sm_count),
        np.zeros((sm_count, len(rec.NUMBERS))),
    )  # fmt: skip
    answers = cache_walk.Answers(
        np.empty(accesses, cache_walk.ANSWER), np.empty(accesses, np.uint8), np.empty(warps + 1, np.int64),
        np.empty(fetches, np.uint16), np.empty(fetches, np.int32),
    )  # fmt: skip
    return Held(scratch), Held(answers)


def chosen_of(gpu: Gpu) -> Held:
    """Chosen, of as many lanes as there are SMs."""
    sm_count = gpu.spec.sm_count

    def make() -> Held:
        machines, (ends, issued) = np.zeros((sm_count, len(rec.NUMBERS)), np.int64), np.zeros((2, sm_count), np.int64)
        own, outs, stopped = np.zeros(sm_count, rec.OWN), np.zeros(1, rec.LAUNCH_OUTCOME), np.zeros(1, np.int64)
        return Held(rec.Chosen(machines, own, ends, issued, outs, stopped))

    return _kept("chosen", (sm_count,), (), make)


def lane_of(own: Reading, warps_per_block: int, residents: int, fills: int) -> Held:
    """A lane's state, of at most so many fills."""
    shape = own.held(warps_per_block, residents).value.lanes
    return _kept("lane", tuple(shape[0].tolist()), (fills,), lambda most: Held(new_lane(shape, most)))


def composed(kind: Any, *parts: tuple[Held, slice]) -> Held:
    """A named tuple of flat arrays of others."""
    arrays = (array for part, own in parts for array in part.value[own])
    held, at = _kept("composed", (kind,), (), lambda: Held(kind(*(array[:0] for array in arrays)))), 0
    for part, own in parts:  # of each array its address and size
        words = part.words[2 * (own.start or 0) : own.stop and 2 * own.stop]
        held.words[at : at + len(words)] = words
        at += len(words)
    return held
