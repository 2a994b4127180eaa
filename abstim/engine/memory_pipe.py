"""The load/store unit with real memory: instructions in order, transactions through the L1D pipes, replies
(docs/timing-rules.md, rules 5 and 11). What is not known yet when an instruction is issued comes when it is."""

from abstim.engine import accesses, state
from abstim.engine import operand_collectors as collectors
from abstim.engine.accesses import line_and_sectors, sectors_in
from abstim.engine.l1d import fill, load, load_below, queue_room_from, store
from abstim.engine.pending_accesses import can_send, finish, new_access, reply, send, write_words
from abstim.engine.read_only_caches import code_arrives, const_lookup, line_arrives, texture_lookup
from abstim.engine.switch import append, take
from functional.jit.marked import outlined
from functional.traces.trace import LINE_BYTES
from precharacterize.classify import Kind


def issue_access(c, i, w, port, pool, time):
    """A memory instruction goes to the load/store unit; returns its result cycle, NEVER while that is not known."""
    sm, m = c.sm, c.machine
    access, place = new_access(c, w, i), sm.ports[port].position
    at = (sm.issued_first + sm.issued_count) & (state.ISSUED_ACCESSES - 1)
    sm.issued_count += 1
    row = c.l1d.issued[at]
    row.access, row.issued, row.pool, row.collected, row.port = access, time, pool, 0, port
    row.place, row.started, row.conflict, row.record = place, 0, sm.warps.conflict[w], sm.warps.record[w]
    sm.ports[port].position = place + 1 if place + 1 < m.port_width[state.MEM] else 0
    waits = collectors.waits_at_port(m)
    if collectors.has_collector(c, state.MEM, pool, time) if waits else collectors.first_free(c, pool) < state.NEVER:
        with_collector(c, at, collectors.collect(c, state.MEM, port, pool, time))
    elif waits:
        collectors.wait_at_port(c, state.MEM, i, w, port, pool, place).issued = at
    else:
        sm.at_port += 1
        sm.ports[port].alloc[place] = state.NEVER
    row.end = accesses.move_past(c, w, i)
    row.lanes = accesses.lanes_a_sector(c, w, row.record, row.end) if c.code[i].fp64_atomic else 0
    if not in_any_order(m):
        go_on(c, time)
    found = c.l1d.accesses[access - 1]
    return found.result if found.waiting == 0 else state.NEVER


def with_collector(c, k, allocated):
    """The instruction at place `k` of the ring has an operand collector from step `allocated` on."""
    row = c.l1d.issued[k]
    access, ports = c.l1d.accesses[row.access - 1], c.sm.ports[row.port]
    row.collected, row.number = 1, c.sm.ports[row.pool].collector_taken
    row.operands = collectors.read_operands(c, c.code[access.instruction], access.warp, allocated)
    ports.alloc[row.place] = collectors.cycle_of(c.machine, allocated)
    if not in_any_order(c.machine):
        if c.l1d.issued[next_of_place(c, row)].access == row.access:
            leave_collector(c, row)
    elif ports.front:
        row.behind, ports.behind = ports.behind, k + 1
    else:
        stand_in_front(c, k)


def in_any_order(m):
    """Does the unit take instructions not by age alone? Those of sub-cores, if one of each stands in front."""
    return m.sub_cores and collectors.waits_at_port(m) and m.port_width[state.MEM] == 1


def stand_in_front(c, k):
    """An instruction of a sub-core leaves its collector, and stands in front of the unit: when it can start is known,
    and later than now."""
    row = c.l1d.issued[k]
    c.sm.ports[row.port].front = k + 1
    row.start = collectors.cycle_of(c.machine, leave_collector(c, row)) + 1
    if offer(c, k):
        c.sm.memory_due = min(c.sm.memory_due, c.sm.next_start)


def offer(c, k):
    """Of those in front of the unit, one a sub-core, it takes the one that has issued first, as soon as one is there;
    true if that is the one at place `k` of the ring, as far as is known."""
    sm, start = c.sm, max(c.l1d.issued[k].start, c.sm.unit_free[unit_of(c.machine)])
    if sm.at_unit and (start > sm.next_start or (start == sm.next_start and age(sm, k) > age(sm, sm.at_unit - 1))):
        return False
    sm.at_unit, sm.next_start = k + 1, start
    return True


def age(sm, k):
    """How many have issued before the instruction at place `k` of the ring."""
    return (k - sm.issued_first) & (state.ISSUED_ACCESSES - 1)


def choose(c):
    """The unit is free for the next of those in front of it."""
    m = c.machine
    for s in range(m.schedulers_per_sm):
        front = c.sm.ports[state.MEM * m.schedulers_per_sm + s].front
        if front:
            offer(c, front - 1)


def next_in_front(c, port):
    """Nothing of a sub-core stands in front of the unit any more: the first in a collector that is free to goes on, of
    several the one in the lowest (GPGPU-Sim 4.2, opndcoll_rfu_t::dispatch_ready_cu)."""
    ports, issued = c.sm.ports[port], c.l1d.issued
    ports.front, free = 0, ports.start[0] * c.machine.register_file_ports
    place, best, ports.behind = ports.behind, 0, 0
    while place:
        following, other = issued[place - 1].behind, place
        if best == 0 or is_before(issued[place - 1], issued[best - 1], free):
            best, other = place, best
        if other:  # which stays, in whatever order
            issued[other - 1].behind, ports.behind = ports.behind, other
        place = following
    if best:
        stand_in_front(c, best - 1)


def is_before(row, other, free):
    """Does an instruction leave its collector before another one, if none can before step `free`?"""
    step, others = max(row.operands, free), max(other.operands, free)
    return step < others or (step == others and row.number < other.number)


def next_of_place(c, row):
    """Where the oldest instruction is that has not started, for the same place of a port; -1: there is none."""
    for n in range(c.sm.issued_count):
        k = (c.sm.issued_first + n) & (state.ISSUED_ACCESSES - 1)
        other = c.l1d.issued[k]
        if not other.started and other.port == row.port and other.place == row.place:
            return k
    return -1


def leave_collector(c, row):
    """An instruction leaves its collector once the one before it has left the place behind, on the way to the unit;
    returns the step."""
    sm, m = c.sm, c.machine
    step = max(row.operands, sm.ports[row.port].start[row.place] * m.register_file_ports)
    c.collectors[row.pool, row.number] = step
    return step


def first_at_port(c, pool):
    """The oldest instruction that waits at its port for a collector, which is there now, leaves it."""
    sm = c.sm
    for n in range(sm.issued_count):
        k = (sm.issued_first + n) & (state.ISSUED_ACCESSES - 1)
        row = c.l1d.issued[k]
        if row.collected == 0 and row.pool == pool:
            sm.ports[row.port].alloc[row.place] = row.issued  # those before it are gone from the port since
            with_collector(c, k, collectors.collect(c, state.MEM, row.port, row.pool, row.issued))
            sm.at_port -= 1
            return


def dispatch(c, row):
    """The next instruction starts, which is known once the one before it is through."""
    sm, m = c.sm, c.machine
    access = c.l1d.accesses[row.access - 1]
    step = max(row.operands, sm.ports[row.port].start[row.place] * m.register_file_ports)
    row.start = max(collectors.cycle_of(m, step) + 1, sm.unit_free[unit_of(m)])
    sm.ports[row.port].start[row.place] = row.start
    row.started = 1
    behind = -1 if in_any_order(m) else next_of_place(c, row)
    if in_any_order(m):
        next_in_front(c, row.port)
    elif behind >= 0 and c.l1d.issued[behind].collected:
        leave_collector(c, c.l1d.issued[behind])
        if sm.at_port and not collectors.waits_at_port(m):
            first_at_port(c, row.pool)
    if access.row:
        c.record.log[access.row - 1].start_cycle = row.start


def unit_of(m):
    """The load/store unit, by its number among an SM's units."""
    return m.first_unit[state.MEM * m.schedulers_per_sm if m.sub_cores else state.MEM]


def occupy(c, until):
    """The load/store unit takes the next instruction no earlier."""
    c.sm.unit_free[unit_of(c.machine)] = until


def begin(c, row, time):
    """An instruction starts; true if it is through with the unit."""
    access = c.l1d.accesses[row.access - 1]
    i, kind = access.instruction, c.code[access.instruction].kind
    dispatch(c, row)
    busy, result = accesses.simple_result(c, access.warp, i, row.record, row.end, row.conflict, row.start)
    if busy:
        occupy(c, row.start + busy)
        if kind > Kind.CONST_LOAD and result > row.start + 1:
            collectors.write_back(c, c.code[i], access.warp, result)
        finish(c, row.access, result, time)
        return True
    first = row.record
    row.banks = accesses.banks_of(c.machine, c.streams.records, first, row.end, c.code[i].access_bytes)
    row.passing = accesses.const_hold(c.machine, 1, first, row.end) if kind <= Kind.CONST_LOAD else 0
    row.record, row.end = row.end - 1, first
    row.entry = row.start + (c.machine.const_hit_cycles if kind <= Kind.CONST_LOAD else 1)
    line, row.left = line_and_sectors(c.streams.records, row.record)
    while line == accesses.SHARED_LINE or accesses.is_phase(line):
        row.record -= 1
        row.passing += c.machine.shared_pass_cycles if line == accesses.SHARED_LINE else 0
        line, row.left = line_and_sectors(c.streams.records, row.record)
    return False


def bank_of(banks, sectors):
    """The L1D bank that a transaction enters: sectors are dealt to the banks in turn."""
    if banks == 1:
        return 0
    sector = 0
    while not (sectors >> sector) & 1:
        sector += 1
    return sector & (banks - 1)


def enter_pipe(c, row, kind, line, sectors):
    """The next transaction enters the pipe of its bank; false while all its stages are taken."""
    m, l1d = c.machine, c.l1d
    b = bank_of(row.banks, sectors)
    pipe = l1d.pipes[b]
    if pipe.count >= m.l1d_latency_cycles:
        return False
    if pipe.taken >= row.entry:
        row.entry = pipe.taken + 1
    pipe.taken = row.entry
    at = pipe.first + pipe.count
    stage = l1d.transactions[b, at if at < m.l1d_latency_cycles else at - m.l1d_latency_cycles]
    stage.due, stage.line, stage.sectors = row.entry + m.l1d_latency_cycles, line, sectors
    stage.access, stage.kind, stage.words = row.access, kind, accesses.words_at(m, c.streams.words, row.record)
    if pipe.count == 0:
        c.sm.below_due = min(c.sm.below_due, stage.due)
    pipe.count += 1
    l1d.accesses[row.access - 1].waiting += 1
    return True


def passes_l1d(m, kind, line):
    """Does an access leave without coming to L1D's pipe?"""
    if kind == Kind.L2_LOAD and not m.posted_stores and line < accesses.LOCAL_LINE:  # on hardware it waits for others
        return True
    return kind == Kind.GLOBAL_ATOMIC or (m.l1d_bypass and line < accesses.LOCAL_LINE and kind != Kind.TEXTURE_LOAD)


def pass_by(c, row, kind, line, sectors):
    """The next transaction passes L1D by; false while the switch has no room."""
    way = state.ATOMIC if kind == Kind.GLOBAL_ATOMIC else state.WRITE if kind == Kind.GLOBAL_STORE else state.READ
    if row.lanes:
        way = state.FP64_ATOMIC + row.lanes
    if not can_send(c, way, sectors):
        return False
    sent = send(c, line, sectors, way, state.TO_ACCESS, row.access, row.entry)
    write_words(c, accesses.words_at(c.machine, c.streams.words, row.record))
    access = c.l1d.accesses[row.access - 1]
    access.waiting += sectors_in(sectors)
    access.l2_accesses += sectors_in(sectors)
    row.entry = sent + 1
    return True


def next_record(c, row):
    """The record before the one that has entered is next; false if there is none."""
    if row.record == row.end:
        return False
    row.record -= 1
    _, row.left = line_and_sectors(c.streams.records, row.record)
    return True


def enter_global(c, row, kind):
    """Transactions of a global or local access, last line first; true once the last has entered."""
    m, access = c.machine, c.l1d.accesses[row.access - 1]
    size = accesses.transaction_bytes(m, kind, c.code[access.instruction].access_bytes)
    while True:
        line, _ = line_and_sectors(c.streams.records, row.record)
        line = accesses.line_for(m, line, c.sm.number, access.warp)
        while row.left:
            sectors = accesses.next_transaction(row.left, size)
            if passes_l1d(m, kind, line):
                entered = pass_by(c, row, kind, line, sectors)
            else:
                entered = enter_pipe(c, row, kind, line, sectors)
            if not entered:
                return False
            row.left &= ~sectors
        if not next_record(c, row):
            return True


def enter_const(c, row, time):
    """Lines of the constant cache, one a cycle, last record first; true once the last has been looked up."""
    wide = c.machine.const_line_bytes >= LINE_BYTES
    while True:
        line, _ = line_and_sectors(c.streams.records, row.record)
        while row.left:
            upper = not wide and not row.left & accesses.LOWER_HALF
            number = line if wide else 2 * line + (1 if upper else 0)
            if not const_lookup(c, number, row.access, row.entry, time):
                return False
            row.left = 0 if wide or upper else row.left & ~accesses.LOWER_HALF
            row.entry += c.machine.const_access_cycles
        if not next_record(c, row):
            return True


def enter(c, row, time):
    """As much of an instruction enters as there is room for; true once that is all."""
    kind = c.code[c.l1d.accesses[row.access - 1].instruction].kind
    if kind <= Kind.CONST_LOAD:
        return enter_const(c, row, time)
    return enter_global(c, row, kind)


@outlined
def go_on(c, time):
    """Instructions start and enter, as far as that is known at `time`; the unit has changed, or replies have come."""
    sm = c.sm
    if in_any_order(c.machine):
        while sm.at_unit and sm.next_start <= time and gets_through(c, c.l1d.issued[sm.at_unit - 1], time):
            c.l1d.issued[sm.at_unit - 1].started, sm.at_unit = 2, 0
            while sm.issued_count and c.l1d.issued[sm.issued_first].started == 2:
                forget_oldest(sm)
            if sm.issued_count:
                choose(c)
    else:
        while sm.issued_count and gets_through(c, c.l1d.issued[sm.issued_first], time):
            forget_oldest(sm)
    sm.memory_due = next_memory_event(c, time)


def forget_oldest(sm):
    """The instruction that has issued first is through with the unit."""
    sm.issued_first = (sm.issued_first + 1) & (state.ISSUED_ACCESSES - 1)
    sm.issued_count -= 1


def gets_through(c, row, time):
    """The oldest instruction starts, if it can, and enters as far as it can; true if it leaves the unit behind."""
    if collectors.waits_at_port(c.machine) and row.collected == 0:
        return False
    if row.started:
        row.entry = max(row.entry, time)
    elif begin(c, row, time):
        return True
    if not enter(c, row, time):
        return False
    kind = c.code[c.l1d.accesses[row.access - 1].instruction].kind
    line, _ = line_and_sectors(c.streams.records, row.record)
    ahead = kind <= Kind.CONST_LOAD or passes_l1d(c.machine, kind, line)  # `entry` is the cycle after the last
    least = row.passing if kind <= Kind.CONST_LOAD else max(c.machine.lane_cycles, row.passing)
    occupy(c, max(row.start + least, row.entry - 1 if ahead else row.entry))
    finish(c, row.access, 0, time)
    return True


def meet_tags(c, stage, time):
    """A transaction meets the tags; false if it must try again."""
    local = stage.line >= accesses.LOCAL_LINE
    if stage.kind == Kind.TEXTURE_LOAD:
        return texture_lookup(c, stage.line, stage.access, time)
    if stage.kind == Kind.GLOBAL_STORE:
        return store(c, stage, local, time)
    if stage.kind == Kind.L2_LOAD and not local:
        return load_below(c, stage.line, stage.sectors, stage.access, time)
    return load(c, stage.line, stage.sectors, stage.access, time)


def retry_from(c, stage, time):
    """When a transaction that has been refused tries again, if nothing comes back before."""
    writes = stage.kind == Kind.GLOBAL_STORE
    passes = stage.kind == Kind.L2_LOAD and stage.line < accesses.LOCAL_LINE
    room = queue_room_from(c, 0 if writes or passes else 1)
    if room > time and stage.kind != Kind.TEXTURE_LOAD:  # whose misses leave past the queue
        return room
    sectors = accesses.segment(c.machine, stage.sectors) if writes else stage.sectors
    return state.NEVER if can_send(c, state.WRITE if writes else state.READ, sectors) else c.record.launch.limit + 1


def look_up(c, time):
    """The first transaction of each bank, if it is due; one a cycle."""
    m = c.machine
    for b in range(m.l1d_banks):
        pipe = c.l1d.pipes[b]
        if pipe.count == 0 or pipe.retry > time:
            continue
        stage = c.l1d.transactions[b, pipe.first]
        if stage.due > time:
            continue
        if meet_tags(c, stage, time):
            pipe.first = pipe.first + 1 if pipe.first + 1 < m.l1d_latency_cycles else 0
            pipe.count -= 1
            for other in range(m.l1d_banks):  # to which the line that it has left may be a hit
                c.l1d.pipes[other].retry = min(c.l1d.pipes[other].retry, time)
        else:
            pipe.retry = retry_from(c, stage, time)


def come_back(c, request, time):
    """A reply reaches what asked for it; true if a transaction that has been refused may find a miss register, a way or
    room among those who wait that it has not found before."""
    count, frees = sectors_in(request.sectors), c.sm.in_flight >= state.IN_FLIGHT
    c.sm.in_flight -= count
    if request.who == state.TO_LINE:
        fill(c, request.place, request.sectors, request.from_dram, time)
        if c.machine.l1d_sectored or c.l1d.line[request.place].coming == 0:
            frees = True
    elif request.who == state.TO_CODE:
        code_arrives(c, request.place, count, time)
    elif request.who == state.TO_ACCESS:
        c.l1d.accesses[request.place - 1].dram_reads += request.from_dram * count
        for _ in range(count):
            if request.kind == state.WRITE:
                finish(c, request.place, time, time)
            else:
                reply(c, request.place, time)
    elif request.who == state.TO_CONST:
        c.sm.consts_coming -= line_arrives(c, c.const, request.place, count, time)
    else:
        frees |= line_arrives(c, c.texture, request.place, count, time)
    return frees


def receive(c, time):
    """Replies that are due."""
    shared = c.shared
    inbox, rows = shared.inbox[c.sm.number], shared.requests.rows
    frees = False
    while inbox.count and rows[inbox.first - 1].due <= time:
        place = take(rows, inbox)
        frees |= come_back(c, rows[place - 1], rows[place - 1].due)
        append(rows, shared.received[c.sm.number], place)
    if frees:
        for b in range(c.machine.l1d_banks):
            c.l1d.pipes[b].retry = min(c.l1d.pipes[b].retry, time)


@outlined
def memory_stage(c, time):
    """What memory does for an SM in a cycle in which it has something to do, before its schedulers have their turn."""
    if c.sm.below_due <= time:
        receive(c, time)
        look_up(c, time)
        c.sm.below_due = next_below(c, time)
    go_on(c, time)


def next_below(c, time):
    """The next cycle after `time` in which a reply comes or a transaction meets the tags, as far as is known."""
    following, inbox = state.NEVER, c.shared.inbox[c.sm.number]
    if inbox.count:
        following = c.shared.requests.rows[inbox.first - 1].due
    for b in range(c.machine.l1d_banks):
        pipe = c.l1d.pipes[b]
        if pipe.count:
            following = min(following, max(pipe.retry, c.l1d.transactions[b, pipe.first].due))
    return max(following, time + 1)


def next_memory_event(c, time):
    """The next cycle after `time` in which an access has something to do."""
    sm, following = c.sm, c.sm.below_due
    if sm.issued_count:
        row = c.l1d.issued[sm.at_unit - 1 if in_any_order(c.machine) and sm.at_unit else sm.issued_first]
        if row.started and row.entry > time:
            following = min(following, row.entry)
        elif in_any_order(c.machine) and sm.at_unit and not row.started:
            following = min(following, sm.next_start)
    return max(following, time + 1)
