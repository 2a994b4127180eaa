"""What the cache walk found, as the words that lanes read; compiled.

Accesses that wait for the same data are numbered as fills, from 1 on in the order in which their SMs come to them;
those of late instruction lines follow."""

from abstim.engine.rules import SECTORS
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.cache_walk import DRAM_CYCLES, FIRST_CYCLES, L2_CYCLES

OCCUPIES_BITS, LEVEL_BITS, SECTORS_BITS, DRAM_BITS, _ = (bits for _, bits in rec.ACCESS_WORD)
SECTORS_SHIFT = OCCUPIES_BITS + LEVEL_BITS
DRAM_SHIFT = SECTORS_SHIFT + SECTORS_BITS
PART_SHIFT = DRAM_SHIFT + DRAM_BITS


def level_of(wait):
    """(the slowest level that an answer comes from, how much of the way there from the level before it takes: 0 ..
    PARTS - 1 for 1 / PARTS .. 1), by its nominal wait."""
    if wait <= FIRST_CYCLES:
        return rec.FIRST, 0
    if wait <= L2_CYCLES:
        return rec.L2, part_of(wait, FIRST_CYCLES, L2_CYCLES)
    return rec.DRAM, part_of(wait, L2_CYCLES, DRAM_CYCLES)


def part_of(wait, before, own):
    """PARTS of the way from one level to the next, rounded up, less one."""
    return min(rec.MOST_PARTS - 1, (rec.PARTS * (wait - before) + own - before - 1) // (own - before) - 1)


def tell_late(walk, told):
    """Where the late instruction lines of every warp are, and an end mark behind them; returns how many there are."""
    count = 0
    for warp in range(len(walk.paths)):
        told.late_starts[warp] = count
        first, item = walk.fetch_offsets[warp], walk.offsets[walk.paths[warp]]
        for fetch in range(first, walk.fetch_offsets[warp + 1]):
            if walk.fetch_waits[fetch]:
                told.late_begins[count] = walk.items[item + fetch - first].begins
                told.late_fills[count] = walk.fetch_askers[fetch] - 1  # until it is numbered
                count += 1
        told.late_begins[count], told.late_fills[count] = rec.NEVER_LATE, 0
        count += 1
    return count


def asked_by(answer):
    """The access that asked for what one waits for that is no part of a fill of its own, -1: none."""
    if answer.sectors > 0:
        return -1
    return answer.waits_for - 1 if answer.waits_for > 0 else answer.behind - 1


def word_of(walk, k):
    """ACCESS_WORD of an access."""
    answer = walk.answers[k]
    level, part = level_of(answer.way)
    word = walk.accesses[k].cycles | level << OCCUPIES_BITS | part << PART_SHIFT
    return word | answer.sectors << SECTORS_SHIFT | answer.dram_sectors << DRAM_SHIFT


def word_of_line(wait):
    """ACCESS_WORD of an instruction line."""
    level, part = level_of(wait)
    word = level << OCCUPIES_BITS | part << PART_SHIFT | SECTORS << SECTORS_SHIFT
    return word | (SECTORS if level == rec.DRAM else 0) << DRAM_SHIFT


def number_access(walk, told, numbers, k, fills):
    """Access `k` as a word and a member of its fill; returns how many fills there are then, fill 0 included."""
    answer = walk.answers[k]
    behind = answer.behind - 1
    asker = k if walk.followed[k] else asked_by(answer)
    told.accesses[k], number = word_of(walk, k), 0
    if asker >= 0:
        if numbers[asker] == 0:
            numbers[asker] = fills
            told.fill_words[fills], told.fill_behind[fills] = word_of(walk, asker), walk.answers[asker].back
            told.fill_trips[fills] = walk.answers[asker].trips
            fills += 1
        number = numbers[asker]
    told.fills[k] = -number if behind >= 0 and not walk.followed[k] else number
    return fills


def number_line(walk, told, numbers, n, fills):
    """Late line `n` as a member of its fill; returns how many fills there are then."""
    asker = told.late_fills[n]
    if numbers[asker] == 0:
        numbers[asker], told.fill_words[fills] = fills, word_of_line(walk.fetch_waits[asker])
        told.fill_behind[fills] = told.fill_trips[fills] = 0
        fills += 1
    told.late_fills[n] = numbers[asker]
    return fills


def tell_accesses(walk, told, own, numbers, fills, turns):
    """The accesses of an SM's thread blocks, its turns from number `turns` on; returns how many fills there are then,
    and where the next SM's turns begin."""
    warps, first = walk.machine[0].warps_per_block, turns
    own.first_fill = fills
    for position in range(own.first, own.stop):
        block = walk.dealt[position]
        told.turn_starts[position] = turns
        turns += walk.access_offsets[(block + 1) * warps] - walk.access_offsets[block * warps]
    for n in range(first, turns):
        told.turns[n] = 0
    for position in range(own.first, own.stop):
        block = walk.dealt[position]
        for k in range(walk.access_offsets[block * warps], walk.access_offsets[(block + 1) * warps]):
            fills = number_access(walk, told, numbers, k, fills)
            if walk.answers[k].turn:
                told.turns[first + walk.answers[k].turn - 1] = max(0, walk.answers[k].left - walk.answers[k].came)
            own.sectors += walk.answers[k].sectors
            own.dram_sectors += walk.answers[k].dram_sectors
            own.held += walk.accesses[k].cycles
            own.longest = max(own.longest, walk.accesses[k].cycles)
    return fills, turns


def tell_lines(walk, told, own, numbers, fills):
    """The late lines of an SM's thread blocks; returns how many fills there are then."""
    warps = walk.machine[0].warps_per_block
    own.first_line = fills
    for position in range(own.first, own.stop):
        first = walk.dealt[position] * warps
        for warp in range(first, first + warps):
            n = told.late_starts[warp]
            while told.late_begins[n] != rec.NEVER_LATE:
                fills = number_line(walk, told, numbers, n, fills)
                n += 1
    return fills


def fills_alike(told, a, b, one, other):
    """Are two members of fills alike, by what their fill is and how many of its SM's, from `a` or `b` on, came before
    it?"""
    x, y = abs(one), abs(other)
    if one == 0 or other == 0:
        return one == other
    return (
        x - a == y - b and (one < 0) == (other < 0) and told.fill_words[x] == told.fill_words[y]
        and told.fill_trips[x] == told.fill_trips[y] and told.fill_behind[x] == told.fill_behind[y]
    )  # fmt: skip


def warps_alike(walk, told, a, b, one, other):
    """Do warps of two SMs, whose TOLD_SMs are `a` and `b`, do the same?"""
    if walk.paths[one] != walk.paths[other]:
        return False
    n, shift = told.late_starts[one], told.late_starts[other] - told.late_starts[one]
    while told.late_begins[n] == told.late_begins[n + shift] and told.late_begins[n] != rec.NEVER_LATE:
        if not fills_alike(told, a.first_line, b.first_line, told.late_fills[n], told.late_fills[n + shift]):
            return False
        n += 1
    if told.late_begins[n] != told.late_begins[n + shift]:
        return False
    shift = walk.access_offsets[other] - walk.access_offsets[one]
    for k in range(walk.access_offsets[one], walk.access_offsets[one + 1]):
        if told.accesses[k] != told.accesses[k + shift]:
            return False
        if not fills_alike(told, a.first_fill, b.first_fill, told.fills[k], told.fills[k + shift]):
            return False
    return True


def sms_alike(walk, told, a, b):
    """Do two SMs do the same?"""
    warps = walk.machine[0].warps_per_block
    if a.stop - a.first != b.stop - b.first or a.sectors != b.sectors or a.held != b.held:
        return False
    x, y = told.turn_starts[a.first], told.turn_starts[b.first]
    for n in range(told.turn_starts[a.stop - 1] - x):
        if told.turns[x + n] != told.turns[y + n]:
            return False
    for n in range(a.stop - a.first):
        one, other = walk.dealt[a.first + n] * warps, walk.dealt[b.first + n] * warps
        for w in range(warps):
            if not warps_alike(walk, told, a, b, one + w, other + w):
                return False
    return True


def tell(walk, told, sms, scratch):
    """Fill in a Told, and the TOLD_SMs of its SMs, which say where the thread blocks of each begin and end in `dealt`.
    Returns how many fills there are, and late lines."""
    count, fills, turns = walk.access_offsets[len(walk.paths)], 1, 0
    scratch.numbers[0 : count + 1] = 0
    scratch.lines[0 : walk.fetch_offsets[len(walk.paths)]] = 0
    told.fill_words[0] = told.fill_behind[0] = told.fill_trips[0] = 0  # no fill
    lates = tell_late(walk, told)
    for sm in range(len(sms)):
        fills, turns = tell_accesses(walk, told, sms[sm], scratch.numbers, fills, turns)
    for sm in range(len(sms)):
        fills = tell_lines(walk, told, sms[sm], scratch.lines, fills)
    for sm in range(len(sms)):
        sms[sm].like = 0
        while not sms_alike(walk, told, sms[sm], sms[sms[sm].like]):
            sms[sm].like += 1
    return fills, lates
