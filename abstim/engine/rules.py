"""Numbers of docs/timing-rules.md that no GPU changes: each is said here, and nowhere else."""

from __future__ import annotations

from functional.trace import LINE_BYTES, SECTOR_BYTES

# From issue to result
ALLOCATE_CYCLES = 1  # from issue to an operand collector, if one is free
READ_STEPS = 1  # from there to the first read of a register bank; with nothing to read, to the operands at hand
START_CYCLES = 1  # from leaving the collector to the unit, if it is free
DECODE_CYCLES = 2  # from a fetch to the first cycle in which the warp can issue what it brought
DISPATCH_CYCLES = 1 + DECODE_CYCLES  # from a thread block's dispatch to its warps' first issue: fetched a cycle later
RETIRE_CYCLES = 6  # a `ret` from issue to the end of the pipeline

READ_OPERANDS_CYCLES = (
    7  # machine code: from the start on a unit to the release of the operands' scoreboard (11 from issue)
)

# Real memory
WINDOW_CYCLES_LOG2 = 4  # what a server does of its work is booked by stretches of so many cycles,
WINDOW_CYCLES = 1 << WINDOW_CYCLES_LOG2  # and SMs that share an L2 run no further apart
UNITS_A_CYCLE_LOG2 = 6
UNITS_A_CYCLE = 1 << UNITS_A_CYCLE_LOG2  # service times are whole numbers of a 64th of a cycle

SECTORS = LINE_BYTES // SECTOR_BYTES  # of a cache line
