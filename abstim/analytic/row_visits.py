"""How often DRAM opens rows: what of a row waits together opens it once.

Of the lines that stand for all it is seen with how many others of a stretch of memory each is read for the first time.
A stretch has rows of many banks and channels, so that few lines tell: of a GPU a part of them is in the same row."""

from abstim.analytic.lone_warp import ACTION, WRITE
from abstim.analytic.reuse_distance import NEVER, spread_of
from abstim.engine.accesses import sectors_in
from functional.jit.marked import zero

STRETCH_LOG2 = 9  # lines, 64 KiB
TOGETHER = 1 << 10  # sectors that wait for DRAM at once: a window
VISIT_BINS = 12  # of 0, 1, 3, 7, ... other lines
PLACE_BITS = 12  # of a stretch


def see_visits(keys, uses, order, level, found, visits):
    """Of sectors that DRAM reads, the part that is the first of its line among those that wait, by how many others of
    its stretch wait then."""
    zero(visits)
    zero(level.waiting)
    scale, reads = uses.sizes[0].scale, list_reads(uses, order, found)
    total, sectors, lines, window = 0, 0, 0, NEVER  # windows are numbered beyond all turns, which `met` had before
    for k in range(reads):
        n = order.by_sm[k]
        lines += visit(keys, uses, n, window, level, order.in_turn, lines)
        sectors += sectors_in(uses.sectors[n])
        if sectors * scale >= TOGETHER or k == reads - 1:
            end_window(level, order.in_turn, lines, visits)
            total, sectors, lines, window = total + sectors, 0, 0, window + 1
    for k in range(VISIT_BINS):
        visits[k] /= max(1, total)


def list_reads(uses, order, found):
    """List those who read a counted line from DRAM first in `order.by_sm`: in a turn SMs ask side by side, each in its
    own order. Returns how many they are."""
    count = first = 0
    while first < uses.sizes[0].uses:
        sms, k, left = find_sms(order, first), 0, 1
        while left:
            left = 0
            for sm in range(sms):
                if order.sm_ends[sm] + k < order.sm_ends[sm + 1]:
                    n, left = order.in_turn[order.sm_ends[sm] + k], 1
                    if found.l2[n] >= NEVER and uses.counted[uses.lines[n]] and uses.acts[n] & ACTION != WRITE:
                        order.by_sm[count] = n
                        count += 1
            k += 1
        first = order.sm_ends[sms]
    return count


def find_sms(order, first):
    """Where each SM's uses of a turn begin, and the last one's end; returns how many SMs there are."""
    stop, sms = order.turn_ends[order.at[order.in_turn[first]]], 0
    for place in range(first, stop):
        if place == first or order.sms[order.in_turn[place]] != order.sms[order.in_turn[place - 1]]:
            order.sm_ends[sms] = place
            sms += 1
    order.sm_ends[sms] = stop
    return sms


def visit(keys, uses, n, window, level, places, lines):
    """Note the place of a line's stretch, if the line is new in a window: is it?"""
    k = uses.lines[n]
    row = level.lines[uses.beside[k]]
    if row.met == window:
        return 0
    row.met, places[lines] = window, spread_of(keys[k] >> STRETCH_LOG2) >> (32 - PLACE_BITS)
    level.waiting[places[lines]] += 1
    return 1


def end_window(level, places, lines, visits):
    """Count the lines of a window, each by how many others it had near, between two bins; empty the window."""
    for k in range(lines):
        near, bin = level.waiting[places[k]], 0
        while near >> (bin + 1):
            bin += 1
        part = near / (1 << bin) - 1
        visits[bin] += 1 - part
        visits[bin + 1] += part
    for k in range(lines):
        level.waiting[places[k]] = 0
