"""Transactions of an access: which of its lines' sectors go together, how many cycles they take to enter a pipe, and
conflicts on shared memory's banks (docs/timing-rules.md, rule 5)."""

import numpy as np

from abstim.engine.rules import SECTORS
from functional.traces.line_record import EACH_SECTOR, is_phase, line_of, local_line, more_follow, sectors_of
from functional.traces.trace import LINE_BYTES, LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE
from precharacterize.classify import Kind
from precharacterize.synchronisation import ELSEWHERE, NONE
from precharacterize.table import WORDS

LOCAL_LINE, SHARED_LINE = LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE
LOWER_HALF, UPPER_HALF = 3, 12  # of a line: sets of sectors
WHOLE_LINE = np.int64((1 << SECTORS) - 1)  # the set of its sectors
WARP_LANES = 32
TOGETHER = 1 << 24 | 1 << 17 | 1 << 10 | 1 << 3  # moves bits 0, 8, 16, 24 to 24, 25, 26, 27


def line_and_sectors(records, k):
    """Line number and set of touched sectors of record `k` (functional.traces.line_record)."""
    record = np.int64(records[k])
    return line_of(record), sectors_of(record)


ALL_WORDS = np.int64(0xFFFFFFFF)  # of a line


def words_at(m, words, k):
    """The words that a store writes of the sectors of record `k`, of records of which such `words` are known."""
    if not m.partial_sectors or k >= len(words):
        return ALL_WORDS
    return np.int64(words[k])


def full_sectors(words):
    """The sectors of which a set holds all words."""
    full = words & (words >> 4)
    full &= full >> 2
    full = full & (full >> 1) & EACH_SECTOR
    return (full * TOGETHER >> 24) & WHOLE_LINE


def line_for(m, line, sm, w):
    """Where a line of a record lies for warp slot `w` of an SM: local memory belongs to slots, SMs side by side, those
    of a thread block together if all have as many."""
    if line < LOCAL_LINE:
        return line
    each = max(1, m.warps_per_block)
    return local_line(line, m.local_places, (w // each * m.sm_count + sm) * each + w % each)


def end_of_access(records, first):
    """The record after those of the access whose first one is `first`."""
    while more_follow(records[first]):
        first += 1
    return first + 1


HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: Knuth's multiplicative hashing


def mixed(digest, value):
    """A digest with one more value in it."""
    found = (digest ^ np.uint64(value)) * HASH_FACTOR
    return found ^ (found >> np.uint64(29))


def number_of(sectors):
    """The sector of a set that holds one."""
    return (sectors >> 1) - (sectors >> 3)


def sectors_in(sectors):
    """How many sectors a set holds."""
    return (sectors & 1) + ((sectors >> 1) & 1) + ((sectors >> 2) & 1) + (sectors >> 3)


def shared_passes(records, first, end):
    """Passes of shared memory among the records `first` .. `end` - 1, where they touch nothing else; else 0."""
    count = 0
    for k in range(first, end):
        line, _ = line_and_sectors(records, k)
        if line == SHARED_LINE:
            count += 1
        elif not is_phase(line):
            return 0
    return count


def shared_hold(m, passes):
    """Cycles that passes of shared memory hold the load/store unit: no fewer than a warp's lanes take."""
    return max(passes * m.shared_pass_cycles, m.lane_cycles) if passes else np.int64(0)


def shared_late(m, passes):
    """Cycles by which the last pass's data come behind those of an access without conflicts."""
    return max(0, shared_hold(m, passes) - m.lane_cycles)


def lanes_a_sector(c, w, first, end):
    """Of a warp's active lanes, how many access each of the sectors of the records `first` .. `end` - 1, rounded up."""
    sectors, event = 0, min(c.sm.warps.event[w], c.sm.warps.event_end[w] - 1)  # a walk over tags alone may be one ahead
    for k in range(first, end):
        sectors += sectors_in(line_and_sectors(c.streams.records, k)[1])
    lanes, left = 0, np.int64(c.streams.masks[event])
    while left:
        lanes, left = lanes + sectors_in(left & WHOLE_LINE), left >> SECTORS
    return (lanes + sectors - 1) // max(1, sectors)


def const_hold(m, lines, first, end):
    """Cycles that an access to so many lines of constants holds the load/store unit. Its records, `first` .. `end` - 1,
    are as many as the addresses that its lanes name."""
    return max(lines * np.int64(m.const_access_cycles), (end - first) * np.int64(m.const_address_cycles))


def element_segment(kind, access_bytes):
    """Bytes of the segments that Fermi gathers a warp's lanes into, by the size of an element; what passes L1D by goes
    by sectors."""
    if access_bytes == 1 or kind == Kind.GLOBAL_ATOMIC or kind == Kind.L2_LOAD:
        return 32
    return 64 if access_bytes == 2 else 128


def transaction_bytes(m, kind, access_bytes):
    """Bytes of the segments that a warp's lanes are gathered into: of all accesses the same, or as GPGPU-Sim 4.2's
    Fermi does."""
    return m.coalesced_bytes if m.coalesced_bytes else element_segment(kind, access_bytes)


def next_transaction(left, size):
    """The sectors, of those left of a line record, that the next transaction of `size` bytes touches."""
    if size == 128:
        return left
    if size == 64:
        return left & UPPER_HALF if left & UPPER_HALF else left
    sector = 8
    while not left & sector:
        sector >>= 1
    return sector


def transactions_in(sectors, size):
    """How many transactions of `size` bytes touch some sectors of a line."""
    if size == 32:
        return sectors_in(sectors)
    if size == 64:
        return np.int64((sectors & LOWER_HALF) != 0) + np.int64((sectors & UPPER_HALF) != 0)
    return np.int64(sectors != 0)


def banks_of(m, records, first, end, access_bytes):
    """L1D banks that an access uses of the records `first` .. `end` - 1, its elements of so many bytes: fewer where a
    warp's lanes need more than half of the bytes of its sectors, which are then the limit."""
    if not m.l1d_dense_banks:
        return m.l1d_banks
    sectors = 0
    for k in range(first, end):
        line, touched = line_and_sectors(records, k)
        sectors += 0 if line == SHARED_LINE or is_phase(line) else sectors_in(touched)
    return m.l1d_banks if sectors >= 2 * access_bytes else m.l1d_dense_banks


def enter_next(banks, busy, left, size):
    """(sectors of the next transaction, cycles until L1D takes it, set of its banks taken in that cycle), of those that
    are `left` of a line record. Sectors go round the `banks` banks, each of which takes a transaction a cycle."""
    sectors = next_transaction(left, size)
    if banks == 1:
        return sectors, 1, 0
    bank = sectors if banks == 4 else (1 if sectors & 5 else 2)
    return (sectors, 1, bank) if busy & bank else (sectors, 0, busy | bank)


def pipe_cycles(m, records, first, end, kind, access_bytes):
    """Cycles in which the transactions of the records `first` .. `end` - 1 enter the pipe; `access_bytes`: of an
    element."""
    count = np.int64(0)
    if kind <= Kind.CONST_LOAD:
        for k in range(first, end):  # lines of the constant cache that the sectors of a record lie in
            count += transactions_in(sectors_of(np.int64(records[k])), min(m.const_line_bytes, LINE_BYTES))
        return const_hold(m, 1 if m.perfect_constant_cache else count, first, end)
    count = shared_hold(m, shared_passes(records, first, end))
    if count:
        return count
    busy, size, passing = np.int64(-1), transaction_bytes(m, kind, access_bytes), np.int64(0)
    banks = banks_of(m, records, first, end, access_bytes)
    for k in range(end - 1, first - 1, -1):
        line, left = line_and_sectors(records, k)
        if line == SHARED_LINE:
            passing += m.shared_pass_cycles
            continue
        if is_phase(line):
            continue
        while left:
            sectors, later, busy = enter_next(banks, busy, left, size)
            left &= ~sectors
            count += later
    return max(count, passing, m.lane_cycles) if count else count


def fermi(sectors):
    """The sectors of a line that a store of some sectors writes on Fermi: an aligned 32, 64 or 128 B."""
    return sectors | 15 * ((sectors & LOWER_HALF > 0) & (sectors & UPPER_HALF > 0))


def segment(m, sectors):
    """The sectors that a store of some sectors writes."""
    return sectors if m.coalesced_bytes else fermi(sectors)


def is_awaited(c, w, row):
    """Does warp `w` wait for what it comes to next: an access at an `mbarrier`, or an atomic with active lanes? Machine
    code waits where it uses the result, but for loops of compare-and-swap."""
    if row.counted and row.copies == NONE and row.round_cycles == 0:
        return False
    if row.kind == Kind.SHARED_ATOMIC:
        return row.copies != NONE or c.streams.conflicts[c.sm.warps.conflict[w]] != 0
    if row.kind != Kind.GLOBAL_ATOMIC:
        return False
    return row.copies != NONE or line_and_sectors(c.streams.records, c.sm.warps.record[w])[1] != 0


def move_past(c, w, i):
    """The warp's cursors go past an access; returns the end of its records."""
    sm, kind = c.sm, c.code[i].kind
    if Kind.SHARED_LOAD <= kind <= Kind.SHARED_ATOMIC:
        sm.warps.conflict[w] += 1
    elif kind >= Kind.PARAM_LOAD:
        sm.warps.record[w] = end_of_access(c.streams.records, sm.warps.record[w])
    return np.int64(sm.warps.record[w])


def simple_result(c, w, i, first, end, conflict, start):
    """(cycles on the load/store unit, result) of instruction `i` of warp `w`, started at `start`, if it asks no cache;
    (0, 0) if it does. Its records are `first` .. `end` - 1."""
    m, records, kind = c.machine, c.streams.records, c.code[i].kind
    if Kind.SHARED_LOAD <= kind <= Kind.SHARED_ATOMIC:
        degree = np.int64(c.streams.conflicts[conflict])
        # A round of a loop of compare-and-swap is one pass; those behind the first find the unit free
        busy = shared_hold(m, min(1, degree) if c.code[i].round_cycles else degree)
        return max(1, busy), shared_result(c, w, i, start, degree)
    if kind < Kind.PARAM_LOAD:
        return 1, start + 1
    line, sectors = line_and_sectors(records, first)
    if line == SHARED_LINE or is_phase(line):
        passes = shared_passes(records, first, end)
        return max(1, shared_hold(m, passes)), start + m.shared_cycles + shared_late(m, passes)
    if not sectors:
        return 1, start + 1
    if kind <= Kind.CONST_LOAD and m.perfect_constant_cache:
        return const_hold(m, 1, first, end), start + m.const_hit_cycles
    return 0, 0


def retrying_warps(c, time, round_cycles):
    """How many warps of the SM have rounds of compare-and-swap to go, a round a lane: each came when those before it
    were at it, and so has rounds that much longer."""
    warps, left, own = 0, np.int64(0), WARP_LANES * round_cycles
    if c.machine.retry_cycles:
        for block in range(c.machine.blocks_per_sm):
            for word in range(WORDS):
                left += max(0, c.words[block, word] - time)
    while left > own // 2:
        left -= own
        own += WARP_LANES * c.machine.retry_cycles
        warps += 1
    return warps


def shared_result(c, w, i, start, degree):
    """Result of an access of shared memory: of `degree` passes; of a loop of compare-and-swap, of as many rounds, which
    begin when the warps of its block that came to its word before have done theirs."""
    row = c.code[i]
    if not degree and row.kind == Kind.SHARED_STORE:
        return start + 1
    if not degree or not row.round_cycles:
        way = c.machine.cluster_cycles if row.copies == ELSEWHERE else 0
        return start + c.machine.shared_cycles + shared_late(c.machine, degree) + way
    block = c.sm.warps.block_of[w]
    round_cycles = row.round_cycles + c.machine.retry_cycles * retrying_warps(c, start, row.round_cycles)
    alone = start + c.machine.shared_cycles + (degree - 1) * round_cycles
    c.words[block, row.word] = max(alone, c.words[block, row.word] + degree * round_cycles)
    return np.int64(c.words[block, row.word])
