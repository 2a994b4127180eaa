"""What thread blocks that are left out of a launch under way would have brought into L2."""

from __future__ import annotations

import numpy as np

from abstim.engine.address_map import l2_set_of, slice_of
from abstim.engine.l2 import use
from abstim.engine.tags import find, oldest_idle
from functional.jit.compile import reference
from functional.traces.line_record import LINE_SHIFT, SECTOR_SHIFT
from functional.traces.trace import PHASE_WINDOW_LINE


def touch(state, records, written, first_line, recent):
    """Data `records` go through L2's tags, without time; `written`: which of them are of stores and atomics. Lines with
    something on its way stay. `recent`, -1 at first, stands for L1D: what has just been read does not reach L2."""
    gpu = reference(state)
    m, l2 = gpu.machine, gpu.shared.l2
    for k in range(len(records)):
        line, sectors = np.int64(records[k] >> LINE_SHIFT), (records[k] >> SECTOR_SHIFT) & 15
        if line < first_line or line >= PHASE_WINDOW_LINE or sectors == 0:
            continue
        mark = line << 4 | sectors
        if not written[k] and recent[line & (len(recent) - 1)] == mark:
            continue
        recent[line & (len(recent) - 1)] = mark
        number, _, _, in_slice = slice_of(m, line)
        first = (number * m.l2_sets + l2_set_of(m, in_slice)) * m.l2_ways
        place = find(l2.tag, first, m.l2_ways, line)
        if place < 0:
            place = oldest_idle(l2, first, m.l2_ways)
            if place < 0:
                continue
            l2.tag[place] = line + 1
            l2.line[place].valid = l2.line[place].dirty = 0
        if written[k]:
            l2.line[place].dirty |= sectors
        else:
            l2.line[place].valid |= sectors
        use(l2, place)
