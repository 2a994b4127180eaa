"""Reuse distances, the distinct lines touched since the last use of a line, and miss ratios of caches from them.

One pass over the accesses of a launch gives the hit rate of every LRU cache (Mattson et al., 1970). The order of
accesses is that of thread blocks handed out breadth first, their resident warps taking turns, an instruction each."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from abstim.analytic.lone_warp import NOTHING, UPDATE, WRITE
from abstim.engine.accesses import more_follow
from functional.jit.machine_code import compiled
from functional.jit.marked import jit

if TYPE_CHECKING:
    from jaxtyping import Float, Int64


NEVER = 1 << 40  # the distance of a line not touched before, or dropped since
BINS_AN_OCTAVE = 4
DISTANCE_BINS = 22 * BINS_AN_OCTAVE  # the last one: NEVER


@jit
def move(tree, at, by):
    """Fenwick tree: add `by` at position `at`."""
    at += 1
    while at < len(tree):
        tree[at] += by
        at += at & -at


@jit
def up_to(tree, at):
    """Fenwick tree: sum over positions 0 .. `at`."""
    total, at = 0, at + 1
    while at > 0:
        total += tree[at]
        at -= at & -at
    return total


@jit
def take_turn(records, actions, first, stop, order, turn, base, number):
    """Append the records of a warp's next instruction, from `first` on; returns (cursor, length of the order)."""
    while first < stop and actions[first] == NOTHING:
        first += 1
    while first < stop:
        if actions[first] != NOTHING:
            order[base], turn[base] = first, number
            base += 1
        first += 1
        if not more_follow(records[first - 1]):
            break
    return first, base


@jit
def order_of_sm(records, actions, first_record, cursors, slots, sm, sm_count, warps, order, turn):
    """Records of one SM in the order in which its warps take turns; returns how many.

    `cursors`: the next record of each warp; `slots`: the thread blocks on an SM, none (-1) before and after.
    """
    thread_blocks = (len(first_record) - 1) // warps
    following, base, number = sm, 0, 0
    while True:
        busy = False
        for s in range(len(slots)):
            if slots[s] < 0 and following < thread_blocks:
                slots[s], following = following, following + sm_count
            if slots[s] < 0:
                continue
            busy, more = True, False
            for w in range(slots[s] * warps, (slots[s] + 1) * warps):
                stop = first_record[w + 1]
                cursors[w], base = take_turn(records, actions, cursors[w], stop, order, turn, base, number)
                more |= cursors[w] < stop
            if not more:
                slots[s] = -1
        number += 1
        if not busy:
            return base


@jit
def distances_along(order, turn, ids, actions, lines, tree, first_level, near, wait):
    """Distances of the records in `order`. `lines`: (last, turn, chain) of each line; `last` is -1 before and after.
    `tree` is scratch.

    The first level drops a line that is written and does not see atomics; the second keeps what passes.
    """
    last, last_turn, chain = lines
    tree[:] = 0
    live = 0
    for t in range(len(order)):
        r = order[t]
        line, action = ids[r], actions[r]
        if first_level and action == UPDATE:
            continue
        before = last[line]
        distance = live - up_to(tree, before) if before >= 0 else NEVER
        chained = max(distance, chain[line]) if before >= 0 and last_turn[line] == turn[t] else distance
        if action != WRITE:
            near[r], wait[r] = distance, chained
        elif not first_level:
            near[r] = distance
        if before >= 0:
            move(tree, before, -1)
            live -= 1
            last[line] = -1
        if action != WRITE or not first_level:
            move(tree, t, 1)
            live += 1
            last[line], last_turn[line], chain[line] = t, turn[t], chained if action != WRITE else 0
    for t in range(len(order)):
        last[ids[order[t]]] = -1


@compiled
def distances_in_sms(
    records, actions, first_record, cursors, slots, ids, lines, tree, warps, order, turn, ends, near, wait
):
    """First-level distances, SM after SM; `order` and `turn` of their records are filled in, and where each SM ends."""
    base, sm_count = 0, len(ends) - 1
    for sm in range(sm_count):
        own, turns = order[base:], turn[base:]
        used = order_of_sm(records, actions, first_record, cursors, slots, sm, sm_count, warps, own, turns)
        distances_along(own[:used], turns[:used], ids, actions, lines, tree[: used + 2], True, near, wait)
        base += used
        ends[sm + 1] = base


@compiled
def distances_in_all(order, turn, ids, actions, lines, tree, near, wait):
    """Second-level distances of records in the order in which they come there."""
    distances_along(order, turn, ids, actions, lines, tree, False, near, wait)


def distances(records, actions, first_record, ids, lines, warps, sm_count, resident):
    """Of every record, for `resident` thread blocks on each of `sm_count` SMs: distinct lines touched since its line
    was last, in its SM, the same for who waits, and both of all SMs together: rows (l1, l1_wait, l2, l2_wait).

    A line asked for by another warp in the same turn is still on its way, so that its distance counts for who waits.
    NEVER: not touched before; -1: nothing is read.
    """
    found = np.full((4, len(records)), -1)
    order, turn, ends = np.zeros(len(records), np.int64), np.zeros(len(records), np.int64), np.zeros(sm_count + 1, int)
    a_line = (np.full(lines, -1), np.full(lines, -1), np.zeros(lines, np.int64))
    tree = np.zeros(len(records) + 2, np.int32)
    cursors, slots = first_record[:-1].copy(), np.full(resident, -1)
    distances_in_sms(
        records, actions, first_record, cursors, slots, ids, a_line, tree, warps, order, turn, ends, found[0], found[1]
    )
    mixed = np.argsort(turn[: ends[-1]], kind="stable")
    distances_in_all(order[mixed], turn[mixed], ids, actions, a_line, tree[: len(mixed) + 2], found[2], found[3])
    return found


def bins_of(distances):
    """Bins of distances: a quarter octave each."""
    near = np.rint(np.log2(1.0 + distances) * BINS_AN_OCTAVE).astype(np.int64)
    return np.where(distances >= NEVER, DISTANCE_BINS - 1, np.minimum(DISTANCE_BINS - 2, near))


def histogram(l1, l2):
    """How many accesses have each pair of distances, in L1D and in L2; pairs below 0 count for nothing."""
    read = (l1 >= 0) & (l2 >= 0)
    pairs = bins_of(l1[read]) * DISTANCE_BINS + bins_of(l2[read])
    return np.bincount(pairs, minlength=DISTANCE_BINS**2).reshape(DISTANCE_BINS, DISTANCE_BINS).astype(float)


def largest_in(values, ranges):
    """The largest value in each half-open range; -1 in one that is empty."""
    if not len(ranges):
        return np.zeros(0, np.int64)
    found = np.maximum.reduceat(np.append(values, -1), ranges.ravel())[::2]
    return np.where(ranges[:, 0] < ranges[:, 1], found, -1)


SIZES = 2.0 ** np.arange(0, 20.5, 0.5)  # lines of the cache
WAYS = 2.0 ** np.arange(0, 6)
L1_STEP, L1_WAYS = 4, 4  # of the curve for both levels: two octaves a node


@cache
def miss_matrix() -> Float[np.ndarray, "bin ways size"]:
    """Probability that an access at a distance misses a cache of a size and associativity.

    Of `distance` other lines each lies in the set with probability 1 / sets, and `ways` of them drive the line out: the
    binomial of Smith (1978) and Hill and Smith (1989). The last bin has not been touched before.
    """
    from scipy.special import betainc  # scipy.stats would take a second and a half to import

    distance = np.round(2.0 ** (np.arange(DISTANCE_BINS) / BINS_AN_OCTAVE) - 1)[:, None, None]
    sets = np.maximum(1.0, SIZES[None, None, :] / WAYS[None, :, None])
    ways = np.floor(np.minimum(WAYS[None, :, None], SIZES[None, None, :]))
    missed = np.where(distance >= ways, betainc(ways, np.maximum(1.0, distance - ways + 1), 1 / sets), 0.0)
    missed[-1] = 1.0
    return missed


def miss_curves(
    histogram: Float[np.ndarray, "bin bin"],
) -> tuple[Float[np.ndarray, "ways size"], Float[np.ndarray, "l1_size ways size"]]:
    """Share of accesses that miss L1D, and that miss both L1D and L2, from a histogram of both distances.

    0 everywhere without accesses. The second has every `L1_STEP`-th L1D size, of `L1_WAYS` ways.
    """
    total = max(1.0, histogram.sum())
    missed = miss_matrix()
    l1 = np.tensordot(histogram.sum(1) / total, missed, 1)
    not_in_l1 = missed[:, int(np.log2(L1_WAYS)), ::L1_STEP]
    return l1, np.tensordot(not_in_l1.T @ histogram / total, missed, 1)


def write_curve(distances: Int64[np.ndarray, " sector"]) -> Float[np.ndarray, "ways size"]:
    """Share of written sectors whose line L2 has not, from the distance of each; 0 everywhere without any."""
    found = histogram(distances, distances).sum(0)
    return np.tensordot(found / max(1.0, found.sum()), miss_matrix(), 1)
