"""The engine's state at cycle 0: arrays of the sizes that a design point and a launch ask for, nothing in them."""

from __future__ import annotations

import mmap
from math import prod
from typing import Any

import numpy as np

from abstim.engine.rules import SECTORS
from abstim.engine.state import (
    ACCESS,
    ACCESSES,
    BANK,
    BOOKED_LOG2,
    CHANNEL,
    EMPTY,
    HINTS,
    IN_FLIGHT,
    ISSUE,
    ISSUED_ACCESS,
    ISSUED_ACCESSES,
    L1D,
    L1D_LINE,
    L2,
    L2_LINE,
    LATER,
    LATER_ARRIVAL,
    LAUNCH,
    NEVER,
    PHASE,
    PIPE,
    QUEUE,
    REQUEST,
    SLICE,
    SM,
    THREAD_BLOCK,
    TRAFFIC,
    TRANSACTION,
    TWO_LEVEL,
    WAITER,
    WARP,
    Channels,
    Record,
    Requests,
    Shared,
    Slices,
    State,
    Switch,
    Tags,
)  # fmt: skip

BLOCK_BYTES = 1 << 26
CACHE_LINE_BYTES = 64  # of the CPU that runs this


class Zeros:
    """Arrays of zeros, cut out of large blocks. Those are pages that the system clears when they are touched, and most
    of a GPU's state never is by a launch; arrays by themselves would be cleared in full, or lie on small pages."""

    def __init__(self) -> None:
        self._left = np.empty(0, np.uint8)

    def sparse(self, *shape: Any, dtype: np.dtype) -> np.ndarray:
        """An array of whose rows hardly more than the beginning is touched: on small pages, if the system has both."""
        sizes = [int(n) for n in shape]
        length = prod(sizes) * dtype.itemsize
        pages = mmap.mmap(-1, max(length, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            pages.madvise(mmap.MADV_NOHUGEPAGE)
        return np.frombuffer(pages, np.uint8, length).view(dtype).reshape(sizes)

    def __call__(self, *shape: Any, dtype: np.dtype | type = np.int64) -> np.ndarray:
        sizes = [int(n) for n in shape]
        length = prod(sizes) * np.dtype(dtype).itemsize
        room = -(-length // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        if room > len(self._left):
            block = np.zeros(max(room, BLOCK_BYTES) + CACHE_LINE_BYTES, np.uint8)
            self._left = block[-block.ctypes.data % CACHE_LINE_BYTES :]  # else every request lies on two lines
        taken, self._left = self._left[:length], self._left[room:]
        return taken.view(dtype).reshape(sizes)


def new_state(m: np.ndarray, thread_blocks: int, windows: int = 0, window_cycles: int = 64) -> State:
    """A design point at cycle 0: caches empty, nothing resident; room for the record of a launch of so many blocks."""
    zeros, sms = Zeros(), int(m["sm_count"])
    return State(
        machine=m,
        sms=_new_sms(zeros, m),
        l1i=_tags(zeros, sms, m["l1i_sets"] * m["l1i_ways"]),
        const=_tags(zeros, sms, m["const_sets"] * m["const_ways"]),
        texture=_tags(zeros, sms, m["l1t_sets"] * m["l1t_ways"]),
        l1d=_new_l1d(zeros, m),
        scoreboard=zeros(sms, m["warp_slots"], m["register_count"]),
        results=zeros(sms, m["ring"], _words(m["first_unit"][-1])),
        buses=zeros(sms, m["ring"], 1),
        register_banks=zeros(sms, m["ring"] * m["register_steps"], _words(m["banks"])),
        phases=zeros(sms, m["blocks_per_sm"], m["phase_rows"], dtype=PHASE),
        later=zeros(sms, LATER * int(m["phase_rows"] > 0 and not m["perfect"]), dtype=LATER_ARRIVAL),
        shared=_new_shared(zeros, m),
        record=_new_record(int(m["warps_per_block"]), thread_blocks, windows, window_cycles),
        free=zeros(sms),
    )


def _words(places: Any) -> int:
    """Of a ring, a cycle, that books so many places (bookings.py)."""
    return -(-int(places) >> BOOKED_LOG2)


def _tags(zeros: Zeros, sms: int, lines: Any) -> Tags:
    return Tags(*(zeros(sms, lines) for _ in Tags._fields))


def _new_sms(zeros: Zeros, m: np.ndarray) -> np.ndarray:
    sms = zeros(m["sm_count"], dtype=SM)
    sms["ready"], sms["last"], sms["idle_reason"], sms["last_dispatch"] = NEVER, -1, EMPTY, -1
    sms["last_fetched"], sms["number"] = -1, np.arange(len(sms))
    if m["policy"] == TWO_LEVEL:  # its queues hold every slot, resident or not
        for s in range(int(m["schedulers"])):
            supervised = np.arange(s, int(m["warp_slots"]), int(m["schedulers"]))
            sms["order"][:, s, : len(supervised)] = supervised
            sms["count"][:, s] = len(supervised)
    return sms


def _new_l1d(zeros: Zeros, m: np.ndarray) -> L1D:
    """What only real memory needs is not there if memory is perfect."""
    sms, real, lines = int(m["sm_count"]), not m["perfect"], m["l1d_sets"] * m["l1d_set_lines"]
    banks = int(m["l1d_banks"]) * real
    return L1D(
        zeros(sms, lines), zeros(sms, lines), zeros(sms, lines), zeros(sms, lines, dtype=L1D_LINE), zeros(sms, HINTS),
        zeros(sms, banks, dtype=PIPE), zeros(sms, banks, m["pipe_stages"], dtype=TRANSACTION),
        zeros(sms, m["miss_queue"] * real), zeros.sparse(sms, _waiters(m) * real, dtype=WAITER),
        zeros.sparse(sms, ACCESSES * real, dtype=ACCESS), zeros(sms, ISSUED_ACCESSES * real, dtype=ISSUED_ACCESS),
    )  # fmt: skip


def _waiters(m: np.ndarray) -> int:
    """Most that wait for lines of an SM's caches: as many as its miss registers take, a sector each, and the accesses
    that a constant or texture line keeps waiting."""
    return int(m["l1d_mshrs"]) * int(m["mshr_merges"]) + 4 * SECTORS * ACCESSES


def _new_shared(zeros: Zeros, m: np.ndarray) -> Shared:
    """Nothing of it if memory is perfect."""
    real = not m["perfect"]
    sms, channels = int(m["sm_count"]) * real, int(m["channels"]) * real
    slices = channels * int(m["slices_per_channel"])
    lines = slices * int(m["l2_sets"]) * int(m["l2_ways"])
    l2 = L2(zeros(lines), zeros(lines), zeros(lines, dtype=L2_LINE), zeros(1))
    room = 2 * SECTORS * IN_FLIGHT * sms + 4 * int(m["l2_queue"] + m["l2_miss_queue"] + m["dram_queue"]) * slices
    return Shared(
        m, Requests(zeros(room, dtype=REQUEST), zeros(2)), _new_switch(zeros, sms, slices),
        _new_switch(zeros, slices, sms), l2, _new_slices(zeros, m, slices), _new_channels(zeros, m, channels),
        zeros(sms, _asked(m), dtype=REQUEST), zeros(sms, dtype=QUEUE), zeros(sms, dtype=QUEUE),
        zeros(sms, dtype=QUEUE), zeros(sms, dtype=TRAFFIC), zeros(2),
    )  # fmt: skip


def _asked(m: np.ndarray) -> int:
    """Most requests of an SM in a window: a flit each, for which it has credit, and with it what leaves L1D."""
    return 2 * int(m["inject_queue"] + m["switch_queue"])


def _new_switch(zeros: Zeros, inputs: int, outputs: int) -> Switch:
    words_in, words_out = -(-inputs // 64), -(-outputs // 64)
    return Switch(
        zeros(inputs, dtype=QUEUE), zeros(inputs), zeros(inputs), zeros(words_in, dtype=np.uint64),
        zeros(outputs, dtype=QUEUE), zeros(outputs), zeros(words_out, dtype=np.uint64),
        zeros(words_out, dtype=np.uint64), zeros(outputs, words_in, dtype=np.uint64), zeros(outputs),
    )  # fmt: skip


def _new_slices(zeros: Zeros, m: np.ndarray, slices: int) -> Slices:
    ring = 1 << int(2 * m["slice_delay"] + 64).bit_length()
    delayed, asking, crossing, missing, to_dram, from_dram, filled, replying = (
        zeros(slices, dtype=QUEUE) for _ in range(8)
    )
    found = Slices(
        zeros(slices, dtype=SLICE), zeros(slices), delayed, asking, crossing, missing, to_dram, from_dram, filled,
        replying,
        zeros(slices, ring),
    )  # fmt: skip
    found.wake[:] = NEVER
    return found


def _new_channels(zeros: Zeros, m: np.ndarray, channels: int) -> Channels:
    delayed, returning, returned = (zeros(channels, dtype=QUEUE) for _ in range(3))
    words = -(-int(m["dram_banks"]) // 64)
    found = Channels(
        zeros(channels, dtype=CHANNEL), zeros(channels), delayed, returning, returned,
        zeros(channels * int(m["dram_banks"]), dtype=BANK), zeros(channels, m["bank_groups"], 2),
        zeros(channels, words, dtype=np.uint64), zeros(channels, words, dtype=np.uint64),
    )  # fmt: skip
    found.wake[:] = NEVER
    found.banks["served_row"] = -1
    return found


def _new_record(warps_per_block: int, thread_blocks: int, windows: int, window_cycles: int) -> Record:
    launch = np.zeros(1, LAUNCH)[0]
    launch["window_log2"], launch["pause"] = window_cycles.bit_length() - 1, NEVER
    blocks, warps = np.empty(thread_blocks, THREAD_BLOCK), np.empty(thread_blocks * warps_per_block, WARP)
    for rows in (blocks, warps):
        rows.view(np.int64)[:] = -1
    return Record(launch, blocks, warps, np.zeros(windows, np.int64), np.empty(0, ISSUE))
