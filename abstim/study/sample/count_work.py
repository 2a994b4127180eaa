"""One pass over the line records of a trace: what every thread block asks of the caches."""

from __future__ import annotations

import numpy as np

from functional.jit.machine_code import compiled
from functional.traces.trace import PHASE_WINDOW_LINE

LINES = 1 << 27  # that there are numbers of
REQUESTS, SECTORS, OWN_LINES, NEW_LINES, L2_MISSES, COLUMNS = 0, 1, 2, 3, 4, 5
RECENT = 1 << 14  # lines of which it is known that this thread block has touched them
WAYS = 8


@compiled
def count_work(records, block_offsets, warp_offsets, first_line, seen, recent, tags, used, found, longest):
    """`found` [block, COLUMNS] and `longest` [block]: requests of the warp with the most.

    OWN_LINES: distinct lines of the block, all but exactly: what L1D might ask for. NEW_LINES: no block before had
    them. L2_MISSES: those of OWN_LINES that a cache of `tags` [set, WAYS] lacks, thread blocks one after the other.
    """
    sets, clock = tags.shape[0], 0
    for b in range(len(block_offsets) - 1):
        for w in range(block_offsets[b], block_offsets[b + 1]):
            asked = 0
            for k in range(warp_offsets[w], warp_offsets[w + 1]):
                line = np.int64(records[k] >> 5)
                if line < first_line or line >= PHASE_WINDOW_LINE:
                    continue
                bits = (records[k] >> 1) & 15
                asked += 1
                found[b, SECTORS] += (bits & 1) + (bits >> 1 & 1) + (bits >> 2 & 1) + (bits >> 3)
                mark = line << 32 | (b + 1)
                if recent[line & (RECENT - 1)] == mark:
                    continue
                recent[line & (RECENT - 1)] = mark
                found[b, OWN_LINES] += 1
                if seen[line >> 5] >> (line & 31) & 1 == 0:
                    seen[line >> 5] |= np.uint32(1) << np.uint32(line & 31)
                    found[b, NEW_LINES] += 1
                clock += 1
                row = (line ^ line >> 11) % sets
                way = 0
                for candidate in range(WAYS):
                    if tags[row, candidate] == line + 1:
                        way = candidate
                        break
                    if used[row, candidate] < used[row, way]:
                        way = candidate
                if tags[row, way] != line + 1:
                    found[b, L2_MISSES] += 1
                    tags[row, way] = line + 1
                used[row, way] = clock
            found[b, REQUESTS] += asked
            if asked > longest[b]:
                longest[b] = asked
