"""Several threads on one launch: in a round each SM, and the memory side, is a task for whoever takes it first.

The first member leads: it says what there is to do, helps, and goes on when all is done. A member begins with the tasks
that it did last, whose data lie in its caches: a window of an SM takes some microseconds, and to fetch the SM's state
from another core as long. Only of a member that does not come to its own, because it gets no processor or has too many,
others take one, and keep it. Who does what changes no result.
"""

from __future__ import annotations

from functional.jit.compile import jit
from functional.jit.shared_words import add, load, pause, raise_to, sleep, store

# Of one who waits: for about a millisecond, longer than a round, before it gives way, and before it sleeps
SPINS, YIELDS, SLEEP_MICROSECONDS = 1 << 14, 1 << 6, 50
LOOKS, PAUSES_A_LOOK = 8, 8  # of one who is done with its own: for a few microseconds, as a task takes


@jit
def rest(waited):
    """A thread has waited so many times for another, and is about to look again."""
    if waited < SPINS:
        pause()
    else:
        sleep(0 if waited < SPINS + YIELDS else SLEEP_MICROSECONDS)


@jit
def begin(team, number):
    """What there is to do in round `number` is there for all."""
    store(team.done, 0, 0)
    store(team.round, 0, number)


@jit
def takes(team, k, number):
    """Task `k` of round `number` is for who asks: true for one of them, never if the round is over."""
    return load(team.taken, k) < number and raise_to(team.taken, k, number) < number


@jit
def all_taken(team, number):
    """Has somebody taken each task of round `number`?"""
    for k in range(len(team.taken)):  # noqa: SIM110 (compiled)
        if load(team.taken, k) < number:
            return False
    return True


@jit
def others_are_late(team, number):
    """Is there a task of round `number` that nobody comes to for a while?"""
    for _ in range(LOOKS):
        if all_taken(team, number):
            return False
        for _ in range(PAUSES_A_LOOK):
            pause()
    return True


@jit
def finished(team):
    """A task is done."""
    add(team.done, 0, 1)


@jit
def wait_for_all(team, tasks):
    """Until all tasks of the round are done."""
    waited = 0
    while load(team.done, 0) < tasks:
        rest(waited)
        waited += 1


@jit
def wait_for_round(team, number):
    """The round after `number`, once there is one; OVER if there is none."""
    waited = 0
    while load(team.round, 0) == number:
        rest(waited)
        waited += 1
    return load(team.round, 0)
