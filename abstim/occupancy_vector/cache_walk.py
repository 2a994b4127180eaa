"""Which level answers each access: a walk of a launch's accesses through the tags of all caches, without timing.

SMs take turns of a stretch of nominal time; within it an SM's warps go on by the policy's order, each to the next
result it waits for (docs/occupancy-vector.md, "Cache walk"). The nominal latencies are the same for every GPU, so that
a walk serves all design points with the same caches, residency and dealing of thread blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from abstim.analytic.nodes import line_of, more_follow, sectors_of
from abstim.engine.address_map import bank_of, l2_set_of, row_of, slice_of
from abstim.engine.design_point import machine_of
from abstim.engine.l1d import set_of
from abstim.engine.l2 import sectors_in
from abstim.gpu.config import Gpu
from abstim.occupancy_vector.item_kernel import (
    ATOMIC,
    CONSTANT,
    LOAD,
    MEMORY,
    NONE,
    STORE,
)
from functional.disk.compile import jit
from functional.disk.machine_code import compiled
from functional.line_record import ALL_SECTORS
from functional.trace import LOCAL_WINDOW_LINE
from precharacterize import LatencyTable

# Levels that answer an access; one that waits for another's miss has that one's level and asks for no sectors
FIRST, L2, DRAM = range(3)
NOMINAL_CYCLES = np.array([40, 200, 400], np.int64)  # from an access to its answer, by level
STRETCH_CYCLES = 64  # by which SMs may be apart
ISSUE_CYCLES = 4  # of a warp between two of its instructions
CODE_LINES = 1 << 27  # where L2 finds instruction lines: above all data
FAR_FUTURE = 1 << 60

LEVELS = np.dtype([("level", "i2"), ("sectors", "i2"), ("dram_sectors", "i2"), ("fetch_level", "i2")], align=True)
LINE = np.dtype([("tag", "i8"), ("used", "i8"), ("there", "i8"), ("valid", "i2"), ("dirty", "i2")], align=True)
SLOT = np.dtype([("item", "i8"), ("stop", "i8"), ("ready", "i8"), ("back", "i8"), ("age", "i8"), ("state", "i8")])
SM = np.dtype([("clock", "i8"), ("last", "i8"), ("next", "i8"), ("stop", "i8")])
TOTALS = np.dtype([("uses", "i8"), ("rows_opened", "i8"), ("dram_reads", "i8")])
RUNNING, WAITING, GONE = range(3)


class Caches(NamedTuple):
    """Lines of every cache: first levels by SM."""

    l1d: np.ndarray
    const: np.ndarray
    code: np.ndarray
    l2: np.ndarray
    open_rows: np.ndarray
    slice_sectors: np.ndarray
    totals: np.ndarray


class Walk(NamedTuple):
    """What a walk is of."""

    machine: np.ndarray  # MACHINE, of the detailed engine: one element
    items: np.ndarray
    offsets: np.ndarray
    records: np.ndarray
    dealt: np.ndarray  # thread blocks, those of an SM one after the other
    nominal: np.ndarray
    levels: np.ndarray
    first_level: np.ndarray  # of a warp's first fetch


@jit
def find(lines, first, ways, line):
    """(position, is it there): where it is, or the least recently used of its set."""
    oldest = first
    for k in range(first, first + ways):
        if lines[k].tag == line + 1:
            return k, True
        if lines[k].used < lines[oldest].used:
            oldest = k
    return oldest, False


@jit
def use(caches, row):
    """The line is the youngest of its set."""
    caches.totals[0].uses += 1
    row.used = caches.totals[0].uses


@jit
def open_row(walk, caches, channel, local, sectors):
    """DRAM reads of a row: is it open?"""
    m, totals = walk.machine[0], caches.totals[0]
    bank, row = bank_of(m, local), row_of(m, local)
    totals.dram_reads += sectors
    if caches.open_rows[channel, bank] != row + 1:
        caches.open_rows[channel, bank] = row + 1
        totals.rows_opened += 1


@jit
def ask_l2(walk, caches, line, sectors, write, time, found):
    """Sectors of a line are asked of L2, or written; the access's LEVELS record learns what answers."""
    m = walk.machine[0]
    number, channel, local, in_slice = slice_of(m, line)
    caches.slice_sectors[number] += sectors_in(sectors)
    k, there = find(caches.l2, (number * m.l2_sets + l2_set_of(m, in_slice)) * m.l2_ways, m.l2_ways, line)
    row = caches.l2[k]
    use(caches, row)
    found.sectors = min(255, found.sectors + sectors_in(sectors))
    if not there:
        found.dram_sectors = min(255, found.dram_sectors + sectors_in(np.int64(row.dirty)))
        row.tag, row.valid, row.dirty, row.there = line + 1, 0, 0, 0
    missed = sectors & ~np.int64(row.valid)
    row.valid |= sectors
    if write:
        row.dirty |= sectors
        found.level = max(found.level, L2)
        return
    if missed:
        found.dram_sectors = min(255, found.dram_sectors + sectors_in(missed))
        open_row(walk, caches, channel, local, sectors_in(missed))
        row.there = time + walk.nominal[DRAM] - walk.nominal[FIRST]
    found.level = max(found.level, DRAM if row.there > time else L2)


@jit
def load(walk, caches, sm, line, sectors, time, found):
    """A load, or a local store, looks up L1D."""
    m = walk.machine[0]
    k, there = find(caches.l1d[sm], set_of(m, line), m.l1d_ways, line)
    row = caches.l1d[sm][k]
    use(caches, row)
    if not there:
        row.tag, row.valid = line + 1, 0
    missed = (sectors if m.l1d_sectored else ALL_SECTORS) & ~np.int64(row.valid)
    if missed:
        row.valid |= missed
        before = found.level
        found.level = FIRST
        ask_l2(walk, caches, line, missed, False, time, found)
        row.there = time + walk.nominal[found.level]
        found.level = max(found.level, before)
    elif row.there > time:
        found.level = max(found.level, DRAM)


@jit
def store(walk, caches, sm, line, sectors, time, found):
    """A store to global memory: evicts or updates the line in L1D, allocates it by policy, and goes on to L2."""
    m = walk.machine[0]
    k, there = find(caches.l1d[sm], set_of(m, line), m.l1d_ways, line)
    row = caches.l1d[sm][k]
    updates = m.l1d_write >= 2  # write-through and write-back; the others evict
    if there and not updates:
        row.tag, row.used, row.valid = 0, 0, 0
    elif updates and (there or m.l1d_write_allocates):
        if not there:
            row.tag, row.valid, row.there = line + 1, 0, 0
        row.valid |= sectors
        use(caches, row)
    segment = sectors
    if not m.sector_coalescing and sectors & 3 and sectors & 12:
        segment = np.int64(ALL_SECTORS)
    ask_l2(walk, caches, line, segment, True, time, found)


@jit
def read_constant(walk, caches, sm, line, sectors, time, found):
    """A constant or parameter goes through the constant cache, whose lines may be half as long."""
    m = walk.machine[0]
    if m.perfect_const:
        return
    halves = m.const_line_bytes == 64
    own = 2 * line + (0 if sectors & 3 else 1) if halves else line
    wanted = np.int64(ALL_SECTORS) if not halves else np.int64(3) if sectors & 3 else np.int64(12)
    k, there = find(caches.const[sm], (own & (m.const_sets - 1)) * m.const_ways, m.const_ways, own)
    row = caches.const[sm][k]
    use(caches, row)
    if not there:
        row.tag = own + 1
        ask_l2(walk, caches, line, wanted, False, time, found)
        row.there = time + walk.nominal[found.level]
    elif row.there > time:
        found.level = max(found.level, DRAM)


@jit
def read_code(walk, caches, sm, line, time, found):
    """The cycle an instruction line is there; `found.fetch_level` says what answered."""
    m = walk.machine[0]
    found.fetch_level = FIRST
    if m.perfect_l1i:
        return time
    k, there = find(caches.code[sm], (line & (m.l1i_sets - 1)) * m.l1i_ways, m.l1i_ways, line)
    row = caches.code[sm][k]
    use(caches, row)
    if not there:
        row.tag = line + 1
        level, sectors, dram = found.level, found.sectors, found.dram_sectors
        found.level = FIRST
        ask_l2(walk, caches, CODE_LINES + line, np.int64(ALL_SECTORS), False, time, found)
        found.fetch_level = found.level
        found.level, found.sectors, found.dram_sectors = level, sectors, dram
        row.there = time + walk.nominal[found.fetch_level]
    elif row.there > time:
        found.fetch_level = DRAM
    return max(time, np.int64(row.there))


@jit
def access(walk, caches, sm, item, time, found):
    """All lines of an item's memory instruction."""
    m = walk.machine[0]
    r, more = item.record, np.int64(1)
    while more:
        word = np.int64(walk.records[r])
        line, sectors = line_of(word), sectors_of(word)
        local = line >= LOCAL_WINDOW_LINE
        if sectors == 0:
            pass
        elif item.access == CONSTANT:
            read_constant(walk, caches, sm, line, sectors, time, found)
        elif item.access == ATOMIC or (m.l1d_bypassed and item.access == LOAD and not local):
            ask_l2(walk, caches, line, sectors, False, time, found)
        elif item.access == LOAD or (local and m.l1d_write == 0):
            load(walk, caches, sm, line, sectors, time, found)
        else:
            store(walk, caches, sm, line, sectors, time, found)
        more = more_follow(word)
        r += 1


@jit
def place(walk, sm, slots, b, time):
    """The SM's next thread block enters slot `b`; false if there is none left."""
    if sm.next == sm.stop:
        return False
    m, block = walk.machine[0], walk.dealt[sm.next]
    for k in range(m.warps_per_block):
        slot, warp = slots[b * m.warps_per_block + k], block * m.warps_per_block + k
        slot.item, slot.stop = walk.offsets[warp], walk.offsets[warp + 1]
        slot.ready, slot.back, slot.age, slot.state = time, time, warp, RUNNING
    sm.next += 1
    return True


@jit
def pick(walk, sm, slots):
    """The slot whose turn it is, or -1; then the SM's clock is at the next cycle in which one is ready."""
    chosen, best, soon = -1, FAR_FUTURE, FAR_FUTURE
    by_age, count = walk.machine[0].policy != 1, len(slots)
    for w in range(count):
        slot = slots[w]
        if slot.state != RUNNING:
            continue
        if slot.ready > sm.clock:
            soon = min(soon, slot.ready)
            continue
        order = slot.age if by_age else (w - sm.last - 1) % count
        if order < best:
            chosen, best = w, order
    if chosen < 0:
        sm.clock = soon
    return chosen


@jit
def go_on(walk, caches, number, sm, slot):
    """A warp goes on to its next memory access, barrier, or wait."""
    m, time, issued, held = walk.machine[0], sm.clock, np.int64(0), np.int64(0)
    while slot.item < slot.stop:
        n = slot.item
        item, found = walk.items[n], walk.levels[n]
        there = read_code(walk, caches, number, np.int64(item.line), time, found)
        if issued == 0 and slot.item == walk.offsets[slot.age]:
            walk.first_level[slot.age] = found.fetch_level
        issued += item.cycles
        slot.item += 1
        slot.ready = max(time, there)
        if item.unit == MEMORY:
            held = item.occupies
        if item.access != NONE:
            access(walk, caches, number, item, time, found)
            answered = time + walk.nominal[found.level]
            if item.access != STORE:
                slot.back = max(slot.back, answered)
            if item.access == CONSTANT:
                slot.ready = max(slot.ready, answered)
        waits = item.wait_far and slot.back > time
        if waits:
            slot.ready = max(slot.ready, slot.back)
        if item.barrier or item.access != NONE or waits or slot.ready > time:
            break
    slot.ready = max(slot.ready, time + ISSUE_CYCLES * issued)
    sm.clock = time + max(1, held, issued // m.schedulers)
    if slot.item == slot.stop:
        slot.state = GONE
    elif walk.items[slot.item - 1].barrier:
        slot.state = WAITING


@jit
def settle(walk, sm, slots, w):
    """A warp has left or waits: release its block's barrier, or give its slot to the next block."""
    m = walk.machine[0]
    b = w // m.warps_per_block
    running, waiting = 0, 0
    for k in range(b * m.warps_per_block, (b + 1) * m.warps_per_block):
        running += slots[k].state == RUNNING
        waiting += slots[k].state == WAITING
    if running == 0 and waiting > 0:
        for k in range(b * m.warps_per_block, (b + 1) * m.warps_per_block):
            if slots[k].state == WAITING:
                slots[k].state, slots[k].ready = RUNNING, sm.clock
    if running == 0 and waiting == 0:
        place(walk, sm, slots, b, sm.clock)


@compiled
def walk_launch(walk, caches, sms, slots):
    """All of a launch. `sms`: where each SM's thread blocks begin and end in `dealt`; `slots` [SM, warp slot]."""
    m, limit, left = walk.machine[0], np.int64(0), np.int64(len(sms))
    for number in range(len(sms)):
        for b in range(m.blocks_per_sm):
            place(walk, sms[number], slots[number], b, 0)
    while left:
        limit += STRETCH_CYCLES
        left = 0
        for number in range(len(sms)):
            sm = sms[number]
            while sm.clock < limit:
                w = pick(walk, sm, slots[number])
                if w >= 0:
                    sm.last = w
                    go_on(walk, caches, number, sm, slots[number][w])
                    if slots[number][w].state != RUNNING:
                        settle(walk, sm, slots[number], w)
            left += sm.clock < FAR_FUTURE


class Found(NamedTuple):
    """What a walk found: LEVELS an item, what answers each warp's first fetch, how evenly slices and rows served."""

    levels: np.ndarray
    first_level: np.ndarray
    imbalance: float  # sectors of the busiest L2 slice over those of the mean one
    rows_a_sector: float  # DRAM rows opened for each sector read


def walk_caches(
    table: LatencyTable, rows: np.ndarray, offsets: np.ndarray, records: np.ndarray, warps_per_block: int, gpu: Gpu,
    blocks_per_sm: int, shared_bytes: int, dealt: list[np.ndarray],
) -> Found:  # fmt: skip
    """Walk a launch's items (ITEM `rows`) through the caches of a GPU. `dealt`: thread blocks of each SM, in order."""
    m = machine_of(gpu, warps_per_block, blocks_per_sm, table, shared_bytes)
    spec, sm_count = gpu.spec, len(dealt)
    slices = spec.dram_channels * spec.l2_slices_per_channel
    caches = Caches(
        l1d=np.zeros((sm_count, spec.l1d_sets * spec.l1d_ways), LINE),
        const=np.zeros((sm_count, spec.const_sets * spec.const_ways), LINE),
        code=np.zeros((sm_count, spec.l1i_sets * spec.l1i_ways), LINE),
        l2=np.zeros(slices * spec.l2_sets * spec.l2_ways, LINE),
        open_rows=np.zeros((spec.dram_channels, spec.dram_banks), np.int64),
        slice_sectors=np.zeros(slices, np.int64),
        totals=np.zeros(1, TOTALS),
    )
    sms, slots = np.zeros(sm_count, SM), np.zeros((sm_count, blocks_per_sm * warps_per_block), SLOT)
    ends = np.cumsum([len(blocks) for blocks in dealt])
    sms["stop"], sms["next"][1:] = ends, ends[:-1]
    slots["state"] = GONE
    levels, first_level = np.zeros(len(rows), LEVELS), np.zeros(len(offsets), np.int16)
    walk = Walk(
        np.array([m]), rows, offsets, records, np.concatenate(dealt).astype(np.int64), NOMINAL_CYCLES, levels,
        first_level,
    )  # fmt: skip
    walk_launch(walk, caches, sms, slots)
    served, totals = caches.slice_sectors, caches.totals[0]
    imbalance = float(served.max() * slices / served.sum()) if served.any() else 1.0
    return Found(levels, first_level, imbalance, int(totals["rows_opened"]) / max(1, int(totals["dram_reads"])))
