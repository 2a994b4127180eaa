"""Groups of asynchronous copies, phases of `mbarrier`s, and who waits for them (docs/timing-rules.md, rules 7, 8)."""

import numpy as np

from abstim.engine.scoreboard import make_ready
from abstim.engine.state import LATER, MEM, NEVER, PHASE_RING
from abstim.engine.warp_slots import bit
from functional.jit.marked import members
from functional.traces import line_record
from functional.traces.line_record import PHASES
from precharacterize import synchronisation as sync

AT_ONCE = -1  # number of an arrival that finds no room to wait for copies


def copy_ends(c, w, family, group, result):
    """The result of such a copy is known."""
    sm = c.sm
    c.copies[w, family, group].coming -= 1
    work_ends(c, w, family, group, result)
    if sm.copying & bit(w):
        there = all_there(c, w, sm.awaited[w])
        if there < NEVER:
            sm.copying &= ~bit(w)
            sm.warps.not_before[w] = there


def work_ends(c, w, family, group, result):
    """Something of a group is complete at `result`."""
    row = c.copies[w, family, group]
    row.there = max(row.there, result)


def all_there(c, w, awaited):
    """Cycle in which the work is complete that a wait, as the latency table has it, is for; NEVER: not known yet."""
    there, family = 0, awaited // sync.WAITS
    for age in range(awaited % sync.WAITS, sync.GROUPS):
        row = c.copies[w, family, (c.sm.group[w, family] - age) & (sync.GROUPS - 1)]
        if row.coming:
            return NEVER
        there = max(there, row.there)
    return there


def follow_groups(c, w, row, result):
    """Warp `w` has issued an instruction that does something with groups."""
    sm, copies = c.sm, row.copies
    if sync.starts_work(copies):
        family = sync.family_of(copies)
        if c.machine.perfect_memory or row.unit != MEM:
            work_ends(c, w, family, sm.group[w, family], result)
    if sync.closes_group(copies) or copies == sync.LAST_PRODUCT:
        family = sync.family_of(copies)
        sm.group[w, family] = (sm.group[w, family] + 1) & (sync.GROUPS - 1)
    elif copies >= 0:
        there = all_there(c, w, copies)
        if there == NEVER:
            sm.copying |= bit(w)
            sm.awaited[w] = copies
        sm.warps.not_before[w] = max(sm.warps.not_before[w], there)


def wake(c, w, time):
    """Something that warp `w` may have waited for has come."""
    sm = c.sm
    if sm.warps.ready[w] >= NEVER and sm.running & bit(w) and sm.warps.buffered[w] > 0 and not sm.flush & bit(w):
        make_ready(c, w, sm.warps.front_end[w], time)


def is_older(phase, tag):
    """Is a phase before the one of a tag? Both are counted modulo PHASES."""
    ahead = (tag - 1 - phase) & (PHASES - 1)
    return 0 < ahead < PHASES // 2


def place_of(c, block, line):
    """The place of a phase; another one may be there."""
    return c.phases[block, line_record.barrier_of(line) * PHASE_RING + (line_record.phase_of(line) & (PHASE_RING - 1))]


def arrive_in_phase(c, block, line, time):
    """One more arrival in a phase, at `time`; one in a phase that is long over changes nothing."""
    row, phase = place_of(c, block, line), line_record.phase_of(line)
    if row.tag != phase + 1:
        if row.tag and is_older(phase, row.tag):
            return
        row.tag, row.arrived, row.there = phase + 1, 0, 0
    row.arrived += 1
    row.there = max(row.there, time)


def cross(c, block, away, line, there):
    """An arrival in the thread block so many ranks `away`, which knows of it after the window (clusters.py)."""
    sm = c.sm
    if sm.crossings == len(c.crossings):
        c.record.launch.crowded = 1
        return
    row, kernel, place = c.crossings[sm.crossings], c.record.kernels[sm.block_kernel[block]], sm.block_place[block]
    rank = (place - kernel.first_block) % kernel.cluster_blocks
    row.block, row.line, row.there = c.order[place - rank + (rank + away) % kernel.cluster_blocks], line, there
    sm.crossings += 1


def phase_over(c, block, line):
    """When a phase is over that is waited for; NEVER: not known yet."""
    row, phase = place_of(c, block, line), line_record.phase_of(line)
    if row.tag == phase + 1:
        return row.there if row.arrived >= line_record.count_of(line) else NEVER
    return 0 if row.tag and is_older(phase, row.tag) else NEVER


def phases_over(c, w, record):
    """When all phases are over that the access of warp `w` with this first record waits for; 0: it waits for none."""
    over, k, more = 0, record, 1
    while more:
        one = c.streams.records[k]
        line, more = line_record.line_of(one), line_record.more_follow(one)
        if line_record.is_phase(line) and line_record.count_of(line):
            over = max(over, phase_over(c, c.sm.warps.block_of[w], line))
        k += 1
    return over


def arrive_in_phases(c, w, copies, record, result, time):
    """The arrivals of an access are made at `result`, which is known at `time`; who waited for them goes on. In other
    thread blocks of the cluster they are made later, unless it is a copy, whose data come to all."""
    k, more, some, way = record, 1, False, 0 if copies == sync.FILLS else c.machine.cluster_cycles
    while more:
        one = np.int64(c.streams.records[k])
        line, more = line_record.line_of(one), line_record.more_follow(one)
        if line_record.is_phase(line) and line_record.count_of(line) == 0:
            if c.machine.side_by_side and line_record.away_of(one):
                cross(c, c.sm.warps.block_of[w], line_record.away_of(one), line, result + way)
            else:
                arrive_in_phase(c, c.sm.warps.block_of[w], line, result)
                some = True
        k += 1
    if some:
        release_phases(c, c.sm.warps.block_of[w], time)


def release_phases(c, block, time):
    """Warps of a thread block whose phases are now known to be over go on."""
    sm = c.sm
    for w in members(sm.at_phase & sm.block_slots[block]):
        over = phases_over(c, w, sm.phase_record[w])
        if over < NEVER:
            sm.at_phase &= ~bit(w)
            sm.phase_there[w] = max(sm.phase_there[w], over)
            sm.warps.not_before[w] = sm.phase_there[w]
            wake(c, w, time)


def meet(c, w, record, result, time):
    """An access at `mbarrier`s is complete at `result`: its arrivals count, and its warp waits from then on."""
    sm = c.sm
    arrive_in_phases(c, w, sync.MEETS, record, result, time)
    over = phases_over(c, w, record)
    sm.phase_there[w] = max(result - 1, over)
    if over == NEVER:
        sm.at_phase |= bit(w)
        sm.phase_record[w], sm.phase_there[w] = record, result - 1
        sm.warps.not_before[w] = NEVER
    else:
        sm.warps.not_before[w] = max(sm.warps.not_before[w], over)


def copies_before(c, w):
    """`cp.async` of a warp whose result is not known."""
    count = 0
    for group in range(sync.GROUPS):
        count += c.copies[w, sync.COPIES, group].coming
    return count


def work_done(c, w, family):
    """When those of a family are complete whose result is known."""
    there = 0
    for group in range(sync.GROUPS):
        there = max(there, c.copies[w, family, group].there)
    return there


def number_copy(c, w, copies, record):
    """Real memory: the number of a `cp.async`, or of an arrival that is to wait for all before it, which begins to."""
    sm = c.sm
    number = sm.copies_issued[w]
    if copies == sync.MEETS_LATER:
        if sm.later == LATER:
            return AT_ONCE
        row = c.later[sm.later]
        row.warp, row.limit, row.record = w, number + 1, record
        row.left, row.there = copies_before(c, w) + 1, work_done(c, w, sync.COPIES)
        sm.later += 1
    sm.copies_issued[w] += 1
    return number


def count_copy(c, w, number, result, time):
    """Real memory: one of them is complete; arrivals that waited for nothing else are made."""
    sm, kept, count = c.sm, 0, c.sm.later
    for k in range(count):
        row = c.later[k]
        if row.warp == w and number < row.limit:
            row.left -= 1
            row.there = max(row.there, result)
        if row.left:
            into = c.later[kept]
            into.warp, into.limit, into.left, into.there, into.record = (
                row.warp, row.limit, row.left, row.there, row.record,
            )  # fmt: skip
            kept += 1
        else:
            arrive_in_phases(c, row.warp, sync.MEETS_LATER, row.record, row.there, time)
    sm.later = kept


def meet_when_complete(c, w, copies, number, record, result, time):
    """Real memory: an access is complete at `result` that others may wait for at an `mbarrier`."""
    if copies == sync.MEETS:
        meet(c, w, record, result, time)
    elif copies == sync.FILLS or (copies == sync.MEETS_LATER and number == AT_ONCE):
        arrive_in_phases(c, w, copies, record, result, time)
    elif copies == sync.COMMITS:
        arrive_in_phases(c, w, copies, record, max(result, number), time)
    elif copies in (sync.COPY, sync.MEETS_LATER) and c.sm.later:
        count_copy(c, w, number, result, time)


def follow_phases(c, w, copies, record, result, time):
    """Warp `w` has issued, at `time`, such an access; `record` is its first."""
    sm = c.sm
    if not c.machine.perfect_memory:  # what is not known comes when it is
        if copies == sync.MEETS and result < NEVER:
            sm.warps.not_before[w] = NEVER if sm.at_phase & bit(w) else max(sm.warps.not_before[w], sm.phase_there[w])
    elif copies == sync.MEETS:
        meet(c, w, record, result, time)
    elif copies == sync.MEETS_LATER:
        arrive_in_phases(c, w, copies, record, max(result, work_done(c, w, sync.COPIES)), time)
    elif copies == sync.COMMITS:
        arrive_in_phases(c, w, copies, record, max(result, work_done(c, w, sync.PRODUCTS)), time)
    elif copies == sync.FILLS:
        arrive_in_phases(c, w, copies, record, result, time)
