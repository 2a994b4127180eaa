"""The lines that a launch's accesses touch: numbers of them, and sums over all accesses."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.analytic.lone_warp import LOOK_UP, NOTHING, WRITE, number_of
from abstim.engine.accesses import fermi, line_of, mixed, sectors_in, sectors_of
from functional.jit.machine_code import compiled
from functional.jit.marked import jit

if TYPE_CHECKING:
    from jaxtyping import Int32, UInt8, UInt32

# Transactions, records and sectors of loads and of stores; transactions of atomics, and how many are on the most wanted
# line; lines that loads touch, and sectors of those that any touches
SUMS = np.dtype([(name, "i8") for name in (
    "lookups", "lines", "load_sectors", "stores", "store_lines", "store_sectors", "atomics", "hottest", "loaded",
    "line_sectors",
)])  # fmt: skip


class LineUse(NamedTuple):
    """`ids`: numbers of the lines that records do something with, `lines` of them in order; `sums`: SUMS by name."""

    ids: Int32[np.ndarray, " record"]
    lines: int
    sums: dict[str, int]


@jit
def add_load(sums, row, sectors, transactions):
    """A record of a load; `row`: the sectors that loads touch of its line."""
    sums.lookups += transactions
    sums.lines += 1
    sums.load_sectors += sectors_in(sectors)
    sums.line_sectors += sectors_in(sectors & ~row)
    sums.loaded += row == 0


@compiled
def use_lines(records, actions, transactions, table, lines, touched, updates, ids, sums, count):
    """Fill in `ids`, SUMS and the `count` of lines. The others are scratch: `table`, a power of two, `touched` and
    `updates` zero before."""
    own = sums[0]
    for r in range(len(records)):
        if actions[r] == NOTHING:
            continue
        sectors = sectors_of(records[r])
        line = line_of(records[r])
        k = number_of(table, lines, line, mixed(np.uint64(0), line), count[0])
        count[0] = max(count[0], k + 1)
        ids[r] = k
        if actions[r] == LOOK_UP:
            add_load(own, touched[k], sectors, transactions[r])
            touched[k] |= sectors
        elif actions[r] == WRITE:
            own.stores += transactions[r]
            own.store_lines += 1
            own.store_sectors += sectors_in(fermi(sectors))
        else:
            own.atomics += transactions[r]
            updates[k] += 1
            own.hottest = max(own.hottest, updates[k])


def line_use(
    records: UInt32[np.ndarray, " record"],
    actions: UInt8[np.ndarray, " record"],
    transactions: UInt8[np.ndarray, " record"],
) -> LineUse:
    """Of records of accesses: what each does, and how many transactions it is."""
    most = len(records)
    ids, sums, count = np.zeros(most, np.int32), np.zeros(1, SUMS), np.zeros(1, np.int64)
    table = np.zeros(1 << (2 * most + 1).bit_length(), np.int32)
    lines, touched = np.empty(most, np.uint32), np.zeros(most, np.uint8)
    use_lines(records, actions, transactions, table, lines, touched, np.zeros(most, np.int32), ids, sums, count)
    return LineUse(ids, int(count[0]), dict(zip(SUMS.names or (), sums[0].tolist(), strict=True)))
