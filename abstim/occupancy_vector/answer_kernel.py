"""What the cache walk found, as the words that lanes read; compiled.

Accesses that wait for the same data are numbered as fills, from 1 on in the order in which their SMs come to them;
those of late instruction lines follow.
"""

from __future__ import annotations

import numpy as np

from abstim.engine.accesses import mixed
from abstim.occupancy_vector import records as rec
from functional.jit.marked import jit

OCCUPIES_BITS, LEVEL_BITS, SECTORS_BITS, DRAM_BITS, _ = (bits for _, bits in rec.ACCESS_WORD)
SECTORS_SHIFT = OCCUPIES_BITS + LEVEL_BITS
DRAM_SHIFT = SECTORS_SHIFT + SECTORS_BITS
PART_SHIFT = DRAM_SHIFT + DRAM_BITS
LATE_PART_SHIFT = rec.LATE_WORD[0][1]
OTHER_SEED = np.uint64(0xC2B2AE3D27D4EB4F)  # a prime of xxHash64 (Collet)


@jit
def level_of(nominal, wait):
    """(the slowest level that an answer comes from, how much of the way there from the level before it takes: 0 ..
    PARTS - 1 for 1 / PARTS .. 1), by its nominal wait."""
    if wait <= nominal[rec.FIRST]:
        return rec.FIRST, 0
    level = rec.L2 if wait <= nominal[rec.L2] else rec.DRAM
    before, own = nominal[level - 1], nominal[level]
    part = (rec.PARTS * (wait - before) + own - before - 1) // (own - before) - 1
    return level, max(0, min(rec.MOST_PARTS - 1, part))


@jit
def tell_late(walk, told):
    """Where the late instruction lines of every warp are, and an end mark behind them."""
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


@jit
def asked_by(answer):
    """The access that asked for what one waits for that is no part of a fill of its own, -1: none."""
    if answer.sectors > 0:
        return -1
    return answer.waits_for - 1 if answer.waits_for > 0 else answer.behind - 1


@jit
def tell_followed(walk, followed):
    """`followed`: 1 for accesses that others wait for, or that wait for more than their own data."""
    for k in range(walk.access_offsets[len(walk.paths)]):
        answer = walk.answers[k]
        asker = asked_by(answer)
        if answer.sectors > 0 and (answer.behind > 0 or answer.trips > 0):
            followed[k] = 1
        if asker >= 0:
            followed[asker] = 1


@jit
def word_of(walk, k):
    """ACCESS_WORD of an access."""
    answer = walk.answers[k]
    level, part = level_of(walk.nominal, answer.way)
    word = walk.accesses[k].cycles | level << OCCUPIES_BITS | part << PART_SHIFT
    return word | answer.sectors << SECTORS_SHIFT | answer.dram_sectors << DRAM_SHIFT


@jit
def number_access(walk, told, numbers, followed, k, fills):
    """Access `k` as a word and a member of its fill; returns how many fills there are then, fill 0 included."""
    answer = walk.answers[k]
    behind = answer.behind - 1
    asker = k if followed[k] else asked_by(answer)
    told.accesses[k], number = word_of(walk, k), 0
    if asker >= 0:
        if numbers[asker] == 0:
            numbers[asker] = fills
            told.fill_words[fills], told.fill_behind[fills] = word_of(walk, asker), walk.answers[asker].back
            told.fill_trips[fills] = walk.answers[asker].trips
            fills += 1
        number = numbers[asker]
    told.fills[k] = -number if behind >= 0 and not followed[k] else number
    return fills


@jit
def number_line(walk, told, numbers, n, fills):
    """Late line `n` as a member of its fill; returns how many fills there are then."""
    asker = told.late_fills[n]
    if numbers[asker] == 0:
        level, part = level_of(walk.nominal, walk.fetch_waits[asker])
        numbers[asker], told.fill_words[fills] = fills, level | part << LATE_PART_SHIFT
        told.fill_behind[fills] = told.fill_trips[fills] = 0
        fills += 1
    told.late_fills[n] = numbers[asker]
    return fills


@jit
def tell_accesses(walk, told, own, numbers, followed, fills):
    """The accesses of an SM's thread blocks; returns how many fills there are then."""
    warps = walk.machine[0].warps_per_block
    own.first_fill = fills
    for position in range(own.first, own.stop):
        block = walk.dealt[position]
        for k in range(walk.access_offsets[block * warps], walk.access_offsets[(block + 1) * warps]):
            fills = number_access(walk, told, numbers, followed, k, fills)
            own.sectors += walk.answers[k].sectors
            own.dram_sectors += walk.answers[k].dram_sectors
            own.held += walk.accesses[k].cycles
            own.longest = max(own.longest, walk.accesses[k].cycles)
    return fills


@jit
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


@jit
def sign(own, value):
    """A value becomes part of both hashes of an SM."""
    own.hash, own.other_hash = mixed(own.hash, value), mixed(own.other_hash ^ OTHER_SEED, value + 1)


@jit
def sign_fill(told, own, number, first):
    """The same of a fill, by how many of its SM's came before it."""
    place = abs(number)
    sign(own, place - first + ((number < 0) << 32))
    sign(own, told.fill_words[place] + (told.fill_trips[place] << 32) + (told.fill_behind[place] << 40))


@jit
def sign_warp(walk, told, own, warp):
    """What a warp does is part of its SM's hashes."""
    sign(own, walk.paths[warp])
    for k in range(walk.access_offsets[warp], walk.access_offsets[warp + 1]):
        sign(own, told.accesses[k] + ((told.fills[k] != 0) << 32))
        if told.fills[k]:
            sign_fill(told, own, told.fills[k], own.first_fill)
    n = told.late_starts[warp]
    while told.late_begins[n] != rec.NEVER_LATE:
        sign(own, told.late_begins[n])
        sign_fill(told, own, told.late_fills[n], own.first_line)
        n += 1
    sign(own, rec.NEVER_LATE)


@jit
def tell(walk, told, sms, scratch):
    """Fill in Streams, and the TOLD_SMs of the SMs, which say where the thread blocks of each begin and end in `dealt`.
    Returns how many fills there are."""
    warps, count = walk.machine[0].warps_per_block, walk.access_offsets[len(walk.paths)]
    scratch.numbers[0 : count + 1] = 0
    scratch.followed[0 : count + 1] = 0
    scratch.lines[0 : walk.fetch_offsets[len(walk.paths)]] = 0
    told.fill_words[0] = told.fill_behind[0] = told.fill_trips[0] = 0  # no fill
    fills = 1
    tell_late(walk, told)
    tell_followed(walk, scratch.followed)
    for sm in range(len(sms)):
        fills = tell_accesses(walk, told, sms[sm], scratch.numbers, scratch.followed, fills)
    for sm in range(len(sms)):
        fills = tell_lines(walk, told, sms[sm], scratch.lines, fills)
    for sm in range(len(sms)):
        own = sms[sm]
        for position in range(own.first, own.stop):
            for warp in range(walk.dealt[position] * warps, (walk.dealt[position] + 1) * warps):
                sign_warp(walk, told, own, warp)
    return fills
