"""Queues of requests: places in one array, linked. A place is one too high throughout, so that 0 is none."""

from __future__ import annotations

import numpy as np

from functional.jit.compile import jit


@jit
def new_request(requests):
    """The place of a request that nobody uses."""
    place = requests.unused[0]
    if place:
        requests.unused[0] = requests.rows[place - 1].next
    else:
        requests.unused[1] += 1
        place = requests.unused[1]
    return np.int64(place)


@jit
def give_back(requests, place):
    """The request at a place is done with."""
    requests.rows[place - 1].next = requests.unused[0]
    requests.unused[0] = place


@jit
def append(rows, queue, place):
    """A request goes to the end of a queue."""
    rows[place - 1].next = 0
    if queue.count:
        rows[queue.last - 1].next = place
    else:
        queue.first = place
    queue.last = place
    queue.count += 1


@jit
def take(rows, queue):
    """The place of the first of a queue, which is not empty."""
    place = np.int64(queue.first)
    queue.first = rows[place - 1].next
    queue.count -= 1
    return place


@jit
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


@jit
def give_back_all(requests, queue):
    """All requests of a queue are done with."""
    if queue.count:
        requests.rows[queue.last - 1].next = requests.unused[0]
        requests.unused[0] = queue.first
        queue.count = 0
