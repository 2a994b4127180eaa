"""Traces with whole checksums and wrong content are refused before native code sees them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abstim.session.session import open_session
from abstim.target.check_trace import check_trace
from functional.errors import InputError


def with_value(array, place, value):
    found = array.copy()
    found[place] = value
    return found


FORGERIES = {
    "block ids beyond the program": lambda t: {"blocks": np.full_like(t.blocks, 60000)},
    "one block id": lambda t: {"blocks": with_value(t.blocks, len(t.blocks) // 2, 500)},
    "another block of the program": lambda t: {"blocks": np.zeros_like(t.blocks)},
    "no records": lambda t: {"records": t.records[:0]},
    "records that never end": lambda t: {"records": t.records | np.uint32(1)},
    "half of the records": lambda t: {"records": t.records[: len(t.records) // 2]},
    "a record too many, as many in all": lambda t: {"record_offsets": with_value(t.record_offsets, 3, 0)},
    "offsets that fall": lambda t: {"block_offsets": t.block_offsets[::-1].copy()},
    "an offset beyond": lambda t: {"block_offsets": with_value(t.block_offsets, -1, 1 << 40)},
    "an offset before": lambda t: {"record_offsets": with_value(t.record_offsets, 3, -(1 << 45))},
    "a warp without blocks": lambda t: {"block_offsets": with_value(t.block_offsets, 1, 0)},
    "too few offsets": lambda t: {"block_offsets": t.block_offsets[:5]},
    "conflicts of nothing": lambda t: {"conflict_offsets": with_value(t.conflict_offsets, 3, 1 << 45)},
    "one warp a thread block": lambda t: {"warps_per_block": 1},
    "no warps": lambda t: {"warps_per_block": 0},
    "other thread blocks": lambda t: {"thread_blocks": t.thread_blocks + (1 << 50)},
    "counts": lambda t: {"warp_instructions": t.warp_instructions - (1 << 60)},
    "lanes": lambda t: {"thread_instructions": t.thread_instructions + (1 << 40)},
    "masks of other events": lambda t: {"masks": t.masks[:-1]},
}


@pytest.mark.parametrize("name", ["hotspot", "nn_euclid"])
def test_a_trace_of_the_launch_passes(name):
    for number, launch, trace in open_session(name).each():
        check_trace(trace, launch, f"{name} {number}")


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_trace_is_refused_in_one_line(forgery):
    _, launch, trace = next(open_session("hotspot").each())
    forged = replace(trace, **FORGERIES[forgery](trace))
    with pytest.raises(InputError, match="not one of this launch") as error:
        check_trace(forged, launch, "a file")
    assert "\n" not in str(error.value)
