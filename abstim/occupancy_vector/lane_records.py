"""What a lane is and reads: one SM of one design point. Times are in ticks, 64 to a cycle, whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Int32, Int64, UInt64

TICKS = 64  # a cycle
NEVER = 1 << 30  # a time no lane reaches: the ready time of a slot without a warp
LIMIT_TICKS = NEVER // 2  # beyond it times could come near NEVER
WORK_A_CYCLE = 16  # an item's work for a pool is counted in 16ths of a cycle
LOADS, RESULTS = 16, 16  # far and near results a warp remembers; older ones count as the oldest of these
SPECIALS, POOL_COUNT = 3, 2
DUAL_WIDTH = 16  # of a time with derivatives: its tick, and how it changes with each of the others

# What an access did: fields of a word, from the lowest bit up: (name, bits)
ACCESS_WORD = (("occupies", 8), ("level", 2), ("sectors", 8), ("dram_sectors", 8), ("part", 6))
LATE_WORD = (("level", 2), ("part", 6))  # the same of an instruction line
PARTS = 64  # `part` + 1 of so many: how much of the way from the level before an answer takes


class Layout(NamedTuple):
    """What decides the shape of the arrays and of the compiled program."""

    schedulers: int
    blocks: int  # thread-block slots
    warps: int  # of a thread block
    sub_cores: bool
    priority: bool  # lower slots first (gto, oldest); else in turn (lrr, two_level)
    perfect_memory: bool
    memory_queue: int  # memory instructions of a group of schedulers between issue and the load/store unit
    holding: int  # so many of them stop the group's other instructions: they hold all collectors; 0: have their own
    specials: tuple[bool, ...]  # which of sfu, dp and tensor units are used
    pools: tuple[bool, ...]  # which of sp and int units are used

    @property
    def rows(self) -> int:
        """Warp slots of a scheduler: slot w of the SM is row w div schedulers of scheduler w mod schedulers."""
        return -(-self.blocks * self.warps // self.schedulers)

    @property
    def groups(self) -> int:
        """Sets of units: one a scheduler with sub-cores, else one."""
        return self.schedulers if self.sub_cores else 1


# Numbers of the design point a lane belongs to, in ticks: what each of NUMBERS is an index of
NUMBERS = (
    "request",  # L1D to an L2 slice
    "l2_sector",  # of the SM's share of L2
    "l2_reply",
    "l2_atomic",
    "dram_sector",  # of the SM's share of DRAM
    "dram_latency",  # beyond L2's
    "reply_sector",  # into the SM
    "store_sector",  # out of the SM
    "fetch",  # a slot of the fetch stage
    "pool_slack",  # work that may wait before a pool
    "special_slack",
    "block_launch",  # from a thread block's end to the dispatch of the next, beyond a cycle
    "first_issue",  # from a thread block's dispatch
    "retire",  # from a warp's last issue to its end
)
(REQUEST, L2_SECTOR, L2_REPLY, L2_ATOMIC, DRAM_SECTOR, DRAM_LATENCY, REPLY_SECTOR, STORE_SECTOR, FETCH, POOL_SLACK,
 SPECIAL_SLACK, BLOCK_LAUNCH, FIRST_ISSUE, RETIRE) = range(len(NUMBERS))  # fmt: skip
# Times of an item, in ticks: what each of TERMS is an index of
TERMS = ("next", "after_next", "drain", "latency", "occupies", "sp", "int")
NEXT, AFTER_NEXT, TO_DRAIN, LATENCY, OCCUPIES, SP_WORK, INT_WORK = range(len(TERMS))


# What the compiled lanes read of an ITEM, beside its TERMS: half a cache line. `pools`: bits, sp and int; the others as
# there, of `next`, `after_next` and `drain` only whether there is one
LANE_ITEM = np.dtype(
    [
        ("begins", "i4"), ("wait_far", "u2"), ("wait_near", "u2"),
        *((name, "u1") for name in (
            "cycles", "front", "unit", "pools", "unit_offset", "fetches", "access", "far", "near", "next", "after_next",
            "drain", "barrier", "exit",
        )),
    ],
    align=True,
)  # fmt: skip


class Streams(NamedTuple):
    """What the lanes of a design point read."""

    items: np.ndarray  # ITEM, those of a path one after the other
    lane_items: np.ndarray  # LANE_ITEM, the same
    terms: Int32[np.ndarray, " item_term"]  # TERMS of each
    starts: Int64[np.ndarray, " warp"]  # first item
    accesses: Int32[np.ndarray, " access"]  # ACCESS_WORD, those of a warp one after the other
    fills: Int32[np.ndarray, " access"]  # those that are of one fill wait for the same data; 0: no other does
    access_starts: Int64[np.ndarray, " warp"]
    late_starts: Int32[np.ndarray, " warp"]
    late_begins: Int32[np.ndarray, " late"]  # instructions of a warp before one whose line is late, and an end mark
    late_fills: Int32[np.ndarray, " late"]  # numbers beyond those of accesses
    fill_words: Int32[np.ndarray, " fill"]  # ACCESS_WORD of the one that asked in the walk; LATE_WORD
    dealt: Int32[np.ndarray, " position"]  # thread blocks, those of a lane one after the other


class Lanes(NamedTuple):
    """The lanes of a design point. Lanes with one signature do the same."""

    layout: Layout
    machine: Int64[np.ndarray, "lane number"]  # NUMBERS
    residents: int  # thread blocks at once
    streams: Streams
    first: Int32[np.ndarray, " lane"]  # positions in Streams.dealt
    stop: Int32[np.ndarray, " lane"]
    signatures: list[bytes]


class Lane(NamedTuple):
    """The state of a lane. A slot's warp: slot = scheduler x rows + row. Times are in ticks."""

    ready: Int64[np.ndarray, " slot"]
    due: Int64[np.ndarray, " slot"]  # the same tick, but far off where nothing waits to issue
    units: UInt64[np.ndarray, " slot"]  # the special unit that the next item needs
    pools: UInt64[np.ndarray, " slot"]  # bits: the pools it needs
    floor: Int64[np.ndarray, " slot"]  # of the item after the next
    drain: Int64[np.ndarray, " slot"]
    loads: Int64[np.ndarray, " slot_loads"]  # the latest far results; each is there with all before it
    results: Int64[np.ndarray, " slot_results"]  # the same of near ones
    warps: np.ndarray  # SLOT
    clock: Int64[np.ndarray, " scheduler"]
    last: Int64[np.ndarray, " scheduler"]  # row issued last
    drained: Int64[np.ndarray, " block"]  # when the warps that are gone were
    blocks: np.ndarray  # BLOCK
    memory_starts: Int64[np.ndarray, " group_place"]  # of the last memory instructions, the latest first
    arrivals: Int64[np.ndarray, " fill"]  # of what the accesses of a fill wait for
    asked: Int64[np.ndarray, " fill"]  # 1: it has been asked for
    special_free: Int64[np.ndarray, " group_special"]
    pool_free: Int64[np.ndarray, " group_pool"]
    servers: Int64[np.ndarray, " server"]
    begins: Int64[np.ndarray, " scheduler"]  # of those issues
    unit_bounds: Int64[np.ndarray, " unit"]  # scratch
    pool_bounds: Int64[np.ndarray, " pools"]  # scratch
    picked: Int64[np.ndarray, "scheduler time_and_row"]  # the next issue of each
    stale: Int64[np.ndarray, " scheduler"]  # 1: that is to be picked anew


# A slot's warp: its next item, access and late line; far and near results so far
SLOT = np.dtype([(name, "i8") for name in ("item", "access", "late", "state", "block", "far", "near")])
GONE, RUNNING, WAITING = range(3)  # SLOT.state; waiting: at a barrier
BLOCK = np.dtype([("running", "i8"), ("waiting", "i8")])  # warps that are not gone; those of them at the barrier
MEMORY_FREE, FETCH_FREE, L2_FREE, DRAM_FREE, PORT_FREE, REPLY_FREE, DISPATCHED, END = range(8)  # servers
SERVERS = 8
PROGRESS = np.dtype([("next", "i8"), ("stop", "i8"), ("issued", "i8"), ("running", "i8"), ("freed", "i8")])
SHAPE = np.dtype(
    [
        (name, "i8")
        for name in (
            "schedulers",
            "rows",
            "warps",
            "residents",
            "sub_cores",
            "priority",
            "perfect",
            "memory_queue",
            "holding",
        )
    ]
)


class Outcome(NamedTuple):
    """What a lane says: the tick its last warp left, and how many items it issued."""

    end: Int64[np.ndarray, " lane"]
    issued: Int64[np.ndarray, " lane"]
    stepped: Bool[np.ndarray, " lane"]  # False: an equal lane's outcome


def outcome_of(end: Int64[np.ndarray, " lane"], issued: Int64[np.ndarray, " lane"]) -> Outcome:
    """Of lanes that were all run."""
    return Outcome(end, issued, np.ones(len(end), bool))
