"""Line records of a trace: which line an instruction touched, which of its sectors, and whether another one follows.

A record is a 32-bit word (line number << 5) | (sectors << 1) | more. The line number is address / 128 B, or one of the
windows of `trace.py`; bit s of the sectors says that bytes 32 s .. 32 s + 31 of the line are touched; `more` is
1 if the next record is of the same instruction. No sectors: no lane was active, and the line number is 0. Records of
one instruction ascend by line number; an atomic repeats a line as often as the most contended word of it is named (one
transaction each, GPGPU-Sim 4.2).

The functions take numbers and arrays, and can be compiled by Numba as they are.
"""

from __future__ import annotations

from typing import Any

from functional.launches.memory import GLOBAL_BASE
from functional.traces.trace import LINE_BYTES, PHASE_WINDOW_LINE, SECTOR_BYTES, SHARED_WINDOW_LINE

SECTORS_A_LINE = LINE_BYTES // SECTOR_BYTES
ALL_SECTORS = (1 << SECTORS_A_LINE) - 1
MORE = 1
SECTOR_SHIFT = 1
LINE_SHIFT = SECTOR_SHIFT + SECTORS_A_LINE
FIRST_GLOBAL_LINE = GLOBAL_BASE // LINE_BYTES
SHARED_PASS = SHARED_WINDOW_LINE << LINE_SHIFT | ALL_SECTORS << SECTOR_SHIFT  # a cycle of a generic access to shared


def line_of(record: Any) -> Any:
    """Line number of a record."""
    return record >> LINE_SHIFT


def sectors_of(record: Any) -> Any:
    """Sector bits of a record; none if no lane was active."""
    return (record >> SECTOR_SHIFT) & ALL_SECTORS


def more_follow(record: Any) -> Any:
    """1 if the next record is of the same instruction, else 0."""
    return record & MORE


def packed(line: Any, sectors: Any, more: Any = 0) -> Any:
    """A record."""
    return (line << LINE_SHIFT) | (sectors << SECTOR_SHIFT) | more


def of_byte(address: int) -> int:
    """The record of an access to one sector, the one that a byte lies in."""
    return int(packed(address // LINE_BYTES, 1 << (address // SECTOR_BYTES % SECTORS_A_LINE)))


def is_data(line: Any) -> Any:
    """Does a line belong to global or local memory? Constants lie below, parameters and shared memory above."""
    return (line >= FIRST_GLOBAL_LINE) & (line < PHASE_WINDOW_LINE)
