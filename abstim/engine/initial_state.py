"""The engine's state at cycle 0: arrays of the sizes that a design point and a launch ask for, nothing in them."""

from __future__ import annotations

from math import prod
from mmap import mmap
from typing import Any

import numpy as np

from abstim.engine.state import (
    BANK,
    BUCKET,
    BUCKETS,
    EMPTY,
    HINTS,
    ISSUE,
    L1D,
    L1D_LINE,
    L2,
    L2_LINE,
    LAUNCH,
    NEVER,
    RESPONSES,
    SM,
    THREAD_BLOCK,
    TWO_LEVEL,
    WARP,
    Record,
    Shared,
    State,
    Tags,
)  # fmt: skip

LARGE_BYTES = 1 << 18


def new_state(m: np.ndarray, thread_blocks: int, windows: int = 0, window_cycles: int = 64) -> State:
    """A design point at cycle 0: caches empty, nothing resident; room for the record of a launch of so many blocks."""
    sms, steps = int(m["sm_count"]), int(m["ring"]) * int(m["register_steps"])
    return State(
        machine=m,
        sms=_new_sms(m),
        l1i=_tags(sms, m["l1i_sets"] * m["l1i_ways"]),
        const=_tags(sms, m["const_sets"] * m["const_ways"]),
        texture=_tags(sms, m["l1t_sets"] * m["l1t_ways"]),
        l1d=_new_l1d(m),
        scoreboard=_zeros(sms, m["warp_slots"], m["register_count"]),
        results=_zeros(sms, m["ring"], m["first_unit"][-1]),
        buses=_zeros(sms, m["ring"], m["result_bus"]),
        register_banks=_zeros(sms, steps, m["banks"]),
        shared=_new_shared(m),
        record=_new_record(int(m["warps_per_block"]), thread_blocks, windows, window_cycles),
    )


def _zeros(*shape: Any, dtype: np.dtype | type = np.int64) -> np.ndarray:
    """Large arrays are pages of their own, zero once they are touched: most of a GPU's state never is by a launch, and
    what NumPy reuses it clears."""
    sizes = [int(n) for n in shape]
    length = prod(sizes) * np.dtype(dtype).itemsize
    if length < LARGE_BYTES:
        return np.zeros(sizes, dtype)
    return np.frombuffer(mmap(-1, length), dtype).reshape(sizes)


def _tags(sms: int, lines: Any) -> Tags:
    return Tags(_zeros(sms, lines), _zeros(sms, lines), _zeros(sms, lines))


def _new_sms(m: np.ndarray) -> np.ndarray:
    sms = _zeros(m["sm_count"], dtype=SM)
    sms["ready"], sms["last"], sms["idle_reason"], sms["last_dispatch"] = NEVER, -1, EMPTY, -1
    sms["last_fetched"], sms["number"] = -1, np.arange(len(sms))
    if m["policy"] == TWO_LEVEL:  # its queues hold every slot, resident or not
        for s in range(int(m["schedulers"])):
            supervised = np.arange(s, int(m["warp_slots"]), int(m["schedulers"]))
            sms["order"][:, s, : len(supervised)] = supervised
            sms["count"][:, s] = len(supervised)
    return sms


def _new_l1d(m: np.ndarray) -> L1D:
    sms, real = int(m["sm_count"]), not m["perfect"]
    tags = _tags(sms, m["l1d_sets"] * m["l1d_set_lines"])
    return L1D(
        *tags, _zeros(*tags.tag.shape, dtype=L1D_LINE), _zeros(sms, HINTS), _zeros(sms, m["l1d_mshrs"] * real),
        _zeros(sms, m["pipe_stages"] * real),
    )  # fmt: skip


def _new_shared(m: np.ndarray) -> Shared:
    """Nothing of it if memory is perfect."""
    real = not m["perfect"]
    channels = int(m["channels"]) * real
    slices = channels * int(m["slices_per_channel"])
    lines = slices * int(m["l2_sets"]) * int(m["l2_ways"])
    l2 = L2(_zeros(lines), _zeros(lines), _zeros(lines, dtype=L2_LINE), _zeros(1))
    return Shared(
        m, l2, _zeros(slices, BUCKETS, dtype=BUCKET), _zeros(channels, BUCKETS, dtype=BUCKET),
        _zeros(channels * int(m["dram_banks"]), dtype=BANK), _zeros(int(m["sm_count"]) * real, RESPONSES),
    )  # fmt: skip


def _new_record(warps_per_block: int, thread_blocks: int, windows: int, window_cycles: int) -> Record:
    launch = np.zeros(1, LAUNCH)[0]
    launch["window_log2"] = window_cycles.bit_length() - 1
    blocks, warps = np.empty(thread_blocks, THREAD_BLOCK), np.empty(thread_blocks * warps_per_block, WARP)
    for rows in (blocks, warps):
        rows.view(np.int64)[:] = -1
    return Record(launch, blocks, warps, _zeros(windows), np.empty(0, ISSUE))
