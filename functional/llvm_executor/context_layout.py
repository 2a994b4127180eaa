"""The layout of memory that generated code and Python share: the context of a launch and the frame of a warp.

The context is an int64 array, one slot a name of `CONTEXT`. A frame is a byte array: the fields below, the registers
that live across basic blocks, and at its end, growing towards them, the saved entries of the reconvergence stack."""

from __future__ import annotations

from typing import Any

from functional.jit.native import I32, I64, Type, record_type

CONTEXT = (
    "arena",  # host address of global address 0 (that of the arena less GLOBAL_BASE)
    "starts", "ends", "regions",  # the sorted region table: host addresses of two int64 arrays, and their length
    "last_start", "last_end", "stored_start", "stored_end",  # the region a load, a store found last
    "touched",  # host address of a byte a region, of LOADED and STORED
    "pages", "saved", "saved_count",  # see undo.py
    "stores", "stores_step",  # address at which the next store notes where its records lie; 8, or 0: not noted
    "const", "const_limit", "param", "param_limit", "shared", "shared_limit", "local", "local_limit", "local_stride",
    "records", "records_stop",  # host addresses: next line record, end of the buffer
    "partial",  # host address of the next note {host address of a record, words} of a store that left some out
    "conflicts", "conflicts_stop",  # the same for bank passes
    "event", "event_stop", "blocks", "masks",  # next event and capacity, and host addresses of the two streams
    "used", "turn_stop", "budget",  # thread instructions: so far, where the running warp must yield, and at most
    "fault",  # not 0: the launch has to be run again, with care
    "segments", "segment", "segment_stop",  # host address of the segment table, its length and capacity
    "kernel", "frames", "frame_bytes", "warps", "scratch", "symbols",
    "thread_blocks", "thread_block", "thread_block_stop", "fresh",  # list of linear ids, position, end, not yet begun
    "ctaid_x", "ctaid_y", "ctaid_z", "nctaid_x", "nctaid_y", "nctaid_z", "ntid_x", "ntid_y", "ntid_z",
    "cluster_nctaid_x", "cluster_nctaid_y", "cluster_nctaid_z", "cluster_nctarank", "is_explicit_cluster",
    "reserved_smem_offset_1", "envreg1", "envreg2", "nwarpid", "dynamic_smem_size", "total_smem_size",
    "shared_bytes", "local_base", "local_bytes",
    "zero", "zeros", "most_events", "counts",  # frame slots to clear: offsets (int64, 128 B each) and their number
    # thread blocks in turns (runtime_schedule.py)
    "points_left",  # order points that the running warp may pass
    "interleaved", "midway",  # not 0: blocks run in turns; the running warp has stopped for want of room
    "slots", "resident", "leaves", "tree", "slot", "warp",  # Slot rows, in use and all; a tournament; what runs
    "slot_frames", "slot_shared", "slot_local", "shared_stride",  # where those of the first slot lie
    "next_block", "blocks_done", "now", "times", "turns_of",  # the latter two an int64 a warp of a slot
    "turns", "turns_stop", "block_cycles", "spreads", "paces",
    "dispatch_ticks", "next_entry",  # when a thread block may enter
    # pieces of basic blocks (runtime_schedule.py)
    "piece_row",  # of the list of warps that run a piece, the next one's place
    "rank_bases", "rank_base",  # first shared address of each thread block, and of the running one
)  # fmt: skip
MOST_KEPT_BYTES = 1 << 28  # of anything that outlives a launch
LOADED, STORED = 1, 2  # a load, a store has found the region
SLOT = {name: 8 * position for position, name in enumerate(CONTEXT)}  # byte offsets
_POINTERS = (
    "starts ends touched pages saved saved_count records partial conflicts segments kernel frames thread_blocks zero "
    "counts slots tree slot_frames times turns_of block_cycles spreads paces rank_bases"
)
Context: Any = record_type(CONTEXT, frozenset(_POINTERS.split()))

# Fields of a frame, in bytes
BLOCK, RECONVERGENCE, MASK, DEPTH, STATE, BARRIER, WARP, INITIAL_MASK = range(0, 32, 4)
WARP_INSTRUCTIONS, THREAD_INSTRUCTIONS, EVENTS = 32, 40, 48
EXPECTED = 56  # threads the warp's barrier waits for, 0: all
BASE, LEVEL = 60, 64  # saved entries below the running function's own; calls in progress, of a recursive program
TID = (128, 256, 384)  # 32 x u32 each
ENTRY = ("block", "meet", "mask", "base", "level")  # words of a saved entry, the first one at the end of the frame
ENTRY_BYTES = 4 * len(ENTRY)
SHUFFLE = 512  # one vector of 32 x 64 bits
SCRATCH = SHUFFLE + 256  # as much as the program needs; the registers that live across blocks lie behind it
MATRIX_BYTES = 8 * (512 + 512 + 256)  # float64 matrices A, B, C of the largest mma and wmma

RUNNABLE, WAITING, DONE, BEFORE_POINT = range(4)  # STATE; the last can run, too
# What the kernel function returns for a warp, and `run` for a launch
FINISHED, AT_BARRIER, STOPPED, FAULT, OVER_BUDGET, AT_POINT, PAUSED, AT_STEP = range(8)
SLOT_WORDS = 4  # a place for a resident thread block: its place in the list, warps not done, its earliest time
SEGMENT_WORDS = 4  # {warp of the launch, first event, first record, first conflict}

_WORDS = {"block": BLOCK, "meet": RECONVERGENCE, "mask": MASK, "depth": DEPTH, "state": STATE, "barrier": BARRIER,
          "initial": INITIAL_MASK, "expected": EXPECTED, "base": BASE, "level": LEVEL}  # fmt: skip
_COUNTS = {"warp_instructions": WARP_INSTRUCTIONS, "thread_instructions": THREAD_INSTRUCTIONS, "events": EVENTS}
_FIELDS = {name: (at, I32) for name, at in _WORDS.items()} | {name: (at, I64) for name, at in _COUNTS.items()}
Frame: Any = Type("ptr", 1, _FIELDS)
Slot: Any = record_type(("thread_block", "live", "time", "unused"), frozenset())
Entry: Any = Type("ptr", 1, {name: (4 * n, I32) for n, name in enumerate(ENTRY)})
