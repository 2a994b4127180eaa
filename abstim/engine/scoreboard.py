"""When a warp's registers can be read, and what that says of its next instruction (docs/timing-rules.md, rules 2, 7).

An entry is one word, (cycle from which the register is free << 2) | where its value comes from: two fields of a record
would be two loads for every register that an instruction waits for."""

import numpy as np

from abstim.engine.state import NEVER
from abstim.engine.warp_slots import bit, visit_from
from precharacterize.classify import Kind
from precharacterize.table import SCOREBOARDS

FROM_ALU, FROM_NEAR, FROM_PARAM, FROM_GLOBAL = 0, 1, 2, 3
LAST_ORIGIN = FROM_GLOBAL


def origins(kinds):
    """Where what instructions of these kinds write comes from."""
    near, far = np.where(kinds > Kind.PARAM_LOAD, FROM_NEAR, FROM_ALU), kinds >= Kind.GLOBAL_LOAD
    return np.where(kinds == Kind.PARAM_LOAD, FROM_PARAM, np.where(far, FROM_GLOBAL, near))


def entry_of(result, origin):
    """The entry of a register whose value is there at `result`."""
    return (result << 2) | origin


def free_from(entry):
    """Cycle from which the register can be read and written."""
    return entry >> 2


def origin_of(entry):
    """One of FROM_*."""
    return entry & 3


def write_registers(c, w, row, result):
    """The destinations of an instruction of warp `w` are free at `result`."""
    entry = entry_of(result, row.origin)
    for k in range(row.writes_at, row.writes_end):
        c.scoreboard[w, c.streams.operands[k]] = entry


def fence_over(c, w):
    """When a fence lets its warp go on: when all is complete that it has issued, or, as GPGPU-Sim 4.2 has it
    (warp_waiting_at_mem_barrier), when its registers are free, whatever its stores do. NEVER: not known."""
    over = 0
    if c.machine.posted_stores:
        return c.sm.warps.drained[w]
    for r in range(c.machine.register_count):
        over = max(over, free_from(c.scoreboard[w, r]))
    return over


def count_up(c, w, row):
    """An instruction whose result is not known yet counts on a scoreboard of machine code, which is free when none
    does. Behind a scoreboard's entry (at r) stand how many are under way and the latest result known."""
    for k in range(row.writes_at, row.writes_end):
        r = c.streams.operands[k]
        c.scoreboard[w, r + SCOREBOARDS] += 1
        c.scoreboard[w, r] = entry_of(NEVER, row.origin)


def count_down(c, w, row, result):
    """Its result is known."""
    for k in range(row.writes_at, row.writes_end):
        c.scoreboard[w, c.streams.operands[k] + SCOREBOARDS] -= 1
    write_counted(c, w, row, result)


def write_counted(c, w, row, result):
    """A scoreboard is free no earlier than at `result`."""
    for k in range(row.writes_at, row.writes_end):
        hold_register(c, w, c.streams.operands[k], entry_of(result, row.origin))


def hold_register(c, w, r, entry):
    """Scoreboard `r` is held until an entry's cycle at least."""
    latest = max(c.scoreboard[w, r + 2 * SCOREBOARDS], entry)
    c.scoreboard[w, r + 2 * SCOREBOARDS] = latest
    if c.scoreboard[w, r + SCOREBOARDS] == 0:
        c.scoreboard[w, r] = latest


def write_results(c, w, row, result):
    """The destinations of an instruction, registers of the PTX or a scoreboard of machine code."""
    if row.counted and result >= NEVER:
        count_up(c, w, row)
    elif row.counted:
        write_counted(c, w, row, result)
    else:
        write_registers(c, w, row, result)


def registers_free(c, w, row):
    """Cycle from which nothing holds up an instruction of warp `w` at the scoreboard."""
    last = 0
    for k in (0, 1, 2, 3):
        last = max(last, c.scoreboard[w, row.first_waits[k]])
    for k in range(row.waits_at, row.waits_end):
        last = max(last, c.scoreboard[w, c.streams.operands[k]])
    return free_from(last)


def later(entry, last):
    """The later of two entries, of the same cycle the last."""
    return entry if entry > last | LAST_ORIGIN else last


def make_ready(c, w, front_end, time):
    """Set when the warp's next instruction can issue, its front end being ready at `front_end`; `time` is now."""
    sm, row = c.sm, c.code[c.sm.warps.pc[w]]
    not_before = sm.warps.not_before[w]
    last = entry_of(max(front_end, not_before), FROM_NEAR if not_before > front_end else FROM_ALU)
    for k in (0, 1, 2, 3):
        last = later(c.scoreboard[w, row.first_waits[k]], last)
    for k in range(row.waits_at, row.waits_end):
        last = later(c.scoreboard[w, c.streams.operands[k]], last)
    ready = sm.warps.ready[w] = free_from(last)
    if origin_of(last) != FROM_ALU:
        sm.memory |= bit(w)
    else:
        sm.memory &= ~bit(w)
    if not sm.held & bit(w):
        visit_from(sm, w, ready, time)


def put_off(c, w, row, result):
    """The result of an instruction of warp `w` comes later than was said, at `result`."""
    sm = c.sm
    write_results(c, w, row, result)
    sm.warps.drained[w], sm.warps.settled[w] = max(sm.warps.drained[w], result), max(sm.warps.settled[w], result)
    if sm.exiting & bit(w):
        sm.next_exit = min(sm.next_exit, sm.warps.drained[w])
    if sm.running & bit(w) and sm.warps.ready[w] < NEVER and not sm.flush & bit(w):
        sm.early |= bit(w)
        sm.warps.ready[w] = max(sm.warps.ready[w], registers_free(c, w, c.code[sm.warps.pc[w]]))


def waits_long(c, w, time):
    """Does a plain source of the warp's buffered next instruction count as waiting for a long operation?"""
    sm = c.sm
    if sm.warps.buffered[w] == 0 or sm.warps.front_end[w] > time:
        return False
    row = c.code[sm.wrong[w] if sm.flush & bit(w) else sm.warps.pc[w]]
    for k in range(row.long_at, row.long_end):
        entry = c.scoreboard[w, c.streams.operands[k]]
        if origin_of(entry) == FROM_GLOBAL or (origin_of(entry) == FROM_PARAM and free_from(entry) > time):
            return True
    return False
