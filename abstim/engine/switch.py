"""One direction of the crossbar: inputs queue, an output takes one packet at a time, in turn (docs/timing-rules.md,
rule 11). Sets of inputs and outputs are rows of 64-bit words."""

from __future__ import annotations

from abstim.engine.queues import append, take
from abstim.engine.warp_slots import ONE, above, bit, lowest
from functional.disk.compile import jit

WORD_LOG2 = 6


@jit
def insert(words, n):
    """Put `n` into a set."""
    words[n >> WORD_LOG2] |= bit(n & 63)


@jit
def remove(words, n):
    """Take `n` out of a set."""
    words[n >> WORD_LOG2] &= ~bit(n & 63)


@jit
def is_empty(words):
    """Has a set no member?"""
    for k in range(len(words)):  # noqa: SIM110 (compiled)
        if words[k]:
            return False
    return True


@jit
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


@jit
def put(switch, rows, i, place):
    """A packet comes into the queue of input `i`."""
    if switch.inputs[i].count == 0:
        insert(switch.late, i)
    append(rows, switch.inputs[i], place)
    switch.flits[i] += rows[place - 1].flits


@jit
def look(switch, rows, i, time):
    """The first packet of input `i` asks for its output, once it and the input are free to go."""
    packet = rows[switch.inputs[i].first - 1]
    if packet.due > time or switch.input_free[i] > time:
        return
    remove(switch.late, i)
    insert(switch.wants[packet.output], i)
    insert(switch.asked, packet.output)


@jit
def look_at_late(switch, rows, time):
    """All inputs whose first packet has not been looked at."""
    for k in range(len(switch.late)):
        left = switch.late[k]
        while left:
            i = (k << WORD_LOG2) + lowest(left)
            left &= left - ONE
            look(switch, rows, i, time)


@jit
def next_turn(switch, m, rows, i, o, time):
    """The input from which output `o` looks on, having taken a packet of input `i`: the one behind it, or, if turns
    are kept, the same while a packet for this output is next there. (SMs write down what comes later in a window.)"""
    if m.switch_keeps_turn and switch.inputs[i].count:
        following = rows[switch.inputs[i].first - 1]
        if following.output == o and following.due <= time:
            return i
    return i + 1 if i + 1 < len(switch.inputs) else 0


@jit
def pass_on(switch, m, rows, o, time):
    """Output `o` takes the first packet of the input whose turn it is."""
    i = first_from(switch.wants[o], switch.turn[o])
    place = take(rows, switch.inputs[i])
    packet = rows[place - 1]
    switch.flits[i] -= packet.flits
    switch.turn[o] = next_turn(switch, m, rows, i, o, time)
    switch.output_free[o] = packet.due = time + packet.flits
    switch.input_free[i] = time if m.switch_repeats else packet.due
    append(rows, switch.outputs[o], place)
    insert(switch.filled, o)
    remove(switch.wants[o], i)
    if is_empty(switch.wants[o]):
        remove(switch.asked, o)
    if switch.inputs[i].count:
        insert(switch.late, i)
        if m.switch_repeats:  # the reference's plain one: the input goes on, with outputs later in this cycle
            look(switch, rows, i, time)


@jit
def advance_switch(switch, m, rows, time):
    """One cycle."""
    look_at_late(switch, rows, time)
    for k in range(len(switch.asked)):
        left = switch.asked[k]
        while left:
            o = (k << WORD_LOG2) + lowest(left)
            if switch.output_free[o] <= time and switch.outputs[o].count < m.switch_queue:
                pass_on(switch, m, rows, o, time)
            left = above(switch.asked[k], o & 63)


@jit
def is_idle(switch):
    """Is there no packet?"""
    return is_empty(switch.late) and is_empty(switch.asked) and is_empty(switch.filled)
