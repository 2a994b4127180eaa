"""The dynamic trace: what the timing engine needs to know of an execution, and nothing else.

Columnar and append-only, one entry a warp (not a thread); A warp's streams are slices of
three flat arrays, cut by offset arrays of `warps + 1` entries. Warps are in thread-block order, then warp order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8, UInt16, UInt32

# A line record packs (line number << 5) | (sector bits << 1) | more.
# `line number` = address / 128 B, sectors are 32 B. `more` = 1: another record of the same instruction follows.
# Sector bits 0 (line number 0, more 0): no lane was active. Records of one instruction ascend by line number; an atomic
# repeats a line as often as the most contended word of it is named (one transaction each, REFERENCE.md "Coalescing").
LINE_BYTES = 128
SECTOR_BYTES = 32
# Window, in line numbers, of generic accesses that resolve to shared memory: one such record a conflict cycle.
SHARED_WINDOW_LINE = (1 << 27) - 1
# Kernel parameters: byte b of the parameter block lies in line PARAM_WINDOW_LINE + b / 128 (CUDA allows 32 KiB).
# Constant memory is numbered from line 0; global memory lies between it and the local window.
PARAM_WINDOW_LINE = SHARED_WINDOW_LINE - 256
# Local memory is interleaved by word as hardware does: (local word, warp) owns one line, from this number on.
LOCAL_WINDOW_LINE = 1 << 26


@dataclass(frozen=True)
class Trace:
    """Dynamic streams of a set of thread blocks of one launch.

    `blocks`: the basic block ids a warp executes, in order (divergent paths one after the other, taken path first);
    `masks`: the active mask on entry of each; `records`: line records of every executed ld/st/atom on global, local,
    const, param and generic space, in order (see above); `conflicts`: for every shared-memory instruction the number of
    bank passes (most distinct words on one bank; 0 if no lane was active).
    """

    thread_blocks: Int64[np.ndarray, " tb"]  # linear ids, x fastest
    warps_per_block: int
    blocks: UInt16[np.ndarray, " event"]
    masks: UInt32[np.ndarray, " event"]
    records: UInt32[np.ndarray, " record"]
    conflicts: UInt8[np.ndarray, " access"]
    block_offsets: Int64[np.ndarray, " warp_plus_1"]
    record_offsets: Int64[np.ndarray, " warp_plus_1"]
    conflict_offsets: Int64[np.ndarray, " warp_plus_1"]
    warp_instructions: Int64[np.ndarray, " warp"]  # issued, a warp
    thread_instructions: Int64[np.ndarray, " warp"]  # active: mask AND guard, summed over lanes

    @property
    def nbytes(self) -> int:
        """Bytes of the streams (not the offsets)."""
        return sum(a.nbytes for a in (self.blocks, self.masks, self.records, self.conflicts))
