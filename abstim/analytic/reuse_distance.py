"""Reuse distances, the distinct lines touched since the last use of a line, and miss ratios of caches from them.

One pass over the accesses of a launch gives the hit rate of every LRU cache (Mattson et al., 1970). The order of
accesses is that of thread blocks handed out breadth first, their resident warps taking turns, an instruction each."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.analytic.lone_warp import NOTHING, UPDATE, WRITE
from abstim.engine.accesses import fermi, more_follow, sectors_in, sectors_of
from abstim.engine.warp_slots import EMPTY_SET, ONE
from functional.jit.machine_code import compiled
from functional.jit.marked import jit, ones

if TYPE_CHECKING:
    from jaxtyping import Float, Int32, Int64, UInt8, UInt32


NEVER = 1 << 30  # the distance of a line not touched before, or dropped since
BINS_AN_OCTAVE = 4
DISTANCE_BINS = 22 * BINS_AN_OCTAVE  # the last one: NEVER
MOST_COUNTED = 1 << 12  # lines whose use is looked at, some of a launch's: those stand for all (Waldspurger, FAST 2015)
MOST_MEASURED = 1 << 17  # records whose distances are asked for, those of some SMs

# Of a line at a level: the latest place at which it was touched (0: it was not, or was dropped), the turn of that, and
# its distance for who waits; of a level: lines that are counted in its tree, and the next place
LINE = np.dtype([("last", "i4"), ("turn", "i4"), ("chain", "i4")], align=True)
LEVEL = np.dtype([("live", "i8"), ("next", "i8")])
FIRST_PLACE = 2


class Level(NamedTuple):
    """A cache of any size, or several."""

    state: np.ndarray  # LEVEL
    lines: np.ndarray  # LINE
    counted: np.ndarray  # bits, by place: is a line that is counted there?
    sums: np.ndarray  # Fenwick tree: how many there are by word of them


class Distances(NamedTuple):
    """Of every record, for thread blocks resident on SMs: distinct lines touched since its line was last, in its SM,
    and in all of them together; both for who waits, too: a line asked for by another warp in the same turn is still on
    its way, so that its distance counts. NEVER: not touched before; -1: nothing is read, or asked."""

    l1: Int32[np.ndarray, " record"]
    l1_wait: Int32[np.ndarray, " record"]
    l2: Int32[np.ndarray, " record"]
    l2_wait: Int32[np.ndarray, " record"]


class Launch(NamedTuple):
    """Records of accesses in order of warps, what each does, and which line it touches; where those of a warp begin."""

    records: UInt32[np.ndarray, " record"]
    actions: UInt8[np.ndarray, " record"]
    ids: Int32[np.ndarray, " record"]
    first_record: Int64[np.ndarray, " warp_plus_1"]


@jit
def turn_over(counted, sums, place, by):
    """A counted line comes to a place, or leaves it."""
    counted[place >> 6] ^= ONE << np.uint64(place & 63)
    k = (place >> 6) + 1
    while k < len(sums):
        sums[k] += by
        k += k & -k


@jit
def up_to(counted, sums, place):
    """Counted lines at a place, and before it."""
    k = place >> 6
    total = ones(counted[k] & (~EMPTY_SET >> np.uint64(63 - (place & 63))))
    while k > 0:
        total += sums[k]
        k -= k & -k
    return total


@jit
def touch(state, row, bits, sums, turn, counts, scale, drops):
    """(distance, the same for who waits) of a line that is touched, and dropped then or not."""
    before = row.last
    distance = chained = NEVER
    if before:
        latest = before == state.next - 1  # nothing that is counted was touched since
        distance = chained = 0 if latest else (state.live - up_to(bits, sums, before)) * scale
        if row.turn == turn:
            chained = max(distance, row.chain)
        if latest and not drops:
            row.turn = turn
            return distance, chained
        if counts:
            turn_over(bits, sums, before, -1)
            state.live -= 1
        row.last = 0
    if not drops:
        if counts:
            turn_over(bits, sums, state.next, 1)
            state.live += 1
            state.next += 1
        row.last, row.turn = state.next - 1, turn
    return distance, chained


@jit
def use_record(launch, first, second, found, place, r, turn, counted, scale):
    """A record is used by an SM, the one at `place` of those measured (-1: none). The first level drops a line that is
    written and does not see atomics; the second keeps what passes."""
    k, action = launch.ids[r], launch.actions[r]
    own, writes = counted[k], launch.actions[r] == WRITE
    if place >= 0 and action != UPDATE:
        row = first.lines[place, k]
        bits, sums = first.counted[place], first.sums[place]
        distance, chained = touch(first.state[place, 0], row, bits, sums, turn, own, scale, writes)
        if not writes:
            found.l1[r], found.l1_wait[r], row.chain = distance, chained, chained
    row = second.lines[k]
    distance, chained = touch(second.state[0], row, second.counted, second.sums, turn, own, scale, 0)
    row.chain = 0 if writes else chained
    if place >= 0:
        found.l2[r] = distance
        if not writes:
            found.l2_wait[r] = chained


@jit
def take_turn(launch, first, second, found, place, cursors, w, turn, counted, scale):
    """A warp uses the records of its next instruction; returns whether it has more."""
    r, stop = cursors[w], launch.first_record[w + 1]
    while r < stop and launch.actions[r] == NOTHING:
        r += 1
    while r < stop:
        if launch.actions[r] != NOTHING:
            use_record(launch, first, second, found, place, r, turn, counted, scale)
        r += 1
        if not more_follow(launch.records[r - 1]):
            break
    cursors[w] = r
    return r < stop


@compiled
def use_caches(launch, warps, places, slots, following, cursors, first, second, counted, scale, found):
    """All SMs take turns, in each of which every resident warp has one.

    `places`: of each SM, see `use_record`; `slots` [SM, resident]: its thread blocks, none (-1) before; `following`:
    the next of each; `cursors`: the next record of each warp.
    """
    thread_blocks, sm_count, turn, busy = len(cursors) // warps, len(places), 1, True
    while busy:
        busy = False
        for sm in range(sm_count):
            for s in range(slots.shape[1]):
                if slots[sm, s] < 0 and following[sm] < thread_blocks:
                    slots[sm, s], following[sm] = following[sm], following[sm] + sm_count
                if slots[sm, s] < 0:
                    continue
                busy, more = True, False
                for w in range(slots[sm, s] * warps, (slots[sm, s] + 1) * warps):
                    more |= take_turn(launch, first, second, found, places[sm], cursors, w, turn, counted, scale)
                if not more:
                    slots[sm, s] = -1
        turn += 1


def _level(caches: int, lines: int, touches: int) -> Level:
    words = (touches + FIRST_PLACE >> 6) + 1
    shapes = ((1, LEVEL), (lines, LINE), (words, np.uint64), (words + 1, np.int32))
    return Level(*(np.zeros((caches, count), kind) for count, kind in shapes))


def distances(
    launch: Launch, lines: int, warps: int, sm_count: int, resident: int,
    most_counted: int = MOST_COUNTED, most_measured: int = MOST_MEASURED,
) -> Distances:  # fmt: skip
    """Of `lines` lines, for `resident` thread blocks of so many warps on each of `sm_count` SMs. Of more than
    `most_counted` lines one of so many counts as as many; of more than `most_measured` records those of SMs far apart
    are measured."""
    count = len(launch.records)
    scale = 1 << max(0, -(-lines // most_counted) - 1).bit_length()
    counted = (np.arange(lines) * SPREAD >> 20) % scale == 0
    measured = min(sm_count, max(1, sm_count * most_measured // max(1, count)))
    places = np.full(sm_count, -1)
    places[np.arange(measured) * sm_count // measured] = np.arange(measured)
    a_block = np.diff(launch.first_record[::warps])
    most = int(np.bincount(np.arange(len(a_block)) % sm_count, a_block).max())
    first, second = _level(measured, lines, most), _level(1, lines, count)
    second = Level(*(column[0] for column in second))
    for level in (first, second):
        level.state["next"] = FIRST_PLACE
    found = Distances(*np.full((4, count), -1, np.int32))
    use_caches(
        launch, warps, places, np.full((sm_count, resident), -1), np.arange(sm_count), launch.first_record[:-1].copy(),
        first, second, counted.view(np.uint8), scale, found,
    )  # fmt: skip
    return found


SPREAD = 0x9E3779B1  # 2^32 / the golden ratio: neighbours are counted, or not, as if by chance


def bins_of(distances):
    """Bins of distances: a quarter octave each."""
    near = np.rint(np.log2(1.0 + distances) * BINS_AN_OCTAVE).astype(np.int64)
    return np.where(distances >= NEVER, DISTANCE_BINS - 1, np.minimum(DISTANCE_BINS - 2, near))


@cache
def _bins() -> UInt8[np.ndarray, " distance"]:
    """Bins of small distances."""
    return bins_of(np.arange(1 << 12)).astype(np.uint8)


@jit
def bin_of(bins, distance):
    """The bin of a distance; of a large one all but the 12 highest bits make no difference."""
    beyond = 0
    if distance >= NEVER:
        return DISTANCE_BINS - 1
    while distance >= len(bins):
        distance, beyond = distance >> 1, beyond + BINS_AN_OCTAVE
    return min(bins[distance] + beyond, DISTANCE_BINS - 2)


@compiled
def count_pairs(found, actions, sectors, batches, bins, pairs, waits, writes):
    """How many records have each pair of distances, in L1D and L2: `pairs`; the largest of each of `batches`: `waits`;
    and how many written sectors a distance in L2: `writes`. Distances below 0 count for nothing."""
    for r in range(len(actions)):
        if found.l1[r] >= 0 and found.l2[r] >= 0:
            pairs[bin_of(bins, found.l1[r]), bin_of(bins, found.l2[r])] += 1
        elif actions[r] == WRITE and found.l2[r] >= 0:
            writes[bin_of(bins, found.l2[r])] += sectors_in(fermi(sectors_of(sectors[r])))
    for n in range(len(batches)):
        l1 = l2 = -1
        for r in range(batches[n, 0], batches[n, 1]):
            l1, l2 = max(l1, found.l1_wait[r]), max(l2, found.l2_wait[r])
        if l1 >= 0 and l2 >= 0:
            waits[bin_of(bins, l1), bin_of(bins, l2)] += 1


class Histograms(NamedTuple):
    """Of distances in L1D and L2: by bins of both, of accesses and of batches of loads that a warp waits for; of
    written sectors by that in L2."""

    pairs: Float[np.ndarray, "bin bin"]
    waits: Float[np.ndarray, "bin bin"]
    writes: Float[np.ndarray, " bin"]


def histograms(found: Distances, launch: Launch, batches: Int64[np.ndarray, "batch 2"]) -> Histograms:
    """`batches`: half-open ranges of records."""
    counts = Histograms(*(np.zeros((DISTANCE_BINS,) * n) for n in (2, 2, 1)))
    count_pairs(found, launch.actions, launch.records, batches, _bins(), *counts)
    return counts


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
    shares, missed = histogram / max(1.0, histogram.sum()), miss_matrix()
    not_in_l1 = missed[:, int(np.log2(L1_WAYS)), ::L1_STEP]
    rows = np.concatenate([shares.sum(1)[None], not_in_l1.T @ shares]) @ missed.reshape(DISTANCE_BINS, -1)
    found = rows.reshape(-1, *missed.shape[1:])
    return found[0], found[1:]


def write_curve(writes: Float[np.ndarray, " bin"]) -> Float[np.ndarray, "ways size"]:
    """Share of written sectors whose line L2 has not, from how many have each distance; 0 everywhere without any."""
    missed = miss_matrix()
    return (writes / max(1.0, writes.sum()) @ missed.reshape(DISTANCE_BINS, -1)).reshape(missed.shape[1:])
