"""What the cache walk found, as the words that lanes read; compiled.

Accesses that wait for the same data are numbered as fills, from 1 on in the order in which their SMs come to them;
those of late instruction lines follow."""

import numpy as np

from abstim.engine.accesses import HASH_FACTOR, mixed
from abstim.engine.rules import SECTORS
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.cache_walk import DRAM_CYCLES, FIRST_CYCLES, L2_CYCLES

OCCUPIES_BITS, LEVEL_BITS, SECTORS_BITS, DRAM_BITS, _ = (bits for _, bits in rec.ACCESS_WORD)
SECTORS_SHIFT = OCCUPIES_BITS + LEVEL_BITS
DRAM_SHIFT = SECTORS_SHIFT + SECTORS_BITS
PART_SHIFT = DRAM_SHIFT + DRAM_BITS
FEW_SMS, SHARE = 4, 1 << 16  # SMs of a launch that are run in any case; the most that one has of something


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


def tell_late(walk, told, warp, count):
    """Where the late instruction lines of a warp are, from number `count` on, and an end mark behind them; returns how
    many there are then."""
    told.late_starts[warp] = count
    first, item = walk.fetch_offsets[warp], walk.offsets[walk.paths[warp]]
    for fetch in range(first, walk.fetch_offsets[warp + 1]):
        if walk.fetch_waits[fetch]:
            told.late_begins[count] = walk.items[item + fetch - first].begins
            told.late_fills[count] = walk.fetch_askers[fetch] - 1  # until it is numbered
            count += 1
    told.late_begins[count], told.late_fills[count] = rec.NEVER_LATE, 0
    return count + 1


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
    return fills, turns


def tell_lines(walk, told, own, numbers, fills, lates):
    """The late lines of an SM's thread blocks, from number `lates` on; returns how many fills, and late lines, there
    are then."""
    warps = walk.machine[0].warps_per_block
    for position in range(own.first, own.stop):
        first = walk.dealt[position] * warps
        for warp in range(first, first + warps):
            n, lates = lates, tell_late(walk, told, warp, lates)
            while told.late_begins[n] != rec.NEVER_LATE:
                fills = number_line(walk, told, numbers, n, fills)
                n += 1
    return fills, lates


def add_up(walk, lengths, own):
    """What an SM's thread blocks execute, and if nothing was walked, how long they hold the load/store unit."""
    warps, walks_not = walk.machine[0].warps_per_block, walk.machine[0].perfect_memory
    for position in range(own.first, own.stop):
        first = walk.dealt[position] * warps
        for warp in range(first, first + warps):
            own.instructions += lengths[warp]
        for k in range(walk.access_offsets[first], walk.access_offsets[first + warps] if walks_not else 0):
            own.held += walk.accesses[k].cycles
            own.longest = max(own.longest, walk.accesses[k].cycles)
    if own.ended == 0:
        own.ended = own.instructions


def weigh(walk, lengths, sms):
    """What each SM has to do: its instructions, sectors and cycles of the load/store unit, each as a share of the most
    that one has."""
    instructions = sectors = held = 1
    for sm in range(len(sms)):
        add_up(walk, lengths, sms[sm])
        instructions, sectors = max(instructions, sms[sm].instructions), max(sectors, sms[sm].sectors)
        held = max(held, sms[sm].held)
    for sm in range(len(sms)):
        own = sms[sm]
        own.load = own.instructions * SHARE // instructions + own.sectors * SHARE // sectors + own.held * SHARE // held


def choose(sms):
    """The SMs that may be the last to end: in turn the one that was last in the walk, and the one with most to do; a
    few, and more of many."""
    count = FEW_SMS
    while count * count <= len(sms):
        count += 1
    for n in range(min(count, len(sms))):
        best = -1
        for sm in range(len(sms)):
            own, before = sms[sm], sms[max(0, best)]
            later = own.load > before.load if n % 2 else own.ended > before.ended
            best = sm if not own.is_run and (best < 0 or later) else best
        sms[best].is_run = 1


def tell(walk, told, lengths, scratch):
    """Fill in a Told, whose TOLD_SMs say where the thread blocks of each SM begin and end in `dealt`, for those that
    are to be run. Returns how many fills there are, and late lines."""
    sms, count, fills, lates, turns = told.sms, walk.access_offsets[len(walk.paths)], 1, 0, 0
    scratch.numbers[0 : count + 1] = 0
    scratch.lines[0 : walk.fetch_offsets[len(walk.paths)]] = 0
    told.fill_words[0] = told.fill_behind[0] = told.fill_trips[0] = 0  # no fill
    weigh(walk, lengths, sms)
    choose(sms)
    for sm in range(len(sms)):
        if sms[sm].is_run:
            fills, turns = tell_accesses(walk, told, sms[sm], scratch.numbers, fills, turns)
    for sm in range(len(sms)):
        if sms[sm].is_run:
            fills, lates = tell_lines(walk, told, sms[sm], scratch.lines, fills, lates)
    return fills, lates


def mixed_twice(one, other, value):
    """Two digests with one more value in them."""
    other = (other + np.uint64(value)) * HASH_FACTOR
    return mixed(one, value), other ^ (other >> np.uint64(32))


def digest_sm(told, own, offsets, warps, one, other):
    """Two digests with what is told of an SM that is run in them."""
    for position in range(own.first, own.stop):
        first, turn = told.dealt[position] * warps, told.turn_starts[position]
        one, other = mixed_twice(one, other, first << 32 | turn)
        for warp in range(first, first + warps):
            one, other = mixed_twice(one, other, told.late_starts[warp])
        for k in range(offsets[first], offsets[first + warps]):
            one, other = mixed_twice(one, other, told.accesses[k] << 32 ^ told.fills[k])
            one, other = mixed_twice(one, other, told.turns[turn + k - offsets[first]])
    return one, other


def digest(told, offsets, warps_per_block, fills, lates, found):
    """Two digests of what lanes read of a Told, and what is added up of it; `offsets`: of warps, into accesses."""
    one, other = np.uint64(1), np.uint64(2)
    for sm in range(len(told.sms)):
        own = told.sms[sm]
        for value in (own.is_run, own.first, own.stop, own.sectors, own.dram_sectors, own.held, own.longest):
            one, other = mixed_twice(one, other, value)
        if own.is_run:
            one, other = digest_sm(told, own, offsets, warps_per_block, one, other)
    for k in range(lates):
        one, other = mixed_twice(one, other, told.late_begins[k] << 32 | told.late_fills[k])
    for k in range(fills):
        one, other = mixed_twice(one, other, told.fill_words[k])
        one, other = mixed_twice(one, other, told.fill_behind[k] << 32 | told.fill_trips[k])
    found[0], found[1] = one, other
