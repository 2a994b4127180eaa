"""Queues of requests, and one direction of the crossbar, where an output takes one packet at a time, in turn
(docs/timing-rules.md, rule 11)."""

from abstim.engine.rules import UNITS_A_CYCLE
from abstim.engine.warp_slots import above, bit, lowest
from functional.jit.marked import members


def new_place(rows, unused):
    """The place of a row that nobody uses; `unused`: the first given back, how many have ever been used."""
    place = unused[0]
    if place:
        unused[0] = rows[place - 1].next
    else:
        unused[1] += 1
        place = unused[1]
    return place


def give_back(rows, unused, place):
    """The row at a place is done with."""
    rows[place - 1].next = unused[0]
    unused[0] = place


def append(rows, queue, place):
    """A request goes to the end of a queue."""
    rows[place - 1].next = 0
    if queue.count:
        rows[queue.last - 1].next = place
    else:
        queue.first = place
    queue.last = place
    queue.count += 1


def take(rows, queue):
    """The place of the first of a queue, which is not empty."""
    place = queue.first
    queue.first = rows[place - 1].next
    queue.count -= 1
    return place


def join(rows, queue, other):
    """All of another queue goes to the end of a queue."""
    if other.count == 0:
        return
    if queue.count:
        rows[queue.last - 1].next = other.first
    else:
        queue.first = other.first
    queue.last = other.last
    queue.count += other.count
    other.count = 0


def give_back_all(requests, queue):
    """All requests of a queue are done with."""
    if queue.count:
        requests.rows[queue.last - 1].next = requests.unused[0]
        requests.unused[0] = queue.first
        queue.count = 0


WORD_LOG2 = 6


def insert(words, n):
    """Put `n` into a set."""
    words[n >> WORD_LOG2] |= bit(n & 63)


def remove(words, n):
    """Take `n` out of a set."""
    words[n >> WORD_LOG2] &= ~bit(n & 63)


def is_empty(words):
    """Has a set no member?"""
    for k in range(len(words)):  # noqa: SIM110 (compiled)
        if words[k]:
            return False
    return True


def first_from(words, n):
    """The first member from `n` on, in cyclic order; the set is not empty."""
    start = n >> WORD_LOG2
    left = above(words[start], (n & 63) - 1)
    for k in range(len(words)):
        if left:
            return ((start + k if start + k < len(words) else start + k - len(words)) << WORD_LOG2) + lowest(left)
        following = start + k + 1 if start + k + 1 < len(words) else start + k + 1 - len(words)
        left = words[following]
    return (start << WORD_LOG2) + lowest(words[start])


def put(switch, rows, i, place):
    """A packet comes into the queue of input `i`."""
    if switch.inputs[i].count == 0:
        insert(switch.late, i)
    append(rows, switch.inputs[i], place)
    switch.flits[i] += rows[place - 1].flits


def look(switch, rows, i, time):
    """The first packet of input `i` asks for its output, once it and the input are free to go."""
    packet = rows[switch.inputs[i].first - 1]
    if packet.due > time or switch.input_free[i] > time:
        return
    remove(switch.late, i)
    insert(switch.wants[packet.output], i)
    insert(switch.asked, packet.output)


def pass_on(switch, m, rows, o, time):
    """Output `o` takes the first packet of the input whose turn it is."""
    i = first_from(switch.wants[o], switch.turn[o])
    place = take(rows, switch.inputs[i])
    packet = rows[place - 1]
    switch.flits[i] -= packet.flits
    switch.turn[o] = i + 1 if i + 1 < len(switch.inputs) else 0
    switch.output_free[o] = packet.due = time + packet.flits
    switch.input_free[i] = time if m.crossbar_repeats else packet.due
    append(rows, switch.outputs[o], place)
    insert(switch.filled, o)
    remove(switch.wants[o], i)
    if is_empty(switch.wants[o]):
        remove(switch.asked, o)
    if switch.inputs[i].count:
        insert(switch.late, i)
        if m.crossbar_repeats:  # the reference's plain one: the input goes on, with outputs later in this cycle
            look(switch, rows, i, time)


def pass_through(switch, rows, flits_a_cycle, time):
    """With queues at the outputs: an input's first packets join their output's queue, behind those that came before."""
    units, end = UNITS_A_CYCLE // flits_a_cycle, (time + 1) * UNITS_A_CYCLE
    for k in range(len(switch.late)):
        for w in members(switch.late[k]):
            i = (k << WORD_LOG2) + w
            while switch.inputs[i].count and switch.input_free[i] < end:
                packet = rows[switch.inputs[i].first - 1]
                if packet.due > time:
                    break
                place, o, start = take(rows, switch.inputs[i]), packet.output, time * UNITS_A_CYCLE
                start = max(start, switch.input_free[i])
                switch.input_free[i] = start + packet.flits * units
                switch.output_free[o] = max(start, switch.output_free[o]) + packet.flits * units
                packet.due = (switch.output_free[o] + UNITS_A_CYCLE - 1) // UNITS_A_CYCLE
                append(rows, switch.outputs[o], place)
                insert(switch.filled, o)
            if switch.inputs[i].count == 0:
                remove(switch.late, i)


def leave(switch, m, rows, o, i):
    """The first packet of output `o`, which input `i` brought, leaves the switch."""
    place = take(rows, switch.outputs[o])
    if switch.outputs[o].count == 0:
        remove(switch.filled, o)
    if m.crossbar_output_queues:
        switch.flits[i] -= rows[place - 1].flits
    return place


def advance_switch(switch, m, rows, flits_a_cycle, time):
    """One cycle. `flits_a_cycle`: of each link, with queues at the outputs."""
    if m.crossbar_output_queues:
        pass_through(switch, rows, flits_a_cycle, time)
        return
    for k in range(len(switch.late)):
        for w in members(switch.late[k]):
            i = (k << WORD_LOG2) + w
            look(switch, rows, i, time)
    for k in range(len(switch.asked)):
        left = switch.asked[k]
        while left:
            o = (k << WORD_LOG2) + lowest(left)
            if switch.output_free[o] <= time and switch.outputs[o].count < m.crossbar_queue_flits:
                pass_on(switch, m, rows, o, time)
            left = above(switch.asked[k], o & 63)


def is_idle(switch):
    """Is there no packet?"""
    return is_empty(switch.late) and is_empty(switch.asked) and is_empty(switch.filled)
