"""What is taken in which cycle: rings of words, each of them a cycle and what is taken in it.

A word that names another cycle than the one asked for is out of date, and nothing is taken: no word is ever cleared.
"""

from __future__ import annotations

from abstim.engine.state import BOOKED_LOG2
from functional.jit.compile import jit

HALF = 1 << BOOKED_LOG2  # bits of a word: the cycle above, what is taken below
LOWER = (1 << HALF) - 1
CYCLES = LOWER >> 1  # cycles are told apart modulo 2^31, far more than a ring is long


@jit
def taken(ring, row, part, time):
    """What is taken in cycle `time`, whose word is `ring[row, part]`: a set, or a count."""
    word = ring[row, part]
    return word & LOWER if word >> HALF == time & CYCLES else 0


@jit
def is_taken(ring, row, number, time):
    """Is place `number` taken in cycle `time`?"""
    return (taken(ring, row, number >> BOOKED_LOG2, time) >> (number & (HALF - 1))) & 1 != 0


@jit
def book(ring, row, number, time):
    """Place `number` is taken in cycle `time`."""
    part = number >> BOOKED_LOG2
    ring[row, part] = (time & CYCLES) << HALF | taken(ring, row, part, time) | 1 << (number & (HALF - 1))


@jit
def count(ring, row, time):
    """One more is taken in cycle `time`, of places that are all alike."""
    ring[row, 0] = (time & CYCLES) << HALF | taken(ring, row, 0, time) + 1
