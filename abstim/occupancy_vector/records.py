"""Records of the occupancy-vector engine: items, the words of their accesses, and lanes, one SM of a design point each.

No compiler is needed to read them. Times of lanes are in ticks, 64 to a cycle, whole numbers."""

from typing import Any, NamedTuple

import numpy as np

from abstim.engine.rules import ALLOCATE_CYCLES, READ_STEPS, START_CYCLES
from functional.arrays import Float64, Int32, Int64, UInt8, UInt64

# Units that hold one instruction at a time; all others are pools, whose work adds up
POOLED, MEMORY, SFU, DOUBLE, TENSOR = range(5)
SPECIAL = {"mem": MEMORY, "sfu": SFU, "dp": DOUBLE, "tensor": TENSOR}
POOLS = ("sp", "int")
# What an item's memory access is to the caches
NONE, LOAD, STORE, ATOMIC, CONSTANT, PASSING = range(6)  # passing: a load that L1D does not answer
# What a use does in L1D or L2; written: the line would have to be written back
LOOKED_UP, USED, WRITTEN, EVICTED = range(4)
FIRST, L2, DRAM = range(3)  # levels that answer; what waits for another's miss has its level and asks for no sectors
SHARED_MEMORY, CONSTANT_MEMORY, GLOBAL_MEMORY, LOCAL_MEMORY = range(4)  # where an access goes
# Latencies of the load/store unit, an index into Shape.latency
SHARED, CONST, HIT, ATOMIC_LATENCY, MISS = range(5)

TO_UNIT_CYCLES = ALLOCATE_CYCLES + READ_STEPS + START_CYCLES  # from issue, operands read without conflict


def whole_numbers(names: str, kind: type = np.int64) -> np.dtype:
    """A record of fields of one kind."""
    return np.dtype([(name, kind) for name in names.split()], align=True)


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
        ("fetches", "i4"), ("fetch_by", "i4"),  # slots of the fetch stage; cycles from its start to the last of them
        ("sp", "i4"), ("int", "i4"),  # work for the pools, 1 / 16 cycle
        ("barrier", "i4"), ("exit", "i4"), ("access", "i4"),
        # which latency those cycles have in them: an index of `items.LATENCIES`, 0: none
        ("next_of", "i4"), ("after_next_of", "i4"), ("drain_of", "i4"), ("latency_of", "i4"),
    ],
    align=True,
)  # fmt: skip
# One a static instruction. `pool`: -1, or which of POOLS; `latency_of`: as an ITEM's; `late`: cycles from issue to the
# unit beyond TO_UNIT_CYCLES, for its operands. Of machine code: `stall`, cycles to the warp's next issue; `release`, a
# scoreboard (-1: none) free once operands are read; `counted`, 1 if what it writes are scoreboards, on which several
# may count.
CODE = np.dtype(
    [
        ("kind", "i4"), ("unit", "i4"), ("pool", "i4"), ("work", "i4"), ("initiation", "i4"), ("result", "i4"),
        ("pc", "i4"), ("bytes", "i4"), ("writes", "i4"), ("latency_of", "i4"), ("stall", "i4"), ("release", "i4"),
        ("counted", "i4"), ("late", "i4"),
    ],
    align=True,
)  # fmt: skip
# What a register, or a scoreboard of machine code, waits for. `far`, `near`: its latest result of memory or a special
# unit, counted from 1 on (0: none), the near one there at `near_due` for a lone warp; `pool`: 1 if a pool's result is
# under way, of `item`, there at `due`
REGISTER = whole_numbers("far near near_due pool item due latency_of")
LOADS, RESULTS = 16, 16  # far and near results a warp remembers; older ones count as the oldest of these
RECENT_LINES = 32  # that a warp has loaded last, and finds in L1D if no caches are walked
# A lone warp on its way: its item, counted from 0, its next access, and so on; when each unit is `free`; numbers of the
# far and near results it has waited for, and the latest `lines` it has loaded, rings
WARP = np.dtype([
    *whole_numbers(
        "item time start start_before start_two_before pc left paired access instructions far near hold_far hold_near "
        "gap fetches stall loaded"
    ).descr,
    ("free", "i8", TENSOR + 1 + len(POOLS)), ("far_waited", "i8", LOADS), ("near_waited", "i8", RESULTS),
    ("lines", "i8", RECENT_LINES),
])  # fmt: skip


class Shape(NamedTuple):
    """Of a GPU, what cuts items."""

    fetch_width: int
    fetch_line: int
    decode: int  # cycles from a fetch to an issue of what it brings
    single: int  # 1: every instruction an item
    dual_issue: int
    bypass: int  # global loads pass L1D by
    perfect: int  # memory
    timed: int  # 0: only accesses are asked for
    latency: np.ndarray  # by SHARED, CONST, HIT, ATOMIC_LATENCY, MISS
    latency_of: np.ndarray  # the same, as an ITEM's


class Code(NamedTuple):
    """A program."""

    instructions: np.ndarray  # CODE
    nominal: np.ndarray  # CODE, the same where each takes a cycle and has no work for a pool
    waits: np.ndarray  # registers of each instruction, -1 beyond the last
    writes: np.ndarray
    block_start: np.ndarray
    block_stop: np.ndarray
    memory: np.ndarray  # instructions on the load/store unit, those of block b from memory_offsets[b] on
    memory_offsets: np.ndarray


MOST_MARKS, OPEN_ITEMS = 256, 3  # of a path; items that what follows may change: the latest


class Cutting(NamedTuple):
    """What items are cut with: a warp as it is, and as it was at each of some marks on the longest path so far."""

    warps: np.ndarray  # WARP, the first as it is
    registers: np.ndarray  # REGISTER of each
    open: np.ndarray  # ITEM, OPEN_ITEMS of each
    mask: np.ndarray  # two elements: far and near results that an instruction waits for
    rows: np.ndarray  # ITEM, as many as the longest path has instructions
    misfits: np.ndarray  # one element: items that lanes cannot hold


class Traced(NamedTuple):
    """What warps execute of it: streams of a trace."""

    blocks: np.ndarray
    block_offsets: np.ndarray
    records: np.ndarray  # line records
    words: np.ndarray  # that stores write of their lines: engine.state.Streams
    record_offsets: np.ndarray
    conflicts: np.ndarray
    conflict_offsets: np.ndarray


class Warps(NamedTuple):
    """What the warps of a launch access, and which of them do the same: warps of one path."""

    accesses: np.ndarray  # ACCESS, those of warp w from offsets[w] on, and one more
    paths: Int64[np.ndarray, " warp"]
    offsets: Int64[np.ndarray, " warp_plus_1"]
    lengths: Int64[np.ndarray, " warp"]  # instructions it executes: of timed code others than a trace counts
    leaders: Int64[np.ndarray, " path"]  # a warp of each
    digests: UInt64[np.ndarray, " path"]
    executed: Int64[np.ndarray, " block"]  # how often each basic block is
    places: Int64[np.ndarray, " place"]  # a table of digests, of a power of two of places, more than warps


# Of a launch: warps, accesses; instructions of all warps, of the longest, of a warp of each path; paths
COUNTS = whole_numbers("warps accesses instructions longest distinct paths")


class Items(NamedTuple):
    """Items of a launch's paths, those of path p from offsets[p] on."""

    rows: np.ndarray  # ITEM; empty where nobody asked for them
    lane_items: np.ndarray  # LANE_ITEM
    terms: Int32[np.ndarray, " item_term"]  # TERMS of each, in ticks; empty where only accesses are asked for
    offsets: Int64[np.ndarray, " path_plus_1"]
    starts: Int64[np.ndarray, " warp"]  # first item of each; empty where only accesses are asked for


TICKS = 64  # a cycle
NEVER = 1 << 30  # a time no lane reaches: the ready time of a slot without a warp
LIMIT_TICKS = NEVER // 2  # beyond it times could come near NEVER
WORK_A_CYCLE = 16  # an item's work for a pool is counted in 16ths of a cycle
SPECIALS, POOL_COUNT = 3, 2
DUAL_WIDTH = 8  # of a time with derivatives: its tick, and how it changes with each of the others

# What an access did: fields of a word, from the lowest bit up: (name, bits)
ACCESS_WORD = (("occupies", 8), ("level", 2), ("sectors", 8), ("dram_sectors", 8), ("part", 6))
OCCUPIES_BITS = ACCESS_WORD[0][1]
NEVER_LATE = (1 << 31) - 1  # instructions of a warp before a late line: the end mark
RECENT, BACK_BITS = 64, 7  # loads that an SM remembers, of those that asked; bits for which of them
MOST_TRIPS = 64  # of an access, one after the other
PARTS, MOST_PARTS = 16, 64  # `part` + 1 of so many: how often, at most, an answer takes the way from the level before


class Layout(NamedTuple):
    """What decides the shape of the arrays and of the compiled program."""

    schedulers: int
    blocks: int  # thread-block slots
    warps: int  # of a thread block
    sub_cores: bool
    priority: bool  # older warps first (gto, oldest); else in turn (lrr, two_level)
    perfect_memory: bool
    memory_queue: int  # memory instructions of a group of schedulers between issue and the load/store unit
    holding: int  # so many of them stop the group's other instructions: they hold all collectors; 0: have their own
    specials: tuple[bool, ...]  # which of sfu, dp and tensor units are used
    pools: tuple[bool, ...]  # which of sp and int units are used

    def rows(self, residents: int) -> int:
        """Warp slots of a scheduler, TOGETHER of which are looked at together, those beyond the warps of `residents`
        thread blocks included: slot w of the SM is row w div schedulers of scheduler w mod schedulers."""
        return -(-residents * self.warps // (self.schedulers * TOGETHER)) * TOGETHER

    @property
    def groups(self) -> int:
        """Sets of units: one a scheduler with sub-cores, else one."""
        return self.schedulers if self.sub_cores else 1


class Numbers(NamedTuple):
    """Numbers of the design point that a lane belongs to, in ticks; or which column of an array each is."""

    request: Any  # L1D to an L2 slice
    l2_sector: Any  # of the SM's share of L2
    l2_atomic: Any  # the same of an atomic
    l2_reply: Any
    dram_sector: Any  # of the SM's share of DRAM
    dram_latency: Any  # beyond L2's
    reply_sector: Any  # into the SM
    store_reply: Any  # for a sector that was written
    load_sector: Any  # asked for, out of the SM
    store_sector: Any  # the same of one that is written
    fetch: Any  # a slot of the fetch stage
    pool_slack: Any  # work that may wait before a pool
    special_slack: Any
    block_launch: Any  # from a thread block's end to the dispatch of the next, beyond a cycle
    dispatch: Any  # from one of an SM's thread blocks to the next
    first_issue: Any  # from a thread block's dispatch
    retire: Any  # from a warp's last issue to its end


class Terms(NamedTuple):
    """Times of an item, in ticks: which column each is."""

    next: int
    after_next: int
    drain: int
    latency: int
    occupies: int
    sp: int
    int: int  # the last: it hides the type


class Servers(NamedTuple):
    """Times of a lane's servers, in ticks; or which column of an array each is."""

    memory_free: Any
    fetch_free: Any
    line_there: Any  # the latest instruction line that warps wait for
    line_served: Any  # when all of them, so far, have fetched it
    l2_free: Any
    dram_free: Any
    port_free: Any
    reply_free: Any
    dispatched: Any
    end: Any


NUMBERS, TERMS = Numbers._fields, Terms._fields
NUMBER, TERM = Numbers(*range(len(NUMBERS))), Terms(*range(len(TERMS)))
SERVER = Servers(*range(len(Servers._fields)))


# What lanes and the cache walk read of an ITEM, beside its TERMS, without a gap. `needs`: bits; the others as there, of
# `next`, `after_next` and `drain` only whether there is one
LANE_ITEM = np.dtype(
    [
        ("begins", "i4"), ("line", "i4"), ("wait_far", "u2"), ("wait_near", "u2"), ("needs", "u2"),
        *((name, "u1") for name in (
            "cycles", "front", "unit", "unit_offset", "fetches", "fetch_by", "access", "far", "near", "next",
            "after_next", "drain", "barrier", "exit",
        )),
    ],
    align=True,
)  # fmt: skip


class DualTerms(NamedTuple):
    """TERMS with derivatives: ticks, and which row of slopes, duals without a tick, each changes by."""

    ticks: np.ndarray  # of each
    rows: Int32[np.ndarray, " item_term"]
    slopes: Float64[np.ndarray, "row dual"]


class Streams(NamedTuple):
    """What the lanes of a design point read."""

    items: np.ndarray  # ITEM, those of a path one after the other; empty where nobody asked for them
    lane_items: np.ndarray  # LANE_ITEM, the same
    terms: Int32[np.ndarray, " item_term"]  # TERMS of each
    starts: Int64[np.ndarray, " warp"]  # first item
    access_starts: Int64[np.ndarray, " warp"]
    dealt: Int32[np.ndarray, " position"]  # thread blocks, those of a lane one after the other
    accesses: Int32[np.ndarray, " access"]  # ACCESS_WORD, those of a warp one after the other
    # Those of one fill wait for the same data; 0: no other does; negative: the load/store unit waits with it
    fills: Int32[np.ndarray, " access"]
    late_starts: Int32[np.ndarray, " warp"]
    late_begins: Int32[np.ndarray, " late"]  # instructions of a warp before one whose line is late, and an end mark
    late_fills: Int32[np.ndarray, " late"]  # numbers beyond those of accesses
    fill_words: Int32[np.ndarray, " fill"]  # ACCESS_WORD of the one that asked in the walk, or of the line
    # How many loads back a line was asked for that must be there first (0: none), and from BACK_BITS on how many PARTS
    # of the way from L2 to DRAM it comes before all that load's
    fill_behind: Int32[np.ndarray, " fill"]
    fill_trips: Int32[np.ndarray, " fill"]  # how often it waits for data of its own before it has asked for all
    turn_starts: Int32[np.ndarray, " position"]  # where in `turns` those of an SM begin whose first thread block it is
    # By the order in which an SM's loads and stores ask: sectors of later ones that leave the SM before their last
    turns: Int32[np.ndarray, " access"]


class Lanes(NamedTuple):
    """The lanes of a design point."""

    layout: Layout
    machine: Int64[np.ndarray, "lane number"]  # NUMBERS
    residents: int  # thread blocks at once
    streams: Streams
    first: Int32[np.ndarray, " lane"]  # positions in Streams.dealt
    stop: Int32[np.ndarray, " lane"]


class Lane(NamedTuple):
    """The state of a lane. A slot's warp: slot = scheduler x rows + row. Times are in ticks."""

    times: Int64[np.ndarray, " time"]  # of the SM: the numbers below
    slot_times: Int64[np.ndarray, " slot_time"]  # SLOT_TIMES a slot
    starts: Int64[np.ndarray, " group_place"]  # of the last memory instructions, a ring a group of schedulers
    arrivals: Int64[np.ndarray, " fill"]  # of what the accesses of a fill wait for
    asked: Int64[np.ndarray, " fill"]  # 1: it has been asked for
    recent: Int64[np.ndarray, " place"]  # when the latest loads that asked have what they asked for, a ring
    due: Int64[np.ndarray, " slot"]  # the tick from which its warp can issue; FAR_OFF: it does not wait to
    warps: np.ndarray  # SLOT
    blocks: np.ndarray  # BLOCK
    schedulers: np.ndarray  # SCHEDULER
    progress: np.ndarray  # PROGRESS
    needs: UInt8[np.ndarray, " scheduler_row"]  # LANE_ITEM.needs of its next item
    bounds: Int64[np.ndarray, " group_need"]  # the first tick at which what needs it can issue
    older: UInt64[np.ndarray, " scheduler_row"]  # bits: rows of its scheduler whose warps came before its own


FAR_OFF = 1 << 50
TOGETHER, MOST_SLOTS = 8, 64  # slots that the processor looks at together; that there can be
# What an item needs, bits of LANE_ITEM.needs: load/store unit, the SPECIALS, the pools, a collector that memory leaves
NEEDS = 8
NEEDS_MEMORY, NEEDS_SPECIAL, NEEDS_POOL, NEEDS_COLLECTOR = 0, 1, 4, 6
# Of Lane.times: SERVER, then by scheduler, by group of them and need, and by block when its warps that are gone were
MOST_SCHEDULERS, MOST_BLOCKS = 4, 64
CLOCK = len(SERVER)
BEGINS = CLOCK + MOST_SCHEDULERS  # of its next issue
UNIT_FREE = BEGINS + MOST_SCHEDULERS
DRAINED = UNIT_FREE + MOST_SCHEDULERS * NEEDS
TIMES = DRAINED + MOST_BLOCKS
# Of a slot: when its warp is ready, no earlier than what an item before said, when all is there, and the latest results
READY, FLOOR, DRAIN, FAR_RESULTS = range(4)
NEAR_RESULTS = FAR_RESULTS + LOADS
SLOT_TIMES = NEAR_RESULTS + RESULTS
# A slot's warp: its next item, access and late line; far and near results so far
SLOT = whole_numbers("item access late state block far near")
GONE, RUNNING, WAITING = range(3)  # SLOT.state; waiting: at a barrier
BLOCK = whole_numbers("running waiting")  # warps that are not gone; those of them at the barrier
# `horizon`: the tick of its next issue, of row `picked`, or one before it unless it is `sure`; rows that are `ready` by
# then, and when the `first` of the others is; the tick after its last issue, and its row; the next place of its group's
# ring of memory instructions
SCHEDULER = np.dtype(
    [("ready", "u8"), *((name, "i8") for name in ("horizon", "picked", "sure", "first", "clock", "last", "place"))]
)
# Of a lane: positions in Streams.dealt; its point, whose lanes ask for lines together; which of the machines it has
OWN = whole_numbers("first stop point machine")
PROGRESS = whole_numbers("next stop issued running freed asks turn")
SHAPE = whole_numbers("schedulers rows warps residents sub_cores priority perfect memory_queue holding")


# Of a GPU, what lanes share: L2 slices and DRAM channels; do packets wait at a switch's inputs; cycles of a slice's
# port for a sector, of an atomic, of a channel for a sector, and from one row that it opens to the next; cycles beyond
# L2, for opening a row, to L2's other part, from one thread block of any SM to the next
SHARED_BY_LANES = np.dtype([(name, "f8") for name in (
    "slices", "channels", "queues_at_inputs", "l2_port", "l2_atomic", "dram_sector", "dram_row", "dram_latency",
    "dram_activate", "other_part", "dispatch",
)])  # fmt: skip


class OnGpu(NamedTuple):
    """What launches of so many warps a thread block, and so many of those an SM, are told of a GPU."""

    shape: Shape
    nominal: Shape  # where each instruction takes a cycle
    lanes: np.ndarray  # SHAPE
    numbers: Float64[np.ndarray, " number"]  # NUMBERS in cycles, of those that are the same in all launches
    servers: np.ndarray  # SHARED_BY_LANES


class Plan(NamedTuple):
    """What is still to be done of a launch on a design point."""

    cuts_nominal: int  # items for the caches' walk
    walks: int
    cuts: int
    warps_per_block: int
    residents: int
    fills: int  # of a walk that is done
    most_work: int  # lanes that issue more items are not run


class Sharing(NamedTuple):
    """Of SMs, what each asks of a server, their order by that, and how many share L2 and DRAM with it."""

    asked: np.ndarray
    order: np.ndarray
    l2: np.ndarray
    dram: np.ndarray


class Chosen(NamedTuple):
    """The lanes of a launch that are run."""

    machines: np.ndarray  # NUMBERS of all
    own: np.ndarray  # OWN
    ends: np.ndarray
    issued: np.ndarray
    outs: np.ndarray  # LAUNCH_OUTCOME
    stopped: np.ndarray  # of run_lanes, which nobody sets


# Of a launch: is it run; items that do not fit; fills, late lines, lanes that are run, items of all; the tick it ends,
# items issued for that; what its SMs ask, in sectors and ticks, cycles they hold the load/store unit,
# the most that one access does; of a walk, how many uses its caches had, more than there may be if none compares
LAUNCH_OUTCOME = whole_numbers(
    "is_run misfits fills lates lanes work end stepped sectors dram_sectors held longest l2_ticks dram_ticks l1d_uses "
    "l2_uses"
)


class Outcome(NamedTuple):
    """What lanes say: the tick the last warp of each left, and how many items it issued."""

    end: Int64[np.ndarray, " lane"]
    issued: Int64[np.ndarray, " lane"]
