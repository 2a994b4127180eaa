"""Numbers of docs/timing-rules.md that no GPU changes: each is said here, and nowhere else."""

from functional.traces.trace import LINE_BYTES, SECTOR_BYTES

# From issue to result
ALLOCATE_CYCLES = 1  # from issue to an operand collector, if one is free
READ_STEPS = 1  # from there to the first read of a register bank; with nothing to read, to the operands at hand
START_CYCLES = 1  # from leaving the collector to the unit, if it is free
DECODE_CYCLES = 2  # from a fetch to the first cycle in which the warp can issue what it brought
DISPATCH_CYCLES = 1 + DECODE_CYCLES  # from a thread block's dispatch to its warps' first issue: fetched a cycle later
RETIRE_CYCLES = 6  # a `ret` from issue to the end of the pipeline

READ_OPERANDS_CYCLES = 11  # machine code: from issue to the release of the operands' scoreboard

# Real memory
WINDOW_CYCLES = 32  # SMs run alone for so many cycles, or fewer where a request is faster at its slice
UNITS_A_CYCLE = 64  # service times are whole numbers of a 64th of a cycle

SECTORS = LINE_BYTES // SECTOR_BYTES  # of a cache line
