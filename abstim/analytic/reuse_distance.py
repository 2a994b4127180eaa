"""Reuse distances, the distinct lines touched since the last use of a line, and what caches miss from them.

One pass over the accesses of a launch gives the hit rate of every LRU cache (Mattson et al., 1970). The order of
accesses is that of thread blocks handed out breadth first, their resident warps taking turns: what they ask for between
two waits for loads."""

from functools import cache
from typing import NamedTuple

import numpy as np

from abstim.analytic.lone_warp import ACTION, LOOK_UP, PASSING, TURN_SHIFT, UPDATE, WRITE
from abstim.engine.accesses import sectors_in
from abstim.engine.warp_slots import ONE
from functional.arrays import Float, Int32, Int64, UInt8
from functional.jit.marked import ones, zero
from functional.traces.line_record import SECTORS_A_LINE

NEVER = 1 << 30  # the distance of a line not touched before, or dropped since
BINS_AN_OCTAVE = 4
DISTANCE_BINS = 22 * BINS_AN_OCTAVE  # the last one: NEVER
L1_WAYS, L1_NODES = 4, 11  # of the L1Ds behind which misses of L2 are looked at: ways; sizes, two octaves each
ROWS = 2 * (1 + L1_NODES) + 2  # of a table of misses: see `fill_rows`
WRITE_ROW, UPDATE_ROW = ROWS - 2, ROWS - 1

# Of a line at a level: the latest place at which it was touched (0: it was not, or was dropped), the turn of that, its
# distance for who waits, and of each sector the line's largest since it was asked for; is it new in its latest turn,
# and the SM that asked for it last then; sectors at its largest distance. Of lines side by side that one slice of L2
# has, for the first: the turn (`met`) in which sectors were `asked` for, of these those that SMs asked for that had
# none of their line (`fetched`), the latest such SM (`asker`) and how many they are
_LINE = "last", "turn", "chain", "begun", "new", "sm", "far", "met", "asked", "fetched", "asker", "askers"
LINE = np.dtype([*((name, "i4") for name in _LINE), ("since", "i4", SECTORS_A_LINE)], align=True)
# Of a level: the next place, and the first since it was emptied; the latest turn, and most that was `asked` and
# `fetched` of a line in it; the sums of these of all turns before; what the first jam costs, and its turn
_LEVEL = "next", "first", "turn", "asked", "fetched", "all_asked", "all_fetched", "jam", "jam_turn"
LEVEL = np.dtype([(name, "i8") for name in _LEVEL])
FIRST_PLACE, GROUP_SHIFT = 2, 10


SIZES_OF_USES = np.dtype([(name, "i8") for name in ("uses", "places", "lines", "blocks", "warps", "scale")])


class Uses(NamedTuple):
    """What accesses do with the lines that are looked at, in order of warps, those of warp w from first[w] on: in which
    turn of their warp, by which line record. Of each thread block: turns it takes, and sectors loaded of all lines.
    Lines that are `counted`, one of every `scale`, stand for all; `beside`: the first line of those side by side in a
    slice of L2. `sizes`: how many there are of what, and warps of a thread block, one SIZES_OF_USES."""

    lines: Int32[np.ndarray, " use"]
    acts: Int32[np.ndarray, " use"]
    records: Int32[np.ndarray, " use"]
    sectors: UInt8[np.ndarray, " use"]
    first: Int64[np.ndarray, " warp_plus_1"]
    lengths: Int32[np.ndarray, " tb"]
    loads: Int32[np.ndarray, " tb"]
    counted: UInt8[np.ndarray, " line"]
    beside: Int32[np.ndarray, " line"]
    sizes: np.ndarray


class Found(NamedTuple):
    """Of every use, for thread blocks resident on SMs: distinct lines touched since its line was last, in its SM, and
    in all of them together; both for who waits, too: a line asked for by another warp in the same turn is still on its
    way, so that its distance counts. NEVER: not touched before; -1: nothing is read, or asked. Of its
    sectors as many are so `far` in its SM; the others are there."""

    l1: Int32[np.ndarray, " use"]
    l1_wait: Int32[np.ndarray, " use"]
    l2: Int32[np.ndarray, " use"]
    l2_wait: Int32[np.ndarray, " use"]
    far: Int32[np.ndarray, " use"]


class Order(NamedTuple):
    """Scratch: the turn and the SM of each use; in which turn each thread block begins, and each place for one is free;
    the uses in order of turns, and of SMs and turns; how many are before the end of each turn, and of each SM."""

    at: Int32[np.ndarray, " use"]
    sms: Int32[np.ndarray, " use"]
    begins: Int32[np.ndarray, " tb"]
    free: Int32[np.ndarray, " resident"]
    in_turn: Int32[np.ndarray, " use"]
    by_sm: Int32[np.ndarray, " use"]
    turn_ends: Int32[np.ndarray, " turn"]
    sm_ends: Int32[np.ndarray, " sm"]
    measured: UInt8[np.ndarray, " sm"]


class Level(NamedTuple):
    """Scratch: a cache of any size."""

    state: np.ndarray  # LEVEL
    lines: np.ndarray  # LINE
    counted: np.ndarray  # bits, by place: is a line that is counted there?
    sums: Int32[np.ndarray, " group"]  # how many there are of 2^GROUP_SHIFT places each
    waiting: Int32[np.ndarray, " stretch"]  # lines that wait for DRAM, by bits of their stretch of memory


class Counts(NamedTuple):
    """Scratch: how many uses, and batches of loads, have each pair of distances, in L1D and L2, and in L1D alone; rows
    of a table of misses; bins of small distances, and what L1Ds miss of each: `misses_of_l1`."""

    pairs: Int32[np.ndarray, "bin bin"]
    of_l1: Int64[np.ndarray, " bin"]
    rows: Float[np.ndarray, "row bin"]
    bins: UInt8[np.ndarray, " distance"]
    l1_misses: Float[np.ndarray, "bin l1"]


SPREAD = 0x9E3779B1  # 2^32 / the golden ratio: neighbours are counted, or not, as if by chance


def spread_of(number):
    """32 bits of a number, mixed (Knuth's multiplicative hashing)."""
    return (number * SPREAD) & 0xFFFFFFFF


def turn_over(counted, sums, place, by):
    """A counted line comes to a place, or leaves it."""
    counted[place >> 6] ^= ONE << np.uint64(place & 63)
    sums[place >> GROUP_SHIFT] += by


def behind(counted, sums, place, end):
    """Counted lines behind a place, before another one."""
    word, last, group = place >> 6, (end - 1) >> 6, place >> GROUP_SHIFT
    total = ones((counted[word] >> np.uint64(place & 63)) >> ONE)
    for k in range(word + 1, min(last + 1, (group + 1) << (GROUP_SHIFT - 6))):
        total += ones(counted[k])
    for k in range(group + 1, ((end - 1) >> GROUP_SHIFT) + 1):
        total += sums[k]
    return total


def touch(state, row, bits, sums, turn, uses, n, drops):
    """(distance, the same for who waits) of a line that a use touches, and that is dropped then or not."""
    before, counts = row.last if row.last >= state.first else 0, uses.counted[uses.lines[n]]
    distance, size = NEVER, uses.sizes[0]
    latest = before and before == state.next - 1  # nothing that is counted was touched since
    if before:
        distance = 0 if latest else behind(bits, sums, before, state.next) * size.scale
    distance = farthest(row, uses.sectors[n], distance)
    chained = max(distance, row.chain) if before and turn == row.begun else distance
    if chained == distance:
        row.begun = turn
    if latest and not drops:
        row.turn = turn
        return distance, chained
    if before and counts:
        turn_over(bits, sums, before, -1)
    row.last = 0
    if not drops:
        if counts:
            turn_over(bits, sums, state.next, 1)
            state.next += 1
        row.last, row.turn = state.next - 1, turn
    return distance, chained


def farthest(row, sectors, distance):
    """The largest distance of a line since all of some sectors were asked for: with one that was driven out in between,
    or never asked for, they miss. Counted are those that are farther than the line, or all."""
    found, far = distance, 0
    for k in range(SECTORS_A_LINE):
        since = max(row.since[k], distance)
        if sectors >> k & 1:
            far += since > distance
            found, since = max(found, since), 0
        row.since[k] = since
    row.far = far if far else SECTORS_A_LINE
    return found


def crowd(level, uses, n, turn, sm, again, merges):
    """Count what is asked of a line in a turn, and of those in its slice; `again`: by another one before.

    Behind `merges` that wait for a sector the next one blocks the slice until DRAM has answered, so that the sectors of
    lines that more SMs want at once come one after the other. That is so where they are in step: the first time, of
    atomics if nothing was waited for before. Those take their turns by themselves (`l2_cycles`)."""
    state, row, sectors = level.state[0], level.lines[uses.lines[n]], sectors_in(uses.sectors[n])
    slice_row, loads = level.lines[uses.beside[uses.lines[n]]], uses.acts[n] & ACTION == LOOK_UP
    if turn != state.turn:
        end_turn(state)
        state.turn = turn
    if not again:
        row.sm = -1
    if slice_row.met != turn:
        slice_row.met, slice_row.asked, slice_row.fetched, slice_row.askers, slice_row.asker = turn, 0, 0, 0, -1
    slice_row.asked += sectors
    if row.new and row.sm != sm:
        slice_row.fetched += sectors
        slice_row.askers += slice_row.asker != sm
        row.sm = slice_row.asker = sm
        in_step = state.jam_turn == turn or (state.jam_turn == 0 and (loads or turn == 1))
        if slice_row.askers > merges and in_step:
            state.jam = max(state.jam, slice_row.fetched // slice_row.askers - 1)
            state.jam_turn = turn
    if loads:
        state.asked = max(state.asked, slice_row.asked)
        state.fetched = max(state.fetched, slice_row.fetched)


def end_turn(state):
    """Add up what was asked of the lines that most was asked of."""
    state.all_asked += state.asked
    state.all_fetched += state.fetched
    state.asked = state.fetched = 0


def empty(level, lines, touches):
    """For so many lines, and touches of them."""
    zero(level.lines[:lines])
    zero(level.counted[: ((touches + FIRST_PLACE) >> 6) + 1])
    zero(level.sums[: ((touches + FIRST_PLACE) >> GROUP_SHIFT) + 1])
    zero(level.state)
    level.state[0].first, level.state[0].next = FIRST_PLACE - 1, FIRST_PLACE


def deal_out(uses, sm_count, resident, order):
    """When each thread block begins: every `sm_count`-th is an SM's, in the place that is free first; returns the last
    turn."""
    last, blocks = 0, uses.sizes[0].blocks
    for sm in range(sm_count):
        order.free[:resident] = 0
        for block in range(sm, blocks, sm_count):
            place = 0
            for k in range(1, resident):
                if order.free[k] < order.free[place]:
                    place = k
            order.begins[block] = order.free[place]
            order.free[place] += uses.lengths[block]
            last = max(last, order.free[place])
    return last


def sort_uses(uses, sm_count, resident, order):
    """Fill in `order`: by turns, then SMs, then thread blocks."""
    last, blocks, warps = deal_out(uses, sm_count, resident, order), uses.sizes[0].blocks, uses.sizes[0].warps
    order.turn_ends[: last + 2] = 0
    order.sm_ends[: sm_count + 1] = 0
    for block in range(blocks):
        for n in range(uses.first[block * warps], uses.first[(block + 1) * warps]):
            order.at[n], order.sms[n] = order.begins[block] + (uses.acts[n] >> TURN_SHIFT) + 1, block % sm_count
            order.turn_ends[order.at[n] + 1] += 1
            order.sm_ends[order.sms[n] + 1] += 1
    for turn in range(1, last + 2):
        order.turn_ends[turn] += order.turn_ends[turn - 1]
    for sm in range(1, sm_count + 1):
        order.sm_ends[sm] += order.sm_ends[sm - 1]
    for sm in range(sm_count):
        for block in range(sm, blocks, sm_count):
            for n in range(uses.first[block * warps], uses.first[(block + 1) * warps]):
                order.in_turn[order.turn_ends[order.at[n]]] = n
                order.turn_ends[order.at[n]] += 1
    for k in range(uses.sizes[0].uses):
        sm = order.sms[order.in_turn[k]]
        order.by_sm[order.sm_ends[sm]] = order.in_turn[k]
        order.sm_ends[sm] += 1


def use_l2(uses, order, sm_count, merges, level, found):
    """All uses, in order of turns: the second level keeps what passes. In each turn SMs come from one on as if by
    chance, since the first one is who reads from DRAM what all want."""
    size, state, bits, sums, first, stop = uses.sizes[0], level.state[0], level.counted, level.sums, 0, 0
    empty(level, size.lines, size.uses)
    while first < size.uses:
        turn, start = order.at[order.in_turn[first]], first
        stop = order.turn_ends[turn]
        while start < stop and order.sms[order.in_turn[start]] < spread_of(turn) * sm_count >> 32:
            start += 1
        for k in range(start, start + stop - first):
            n = order.in_turn[k if k < stop else k - stop + first]
            row, writes = level.lines[uses.lines[n]], uses.acts[n] & ACTION == WRITE
            again = row.last and row.turn == turn
            found.l2[n], chained = touch(state, row, bits, sums, turn, uses, n, False)
            row.chain, found.l2_wait[n] = (0, -1) if writes else (chained, chained)
            if not writes:
                row.new = found.l2[n] >= NEVER or (again and row.new)
                crowd(level, uses, n, turn, order.sms[n], again, merges)
        first = stop
    end_turn(state)


def use_l1(uses, order, first, stop, drops, level, found):
    """Those of one SM: the first level does not see atomics, and keeps or drops a line that is written."""
    bits, sums = level.counted, level.sums
    level.state[0].first, level.state[0].next = level.state[0].next, level.state[0].next + 1
    for k in range(first, stop):
        n = order.by_sm[k]
        row, writes = level.lines[uses.lines[n]], uses.acts[n] & ACTION == WRITE
        if uses.acts[n] & PASSING:
            if uses.acts[n] & ACTION == LOOK_UP:
                found.l1[n], found.l1_wait[n], found.far[n] = NEVER, NEVER, SECTORS_A_LINE
        elif uses.acts[n] & ACTION != UPDATE:
            distance, chained = touch(level.state[0], row, bits, sums, order.at[n], uses, n, writes and drops)
            if not writes:
                found.l1[n], found.l1_wait[n], found.far[n], row.chain = distance, chained, row.far, chained


def use_caches(uses, sm_count, resident, reading, order, level, found):
    """Fill in `found`: for L1D of so many SMs far apart, then for L2; returns how many sectors those load."""
    sort_uses(uses, sm_count, resident, order)
    found.l1[: uses.sizes[0].uses] = -1
    found.l1_wait[: uses.sizes[0].uses] = -1
    loads = 0
    empty(level, uses.sizes[0].lines, uses.sizes[0].uses + sm_count)
    for sm in range(sm_count):
        if order.measured[sm]:
            use_l1(uses, order, order.sm_ends[sm - 1] if sm else 0, order.sm_ends[sm], reading.drops, level, found)
            for block in range(sm, uses.sizes[0].blocks, sm_count):
                loads += uses.loads[block]
    use_l2(uses, order, min(sm_count, uses.sizes[0].blocks), reading.merges, level, found)
    return loads


def bins_of(distances):
    """Bins of distances: a quarter octave each."""
    near = np.rint(np.log2(1.0 + distances) * BINS_AN_OCTAVE).astype(np.int64)
    return np.where(distances >= NEVER, DISTANCE_BINS - 1, np.minimum(DISTANCE_BINS - 2, near))


def bin_of(bins, distance):
    """The bin of a distance; of a large one all but the 12 highest bits make no difference."""
    beyond = 0
    if distance >= NEVER:
        return DISTANCE_BINS - 1
    while distance >= len(bins):
        distance, beyond = distance >> 1, beyond + BINS_AN_OCTAVE
    return min(bins[distance] + beyond, DISTANCE_BINS - 2)


def count_pair(counts, l1, l2, times):
    """So many more with these distances."""
    k = bin_of(counts.bins, l1)
    counts.of_l1[k] += times
    counts.pairs[k, bin_of(counts.bins, l2)] += times


def fill_rows(counts, row, total):
    """What was counted, as shares of `total`: by distance in L1D, and by distance in L2 of what misses L1Ds of each
    size; from a row of a table on. Nothing is counted from now on."""
    for i in range(DISTANCE_BINS):
        if counts.of_l1[i]:
            counts.rows[row, i] = counts.of_l1[i] / total
            for j in range(DISTANCE_BINS):
                if counts.pairs[i, j]:
                    for size in range(L1_NODES):
                        counts.rows[row + 1 + size, j] += counts.pairs[i, j] / total * counts.l1_misses[i, size]
            counts.of_l1[i] = 0
            counts.pairs[i][:] = 0


def fill_table(uses, batches, found, counts, loads, table):
    """A table of misses [ROWS, bin]: of sectors loaded, then of batches (ranges of uses), each by its largest distance,
    as `fill_rows` has them; last of sectors written, and by atomics, by their distance in L2. `loads` were made by the
    SMs whose L1D was looked at. Negative distances count for nothing, and so do lines that are not `counted`."""
    zero(counts.rows)
    total = written = updated = there = 0
    for n in range(uses.sizes[0].uses):
        if uses.counted[uses.lines[n]]:
            own = sectors_in(uses.sectors[n])
            if found.l1[n] >= 0:
                far = min(own, found.far[n])
                count_pair(counts, found.l1[n], found.l2[n], far)
                total, there = total + own, there + own - far
            elif uses.acts[n] & ACTION == WRITE:
                counts.rows[WRITE_ROW, bin_of(counts.bins, found.l2[n])] += own
                written += own
            elif uses.acts[n] & ACTION == UPDATE:
                counts.rows[UPDATE_ROW, bin_of(counts.bins, found.l2[n])] += own
                updated += own
    for k in range(DISTANCE_BINS):
        counts.rows[WRITE_ROW, k] /= max(1, written)
        counts.rows[UPDATE_ROW, k] /= max(1, updated)
    # where more or fewer `loads` are of lines that are not counted, those are hot ones (SHARDS_adj)
    others = max(loads // uses.sizes[0].scale - total, -counts.pairs[0, 0] - there)
    counts.of_l1[0] += there + others
    counts.pairs[0, 0] += there + others
    fill_rows(counts, 0, max(1, total + others))
    total = 0
    for b in range(len(batches)):
        l1 = l2 = -1
        for n in range(batches[b, 0], batches[b, 1]):
            l1, l2 = max(l1, found.l1_wait[n]), max(l2, found.l2_wait[n])
        if l1 >= 0 and l2 >= 0:
            count_pair(counts, l1, l2, 1)
            total += 1
    fill_rows(counts, 1 + L1_NODES, max(1, total))
    for row in range(ROWS):
        for k in range(DISTANCE_BINS):
            table[row, k] = counts.rows[row, k]


SIZES = 2.0 ** np.arange(-0.5, 21, 0.5)  # lines of the cache, and one node more at either end
WAYS = 2.0 ** np.arange(0, 6)
LAST_SIZE, LAST_WAYS = len(SIZES) - 3, len(WAYS) - 1


@cache
def miss_matrix() -> Float[np.ndarray, "ways size bin"]:
    """Probability that an access at a distance misses a cache of an associativity and a size.

    Of `distance` other lines each lies in the set with probability 1 / sets, and `ways` of them drive the line out: the
    binomial of Smith (1978) and Hill and Smith (1989). The last bin has not been touched before."""
    distance = np.round(2.0 ** (np.arange(DISTANCE_BINS) / BINS_AN_OCTAVE) - 1)
    sizes = SIZES.clip(SIZES[1], SIZES[-2])[:, None]
    sets, ways = np.maximum(1.0, sizes / WAYS[:, None, None]), np.floor(np.minimum(WAYS[:, None, None], sizes))
    share = np.minimum(1.0 / sets, 1.0 - 2.0**-53)  # of one set all but surely
    exactly, fewer = np.exp(distance * np.log1p(-share)), 0.0  # so many lines are in the set; and less than `ways`
    for k in range(int(WAYS[-1])):
        fewer += exactly * (k < ways)
        exactly = exactly * (distance - k) / (k + 1) * share / (1.0 - share)
    missed = np.where(distance >= ways, np.maximum(1.0 - fewer, 0.0), 0.0)
    missed[..., -1] = 1.0
    return missed


class Reuse(NamedTuple):
    """What is found of the reuse of lines, and its scratch."""

    uses: Uses
    order: Order
    level: Level
    found: Found
    counts: Counts


def reuse_of(count: int, warps: int, blocks: int) -> Reuse:
    """Room for so many uses, warps and thread blocks."""

    def numbers(count: int = count, kind: type = np.int32) -> np.ndarray:
        return np.empty(count, kind)

    uses = Uses(
        numbers(), numbers(), numbers(), numbers(count, np.uint8),
        numbers(warps + 1, np.int64), numbers(blocks), numbers(blocks), numbers(count, np.uint8),
        numbers(), np.zeros(1, SIZES_OF_USES),
    )  # fmt: skip
    order = Order(
        numbers(), numbers(), numbers(blocks), numbers(64), numbers(), numbers(), numbers(count + blocks + 3),
        numbers(count + blocks + 3), numbers(count + blocks + 3, np.uint8),
    )  # fmt: skip
    words, shape = ((count + blocks + FIRST_PLACE) >> 6) + 1, (DISTANCE_BINS, DISTANCE_BINS)
    counts = Counts(
        np.zeros(shape, np.int32), np.zeros(DISTANCE_BINS, np.int64), np.empty((ROWS, DISTANCE_BINS)), *_bins()
    )
    level = Level(
        np.zeros(1, LEVEL), np.empty(count, LINE), np.empty(words, np.uint64), numbers(words + 1), numbers(1 << 12)
    )
    return Reuse(uses, order, level, Found(*np.empty((5, count), np.int32)), counts)


@cache
def _bins() -> tuple[UInt8[np.ndarray, " distance"], Float[np.ndarray, "bin l1"]]:
    """Bins of small distances, and what L1Ds of all sizes miss of each bin."""
    behind = miss_matrix()[int(np.log2(L1_WAYS)), 1:-1:4].T
    return bins_of(np.arange(1 << 12)).astype(np.uint8), np.ascontiguousarray(behind)
