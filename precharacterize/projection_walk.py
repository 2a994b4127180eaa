"""The walk of `precharacterize.projection` over the warps of a trace, compiled."""

import numpy as np

from functional.jit.marked import ones
from functional.traces.line_record import MORE, line_of, more_follow
from precharacterize.timed_code import Mode

LOOK_AHEAD = 256  # events in which what a timed block covers is looked for
PASSES, ONCE_A_LINE, ONE_PASS = int(Mode.PASSES), int(Mode.ONCE_A_LINE), int(Mode.ONE_PASS)
ROUNDS, CONSTANTS = int(Mode.ROUNDS), int(Mode.CONSTANTS)
LEADER, TIMES, MACHINE, ROWS = 0, 1, 2, 3  # columns of TimedCode.numbers
# Of the counts: of accesses two, those with records and those with bank passes, of operations four kinds
INSTRUCTIONS, MACHINE_INSTRUCTIONS, ACCESSES, MATCHED, OPERATIONS = 0, 1, 2, 4, 6
NOWHERE = -1


def begin_warp(given, rules, scratch, w):
    """Where the accesses of each event of warp `w` are."""
    first, end = given.block_offsets[w], given.block_offsets[w + 1]
    scratch.span[0], scratch.span[1] = first, end
    passes, records = given.conflict_offsets[w], 0
    for e in range(first, end):
        block = given.blocks[e]
        scratch.emitted[e - first] = np.uint64(0)
        scratch.first_access[e - first, 0], scratch.first_access[e - first, 1] = records, passes
        records += rules.streams[block, 0]
        passes += rules.streams[block, 1]
    scratch.matched[0][: records + 1] = 0
    scratch.matched[1][: passes - given.conflict_offsets[w] + 1] = 0
    k, stop, n = given.record_offsets[w], given.record_offsets[w + 1], 0
    while k < stop:
        scratch.record_start[n] = k
        n += 1
        while more_follow(given.records[k]):
            k += 1
        k += 1
    scratch.record_start[n] = stop
    scratch.span[2], scratch.span[3] = given.conflict_offsets[w + 1], n


def leader_round(given, scratch, e, leader, instance):
    """The event of the `instance`-th round of a loop whose leader is at event `e`, or NOWHERE."""
    end = min(scratch.span[1], e + LOOK_AHEAD)
    k = e
    while instance > 0:
        k += 1
        while k < end and given.blocks[k] != leader:
            k += 1
        if k >= end:
            return NOWHERE
        instance -= 1
    return k


def event_before(given, scratch, e, leader, block, bit):
    """The last event of a PTX block before `e`, behind the leader's before it, or NOWHERE; also if it was covered."""
    k = e - 1
    least = max(scratch.span[0], e - LOOK_AHEAD)
    while k >= least and given.blocks[k] != block and given.blocks[k] != leader:
        k -= 1
    if k < least or given.blocks[k] != block or scratch.emitted[k - scratch.span[0]] & bit:
        return NOWHERE
    return k


def covered_event(given, rules, scratch, n, e, cover):
    """The event that timed block `n`, chosen at event `e`, means by one of its covers, or NOWHERE."""
    leader, times = rules.numbers[n, LEADER], rules.numbers[n, TIMES]
    block, instance = rules.covers[cover, 0], rules.covers[cover, 1]
    if block < leader:
        event = event_before(given, scratch, e, leader, block, rules.bits[cover])
        if event != NOWHERE:
            return event
    start, skip = e, instance
    if times > 1 or block == leader:
        start, skip = leader_round(given, scratch, e, leader, min(instance, times - 1)), max(0, instance - times + 1)
        if start == NOWHERE or (block == leader and skip == 0):
            return start
    end = min(scratch.span[1], e + LOOK_AHEAD)
    for k in range(start + 1, end):
        if given.blocks[k] == leader:
            return NOWHERE
        if given.blocks[k] == block:
            if skip == 0:
                return k
            skip -= 1
    return NOWHERE


def covers_block(rules, n, block):
    """Does timed block `n` hold code of a PTX block, or is that one a slow path, which lies between any others?"""
    found = rules.numbers[block, ROWS] == 0
    for cover in range(rules.covers_at[n], rules.covers_at[n + 1]):
        found |= rules.covers[cover, 0] == block
    return found


def has_rounds(given, rules, scratch, n, e):
    """Do all rounds of an unrolled loop follow event `e`, with nothing between them that is not in it?"""
    last = leader_round(given, scratch, e, rules.numbers[n, LEADER], rules.numbers[n, TIMES] - 1)
    if last == NOWHERE:
        return False
    k = e
    while k < last and covers_block(rules, n, given.blocks[k + 1]):
        k += 1
    return k == last


def match(scratch, made, number, stream):
    """An access of the warp, by its number in a stream, is made; once, however many instructions make it."""
    made.counts[MATCHED + stream] += not scratch.matched[stream, number]
    scratch.matched[stream, number] = True


def write_passes(given, rules, scratch, made, access, fill):
    """Bank passes of a shared access: the most of those it is made of; of a loop of compare-and-swap its rounds."""
    first, end = rules.accesses[access, 1], rules.accesses[access, 2]
    most = 1 if first == end else 0
    for s in range(first, end):
        event = scratch.found[rules.sources[s, 0]]
        if event != NOWHERE:
            k = scratch.first_access[event - scratch.span[0], 1] + rules.sources[s, 1]
            if k < scratch.span[2]:
                match(scratch, made, k - scratch.first_access[0, 1], 1)
                rounds = ones(given.masks[event]) if rules.accesses[access, 0] == ROUNDS else 0
                most = max(most, given.conflicts[k], rounds)
    if rules.accesses[access, 0] == ONE_PASS:
        most = min(most, 1)
    if fill:
        made.conflicts[made.at[2]] = most
    made.at[2] += 1


def gather(given, rules, scratch, made, access):
    """Records of the accesses that one is made of, one behind the other; returns how many, and how many addresses of
    constants, of which each has a record, although it be an empty one."""
    count, addresses = 0, 0
    for s in range(rules.accesses[access, 1], rules.accesses[access, 2]):
        event = scratch.found[rules.sources[s, 0]]
        if event == NOWHERE:
            continue
        number = scratch.first_access[event - scratch.span[0], 0] + rules.sources[s, 1]
        if number >= scratch.span[3]:
            continue
        if rules.accesses[access, 0] != CONSTANTS:
            match(scratch, made, number, 0)
        first, end = scratch.record_start[number], scratch.record_start[number + 1]
        if rules.accesses[access, 0] == CONSTANTS:
            addresses = max(addresses, end - first)
        for k in range(first, end):
            if count < len(scratch.gathered) and (not addresses or given.records[k] > MORE):
                scratch.gathered[count] = given.records[k]
                count += 1
    return count, addresses


def merge(gathered, count):
    """Records of several accesses as those of one: sorted by line, one a line; returns how many."""
    for k in range(1, count):  # mostly in order already
        record, j = gathered[k] & ~1, k
        while j > 0 and line_of(gathered[j - 1]) > line_of(record):
            gathered[j] = gathered[j - 1]
            j -= 1
        gathered[j] = record
    last = 0
    for k in range(1, count):
        if line_of(gathered[k]) == line_of(gathered[last]):
            gathered[last] = gathered[last] | gathered[k]
        else:
            last += 1
            gathered[last] = gathered[k]
    for k in range(last + 1):
        gathered[k] = gathered[k] & ~1 if k == last else gathered[k] | 1
    return last + 1


def write_records(given, rules, scratch, made, access, fill):
    """Line records of an access; an empty one if no event of the trace made it."""
    count, addresses = gather(given, rules, scratch, made, access)
    several = rules.accesses[access, 2] - rules.accesses[access, 1] > 1
    if count > 1 and (several or rules.accesses[access, 0] == ONCE_A_LINE):
        count = merge(scratch.gathered, count)
    least = max(1, addresses)
    for k in range(max(count, least)):
        if fill:
            more = MORE if k + 1 < least else 0
            made.records[made.at[1]] = scratch.gathered[k] | more if k < count else more
        made.at[1] += 1


def count_operations(given, rules, scratch, made, n):
    """Operations of a timed block's threads, those of each cover by the mask of its event."""
    base = rules.covers_at[n]
    for cover in range(base, rules.covers_at[n + 1]):
        event = scratch.found[cover - base]
        threads = ones(given.masks[event]) if event != NOWHERE else 0
        for kind in range(4):
            made.counts[OPERATIONS + kind] += threads * rules.operations[cover, kind]


def emit(given, rules, scratch, made, n, e, fill):
    """Timed block `n` is executed at event `e`."""
    first = scratch.span[0]
    base = rules.covers_at[n]
    for cover in range(base, rules.covers_at[n + 1]):
        event = covered_event(given, rules, scratch, n, e, cover)
        scratch.found[cover - base] = event
        if event != NOWHERE:
            scratch.emitted[event - first] |= rules.bits[cover]
    count_operations(given, rules, scratch, made, n)
    for access in range(rules.accesses_at[n], rules.accesses_at[n + 1]):
        if rules.accesses[access, 0] in (PASSES, ONE_PASS, ROUNDS):
            write_passes(given, rules, scratch, made, access, fill)
        else:
            write_records(given, rules, scratch, made, access, fill)
    made.counts[INSTRUCTIONS] += rules.numbers[n, ROWS]
    if rules.numbers[n, MACHINE]:
        made.counts[MACHINE_INSTRUCTIONS] += rules.numbers[n, ROWS]
    if fill:
        made.blocks[made.at[0]] = n
        made.masks[made.at[0]] = given.masks[e]
    made.at[0] += 1


def visit(given, rules, scratch, made, e, fill):
    """What is executed at event `e`: those of its choices that earlier ones have not taken the place of."""
    block, own = given.blocks[e], e - scratch.span[0]
    for k in range(rules.choices_at[block], rules.choices_at[block + 1]):
        n = rules.choices[k]
        if scratch.emitted[own] & rules.rivals[n]:
            continue
        if rules.numbers[n, TIMES] > 1 and not has_rounds(given, rules, scratch, n, e):
            continue
        emit(given, rules, scratch, made, n, e, fill)
    if scratch.emitted[own] == np.uint64(0) and rules.streams[block, 3]:
        emit(given, rules, scratch, made, block, e, fill)


def walk(given, rules, scratch, made, offsets, fill):
    """`offsets[w + 1]` gets the length of each stream of warp `w`; with `fill` they say where streams are written."""
    for w in range(len(given.block_offsets) - 1):
        for stream in range(3):
            made.at[stream] = offsets[w, stream] if fill else 0
        begin_warp(given, rules, scratch, w)
        for e in range(scratch.span[0], scratch.span[1]):
            visit(given, rules, scratch, made, e, fill)
            block = given.blocks[e]
            made.counts[ACCESSES] += rules.streams[block, 2] - rules.streams[block, 1]
            made.counts[ACCESSES + 1] += rules.streams[block, 1]
        if made.at[0] == (offsets[w, 0] if fill else 0):  # a warp ends with something
            last = scratch.span[1] - 1
            emit(given, rules, scratch, made, given.blocks[last], last, fill)
        for stream in range(3):
            if not fill:
                offsets[w + 1, stream] = made.at[stream]
