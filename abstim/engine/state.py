"""What the engine computes on: one typed definition of everything an SM, the shared memory system and a launch hold.

Times are int64 cycles. What has the same size on every GPU is a field of a record (`SM`, `MACHINE`); what has not is an
array of a named tuple. All of it stands here and in behind_sms.py, not beside the rules: whoever lays it out must
not import the compiler with them. A *ring* has one row a cycle modulo its length, which names the cycle it is about:
nothing needs clearing when time jumps."""

from typing import NamedTuple

import numpy as np

from abstim.engine.behind_sms import L2, L2_LINE, QUEUE, REQUEST, TRAFFIC, Channels, Drawn, Requests, Slices, Switch
from abstim.gpu.spec import NUMBER_OF_POLICY
from functional.jit.marked import View, in_whole_lines, of, part, record
from precharacterize.synchronisation import FAMILIES

NEVER = 1 << 60
SP, SFU, MEM, INT, DP, TENSOR = 0, 1, 2, 3, 4, 5  # precharacterize.parameters.UNITS
KINDS = 6  # of execution units
GTO, LRR, TWO_LEVEL = (NUMBER_OF_POLICY[name] for name in ("gto", "lrr", "two_level"))
L1D_INDICES = ("linear", "hash", "ipoly")  # of L1D's sets, as descriptions name them
INDEX_LINEAR, INDEX_HASH, INDEX_IPOLY = range(len(L1D_INDICES))
L1D_WRITES = ("local_back", "evict", "through", "back")  # stores at L1D; the first two evict on a hit
LOCAL_BACK, EVICT, WRITE_THROUGH, WRITE_BACK = range(len(L1D_WRITES))
# What a scheduler's cycle went to; the order of abstim.session.result.SLOT_REASONS
ISSUED, NOT_READY, UNIT_BUSY, BARRIER_WAIT, MEMORY_WAIT, EMPTY = 0, 1, 2, 3, 4, 5
# Most of each that a record has room for; abstim.engine.design_point refuses what is beyond
SLOTS = 64  # warps an SM, thread blocks an SM
SCHEDULERS = 4  # an SM
PORTS = KINDS * SCHEDULERS  # with sub-cores each scheduler has its own
UNITS = 96  # execution units an SM, all ports together
PORT_WIDTH = 16
AT_PORTS = SCHEDULERS * PORT_WIDTH  # instructions of a kind that wait for a collector
COLLECTORS = 64
ACCESSES = 2048  # memory instructions of an SM on their way
ISSUED_ACCESSES = 256  # of them, issued and not through the load/store unit
CROSSINGS = 4096  # arrivals in other thread blocks of clusters that an SM makes in a window
POSTED = 1024  # kernels side by side
LATER = 1024  # arrivals at an `mbarrier` of an SM that wait for `cp.async`; of more, some come too early
PHASE_RING = 4  # phases of an `mbarrier` that are told apart by place
MOST_DRAWN = 1 << 20  # blocks whose slices are drawn; where those behind them lie does not matter any more
IN_FLIGHT = 4096  # sectors an SM has asked for and not got; beyond, it asks for no more
# Whom the reply to a request is for
NOBODY, TO_LINE, TO_ACCESS, TO_CODE, TO_CONST, TO_TEXTURE = 0, 1, 2, 3, 4, 5
# Requests; EVICTED is what a cache evicts, and nobody waits for it; FETCHED is none (drawn_slices.py). Of FP64_ATOMIC
# the kind itself says how many lanes add to a sector, FP64_ATOMIC + lanes: one more field, and a request were longer
# than a line of the CPU's cache
READ, WRITE, ATOMIC, EVICTED, FETCHED, FP64_ATOMIC = 0, 1, 2, 3, 4, 64
SOUGHT = 256  # sectors of which a slice knows the latest read, by low bits of their numbers
# Of an SM, by the names of occupancy.demands_of
RESOURCES = ("blocks", "threads", "shared memory", "registers", "tensor memory")
# How far ahead
WHEEL = 64  # cycles a warp can be put on the wheel; later ones go round again
RESIDUES = 32  # bits of a line number above an index that a hash looks at
PLACES_LOG2 = 5  # of the places that a word of a ring says are taken (operand_collectors.py)
FIRST_WAITS = 4  # registers that an instruction waits for and that stand with it, as scoreboard.py counts them out
DRAW_TERMS = 31  # of the generator, by which slices are drawn, that it looks back
HINTS = 256  # where a line was found last, by its low bits


# The numbers of a design point for a launch. Names of a GPU's Spec, Params or pipeline have their values there;
# design_point.machine_of has the others. First those that only real memory asks for
REAL_MEMORY = (
    "l1i_mshrs const_mshrs l1d_mshr_merges l1d_mshrs l1d_miss_queue flit_bytes packet_header_bytes inject_queue_flits",
    "crossbar_queue_flits crossbar_repeats crossbar_output_queues l2_coalesces",
    "window_cycles slice_delay hit_delay miss_delay",  # pure delays: before a slice, and of replies to an SM
    "fence_delay",  # of a warp, at least
    "l2_partition",  # cycles from one part of L2 to the other and back
    "l2_sector_units l2_write_units l2_atomic_units l2_fp64_atomic_units",  # of time: rules.UNITS_A_CYCLE
    "dram_channels l2_slices_per_channel interleave_log2 slice_log2 slice_hash_log2 slice_random slice_spread",
    "l2_partitions l2_sets l2_ways l2_dirty_ways l2_mshrs l2_mshr_merges l2_miss_queue l2_queue l2_hash_log2 l2_turns",
    "fetches_pairs l2_reply_sectors dram_banks dram_bank_groups row_log2 bank_log2 dram_queue dram_requests dram_delay",
    "dram_write_batch dram_two_commands burst_sectors",
    "dram_cycle",  # of the channels' clock, in 2^-16 core cycles; in such cycles
    "dram_burst_cycles dram_group_burst_cycles dram_row_to_row_cycles dram_row_active_cycles dram_row_cycle_cycles",
    "precharge row_to_read row_to_write dram_read_cycles dram_write_cycles read_to_write write_to_read",
    "write_to_precharge dram_read_to_precharge_cycles",
    ("slice_residues l2_residues", np.int64, RESIDUES),  # of x^i modulo the hash's polynomial
    ("draw_terms", np.int64, DRAW_TERMS),  # before the first draw (drawn_slices.py)
)
MACHINE = record(
    "sm_count schedulers_per_sm policy walks_by_slot two_level_active_warps max_warps_per_sm warps_per_block",
    "blocks_per_sm sub_cores issues_per_turn register_file_ports shared_collectors result_bus_width register_banks",
    "local_places",  # of warps in local memory
    "side_by_side gpcs cluster_blocks cluster_cycles",
    "instructions_per_fetch fetch_line_log2 fetches_per_cycle perfect_memory",
    "perfect_instruction_cache perfect_constant_cache l1i_sets l1i_ways l1i_prefetch_lines",
    "const_sets const_ways const_line_bytes",
    "l1t_sets l1t_ways",
    "l1d_sets l1d_ways l1d_set_lines",  # ways in use, and ways there are
    "l1d_index l1d_sectored l1d_banks l1d_dense_banks l1d_bypass l1d_write l1d_write_allocate l1d_fifo",
    "coalesced_bytes",  # 0: by the size of an element
    "block_launch_cycles dispatch_interval_units posted_stores partial_sectors",
    "shared_cycles const_hit_cycles l1d_latency_cycles",
    "shared_pass_cycles lane_cycles barrier_cycles barrier_warp_cycles const_access_cycles const_address_cycles",
    "retry_cycles l1_miss_extra_cycles atomic_latency_cycles",
    "l1i_miss_extra_cycles",
    *REAL_MEMORY,
    "warp_banks",  # register banks that hold a warp's registers
    "register_count ring",  # registers a warp; length of the rings in cycles
    "copying_warps",  # warp slots that may copy asynchronously
    "phase_rows",  # of each thread block slot: places of its `mbarrier`s' phases
    ("port_width", np.int64, KINDS),
    ("collectors", np.int64, KINDS),  # of a port, or, if its scheduler's ports share them, of all of them
    ("scheduler_slots", np.uint64, SCHEDULERS),  # sets of warp slots
    ("scheduler_of", np.int64, SLOTS),
    ("first_unit", np.int64, PORTS + 1),  # units of port p: first_unit[p] .. first_unit[p + 1] - 1
    ("l1d_residues", np.int64, RESIDUES),  # as those of REAL_MEMORY
    ("capacity", np.int64, len(RESOURCES)),  # an SM's, of each
)

# An instruction; its registers are Streams.operands[x_at : x_end]
CODE = record(
    "unit kind latency_cycles initiation_cycles access_bytes pcs",  # as in the latency table
    ("first_waits", np.int32, FIRST_WAITS),  # of fewer the last again, or a register that is never written
    "waits_at waits_end writes_at writes_end long_at long_end",  # waits: the others
    ("read_set write_set", np.uint64),  # banks of warp 0,
    "reads_again_at reads_again_end",  # and those that are read once more
    "stall_cycles release",
    "result_offset_cycles counted barrier copies round_cycles word fp64_atomic",
    "origin",  # of what it writes (scoreboard.py)
    kind=np.int32,
)

WARP_SLOT = record(  # two lines of the simulating CPU's cache
    "ready",  # cycle from which the scheduler may visit the warp
    "not_before",  # no issue earlier: barrier, atomic, fence
    "pc stop",  # next instruction; end of its basic block
    "buffered front_end",  # instructions left in the buffer, and the cycle in which its content can be looked at
    "drained",  # cycle in which everything the warp issued is complete; NEVER: not known
    "settled",  # the same of what is known
    "event event_end record conflict",  # cursors into the streams
    "fetch_pc",
    "warp block_of",  # position in the trace, and the thread block slot that it belongs to
    "outstanding",  # accesses of which it is not known when they are complete
)

PORT = record(  # in front of units, and a pool of operand collectors, which is a port's own or is shared
    "position last_start",  # of the next in the two rings; the latest unit start
    "collectors",  # how many there are
    "waiting",  # instructions at ports for a collector of this pool, if ports share them
    "collector_taken",  # last
    "front behind",  # of a sub-core's accesses that in front of the unit, and one in a collector: places in the ring
    ("alloc start", np.int64, PORT_WIDTH),  # latest allocation cycles, and unit starts
    # The instruction that went through last, while one behind it may overtake it
    "instruction warp unit unit_before operands dispatched before number log_row",
)
PORT = in_whole_lines(PORT)
SM = record(
    # what whoever runs the SM and the leader tell each other between windows: one line of the simulating CPU's cache
    "number clock",
    "horizon",  # run no further: a thread block may come in then
    "memory_due",  # real memory: when an access has something to do next, before which nobody looks,
    "below_due",  # and when a reply comes or a transaction meets the tags
    "more_blocks",
    "credits",  # flits it may still give its link to the switch before the next window
    "asked drawn",  # rows of Shared.outbox that are in use, and those that drawn_slices.py has looked at
    "in_flight",  # sectors asked for and not there
    "live",  # warps not noticed as gone
    ("warps", WARP_SLOT, SLOTS),
    # the SM as a whole
    "turned",  # the latest cycle in which schedulers had their turn
    "port_wait",  # earliest cycle in which a port that was refused then is free
    "barrier_free",  # when its barriers have counted all that have arrived
    "fifo_free",  # perfect memory: the response FIFO
    "fetch_blocked",  # the fetch stage looks nothing up before
    # real memory
    "link_free",  # the SM's link to the switch has passed all it was given,
    "last_sent",  # the latest of it given in this cycle
    "sent_position",  # in L1D.sent
    "response_free",  # when, in units of rules.py, the next result of a reply may come
    ("accesses_unused waiters_unused", np.int64, 2),  # of L1D: the first given back, how many have ever been used
    "issued_first issued_count",  # of the ring of issued accesses
    # Of sub-cores: the place in the ring, one too high, of what the load/store unit works on or takes next, and when
    "at_unit next_start",
    "at_port",  # those that have no operand collector yet; where ports share them, of all kinds
    "mshrs_used consts_coming codes_coming latest_access",
    "code_place",  # of the instruction line looked up last, in L1I
    ("fenced", np.uint64),  # warp slots that wait until nothing of theirs is on its way
    "stamp",  # for least-recently-used
    "last_exit last_dispatch",
    # sets of warp slots
    ("running", np.uint64),  # instructions left
    ("visitable", np.uint64),  # `ready` has come
    ("held", np.uint64),  # at a barrier
    ("memory", np.uint64),  # `ready` waits for memory
    ("wanted", np.uint64),  # buffer empty
    ("missing", np.uint64),  # waiting for an instruction line
    ("fresh", np.uint64),  # nothing issued yet
    ("flush", np.uint64),  # the instruction buffer holds the wrong path
    ("exiting", np.uint64),  # last instruction issued, not yet noticed as gone
    ("of_kind", np.uint64, KINDS),  # whose next instruction goes to a kind of unit
    ("wheel", np.uint64, WHEEL),  # by cycle mod WHEEL: `ready` comes then
    ("wheel_used", np.uint64),  # places of the wheel that are not empty
    ("early", np.uint64),  # may be on the wheel before `ready`
    "last_fetched",
    "next_exit",  # the earliest cycle in which one of `exiting` is complete
    "next_back",  # the earliest cycle in which a line of `missing` is there
    # counters
    "l1d_accesses l1d_misses l1t_accesses l1t_misses const_accesses const_misses l1i_accesses l1i_misses",
    "resident_warp_cycles",
    "window window_end window_issued",  # the one of Record.windows that it is in, and issues in it, not there yet
    # SMs that do the same (equal_sms.py); numbers of SMs are one too high, 0: none
    "follows next_follower",  # whom, and the next that follows the same; of one that is followed the first
    "strays",  # one that follows: its caches say something else; one that is followed: those of one of them do
    "pending",  # the place, one too high, of the thread block that comes in in this cycle
    "parted_from",  # whom it followed up to this cycle
    # warp slots
    ("fetch_back", np.int64, SLOTS),  # cycle in which a missed instruction line is there
    ("fetch_place", np.int64, SLOTS),  # of the instruction line waited for, in L1I
    ("waits_at", np.int64, SLOTS),  # the barrier that holds the warp
    ("wrong", np.int64, SLOTS),  # the wrong path in its buffer begins with this instruction
    ("group", np.int64, (SLOTS, FAMILIES)),  # of asynchronous work, the one not closed; they are counted modulo GROUPS
    ("awaited", np.int64, SLOTS),  # what a warp in `copying` waits for, as the latency table has it
    ("copying", np.uint64),  # warp slots that wait for groups of asynchronous work
    ("at_phase", np.uint64),  # warp slots that wait at an `mbarrier`
    ("phase_record", np.int64, SLOTS),  # for what: the first record of the access
    ("phase_there", np.int64, SLOTS),  # when it is there; NEVER: not known yet
    ("copies_issued", np.int64, SLOTS),  # `cp.async`, and arrivals that wait for them
    "later crossings",  # rows of Context.later and .crossings in use
    ("triggered", np.uint64),  # thread block slots that have let the next kernel begin
    ("awaiting", np.uint64),  # warp slots that wait until the kernel before theirs has ended
    ("wanting", np.uint64),  # warp slots that wait for registers,
    ("registers registers_wanted", np.int64, SLOTS),  # of which a thread of each has so many, and is to have
    # thread block slots
    ("block_running", np.int64, SLOTS),  # warps that have instructions left
    ("block_live", np.int64, SLOTS),  # warps not noticed as gone
    ("block_free", np.int64, SLOTS),  # cycle in which the slot is free; NEVER while unknown
    ("block_start block_position block_place", np.int64, SLOTS),  # the latter two in the trace, in State.order
    ("block_kernel", np.int64, SLOTS),  # of Record.kernels
    ("block_spare", np.int64, SLOTS),  # registers, a lane, that its warps have given back
    ("block_slots", np.uint64, SLOTS),  # set of its warp slots
    # schedulers
    ("block_order", np.int64, SLOTS),  # resident blocks, oldest first
    "resident",
    ("order", np.int64, (SCHEDULERS, SLOTS)),  # two-level: active, then pending slots
    ("order_scratch", np.int64, SLOTS),
    ("count last idle_reason idle_since", np.int64, SCHEDULERS),  # `last`: slot issued last
    ("slots", np.int64, 6),  # issue slots by reason
    # ports and units
    ("ports", PORT, PORTS),
    ("last_alloc", np.int64, KINDS),  # latest allocation of all ports of a kind, in steps of the register file
    ("queued_first queued", np.int64, KINDS),  # of State.port_queues
    ("unit_free", np.int64, UNITS),
)
SM = in_whole_lines(SM)


TAG_LINE = record(  # real memory
    "coming",  # sectors of a line that are on their way,
    ("waiting waiting_last", np.int64, 1),  # and the first and last of L1D.waiters that wait for it
)


class Tags(NamedTuple):
    """A cache of whole lines, an element a line, the ways of a set side by side: instructions, constants, textures."""

    tag: np.ndarray = of("sm line", np.int32)  # line number + 1; 0: no line
    last_use: np.ndarray = of("sm line")
    there: np.ndarray = of("sm line")  # cycle in which the line is there; real memory: NEVER while it is on its way
    line: np.ndarray = of("sm line", TAG_LINE)
    placed: np.ndarray = of("sm placed")  # [0]: how many ways have ever held a line, and which


# `waiting` is here the first in L1D.waiters, real memory's; whole lines have those of their first sector
L1D_LINE = in_whole_lines(L2_LINE)
WAITER = record("access next", kind=np.int32)  # places in arrays are one too high throughout; 0: none
TRANSACTION = record("due", ("line access", np.int32), ("words", np.uint32), ("sectors kind", np.int8))
ACCESS = record(  # a memory instruction on its way; as long as a line of the simulating CPU's cache
    ("warp instruction waiting next l1d_misses l2_accesses dram_reads", np.int32),
    ("group", np.int16),  # of an asynchronous copy
    ("awaited", np.int16),  # by its warp, of an atomic
    "result row",
    "number",  # of a `cp.async` among its warp's, and of an arrival that waits for those before it; of one that waits
    # for products, when they are complete
    "record",  # the first of it, of what meets others at an `mbarrier`
)
ISSUED_ACCESS = record(  # one that has not left the load/store unit
    "issued operands record end conflict start entry",
    "passing",  # cycles that its passes of shared memory, or addresses of constants, take
    "number",  # of its operand collector
    ("access pool port place left started", np.int32),  # started: 2: it is through, and one before it is not
    ("collected", np.int32),  # 0: waits at the port for a collector
    ("banks", np.int32),  # of L1D that it may use
    ("lanes", np.int32),  # of an atomic on doubles, those that add to a sector
    ("behind", np.int32),  # another one in a collector of the same sub-core
)
AT_PORT = record(  # an instruction that waits for one of the operand collectors that ports share
    "instruction warp port pool place",
    "issued log_row",  # of the load/store unit: its place in L1D.issued; of others: their row in the log, if any
)
BARRIER = record("arrived needed")  # warps at a barrier of a block, and how many it is for; 0: all that run
COPIES = record("coming there")  # of a group: those whose result is not known, and the latest result that is
PHASE = record("tag", "arrived", "there")  # its number + 1 (0: none), arrivals that are known, the latest of them
CROSSING = record("block line there")  # an arrival in another thread block (a position in the trace), and when it is
LATER_ARRIVAL = record(  # one that waits for `cp.async`: whose; of those before `limit` how many are to come; when
    "warp limit left there record"
)
PIPE = record("first", "count", "retry", "taken")  # a bank's ring of TRANSACTIONs; cycle of the last that entered


class L1D(NamedTuple):
    """L1D, laid out as Tags. What a look-up of a whole set goes through lies apart from what concerns one line."""

    tag: np.ndarray = of("sm l1d_line", np.int32)
    last_use: np.ndarray = of("sm l1d_line")
    there: np.ndarray = of("sm l1d_line")  # its latest sector
    sector_there: np.ndarray = of("sm l1d_line sector")  # of perfect memory; NEVER: not asked for
    line: np.ndarray = of("sm l1d_line", L1D_LINE)
    placed: np.ndarray = of("sm l1d_placed")
    hint: np.ndarray = of("sm hint")  # position at which a line was found last, by its low bits
    pipes: np.ndarray = of("sm l1d_bank", PIPE)
    transactions: np.ndarray = of("sm l1d_bank stage", TRANSACTION)
    sent: np.ndarray = of("sm in_miss_queue")  # ring: when each of the latest requests left the miss queue
    waiters: np.ndarray = of("sm waiter", WAITER)
    accesses: np.ndarray = of("sm access", ACCESS)
    issued: np.ndarray = of("sm issued", ISSUED_ACCESS)  # a ring


class Shared(NamedTuple):
    """Behind the SMs: what they share when memory is not perfect."""

    machine: np.ndarray = of("", MACHINE)
    requests: Requests = part(Requests)
    there: Switch = part(
        Switch, {"input": "real_sm", "input_word": "sm_word", "output": "slice", "output_word": "slice_word"}
    )
    back: Switch = part(
        Switch, {"input": "slice", "input_word": "slice_word", "output": "real_sm", "output_word": "sm_word"}
    )
    l2: L2 = part(L2)
    slices: Slices = part(Slices)
    channels: Channels = part(Channels)
    outbox: np.ndarray = of("real_sm asked", REQUEST)  # what each has asked for in this window
    inbox: np.ndarray = of("real_sm", QUEUE)  # replies,
    received: np.ndarray = of("real_sm", QUEUE)  # those that it has taken in this window,
    arriving: np.ndarray = of("real_sm", QUEUE)  # and those that come into its inbox with the next
    traffic: np.ndarray = of("real_sm", TRAFFIC)
    posted: np.ndarray = of("posted")  # by kernel side by side: sectors of posted stores that are on their way,
    posted_end: np.ndarray = of("posted")  # and when L2 had the last
    held: np.ndarray = of("slice held_cycle")  # of each slice a ring: == cycle: takes no packet then
    drawn: Drawn = part(Drawn)
    clock: np.ndarray = of("three")  # next cycle of the switch to the slices, of all behind it; is any slice ever held?


THREAD_BLOCK = record("sm", "dispatch_cycle", "retire_cycle")  # -1: not yet
# Its first issue; -1: not yet. Of a warp whose stream is still being made: more than 0 if more of it will come; when it
# issued the last of what is known, and its slot; -1: it has not
WARP = record("issue_cycle", "retire_cycle", "more", "parked_cycle", "slot")
ISSUE = record(  # the last four: what it missed and asked for itself; l1i_misses is a counter of the SM after it
    "cycle result_cycle sm slot warp instruction start_cycle l1d_misses l1i_misses l2_accesses dram_reads"
)
# What a launch goes on with after a pause: the SM whose turn comes first, the cycle all may run to, the latest
# dispatch; rows of the log in use, how long a window is; the cycle from which it pauses, and thread blocks handed out;
# coupled: not 0 if warps may wait for those who execute them; not 0 if `begin` has gone through the SMs for the same
# design point before; the kernel whose thread blocks are handed out (-1: none may be), and has it changed? The
# GPC whose turn it is; not 0 if an SM had no room for a crossing; not 0 if thread blocks
# are to come into SMs in this cycle (equal_sms.py); how many windows there are
LAUNCH = record(
    "first limit clock next_dispatch_units logged window_log2 pause handed_out deadlocked coupled begun",
    "kernel changed gpc crowded pending windows",
)


KERNEL = record(  # one of those side by side; alone, the first row
    "next stop",  # positions in State.order: its next thread block, and behind its last
    "first_block first_warp warps_per_block",  # the first two in the trace
    "priority",  # the higher comes first
    "awaits_at awaits_end",  # Record.awaited: the kernels that must have ended,
    "programmatic",  # of them, the one that need only have triggered; -1: there is none
    "delay_cycles",  # and how long after that its first thread block comes; of one without, how long it takes
    "ready end",  # from when it may be handed out; when it was over; NEVER: not known
    "cluster_blocks registers",  # thread blocks of a cluster; registers a thread
    ("needs", np.int64, len(RESOURCES)),  # of a thread block
)


class Record(NamedTuple):
    """What is noted of a launch for those who watch it."""

    launch: np.ndarray = of("", LAUNCH)  # LAUNCH
    blocks: np.ndarray = of("tb", THREAD_BLOCK)  # THREAD_BLOCK, by position in the trace
    alike: np.ndarray = of("alike_tb")  # the kind of each, if equal SMs are run once (alike_blocks.py)
    warps: np.ndarray = of("warp", WARP)  # WARP, by position in the trace
    # Warp instructions issued in each; the last one is over all that is left. If equal SMs are run once, by SM
    windows: np.ndarray = of("window")
    log: np.ndarray = of("issue", ISSUE)  # ISSUE, an issue a row, as long as there are rows
    kernels: np.ndarray = of("kernel", KERNEL)  # those after which others wait before them
    awaited: np.ndarray = of("awaited")  # kernels, cut by KERNEL's `awaits_*`
    left: np.ndarray = of("kernel")  # thread blocks of each that have not retired,
    retired: np.ndarray = of("kernel")  # when the latest of the others did,
    untriggered: np.ndarray = of("kernel")  # those that have not let the next kernel begin,
    triggered: np.ndarray = of("kernel")  # and when the latest of the others did


class Streams(NamedTuple):
    """A trace's arrays (functional.traces.trace.Trace) and the program's basic blocks."""

    blocks: np.ndarray = of("event", np.uint16)
    records: np.ndarray = of("record", np.uint32)
    words: np.ndarray = of("record", np.uint32)  # which each store writes of its sectors' line; of those behind it, all
    conflicts: np.ndarray = of("conflict", np.uint8)
    masks: np.ndarray = of("event", np.uint32)
    block_start: np.ndarray = of("block", np.int32)
    block_stop: np.ndarray = of("block", np.int32)
    operands: np.ndarray = of("operand", np.int32)  # registers of all instructions, cut by CODE's `*_at` and `*_end`


class Offsets(NamedTuple):
    """Where each warp of the trace starts in the streams."""

    blocks: np.ndarray = of("warp")
    records: np.ndarray = of("warp")
    conflicts: np.ndarray = of("warp")


OVER = -1  # a round of a Team: no more


class Team(NamedTuple):
    """Threads that run the SMs of one launch (abstim/engine/team.py). A task is an SM by number; behind them is the
    memory side."""

    round: np.ndarray = of("cache_line")  # [0]: the one under way; OVER
    done: np.ndarray = of("cache_line")  # [0]: tasks of it that are
    taken: np.ndarray = of("task")  # [task]: the latest round in which somebody took it
    owner: np.ndarray = of("task")  # [task]: the member that ran it last, and begins with it in the next round


class State(NamedTuple):
    """All SMs of a design point, their number in front in every array, and what they share."""

    machine: np.ndarray = of("", MACHINE)
    sm: np.ndarray = of("sm", SM)
    l1i: Tags = part(Tags, {"line": "l1i_line", "placed": "l1i_placed"})
    const: Tags = part(Tags, {"line": "const_line", "placed": "const_placed"})
    texture: Tags = part(Tags, {"line": "l1t_line", "placed": "l1t_placed"})
    l1d: L1D = part(L1D)
    scoreboard: np.ndarray = of("sm warp_slot register")  # entries of abstim.engine.scoreboard
    results: np.ndarray = of("sm unit_word ring")  # a ring of units that have a result due, each on a bus
    register_banks: np.ndarray = of("sm register_word ring_step")  # a ring of those that are taken
    port_queues: np.ndarray = of("sm unit_kind port_place", AT_PORT)  # of each kind a ring, by age
    barriers: np.ndarray = of("sm block_slot barrier", BARRIER)
    collectors: np.ndarray = of("sm port collector")  # steps from which they are free; NEVER: not known
    words: np.ndarray = of("sm block_slot word")  # when no loop of compare-and-swap changes a word any more
    copies: np.ndarray = of("sm copying_warp family group", COPIES)  # none for a program without
    phases: np.ndarray = of("sm block_slot phase", PHASE)  # by barrier * PHASE_RING + phase mod PHASE_RING
    later: np.ndarray = of("sm later", LATER_ARRIVAL)
    crossings: np.ndarray = of("sm crossing", CROSSING)
    shared: Shared = part(Shared)
    free: np.ndarray = of("sm")  # cycle in which it can take a thread block, as far as known
    contexts: np.ndarray = of("sm context_word")  # the words of each SM's CONTEXT
    team: Team = part(Team)
    record: Record = part(Record)  # from here on: of a launch
    code: np.ndarray = of("instruction", CODE)
    streams: Streams = part(Streams)
    offsets: Offsets = part(Offsets)
    order: np.ndarray = of("handed_out")  # thread blocks to hand out: positions in the trace


CONTEXT = View(State, "sm")  # the state as one SM sees it: what the rules are about
