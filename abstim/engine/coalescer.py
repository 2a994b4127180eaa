"""Reads of one sector that come to a slice of L2 at about the same time are one (`l2_coalesces`; docs/timing-rules.md,
rule 11)."""

from abstim.engine.accesses import number_of
from abstim.engine.rules import SECTORS, UNITS_A_CYCLE
from abstim.engine.state import NEVER, NOBODY, READ, SOUGHT
from abstim.engine.switch import append, insert, take


def sector_of(request):
    """Number of a request's sector, from 1."""
    return SECTORS * request.line + number_of(request.sectors) + 1


def pass_link_by(shared, n, place, from_dram, time):
    """An answer goes into the queue of its SM; the link of slice `n` carries it for another one already."""
    rows, m, switch = shared.requests.rows, shared.machine, shared.back
    packet, free = rows[place - 1], switch.output_free
    packet.from_dram, packet.flits = from_dram, 1
    free[packet.sm] = max(time * UNITS_A_CYCLE, free[packet.sm]) + UNITS_A_CYCLE // m.l2_reply_sectors
    packet.due = (free[packet.sm] + UNITS_A_CYCLE - 1) // UNITS_A_CYCLE
    switch.flits[n] += 1
    append(rows, switch.outputs[packet.sm], place)
    insert(switch.filled, packet.sm)


def coalesce(shared, n, time):
    """The first request that comes to slice `n` gets the answer to an earlier read of its sector, if that one waits, or
    was answered less than the way to the slice ago. False: it is to be served itself."""
    slices, rows, followers = shared.slices, shared.requests.rows, shared.requests.followers
    place = slices.delayed[n].first
    request = rows[place - 1]
    if request.kind != READ or request.who == NOBODY:
        return False
    sector = sector_of(request)
    sought = slices.sought[n, sector & (SOUGHT - 1)]
    waits = sought.answered == NEVER
    if sought.sector == sector and waits and sought.reader == place:
        return False  # it found no room in the queue before
    if sought.sector != sector or sought.answered + shared.machine.slice_delay <= time:
        sought.sector, sought.answered, sought.reader = sector, NEVER, place
        followers[place - 1] = 0
        return False
    take(rows, slices.delayed[n])
    if waits:
        request.next = followers[sought.reader - 1]
        followers[sought.reader - 1] = place
    else:
        pass_link_by(shared, n, place, 0, time)
    return True


def answer_followers(shared, n, place, time):
    """A request is answered, and with it those who wait for the same answer, the last first."""
    rows, followers = shared.requests.rows, shared.requests.followers
    request = rows[place - 1]
    sector = sector_of(request)
    sought = shared.slices.sought[n, sector & (SOUGHT - 1)]
    if sought.sector == sector and sought.reader == place:
        sought.answered = time
    following, followers[place - 1] = followers[place - 1], 0
    while following:
        after = rows[following - 1].next
        pass_link_by(shared, n, following, request.from_dram, time)
        following = after
