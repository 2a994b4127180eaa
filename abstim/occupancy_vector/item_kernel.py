"""Cuts what a warp executes into items: instructions that issue back to back, and what the warp waits for after them.

One walk of each path through the basic blocks, by a warp alone (docs/occupancy-vector.md, "Items")."""

import numpy as np

from abstim.engine import accesses
from abstim.engine.accesses import LOCAL_LINE, SHARED_LINE, end_of_access, line_of, sectors_of
from abstim.engine.memory_pipe import passes_l1d
from abstim.engine.rules import READ_OPERANDS_CYCLES
from abstim.occupancy_vector import records as rec
from functional.jit.marked import zero
from precharacterize.classify import Kind
from precharacterize.table import brought

LONGEST_RUN = 15  # instructions of an item
TERM_COUNT = len(rec.TERMS)


def held(m, records, first, end, row):
    """Cycles that an access holds the load/store unit: what passes L1D by leaves it a transaction a cycle."""
    cycles, left = accesses.pipe_cycles(m, records, first, end, row.kind, row.bytes), 0
    if row.kind > Kind.CONST_LOAD and not m.perfect_memory:
        for k in range(first, end):
            if passes_l1d(m, row.kind, line_of(records[k])):
                left += accesses.transactions_in(
                    sectors_of(records[k]), accesses.transaction_bytes(m, row.kind, row.bytes)
                )
    return max(1, cycles, left)


def touch(access, records, row, record, m):
    """Fill the ACCESS of an instruction with line records from `record` on; returns where the next one's begin."""
    end = end_of_access(records, record)
    access.record, access.active, line = record, 0, line_of(records[record])
    for k in range(record, end):
        access.active = access.active | (sectors_of(records[k]) != 0)
    access.cycles = held(m, records, record, end, row)
    access.space = rec.CONSTANT_MEMORY
    if row.kind >= Kind.GLOBAL_LOAD:
        access.space = rec.SHARED_MEMORY if line == SHARED_LINE else rec.GLOBAL_MEMORY
        if line >= LOCAL_LINE and line != SHARED_LINE:
            access.space = rec.LOCAL_MEMORY
    return end


def measure(code, traced, warps, counts):
    """Where each warp's accesses begin, how many instructions it executes, and how often each block is: COUNTS."""
    found = counts[0]
    zero(counts)
    zero(warps.executed)
    found.warps = len(warps.lengths)
    for warp in range(len(warps.lengths)):
        warps.offsets[warp], length = found.accesses, 0
        for event in range(traced.block_offsets[warp], traced.block_offsets[warp + 1]):
            block = traced.blocks[event]
            length += code.block_stop[block] - code.block_start[block]
            found.accesses += code.memory_offsets[block + 1] - code.memory_offsets[block]
            warps.executed[block] += 1
        warps.lengths[warp] = length
        found.instructions += length
        found.longest = max(found.longest, length)
    warps.offsets[len(warps.lengths)] = found.accesses


def touch_warp(code, traced, warps, m, warp):
    """The accesses of a warp; returns a digest that is equal for warps of one path."""
    record, conflict = traced.record_offsets[warp], traced.conflict_offsets[warp]
    at, digest = warps.offsets[warp], np.uint64(1)
    for event in range(traced.block_offsets[warp], traced.block_offsets[warp + 1]):
        block = traced.blocks[event]
        digest = accesses.mixed(digest, block)
        for n in range(code.memory_offsets[block], code.memory_offsets[block + 1]):
            row, access = code.instructions[code.memory[n]], warps.accesses[at]
            access.cycles, access.space, access.record, access.active = 1, rec.SHARED_MEMORY, 0, 1
            if Kind.SHARED_LOAD <= row.kind <= Kind.SHARED_ATOMIC:
                access.active = traced.conflicts[conflict] > 0
                access.cycles = max(1, accesses.shared_hold(m, traced.conflicts[conflict]))
                conflict += 1
            elif row.kind == Kind.FENCE:
                pass
            else:
                record = touch(access, traced.records, row, record, m)
            digest = accesses.mixed(digest, access.space * 2 + access.active)
            at += 1
    return digest


def events_of(traced, warp):
    """Basic blocks that a warp executes."""
    return traced.block_offsets[warp + 1] - traced.block_offsets[warp]


def shared_events(code, traced, warps, one, other):
    """How many basic blocks two warps execute alike, with the same kinds of accesses, before something else."""
    accesses, a, b = warps.accesses, warps.offsets[one], warps.offsets[other]
    first, shift = traced.block_offsets[one], traced.block_offsets[other] - traced.block_offsets[one]
    stop = min(traced.block_offsets[one + 1], traced.block_offsets[other + 1] - shift)
    for event in range(first, stop):
        block = traced.blocks[event]
        if traced.blocks[event + shift] != block:
            return event - first
        for _ in range(code.memory_offsets[block], code.memory_offsets[block + 1]):
            if accesses[a].space != accesses[b].space or accesses[a].active != accesses[b].active:
                return event - first
            a, b = a + 1, b + 1
    return stop - first


def same_path(code, traced, warps, warp, other):
    """Do two warps execute the same blocks, with the same kinds of accesses?"""
    count = events_of(traced, warp)
    return count == events_of(traced, other) and shared_events(code, traced, warps, warp, other) == count


def sort_warps(code, traced, warps, machine, counts):
    """The accesses of every warp, and its path: that of the first warp that executes the same blocks, with the same
    kinds of accesses."""
    found, room = 0, np.uint64(len(warps.places) - 1)
    zero(warps.places)
    for warp in range(len(warps.paths)):
        digest = touch_warp(code, traced, warps, machine[0], warp)
        place = np.int64(digest & room)
        while True:
            path = warps.places[place] - 1
            if path < 0:
                warps.places[place], warps.digests[found], warps.leaders[found] = found + 1, digest, warp
                counts[0].distinct += warps.lengths[warp]
                path = found
                found += 1
                break
            if warps.digests[path] == digest and same_path(code, traced, warps, warp, warps.leaders[path]):
                break
            place = np.int64(np.uint64(place + 1) & room)
        warps.paths[warp] = path
    counts[0].paths = found


def fetch(warp, row, shape):
    """The gap of the front end before an instruction (docs/timing-rules.md, rule 7)."""
    pc, is_next = row.pc, row.pc == warp.pc + 1
    if is_next and warp.left > 0:
        warp.gap, warp.fetches = 1, 0
        warp.left -= 1
    else:
        warp.gap, warp.fetches = shape.decode, 1
        if not is_next and warp.pc >= 0:  # what follows the branch comes first, fetched or not
            warp.fetches += warp.left == 0
            warp.gap += shape.decode if warp.left == 0 else 1
        warp.left = brought(shape.fetch_width, shape.fetch_line, pc) - 1
    warp.pc = pc


def own_waits(warp, code, i, registers, mask):
    """`mask`: the far and the near results that instruction `i` waits for, bit n: the one n before the latest. Returns
    the cycle its registers from pools and near results are free in, for a lone warp."""
    mask[:], time = 0, warp.time
    for k in range(code.waits.shape[1]):
        r = code.waits[i, k]
        if r < 0:
            break
        row = registers[r]
        if row.far:
            add_wait(mask, 0, warp.far_waited, warp.far - row.far, row.far)
        if row.near:
            add_wait(mask, 1, warp.near_waited, warp.near - row.near, row.near)
            time = max(time, row.near_due)
        row.far = row.near = 0  # once
        if row.pool:
            time = max(time, row.due)
    if warp.hold_far:
        mask[0] = (1 << rec.LOADS) - 1
    if warp.hold_near:
        mask[1] = (1 << rec.RESULTS) - 1
    return time


def add_wait(mask, which, waited, back, number):
    """Result `number`, `back` before the latest, is waited for, unless it was before; a warp remembers len(waited)."""
    if waited[number % len(waited)] != number:
        waited[number % len(waited)] = number
        mask[which] |= 1 << min(back, len(waited) - 1)


def begins_item(warp, row, items, time, earliest, mask, shape):
    """Does an instruction that a lone warp issues at `time` begin an item?"""
    if warp.item < 0:
        return True
    item = items[warp.item]
    special = row.unit != rec.POOLED
    return (
        shape.single or time > earliest or mask[0] or mask[1] or item.barrier
        or (special and item.unit != rec.POOLED) or row.kind == Kind.BARRIER or item.cycles >= LONGEST_RUN
        or row.pc // shape.fetch_line != item.line
    )  # fmt: skip


def count_fetches(warp, item, shape):
    """What a warp's next instruction asks of the fetch stage belongs to the item it follows."""
    if warp.fetches:
        item.fetches += warp.fetches
        item.fetch_by = warp.time - warp.start + warp.gap - shape.decode


def begin_item(warp, row, items, time, mask, shape):
    """The next item; the one before learns what it waits for."""
    if warp.item >= 0:
        before = items[warp.item]
        before.front = warp.time - warp.start + max(warp.gap, warp.stall)  # what the front end and machine code allow
        count_fetches(warp, before, shape)
        before.wait_far, before.wait_near = mask[0], mask[1]
    warp.start_two_before, warp.start_before, warp.start = warp.start_before, warp.start, time
    warp.item += 1
    item = items[warp.item]
    zero(item)
    item.begins, item.line = warp.instructions, row.pc // shape.fetch_line


def read_pools(warp, code, i, registers, items, time):
    """What instruction `i` reads of pools holds its item behind the two before it: an older result is there as long
    after the first of these as for a lone warp."""
    offset = time - warp.start
    for k in range(code.waits.shape[1]):
        r = code.waits[i, k]
        if r < 0:
            break
        if not registers[r].pool:
            continue
        row = registers[r]
        behind, source = warp.item - row.item, items[max(row.item, warp.item - 2)]
        if behind == 1 and row.due - offset - warp.start_before > source.next:
            source.next, source.next_of = row.due - offset - warp.start_before, row.latency_of
        elif behind >= 2 and row.due - offset - warp.start_two_before > source.after_next:
            source.after_next, source.after_next_of = row.due - offset - warp.start_two_before, row.latency_of


def is_data(row, access):
    """Does a memory instruction go to global or local memory?"""
    return row.kind >= Kind.GLOBAL_LOAD and access.space != rec.SHARED_MEMORY


def is_recent(warp, records, access):
    """Are all lines that a load asks for among the latest that the warp has loaded? They are then."""
    found = True
    for k in range(access.record, end_of_access(records, access.record)):
        line, known = line_of(records[k]), False
        for n in range(len(warp.lines)):
            known |= warp.lines[n] == line
        if not known:
            warp.lines[warp.loaded % len(warp.lines)] = line
            warp.loaded += 1
        found &= known
    return found


def use_memory(warp, records, row, item, access, shape):
    """An instruction on the load/store unit."""
    if row.kind == Kind.FENCE:
        item.latency = 1
        return
    which = rec.HIT
    if row.kind <= Kind.CONST_LOAD:
        which = rec.CONST
    elif not is_data(row, access):
        which = rec.SHARED
    elif row.kind == Kind.GLOBAL_ATOMIC or (
        (shape.bypass or (shape.perfect and row.kind == Kind.L2_LOAD)) and access.space != rec.LOCAL_MEMORY
    ):
        which = rec.ATOMIC_LATENCY
    elif shape.perfect and not (row.kind != Kind.GLOBAL_STORE and is_recent(warp, records, access)):
        which = rec.MISS
    item.latency = shape.latency[which] if access.active else 1
    item.latency_of = shape.latency_of[which] if access.active else 0
    if access.active and (is_data(row, access) or row.kind <= Kind.CONST_LOAD):
        item.access = rec.CONSTANT if row.kind <= Kind.CONST_LOAD else rec.LOAD
        if row.kind == Kind.GLOBAL_STORE:
            item.access = rec.STORE
        elif row.kind == Kind.GLOBAL_ATOMIC:
            item.access = rec.ATOMIC
        elif row.kind == Kind.L2_LOAD:
            item.access = rec.PASSING


def use_pool(row, item, offset):
    """An instruction of a pool."""
    if row.pool == 0:
        item.sp += row.work
    else:
        item.int += row.work
    if row.result + offset > item.drain:
        item.drain, item.drain_of = row.result + offset, row.latency_of


def hold(target, item, due, latency_of):
    """A register waits for a pool's result, if it does not for a later one."""
    if not target.pool or due > target.due:
        target.pool, target.item, target.due, target.latency_of = 1, item, due, latency_of


def reserve(warp, code, i, row, registers, time, far, near):
    """What instruction `i`, issued at `time`, writes waits for it; a scoreboard for what it counts already, too."""
    for k in range(code.writes.shape[1]):
        r = code.writes[i, k]
        if r < 0:
            break
        target = registers[r]
        if not row.counted:
            target.far = target.near = target.pool = 0
        if far:
            target.far = warp.far + 1
        elif near:
            target.near_due = max(target.near_due, time + row.result) if target.near else time + row.result
            target.near = warp.near + 1
        else:
            hold(target, warp.item, time + row.result, row.latency_of)
    if row.release >= 0:
        hold(registers[row.release], warp.item, time + READ_OPERANDS_CYCLES, 0)


def add_instruction(warp, code, i, row, registers, items, access, shape, time, records):
    """Instruction `i` becomes part of the current item, issued by a lone warp at `time`."""
    item = items[warp.item]
    item.cycles += 1 if time > warp.time or item.cycles == 0 else 0
    warp.time, warp.stall, offset = time, row.stall if row.stall > 1 else 0, time - warp.start
    special = row.unit != rec.POOLED
    if special:
        item.unit, item.unit_offset = row.unit, offset
    if row.unit == rec.MEMORY:
        item.unit_offset += row.late
        use_memory(warp, records, row, item, access, shape)
    elif special:
        item.occupies, item.latency = row.initiation, row.result - rec.TO_UNIT_CYCLES
        item.latency_of = row.latency_of
    else:
        use_pool(row, item, offset)
    far = row.unit == rec.MEMORY and is_data(row, access) and row.kind != Kind.GLOBAL_STORE
    near = special and row.writes and not far
    reserve(warp, code, i, row, registers, time, far, near)
    item.far, item.near = max(item.far, far), max(item.near, near)
    warp.far += far
    warp.near += near
    fence = row.kind == Kind.FENCE
    # of PTX, an atomic holds its warp; machine code waits where it uses the result
    atomic = not row.counted and (row.kind == Kind.SHARED_ATOMIC or row.kind == Kind.GLOBAL_ATOMIC)
    warp.hold_far = fence or (atomic and far and row.kind == Kind.GLOBAL_ATOMIC)
    warp.hold_near = fence or (atomic and near)
    if row.kind == Kind.BARRIER:
        item.barrier = 1


def follow(warp, code, i, row, access, shape, records, scratch):
    """Instruction `i` of the warp's stream."""
    fetch(warp, row, shape)
    paired = (
        shape.dual_issue and warp.gap == 1 and not warp.paired and warp.item >= 0
        and (row.unit == rec.POOLED) != (scratch.rows[warp.item].unit == rec.POOLED)
    )  # fmt: skip
    earliest = warp.time + (0 if paired else warp.gap) if warp.item >= 0 else 0
    registers, items, mask = scratch.registers[0], scratch.rows, scratch.mask
    time = max(earliest, warp.time + warp.stall, own_waits(warp, code, i, registers, mask))
    unit = row.unit if row.unit != rec.POOLED else rec.TENSOR + 1 + row.pool
    if row.unit != rec.MEMORY:
        time = max(time, warp.free[unit])
        warp.free[unit] = time + row.initiation
    warp.paired = paired and time == warp.time
    if begins_item(warp, row, items, time, earliest, mask, shape):
        begin_item(warp, row, items, time, mask, shape)
    else:
        count_fetches(warp, items[warp.item], shape)
    if shape.timed:
        read_pools(warp, code, i, registers, items, time)
    add_instruction(warp, code, i, row, registers, items, access, shape, time, records)
    warp.instructions += 1


def start_warp(warp, scratch):
    """A lone warp before its first instruction."""
    zero(scratch.registers[0])
    zero(warp)
    warp.far_waited[:] = warp.near_waited[:] = warp.lines[:] = -1
    warp.item, warp.pc = -1, -2


BYTE, MOST_CYCLES = 8, 1 << 25  # bits of a field of LANE_ITEM; what TERMS hold
TICKS_A_WORK = rec.TICKS // rec.WORK_A_CYCLE


def put_terms(item, terms, k):
    """TERMS of an item, from place `k` on, in ticks."""
    terms[k + rec.TERM.next], terms[k + rec.TERM.after_next] = item.next * rec.TICKS, item.after_next * rec.TICKS
    terms[k + rec.TERM.drain], terms[k + rec.TERM.latency] = item.drain * rec.TICKS, item.latency * rec.TICKS
    terms[k + rec.TERM.occupies] = item.occupies * rec.TICKS
    terms[k + rec.TERM.sp], terms[k + rec.TERM.int] = item.sp * TICKS_A_WORK, item.int * TICKS_A_WORK


def pack(item, out, terms, k):
    """LANE_ITEM of an item, and its TERMS from place `k` on, if there are any; returns whether it does not fit."""
    out.begins, out.line, out.wait_far, out.wait_near = item.begins, item.line, item.wait_far, item.wait_near
    out.cycles, out.front, out.unit, out.unit_offset = item.cycles, item.front, item.unit, item.unit_offset
    out.fetches, out.fetch_by, out.access = item.fetches, item.fetch_by, item.access
    out.far, out.near, out.barrier, out.exit = item.far, item.near, item.barrier, item.exit
    out.next, out.after_next, out.drain = item.next > 0, item.after_next > 0, item.drain > 0
    needs = (item.unit != rec.MEMORY) << rec.NEEDS_COLLECTOR
    if item.unit:
        needs |= 1 << (item.unit - rec.MEMORY)
    out.needs = needs | (item.sp > 0) << rec.NEEDS_POOL | (item.int > 0) << (rec.NEEDS_POOL + 1)
    if len(terms):
        put_terms(item, terms, k)
    bytes = item.cycles | item.front | item.unit_offset | item.fetches | item.fetch_by
    most = max(item.next, item.after_next, item.drain, item.latency, item.occupies, item.sp, item.int)
    return (bytes >> BYTE) != 0 or most >= MOST_CYCLES


def pack_items(rows, lane_items, terms, misfits):
    """LANE_ITEM and TERMS of ITEMs; `misfits`: of one element, how many do not fit."""
    for k in range(len(rows)):
        misfits[0] += pack(rows[k], lane_items[k], terms, k * TERM_COUNT)


def copy_state(scratch, source, target):
    """The warp as it was, or is, is kept."""
    scratch.warps[target] = scratch.warps[source]
    for r in range(scratch.registers.shape[1]):
        scratch.registers[target, r] = scratch.registers[source, r]


def mark(scratch, number):
    """The warp is to be found again as it is now."""
    copy_state(scratch, 0, number)
    for n in range(max(0, scratch.warps[0].item + 1 - rec.OPEN_ITEMS), scratch.warps[0].item + 1):
        scratch.open[number * rec.OPEN_ITEMS + n % rec.OPEN_ITEMS] = scratch.rows[n]


def resume(scratch, items, number, source, target):
    """A warp goes on at a mark of a path whose items begin at `source`: returns how many of them it shares, which are
    copied to `target`."""
    copy_state(scratch, number, 0)
    done = max(0, scratch.warps[0].item + 1 - rec.OPEN_ITEMS)
    for n in range(done, scratch.warps[0].item + 1):
        scratch.rows[n] = scratch.open[number * rec.OPEN_ITEMS + n % rec.OPEN_ITEMS]
    for n in range(done):
        items.lane_items[target + n] = items.lane_items[source + n]
        if len(items.rows):
            items.rows[target + n] = items.rows[source + n]
    for n in range(done * TERM_COUNT if len(items.terms) else 0):
        items.terms[target * TERM_COUNT + n] = items.terms[source * TERM_COUNT + n]
    return done


def put_items(items, found, done, scratch):
    """Items of a path, beyond those that are `done`, go behind `found`; returns how many do not fit."""
    misfits = 0
    for n in range(done, scratch.warps[0].item + 1):
        row, k = scratch.rows[n], found + n
        misfits += pack(row, items.lane_items[k], items.terms, k * TERM_COUNT)
        if len(items.rows):
            items.rows[k] = row
    return misfits


def cut_into(code, traced, instructions, shape, warps, items, scratch):
    """Items of each path; `instructions`: CODE. `scratch`: a Cutting; `misfits` of it: how many do not fit.

    What a path has in common with the longest before it is not cut again; `every`: basic blocks from a mark on that one
    to the next."""
    warp, found, misfits, leaders, longest, marks, every = scratch.warps[0], 0, 0, warps.leaders, 0, 0, 1
    most = min(rec.MOST_MARKS, 32 * len(leaders))  # what few paths share is soon cut again
    for k in range(len(leaders)):
        every = max(every, events_of(traced, leaders[k]) // most)
    for k in range(len(leaders)):
        items.offsets[k] = found
        own, done, at = leaders[k], 0, 0
        first, count = traced.block_offsets[own], events_of(traced, own)
        if k > 0 and not shape.perfect:  # else what an access does hangs on its lines, too
            at = min(marks, shared_events(code, traced, warps, own, leaders[longest]) // every)
        if at:
            done = resume(scratch, items, at, items.offsets[longest], found)
        else:
            start_warp(warp, scratch)
        grows = k + 1 < len(leaders) and not shape.perfect and (count > events_of(traced, leaders[longest]) or k == 0)
        if grows:
            longest, marks = k, at
        for event in range(at * every, count):
            if grows and event == (marks + 1) * every and marks + 1 < rec.MOST_MARKS:
                marks += 1
                mark(scratch, marks)
            block = traced.blocks[first + event]
            for i in range(code.block_start[block], code.block_stop[block]):
                row, access = instructions[i], warps.accesses[warps.offsets[own] + warp.access]
                follow(warp, code, i, row, access, shape, traced.records, scratch)
                warp.access += row.unit == rec.MEMORY
        scratch.rows[warp.item].exit = 1
        misfits += put_items(items, found, done, scratch)
        found += warp.item + 1
    items.offsets[len(leaders)] = found
    for number in range(len(items.starts)):
        items.starts[number] = items.offsets[warps.paths[number]]
    scratch.misfits[0] = misfits
