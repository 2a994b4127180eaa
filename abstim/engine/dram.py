"""DRAM channels: a queue, banks with open rows, first-ready scheduling, one burst after another
(docs/timing-rules.md, rule 11). Times are cycles of the channels' clock but where they are called core cycles."""

from abstim.engine.accesses import sectors_in
from abstim.engine.state import EVICTED, NEVER
from abstim.engine.switch import WORD_LOG2, append, first_from, give_back, insert, is_empty, remove, take
from abstim.engine.warp_slots import above
from functional.jit.marked import members, outlined


def cycles_by(m, time):
    """The last of the channels' cycles that falls into core cycle `time` or before it."""
    return (time << 16) // m.dram_cycle


def returned_to_slice(shared, h, time):
    """The oldest read that is back goes to its slice."""
    channels, rows, slices = shared.channels, shared.requests.rows, shared.slices
    n = rows[channels.returned[h].first - 1].slice
    if slices.from_dram[n].count < shared.machine.l2_queue:
        append(rows, slices.from_dram[n], take(rows, channels.returned[h]))
        slices.wake[n] = min(slices.wake[n], time)


def first_ready(rows, bank):
    """Take the oldest request that waits for the row served last, or the oldest of all if none does."""
    before, place = 0, bank.first
    while place and rows[place - 1].row + 1 != bank.served_row:
        before, place = place, rows[place - 1].next
    if place == 0:
        before, place = 0, bank.first
    following = rows[place - 1].next
    if before:
        rows[before - 1].next = following
    else:
        bank.first = following
    if following == 0:
        bank.last = before
    bank.count -= 1
    bank.served_row = rows[place - 1].row + 1
    return place


def choose(shared, h):
    """One bank that serves nothing takes up a request."""
    m, channels, state = shared.machine, shared.channels, shared.channels.state[h]
    if is_empty(channels.waiting[h]):
        return
    b = first_from(channels.waiting[h], state.first_bank)
    bank = channels.banks[h * m.dram_banks + b]
    bank.request = first_ready(shared.requests.rows, bank)
    bank.writes = shared.requests.rows[bank.request - 1].kind == EVICTED
    remove(channels.waiting[h], b)
    insert(channels.serving[h], b)
    state.pending -= 1
    state.commands = bank.ready = 0
    state.first_bank = state.first_bank + 1 if state.first_bank + 1 < m.dram_banks else 0


def burst_from(shared, h, b, bank):
    """Cycle from which the burst of a bank's request, whose row is open, can begin."""
    m, state = shared.machine, shared.channels.state[h]
    free = max(state.burst, shared.channels.groups[h, b & (m.dram_bank_groups - 1), 0])
    return max(free, bank.write, state.write) if bank.writes else max(free, bank.read, state.read)


def row_from(shared, h, b, bank):
    """Cycle from which a bank can open or close a row."""
    m = shared.machine
    if bank.open_row == 0:
        return max(shared.channels.state[h].row, bank.precharge, bank.row_cycle)
    group = shared.channels.groups[h, b & (m.dram_bank_groups - 1), 1]
    return max(bank.row_active, bank.written, bank.was_read, group)


def begin_burst(shared, h, b, bank, cycle):
    """One burst of a bank's request; with the last the bank is free for another."""
    m, channels, rows = shared.machine, shared.channels, shared.requests.rows
    state, group = channels.state[h], channels.groups[h, b & (m.dram_bank_groups - 1)]
    place = bank.request
    request = rows[place - 1]
    state.burst, group[0] = cycle + m.dram_burst_cycles, cycle + m.dram_group_burst_cycles
    if bank.writes:
        state.read = max(state.read, cycle + m.write_to_read)
        bank.written = cycle + m.write_to_precharge
        request.flits += m.burst_sectors
        if request.flits < sectors_in(request.sectors):
            return
    else:
        state.write = cycle + m.read_to_write
        bank.was_read = cycle + m.dram_burst_cycles
        group[1] = cycle + m.dram_read_to_precharge_cycles
    bank.request = 0
    remove(channels.serving[h], b)
    if bank.count:
        insert(channels.waiting[h], b)
    request.due = cycle + (m.dram_write_cycles if bank.writes else m.dram_read_cycles)
    append(rows, channels.returning[h], place)


def open_or_close(shared, h, b, bank, cycle):
    """A command to a bank whose request is for another row than the one that is open."""
    m, state = shared.machine, shared.channels.state[h]
    if bank.open_row == 0:
        bank.open_row = bank.served_row
        state.row = cycle + m.dram_row_to_row_cycles
        bank.read, bank.write = cycle + m.row_to_read, cycle + m.row_to_write
        bank.row_active, bank.row_cycle = cycle + m.dram_row_active_cycles, cycle + m.dram_row_cycle_cycles
    else:
        bank.open_row = 0
        bank.precharge = cycle + m.precharge
    bank.ready = cycle + 1
    state.first_bank = b + 1 if b + 1 < m.dram_banks else 0


def command(shared, h, cycle):
    """A burst if one can begin, and a row command if one can be given and there is a second bus, or no burst began.
    Returns from when on there can be another."""
    m, serving, first = shared.machine, shared.channels.serving[h], shared.channels.state[h].first_bank
    bursts, rows, following = False, False, NEVER
    for k in range(len(serving) + 1):  # in the word of the first bank those before it come last
        word = (first >> WORD_LOG2) + k
        word -= len(serving) if word >= len(serving) else 0
        left, late = serving[word], above(serving[word], (first & 63) - 1)
        for w in members(late if k == 0 else left & ~late if k == len(serving) else left):
            b = (word << WORD_LOG2) + w
            bank = shared.channels.banks[h * m.dram_banks + b]
            is_open = bank.open_row == bank.served_row
            if bank.ready <= cycle:
                bank.ready = burst_from(shared, h, b, bank) if is_open else row_from(shared, h, b, bank)
            if bank.ready > cycle:
                following = min(following, bank.ready)
                continue
            if is_open and not bursts:
                begin_burst(shared, h, b, bank, cycle)
                bursts = True
            elif not (is_open or rows):
                open_or_close(shared, h, b, bank, cycle)
                rows = True
            if not m.dram_two_commands or (bursts and rows):
                return cycle + 1
    return cycle + 1 if bursts or rows else following


def accept(shared, h, time):
    """One request of the channel's slices, in turn, comes from the queue in front of it."""
    m, channels, slices, rows = shared.machine, shared.channels, shared.slices, shared.requests.rows
    state = channels.state[h]
    if channels.delayed[h].count + state.pending >= m.dram_requests:
        return
    part = state.turn
    for _ in range(m.l2_slices_per_channel):
        part = part + 1 if part + 1 < m.l2_slices_per_channel else 0
        n = h * m.l2_slices_per_channel + part
        if slices.to_dram[n].count:
            place = take(rows, slices.to_dram[n])
            rows[place - 1].due, rows[place - 1].flits = time + m.dram_delay, 0
            append(rows, channels.delayed[h], place)
            state.turn = part
            return


def admit(shared, h, time):
    """The oldest request whose delay is over waits for its bank, if the channel's queue has room; a write, until there
    are `dram_write_batch` of them, which then go before all reads."""
    m, channels, rows = shared.machine, shared.channels, shared.requests.rows
    state, delayed, writes = channels.state[h], channels.delayed[h], channels.writes[h]
    if state.pending >= m.dram_queue:
        return
    if state.draining:
        state.draining -= 1
        wait_for_bank(shared, h, take(rows, writes))
    elif delayed.count and rows[delayed.first - 1].due <= time:
        place = take(rows, delayed)
        if m.dram_write_batch and rows[place - 1].kind == EVICTED:
            append(rows, writes, place)
            state.draining = m.dram_write_batch if writes.count == m.dram_write_batch else 0
        else:
            wait_for_bank(shared, h, place)


def wait_for_bank(shared, h, place):
    """A request joins those of its bank."""
    channels, rows = shared.channels, shared.requests.rows
    b = rows[place - 1].bank
    bank = channels.banks[h * shared.machine.dram_banks + b]
    if bank.request == 0:
        insert(channels.waiting[h], b)
    append(rows, bank, place)
    channels.state[h].pending += 1


def next_step(shared, h, cycle, time):
    """The next cycle after `cycle` in which the channel has something to do."""
    m, channels, slices, rows = shared.machine, shared.channels, shared.slices, shared.requests.rows
    if channels.returned[h].count:
        return cycle + 1
    for k in range(m.l2_slices_per_channel):
        if slices.to_dram[h * m.l2_slices_per_channel + k].count:
            return cycle + 1
    if not is_empty(channels.waiting[h]):
        return cycle + 1
    following = channels.state[h].commands
    if channels.returning[h].count:
        following = min(following, rows[channels.returning[h].first - 1].due)
    if channels.state[h].pending < m.dram_queue:
        if channels.state[h].draining:
            return cycle + 1
        if channels.delayed[h].count:
            due = rows[channels.delayed[h].first - 1].due
            following = min(following, cycles_by(m, due - 1) + 1)
    return max(following, cycle + 1)


@outlined
def advance_channel(shared, h, cycle, time):
    """One cycle of channel `h`, in core cycle `time`."""
    channels, rows = shared.channels, shared.requests.rows
    if channels.returned[h].count:
        returned_to_slice(shared, h, time)
    if channels.returning[h].count and rows[channels.returning[h].first - 1].due <= cycle:
        place = take(rows, channels.returning[h])
        if rows[place - 1].kind == EVICTED:  # a write is done with; a read has its data
            give_back(rows, shared.requests.unused, place)
        else:
            append(rows, channels.returned[h], place)
    choose(shared, h)
    if channels.state[h].commands <= cycle:
        channels.state[h].commands = command(shared, h, cycle)
    accept(shared, h, time)
    admit(shared, h, time)
    channels.wake[h] = next_step(shared, h, cycle, time)
