"""Records of the occupancy-vector engine that compiled code and Python share; no compiler is needed to read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from abstim.engine.rules import ALLOCATE_CYCLES, READ_STEPS, START_CYCLES

# Units that hold one instruction at a time; all others are pools, whose work adds up
POOLED, MEMORY, SFU, DOUBLE, TENSOR = range(5)
SPECIAL = {"mem": MEMORY, "sfu": SFU, "dp": DOUBLE, "tensor": TENSOR}
POOLS = ("sp", "int")
# What an item's memory access is to the caches
NONE, LOAD, STORE, ATOMIC, CONSTANT, PASSING = range(6)  # passing: a load that L1D does not answer
FIRST, L2, DRAM = range(3)  # levels that answer; what waits for another's miss has its level and asks for no sectors
RUNNING, WAITING, GONE = range(3)  # a warp of a walk
SHARED_MEMORY, CONSTANT_MEMORY, GLOBAL_MEMORY, LOCAL_MEMORY = range(4)  # where an access goes
# Latencies of the load/store unit, an index into Shape.latency
SHARED, CONST, HIT, ATOMIC_LATENCY = range(4)

TO_UNIT_CYCLES = ALLOCATE_CYCLES + READ_STEPS + START_CYCLES  # from issue, operands read without conflict

# Of a warp: its first line record, cycles it holds the load/store unit, where it goes, is any lane active
ACCESS = np.dtype([("record", "i8"), ("cycles", "i4"), ("space", "i2"), ("active", "i2")], align=True)
ITEM = np.dtype(
    [
        ("begins", "i4"),  # instructions of the warp before it
        ("line", "i4"),  # of code, its first instruction is in
        ("cycles", "i4"),  # of issue: its instructions
        ("front", "i4"),  # from its start to the next item's, for the front end
        ("next", "i4"), ("after_next", "i4"),  # the same, for pools' results that the next item and the one after read
        ("unit", "i4"), ("unit_offset", "i4"),  # its one instruction on a special unit, cycles after its start
        ("occupies", "i4"), ("latency", "i4"),  # cycles that unit is held (load/store: see ACCESS); to the result
        ("far", "i4"), ("near", "i4"),  # 1: its result is counted with the far (global) or near ones
        ("wait_far", "i4"), ("wait_near", "i4"),  # what the next item waits for; bit n: the result n before the latest
        ("drain", "i4"),  # cycles from its start to its last result from a pool
        ("fetches", "i4"), ("sp", "i4"), ("int", "i4"),  # slots of the fetch stage; work for the pools, 1 / 16 cycle
        ("barrier", "i4"), ("exit", "i4"), ("access", "i4"),
        # which latency those cycles have in them: an index of `items.LATENCIES`, 0: none
        ("next_of", "i4"), ("after_next_of", "i4"), ("drain_of", "i4"), ("latency_of", "i4"),
    ],
    align=True,
)  # fmt: skip
# One a static instruction. `pool`: -1, or which of POOLS; `latency_of`: as an ITEM's. Of machine code: `stall`, cycles
# to the warp's next issue; `release`, a scoreboard (-1: none) free once operands are read; `counted`, 1 if what it
# writes are scoreboards, on which several may count.
CODE = np.dtype(
    [
        ("kind", "i4"), ("unit", "i4"), ("pool", "i4"), ("work", "i4"), ("initiation", "i4"), ("result", "i4"),
        ("pc", "i4"), ("bytes", "i4"), ("writes", "i4"), ("latency_of", "i4"), ("stall", "i4"), ("release", "i4"),
        ("counted", "i4"),
    ],
    align=True,
)  # fmt: skip
# What a register, or a scoreboard of machine code, waits for. `far`, `near`: its latest result of memory or a special
# unit, counted from 1 on (0: none), the near one there at `near_due` for a lone warp; `pool`: 1 if a pool's result is
# under way, of `item`, there at `due`
REGISTER = np.dtype(
    [(name, "i8") for name in ("far", "near", "near_due", "pool", "item", "due", "latency_of")], align=True
)
WARP = np.dtype(
    [
        (name, "i8")
        for name in (
            "item", "first", "time", "start", "start_before", "start_two_before", "pc", "left", "paired", "access",
            "instructions", "far", "near", "hold_far", "hold_near", "gap", "stall",
        )
    ],
    align=True,
)  # fmt: skip


class Shape(NamedTuple):
    """Of a GPU, what cuts items; one-element arrays."""

    fetch_width: np.ndarray
    fetch_line: np.ndarray
    single: np.ndarray  # 1: every instruction an item
    dual_issue: np.ndarray
    bypass: np.ndarray  # global loads pass L1D by
    latency: np.ndarray  # by SHARED, CONST, HIT, ATOMIC_LATENCY
    latency_of: np.ndarray  # the same, as an ITEM's


class Code(NamedTuple):
    """A program and what warps execute of it."""

    instructions: np.ndarray  # CODE
    waits: np.ndarray
    writes: np.ndarray
    block_start: np.ndarray
    block_stop: np.ndarray
    blocks: np.ndarray
    block_offsets: np.ndarray


class Wait(NamedTuple):
    """What an instruction waits for, of far and near results, and which ones the warp has waited for."""

    mask: np.ndarray
    far_waited: np.ndarray  # numbers, modulo what a warp remembers
    near_waited: np.ndarray


class Touched(NamedTuple):
    """The trace's streams of what warps access, and what is written down of them."""

    records: np.ndarray
    record_offsets: np.ndarray
    conflicts: np.ndarray
    conflict_offsets: np.ndarray
    accesses: np.ndarray  # ACCESS
    access_offsets: np.ndarray
