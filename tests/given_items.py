"""Items that a test gives, as lanes read them."""

import numpy as np

from abstim.occupancy_vector.item_kernel import TERM_COUNT
from abstim.occupancy_vector.items import check_fit
from abstim.occupancy_vector.records import LANE_ITEM, Items
from functional.jit.machine_code import Native

pack_items = Native("abstim.occupancy_vector.item_kernel", "pack_items")


def items_of(rows, offsets):
    """Items given as ITEM, those of path p from offsets[p] on. Raises InputError for one that lanes cannot hold."""
    lane_items, terms = np.empty(len(rows), LANE_ITEM), np.empty(len(rows) * TERM_COUNT, np.int32)
    found = Items(rows, lane_items, terms, offsets, offsets[:0])
    misfits = np.zeros(1, np.int64)
    pack_items(rows, found.lane_items, found.terms, misfits)
    if misfits[0]:
        check_fit(rows)
    return found
