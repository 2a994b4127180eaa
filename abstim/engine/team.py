"""Several threads on one launch: in a round each SM, and the memory side, is a task for whoever takes it first.

The first member leads: it says what there is to do, helps, and goes on when all is done. A task that a member has not
come to is taken by the others, so a thread that gets no processor holds up nobody. Who does what changes no result.
"""

from __future__ import annotations

from functional.disk.compile import jit
from functional.disk.shared_words import add, load, pause, raise_to, sleep, store

SPINS, YIELDS, SLEEP_MICROSECONDS = 1 << 10, 1 << 11, 50  # of one who waits, before it gives way, and before it sleeps


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


@jit
def share_of(member, members, tasks):
    """The tasks that a member begins with: (first, behind the last). Always the same, which are in its caches."""
    return member * tasks // members, (member + 1) * tasks // members
