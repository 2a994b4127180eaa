"""The addresses behind an instruction of a trace, written in one of three modes, to and from lanes.

Mode 0: one hexadecimal address an active lane. Mode 1: `0xbase stride`, active lanes are one run. Mode 2: `0xbase`,
then the decimal difference from the previous active lane, for each active lane but the first. (Accel-Sim's reader takes
one number more in mode 2 and thereby swallows the immediate that the writer puts behind the addresses.)
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from functional.errors import InputError

LIST, STRIDE, DELTAS = "0", "1", "2"
MOST = 1 << 57  # widest virtual address of a GPU, in bytes; sums of 32 such still fit in 64 bits
_LANES = 32
_PATTERNS = 1 << 14  # kept: the differences of one warp are often those of the next

Offsets = Int64[np.ndarray, "32"]


def parse_addresses(text: str, active: int) -> tuple[int, Offsets]:
    """Address of the first active lane, and what lies between it and those of the following `active` lanes.

    Raises InputError if there are too few or one is out of range.
    """
    try:
        mode, first, rest = (*text.split(None, 2), "")[:3]
        base = int(first, 16) if active else 0
        if mode == STRIDE:
            offsets = _strided(rest.split(None, 1)[0])
        elif mode == DELTAS:
            offsets = _summed(rest, active)
        elif mode == LIST:
            offsets = _listed(text, active)
        else:
            raise InputError(f"address mode {mode[:20]} is unknown")
    except (IndexError, ValueError, OverflowError):
        raise InputError(f"malformed addresses for {active} active lanes: {text.strip()[:60]}") from None
    if not -MOST < base < MOST:
        raise InputError(f"address {base:#x} is out of range")
    return base, offsets


@lru_cache(_PATTERNS)
def _strided(stride: str) -> Offsets:
    return _checked(np.arange(_LANES) * int(stride))


@lru_cache(_PATTERNS)
def _summed(rest: str, active: int) -> Offsets:
    differences = [int(d) for d in rest.split()[: max(0, active - 1)]]
    if len(differences) < active - 1:
        raise ValueError
    return _checked(np.cumsum([0, *differences, *[0] * (_LANES - 1 - len(differences))]))


def _listed(text: str, active: int) -> Offsets:
    addresses = [int(a, 16) for a in text.split()[1 : 1 + active]]
    if len(addresses) < active:
        raise ValueError
    return _checked(np.array([a - addresses[0] for a in addresses] + [0] * (_LANES - active)))


def _checked(offsets: np.ndarray) -> Offsets:
    """Raises ValueError (or OverflowError) if a distance is out of range."""
    if offsets.dtype != np.int64 or np.abs(offsets).max() >= MOST:
        raise ValueError
    return offsets


def format_addresses(addresses: list[int], lanes: list[int]) -> str:
    """Mode and addresses of the active `lanes`, as NVBit's tracer compresses them."""
    if not addresses:
        return "1 0x0 0"
    deltas = [b - a for a, b in pairwise(addresses)]
    one_run = lanes[-1] - lanes[0] + 1 == len(lanes)
    if deltas and one_run and len(set(deltas)) == 1:
        return f"1 {addresses[0]:#x} {deltas[0]}"
    return " ".join(["2", f"{addresses[0]:#x}", *map(str, deltas)])
