"""Cuts what a warp executes into items: instructions that issue back to back, and what the warp waits for after them.

One walk of each warp through its basic blocks, alone (docs/occupancy-vector.md, "Items").
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from abstim.analytic.nodes import line_of, more_follow, transactions_of
from functional.disk.compile import jit
from functional.disk.machine_code import compiled
from functional.trace import LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE
from precharacterize.classify import Kind

# Units that hold one instruction at a time; all others are pools, whose work adds up
POOLED, MEMORY, SFU, DOUBLE, TENSOR = range(5)
SPECIAL = {"mem": MEMORY, "sfu": SFU, "dp": DOUBLE, "tensor": TENSOR}
POOLS = ("sp", "int")
# What an item's memory access is to the caches
NONE, LOAD, STORE, ATOMIC, CONSTANT = range(5)

LONGEST_RUN = 15  # instructions of an item
TO_UNIT_CYCLES = 3  # issue -> start on a unit, operands read without conflict
FLUSH_GAP = 3  # cycles from issue to issue over a taken branch whose fetch pair has an instruction left

ITEM = np.dtype(
    [
        ("record", "i8"),  # its first line record
        ("line", "i4"),  # of code, its first instruction is in
        ("cycles", "i2"),  # of issue: its instructions
        ("front", "i2"),  # from its start to the next item's, for the front end
        ("next", "i2"), ("after_next", "i2"),  # the same, for pools' results that the next item and the one after read
        ("unit", "i2"), ("unit_offset", "i2"),  # its one instruction on a special unit, cycles after its start
        ("occupies", "i2"), ("latency", "i2"),  # cycles that unit is held; from its start to the result beyond that
        ("far", "i2"), ("near", "i2"),  # 1: its result is counted with the far (global) or near ones
        ("wait_far", "i2"), ("wait_near", "i2"),  # the next item waits until all but n - 1 are back; 0: does not wait
        ("drain", "i2"),  # cycles from its start to its last result from a pool
        ("fetches", "i2"), ("sp", "i4"), ("int", "i4"),  # slots of the fetch stage; work for the pools, 1 / 16 cycle
        ("barrier", "i2"), ("exit", "i2"), ("access", "i2"), ("bytes", "i2"),
    ],
    align=True,
)  # fmt: skip
# One a static instruction. `pool`: -1, or which of POOLS.
CODE = np.dtype(
    [
        ("kind", "i2"), ("unit", "i2"), ("pool", "i2"), ("work", "i4"), ("initiation", "i4"), ("result", "i4"),
        ("pc", "i4"), ("bytes", "i2"), ("writes", "i2"),
    ],
    align=True,
)  # fmt: skip
_FREE, _POOL, _NEAR, _FAR = range(4)  # what a register waits for
REGISTER = np.dtype([("of", "i8"), ("item", "i8"), ("due", "i8"), ("number", "i8")], align=True)
WARP = np.dtype(
    [
        (name, "i8")
        for name in (
            "item", "first", "time", "start", "start_before", "start_two_before", "pc", "left", "paired", "record",
            "conflict", "far", "near", "far_back", "near_back", "hold_far", "hold_near", "gap",
            "transactions", "first_record", "line_touched",
        )
    ],
    align=True,
)  # fmt: skip


class Shape(NamedTuple):
    """Of a GPU, what cuts items; one-element arrays."""

    fetch_width: np.ndarray
    fetch_line: np.ndarray
    by_sector: np.ndarray
    l1d_banks: np.ndarray
    single: np.ndarray  # 1: every instruction an item
    dual_issue: np.ndarray
    bypass: np.ndarray  # global loads pass L1D by
    latency: np.ndarray  # by SHARED, CONST, HIT, ATOMIC_LATENCY


SHARED, CONST, HIT, ATOMIC_LATENCY = range(4)

PARAM_LOAD, CONST_LOAD, SHARED_LOAD, SHARED_ATOMIC = (
    int(k) for k in (Kind.PARAM_LOAD, Kind.CONST_LOAD, Kind.SHARED_LOAD, Kind.SHARED_ATOMIC)
)
GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC = (int(k) for k in (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.GLOBAL_ATOMIC))
BARRIER, FENCE = int(Kind.BARRIER), int(Kind.FENCE)


class Code(NamedTuple):
    """A program and a trace of it."""

    instructions: np.ndarray  # CODE
    waits: np.ndarray
    writes: np.ndarray
    block_start: np.ndarray
    block_stop: np.ndarray
    blocks: np.ndarray
    block_offsets: np.ndarray
    records: np.ndarray
    record_offsets: np.ndarray
    conflicts: np.ndarray
    conflict_offsets: np.ndarray


@jit
def fetch(warp, row, shape):
    """The gap of the front end before an instruction (docs/timing-rules.md, rule 7)."""
    pc = np.int64(row.pc)
    if pc == warp.pc + 1 and warp.left > 0:
        warp.gap = 1
        warp.left -= 1
    else:
        warp.gap = 2 if pc == warp.pc + 1 or warp.pc < -1 else FLUSH_GAP + 1 if warp.left == 0 else FLUSH_GAP
        warp.left = min(shape.fetch_width[0], shape.fetch_line[0] - pc % shape.fetch_line[0]) - 1
    warp.pc = pc


@jit
def touch(warp, row, code, shape):
    """Read the trace of a memory instruction: its transactions, and the line it touched last."""
    warp.transactions, warp.first_record, warp.line_touched = 1, warp.record, 0
    if SHARED_LOAD <= row.kind <= SHARED_ATOMIC:
        warp.transactions = code.conflicts[warp.conflict]
        warp.conflict += 1
    elif row.kind >= PARAM_LOAD:
        warp.transactions = 0
        data, more = row.kind >= GLOBAL_LOAD, np.int64(1)
        while more:
            word = np.int64(code.records[warp.record])
            warp.transactions += transactions_of(word, row.bytes if data else 2, shape.by_sector[0] and data)
            warp.line_touched = line_of(word)
            warp.record += 1
            more = more_follow(word)


@jit
def is_data(warp, row):
    """Does a memory instruction go to global or local memory?"""
    return row.kind >= GLOBAL_LOAD and warp.line_touched != SHARED_WINDOW_LINE


@jit
def own_waits(warp, code, i, registers, wait):
    """`wait`: (far, near) results that may be outstanding when instruction `i` issues, -1: any number. Returns the
    cycle its registers from pools and near results are free in, for a lone warp."""
    wait[0], wait[1], time = -1, -1, warp.time
    for k in range(code.waits.shape[1]):
        r = code.waits[i, k]
        if r < 0:
            continue
        row = registers[r]
        if row.of == _FAR and row.number > warp.far_back:
            left = warp.far - 1 - row.number
            wait[0] = left if wait[0] < 0 else min(wait[0], left)
        elif row.of == _NEAR and row.number > warp.near_back:
            left = warp.near - 1 - row.number
            wait[1] = left if wait[1] < 0 else min(wait[1], left)
            time = max(time, row.due)
        elif row.of == _POOL:
            time = max(time, row.due)
    if warp.hold_far:
        wait[0] = 0
    if warp.hold_near:
        wait[1] = 0
    return time


@jit
def begins_item(warp, row, items, time, wait, shape):
    """Does an instruction that a lone warp issues at `time` begin an item?"""
    if warp.item < warp.first:
        return True
    item = items[warp.item]
    special = row.unit != POOLED
    return (
        shape.single[0] or time > warp.time + 1 or wait[0] >= 0 or wait[1] >= 0 or item.barrier
        or (special and item.unit != POOLED) or row.kind == BARRIER or item.cycles >= LONGEST_RUN
    )  # fmt: skip


@jit
def begin_item(warp, row, items, time, wait, shape):
    """The next item; the one before learns what it waits for."""
    if warp.item >= warp.first:
        before = items[warp.item]
        before.front = time_of_front(warp)
        before.fetches = 0 if warp.gap == 1 else 2 if warp.gap == FLUSH_GAP + 1 else 1
        before.wait_far, before.wait_near = wait[0] + 1, wait[1] + 1
    warp.start_two_before, warp.start_before, warp.start = warp.start_before, warp.start, time
    warp.item += 1
    item = items[warp.item]
    item.line = np.int64(row.pc) // shape.fetch_line[0]


@jit
def time_of_front(warp):
    """Cycles from the start of the item before to the earliest issue that the front end allows."""
    return warp.time - warp.start + warp.gap


@jit
def read_pools(warp, code, i, registers, items, time):
    """What instruction `i` reads of pools holds its item behind the two before it."""
    offset = time - warp.start
    for k in range(code.waits.shape[1]):
        r = code.waits[i, k]
        if r < 0 or registers[r].of != _POOL:
            continue
        row = registers[r]
        behind = warp.item - row.item
        if behind == 1:
            cycles = row.due - offset - warp.start_before
            source = items[row.item]
            if cycles > source.next:
                source.next = cycles
        elif behind == 2:
            cycles = row.due - offset - warp.start_two_before
            source = items[row.item]
            if cycles > source.after_next:
                source.after_next = cycles


@jit
def use_special(warp, row, item, shape, time):
    """An instruction on a unit that holds one at a time."""
    item.unit, item.unit_offset = row.unit, time - warp.start
    if row.unit != MEMORY:
        item.occupies, item.latency = row.initiation, row.result - TO_UNIT_CYCLES
        return
    count = warp.transactions
    data = is_data(warp, row)
    bypassed = shape.bypass[0] and warp.line_touched < LOCAL_WINDOW_LINE
    which = HIT
    if row.kind <= CONST_LOAD:
        which = CONST
    elif not data:
        which = SHARED
    elif row.kind == GLOBAL_ATOMIC or bypassed:
        which = ATOMIC_LATENCY
    banks = shape.l1d_banks[0] if data else 1
    item.occupies = max(1, (count + banks - 1) // banks)
    item.latency = shape.latency[which] if count else 1
    item.record, item.bytes = warp.first_record, row.bytes
    if count and (data or row.kind <= CONST_LOAD):
        item.access = CONSTANT if row.kind <= CONST_LOAD else LOAD
        if row.kind == GLOBAL_STORE:
            item.access = STORE
        elif row.kind == GLOBAL_ATOMIC:
            item.access = ATOMIC


@jit
def add_instruction(warp, code, i, registers, items, shape, time):
    """Instruction `i` becomes part of the current item, issued by a lone warp at `time`."""
    row, item = code.instructions[i], items[warp.item]
    item.cycles += 1 if time > warp.time or item.cycles == 0 else 0
    warp.time = time
    offset = time - warp.start
    special = row.unit != POOLED
    if special:
        use_special(warp, row, item, shape, time)
    else:
        if row.pool == 0:
            item.sp += row.work
        else:
            item.int += row.work
        if row.result + offset > item.drain:
            item.drain = row.result + offset
    far = special and row.unit == MEMORY and is_data(warp, row) and row.kind != GLOBAL_STORE
    near = special and row.writes and not far
    for k in range(code.writes.shape[1]):
        r = code.writes[i, k]
        if r >= 0:
            target = registers[r]
            target.of = _FAR if far else _NEAR if near else _POOL
            target.item, target.due = warp.item, time + row.result
            target.number = warp.far if far else warp.near
    if far:
        item.far = 1
        warp.far += 1
    elif near:
        item.near = 1
        warp.near += 1
    fence = row.kind == FENCE
    warp.hold_far = fence or (row.kind == GLOBAL_ATOMIC and far)
    warp.hold_near = fence or (near and (row.kind == SHARED_ATOMIC or row.kind == GLOBAL_ATOMIC))
    if row.kind == BARRIER:
        item.barrier = 1


@jit
def follow(warp, code, i, registers, free, items, shape, wait):
    """Instruction `i` of the warp's stream."""
    row = code.instructions[i]
    fetch(warp, row, shape)
    touch(warp, row, code, shape)
    paired = (
        shape.dual_issue[0] and warp.gap == 1 and not warp.paired and warp.item >= warp.first
        and (row.unit == POOLED) != (items[warp.item].unit == POOLED)
    )  # fmt: skip
    earliest = warp.time + (0 if paired else warp.gap) if warp.item >= warp.first else 0
    time = max(earliest, own_waits(warp, code, i, registers, wait))
    unit = row.unit if row.unit != POOLED else TENSOR + 1 + row.pool
    if row.unit != MEMORY:
        time = max(time, free[unit])
        free[unit] = time + row.initiation
    if wait[0] >= 0:
        warp.far_back = max(warp.far_back, warp.far - 1 - wait[0])
    if wait[1] >= 0:
        warp.near_back = max(warp.near_back, warp.near - 1 - wait[1])
    warp.paired = paired and time == warp.time
    if begins_item(warp, row, items, time, wait, shape):
        begin_item(warp, row, items, time, wait, shape)
    read_pools(warp, code, i, registers, items, time)
    add_instruction(warp, code, i, registers, items, shape, time)


@compiled
def cut_warps(code, shape, first, stop, items, offsets, registers, free, wait, scratch):
    """Items of warps `first` .. `stop` - 1, one warp after the other from items[0] on (all zero before); offsets[k] is
    where those of warp first + k begin. `registers` (REGISTER), `free`, `wait`, `scratch` (a WARP) are scratch."""
    warp = scratch[0]
    found = np.int64(0)
    for k in range(stop - first):
        offsets[k] = found
        for r in range(len(registers)):
            registers[r].of = _FREE
        free[:] = 0
        warp.first, warp.item, warp.time, warp.start = found, found - 1, 0, 0
        warp.start_before, warp.start_two_before, warp.pc, warp.left, warp.paired = 0, 0, -2, 0, 0
        warp.far, warp.near, warp.far_back, warp.near_back, warp.hold_far, warp.hold_near = 0, 0, -1, -1, 0, 0
        warp.record, warp.conflict = code.record_offsets[first + k], code.conflict_offsets[first + k]
        for event in range(code.block_offsets[first + k], code.block_offsets[first + k + 1]):
            block = code.blocks[event]
            for i in range(code.block_start[block], code.block_stop[block]):
                follow(warp, code, i, registers, free, items, shape, wait)
        items[warp.item].exit = 1
        found = warp.item + 1
    offsets[stop - first] = found
