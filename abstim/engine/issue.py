"""One warp issues an instruction, which starts on a unit, and moves on (docs/timing-rules.md, rules 4, 5 and 7)."""

from abstim.engine import accesses, scoreboard
from abstim.engine import operand_collectors as collectors
from abstim.engine.barriers_and_exits import arrive, change_registers, leave, settle
from abstim.engine.fetch import want_fetch
from abstim.engine.kernel_queue import await_primary, trigger
from abstim.engine.mbarriers import follow_groups, follow_phases
from abstim.engine.memory_pipe import issue_access
from abstim.engine.pending_accesses import describe
from abstim.engine.perfect_memory import access, ask_followers
from abstim.engine.rules import READ_OPERANDS_CYCLES, START_CYCLES
from abstim.engine.scoreboard import FROM_ALU, entry_of
from abstim.engine.state import MEM, NEVER, SP
from abstim.engine.warp_slots import EMPTY_SET, bit, visit_from
from functional.jit.marked import add, outlined
from precharacterize.classify import Kind
from precharacterize.synchronisation import AWAITS, COMMITS, LAST_PRODUCT, NONE, REGISTERS, TRIGGERS


def started(sm, m, kind, w):
    """Cycle in which the unit started warp `w`'s latest instruction of a kind, which must be its port's latest."""
    port = collectors.port_of(m, kind, w)
    place = sm.ports[port].position
    return sm.ports[port].start[place - 1 if place else m.port_width[kind] - 1]


def start_on_unit(c, port, earliest, latency, initiation):
    """First cycle in which a unit of the port is free, its result slot is free and a result bus is free; books them."""
    sm, m, time = c.sm, c.machine, earliest
    while True:
        due = time + latency
        if collectors.count_results(c, due) < m.result_bus_width:
            for unit in range(m.first_unit[port], m.first_unit[port + 1]):
                word, place = collectors.results_of(c, unit)
                ring = c.results[word]
                if sm.unit_free[unit] <= time and not collectors.taken(ring, due & (m.ring - 1), due) & place:
                    if collectors.waits_at_port(m):
                        sm.ports[port].unit, sm.ports[port].unit_before = unit, sm.unit_free[unit]
                    sm.unit_free[unit] = time + initiation
                    collectors.book(ring, due & (m.ring - 1), place, due)
                    return time
        time += 1


def arithmetic(c, row, port, dispatched):
    """(start, result) of an instruction that leaves its collector at `dispatched`."""
    kind = row.unit
    earliest = dispatched + START_CYCLES
    if kind == SP:
        earliest = max(earliest, c.sm.ports[port].last_start)
    start = start_on_unit(c, port, earliest, row.latency_cycles, row.initiation_cycles)
    c.sm.ports[port].last_start = start
    return start, start + row.latency_cycles + row.result_offset_cycles


def memory(c, i, w, dispatched):
    """Perfect memory: (start, result) of an access that leaves its collector at `dispatched`."""
    sm, m = c.sm, c.machine
    unit = m.first_unit[collectors.port_of(m, MEM, 0)]
    start = max(dispatched + START_CYCLES, sm.unit_free[unit])
    fifo_free = sm.fifo_free
    busy, result = access(c, w, i, start)
    if sm.next_follower and not Kind.SHARED_LOAD <= c.code[i].kind <= Kind.SHARED_ATOMIC:
        ask_followers(c, w, i, start, fifo_free, busy, result)
    sm.unit_free[unit] = start + busy
    return start, result


def execute(c, i, w, time):
    """Send instruction `i` of warp `w`, issued at `time`, down its port; returns when its result can be used, NEVER if
    that is not known yet."""
    sm, m, row = c.sm, c.machine, c.code[i]
    kind = row.unit
    port = collectors.port_of(m, kind, w)
    pool = collectors.pool_of(m, port, w)
    if kind == MEM and not m.perfect_memory:
        return issue_access(c, i, w, port, pool, time)
    place, waits = sm.ports[port].position, collectors.waits_at_port(m) and row.copies == NONE
    if waits and not collectors.has_collector(c, kind, pool, time):
        collectors.wait_at_port(c, kind, i, w, port, pool, place)
        sm.warps.outstanding[w] += 1
        result = NEVER
    else:
        allocated = collectors.collect(c, kind, port, pool, time)
        result = with_collector(c, i, w, port, pool, place, allocated)
    sm.ports[port].position = place + 1 if place + 1 < m.port_width[kind] else 0
    return result


def with_collector(c, i, w, port, pool, place, allocated):
    """An instruction that has its port's `place` and an operand collector from step `allocated` on; returns when its
    result can be used."""
    sm, m, row = c.sm, c.machine, c.code[i]
    ports, number = sm.ports[port], sm.ports[pool].collector_taken
    operands = collectors.read_operands(c, row, w, allocated)
    ports.alloc[place] = collectors.cycle_of(m, allocated)
    if row.unit == MEM:
        step = max(operands, ports.start[place] * m.register_file_ports)
        ports.start[place], result = memory(c, i, w, collectors.cycle_of(m, step))
        c.collectors[pool, number] = step
        return result
    if overtakes(m, ports, row, operands, allocated, number):
        return overtake(c, i, w, port, pool, operands, number)
    return dispatch(c, i, w, port, pool, place, operands, number)


def dispatch(c, i, w, port, pool, place, operands, number):
    """An arithmetic instruction leaves its collector, `number`, with its operands at hand from a step on, for its unit;
    returns when its result can be used."""
    sm, m, row = c.sm, c.machine, c.code[i]
    ports = sm.ports[port]
    before = ports.start[place]
    step = max(operands, before * m.register_file_ports)
    start, result = arithmetic(c, row, port, collectors.cycle_of(m, step))
    collectors.write_back(c, row, w, result)
    ports.start[place] = start
    c.collectors[pool, number] = step
    if collectors.waits_at_port(m):
        ports.instruction, ports.warp, ports.log_row, ports.before = i, w, 0, before
        ports.operands, ports.number, ports.dispatched = operands, number, step if row.copies == NONE else 0
    return result


def overtakes(m, ports, row, operands, allocated, number):
    """Does an instruction leave its collector before the one that went to its port before it? Of those that are ready
    the lowest collector's goes first, as in GPGPU-Sim 4.2 (dispatch_unit_t::find_ready with sub-cores)."""
    if not collectors.waits_at_port(m) or m.port_width[row.unit] > 1:
        return False
    if row.copies != NONE or ports.dispatched <= allocated:
        return False
    step = max(operands, ports.before * m.register_file_ports)
    return step < ports.dispatched or (step == ports.dispatched and number < ports.number)


@outlined
def overtake(c, i, w, port, pool, operands, number):
    """An instruction goes to its unit before the latest of its port, which gives back what it has booked; returns when
    its result can be used."""
    sm, ports = c.sm, c.sm.ports[port]
    other, slot, ready, held, log_row = ports.instruction, ports.warp, ports.operands, ports.number, ports.log_row
    row = c.code[other]
    due = ports.start[0] + row.latency_cycles
    word, place = collectors.results_of(c, ports.unit)
    c.results[word, due & (c.machine.ring - 1)] &= ~place
    collectors.unwrite(c, row, slot, due + row.result_offset_cycles)
    sm.unit_free[ports.unit], ports.last_start = ports.unit_before, ports.before
    ports.start[0] = ports.before
    result = dispatch(c, i, w, port, pool, 0, operands, number)
    later = dispatch(c, other, slot, port, pool, 0, ready, held)
    scoreboard.put_off(c, slot, row, later)
    ports.log_row = log_row
    if log_row:
        log = c.record.log[log_row - 1]
        log.start_cycle, log.result_cycle = ports.start[0], later
    return result


def step(sm, streams, w):
    """Move the warp to its next instruction; returns False at the end of its stream."""
    i = sm.warps.pc[w] + 1
    if i >= sm.warps.stop[w]:
        sm.warps.event[w] += 1
        if sm.warps.event[w] >= sm.warps.event_end[w]:
            return False
        block = streams.blocks[sm.warps.event[w]]
        i = streams.block_start[block]
        sm.warps.stop[w] = streams.block_stop[block]
    sm.warps.pc[w] = i
    return True


def follow(c, w, i, time):
    """After issuing `i` at `time`: sequential, other lanes after an exit, or a taken branch."""
    sm, code = c.sm, c.code
    sm.warps.buffered[w] -= 1
    sequential = sm.warps.pc[w] == i + 1
    if sequential and sm.warps.buffered[w] > 0:
        sm.warps.front_end[w] = time + code[i].stall_cycles  # which holds when a result is known that was not, too
        scoreboard.make_ready(c, w, sm.warps.front_end[w], time)
    elif sequential or code[i].kind == Kind.EXIT:
        want_fetch(sm, w, code[sm.warps.pc[w]].pcs)
    else:
        sm.flush |= bit(w)
        sm.wrong[w] = i + 1 if i + 1 < len(code) else i
        if sm.warps.buffered[w] > 0:
            sm.warps.ready[w] = time + 1
            sm.memory &= ~bit(w)
            if not sm.held & bit(w):
                visit_from(sm, w, time + 1, time)
        else:
            want_fetch(sm, w, code[i].pcs + 1)


def park(c, w, time):
    """The warp has issued all that is known of its stream at `time`, and waits for more (coupling.py)."""
    sm, row = c.sm, c.record.warps[c.sm.warps.warp[w]]
    row.parked_cycle, row.slot = time, w
    sm.warps.buffered[w], sm.warps.ready[w] = 0, NEVER
    sm.memory &= ~bit(w)


def enter_block(c, w):
    """The warp goes on with the first instruction of the basic block at its cursor, its instruction buffer empty."""
    sm, streams = c.sm, c.streams
    block = streams.blocks[sm.warps.event[w]]
    sm.warps.pc[w], sm.warps.stop[w] = streams.block_start[block], streams.block_stop[block]
    sm.of_kind[c.code[sm.warps.pc[w]].unit] |= bit(w)
    want_fetch(sm, w, c.code[sm.warps.pc[w]].pcs)


def write_log(c, row, w, i, time, result, missed):
    """One issue: when, what, by whom. What an access missed and asked for is known when it is complete."""
    sm = c.sm
    row.cycle, row.result_cycle, row.start_cycle = time, result, started(sm, c.machine, c.code[i].unit, w)
    row.sm, row.slot, row.warp, row.instruction = sm.number, w, sm.warps.warp[w], i
    row.l1d_misses, row.l1i_misses, row.l2_accesses, row.dram_reads = missed, sm.l1i_misses, 0, 0


def store_window(record, sm):
    """What an SM counted of a window joins what others did, which may do so at the same time."""
    if sm.window_issued and record.launch.windows:
        row = sm.number * record.launch.windows if len(record.alike) else 0
        add(record.windows, row + sm.window, sm.window_issued)
        sm.window_issued = 0


def note(c, w, i, time, result, missed):
    """Book an issue for those who watch: the warp's first, the window's count, a row of the log."""
    sm, record, launch = c.sm, c.record, c.record.launch
    if sm.fresh & bit(w):
        sm.fresh &= ~bit(w)
        record.warps[sm.warps.warp[w]].issue_cycle = time
    if time >= sm.window_end:
        store_window(record, sm)
        sm.window = min(time >> launch.window_log2, launch.windows - 1)
        sm.window_end = (sm.window + 1) << launch.window_log2 if sm.window + 1 < launch.windows else NEVER
    sm.window_issued += 1
    if launch.logged < len(record.log):
        write_log(c, record.log[launch.logged], w, i, time, result, missed)
        launch.logged += 1
        if result >= NEVER and c.code[i].unit != MEM:
            collectors.latest_at_port(c, c.code[i].unit).log_row = launch.logged
        elif result >= NEVER:
            c.l1d.accesses[sm.latest_access - 1].row = launch.logged
        elif c.code[i].unit == MEM and not c.machine.perfect_memory:
            describe(c.l1d.accesses[sm.latest_access - 1], record.log[launch.logged - 1])


def follow_copies(c, w, row, record, result, time):
    """What an instruction issued at `time` does with asynchronous work, registers and other kernels; `record` is the
    first of its access."""
    if row.copies < COMMITS:
        if row.copies == REGISTERS:
            change_registers(c, w, row.word, time)
        elif c.machine.side_by_side and row.copies == TRIGGERS:
            trigger(c, c.sm.warps.block_of[w], time)
        elif c.machine.side_by_side and row.copies == AWAITS:
            await_primary(c, w)
    elif row.copies < LAST_PRODUCT:
        follow_phases(c, w, row.copies, record, result, time)
    elif row.copies != NONE:
        follow_groups(c, w, row, result)


def await_registers(c, w, time):
    """Behind a fence, issued at `time`, a warp waits for what it has issued before."""
    sm = c.sm
    if c.machine.posted_stores:  # as long as a store's way to L2 and back, if it meets nobody, or longer
        settle(c, w, time + c.machine.fence_delay)
    sm.warps.not_before[w] = scoreboard.fence_over(c, w)
    sm.fenced |= bit(w) if sm.warps.not_before[w] == NEVER else EMPTY_SET


def issue(c, w, time):
    """Issue the warp's next instruction at `time`."""
    sm = c.sm
    i = sm.warps.pc[w]
    row = c.code[i]
    kind = row.kind
    sm.visitable &= ~bit(w)
    missed, record = sm.l1d_misses, sm.warps.record[w]
    counted = row.counted and row.unit == MEM and not c.machine.perfect_memory  # comes when it is complete
    if counted:
        scoreboard.count_up(c, w, row)
    awaited = accesses.is_awaited(c, w, row)
    result = execute(c, i, w, time)
    if awaited and result >= NEVER:
        c.l1d.accesses[sm.latest_access - 1].awaited = 1
    note(c, w, i, time, result, sm.l1d_misses - missed)
    if not counted:
        scoreboard.write_results(c, w, row, result)
    if row.release >= 0:
        scoreboard.hold_register(c, w, row.release, entry_of(time + READ_OPERANDS_CYCLES, FROM_ALU))
    settle(c, w, result)
    is_known = step(sm, c.streams, w)
    if not is_known and c.record.warps[sm.warps.warp[w]].more <= 0:
        leave(c, w, time)
        follow_copies(c, w, row, record, result, time)
        return
    sm.of_kind[row.unit] &= ~bit(w)
    if is_known:
        sm.of_kind[c.code[sm.warps.pc[w]].unit] |= bit(w)
    if awaited:
        sm.warps.not_before[w] = result - 1 if result < NEVER else NEVER
    elif kind == Kind.FENCE:
        await_registers(c, w, time)
    else:
        sm.warps.not_before[w] = time + row.stall_cycles if row.stall_cycles > 1 else 0
    follow_copies(c, w, row, record, result, time)
    if kind == Kind.BARRIER:
        sm.held |= bit(w)
    if is_known:
        follow(c, w, i, time)
    else:
        park(c, w, time)
    if row.barrier >= 0:
        arrive(c, w, time, row.barrier)
