"""The state of a chunk of thread blocks as arrays: registers, storages and stacks that nothing compiled looks at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from functional.isa.operation import raw
from functional.isa.slots import (
    CLOCKS,
    CONSTANTS,
    LANE_MASKS,
    RESERVED_SHARED,
    WIDE,
    reserved_shared_offset,
    special_type,
)
from functional.launches.launch import open_regions
from functional.steps.machine import Bytes, Entries, Frame, Machine, order_of
from functional.steps.stack import FULL
from functional.traces.trace import Trace, offsets_of
from oracle.array_stack import ArrayStack
from oracle.arrays import fma64

_LANES = np.arange(32, dtype=np.uint32)[None, :]


class ArrayFrame(Frame):
    """Values of registers while a basic block runs; what lives on is blended into the machine at its end."""

    machine: ArrayMachine

    def load(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.values[slot] = self.machine.read(slot, self.rows)

    def fused_product(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        total = c
        for k in range(a.shape[2]):
            total = fma64(a[:, :, k, None], b[:, None, k, :], total)
        return total


class ArrayMachine(Machine):
    """Registers are arrays (1 | warp, 1 | 32) by slot."""

    def __init__(self, *chunk: Any) -> None:
        super().__init__(*chunk)
        slots = self.code.slots
        self.registers = [np.zeros((1, 1), dtype) for dtype in slots.dtypes]
        for register, slot in slots.registers.items():
            if special_type(register.name) and register.name not in CLOCKS:
                self.registers[slot] = special_values(self, register.name)
        self.entered: list[tuple[np.ndarray, int, np.ndarray]] = []  # (warps, basic block, lanes)
        self.issued = np.zeros(self.warps, np.int64)  # instructions of each warp, its running basic block's included

    def new_stack(self) -> ArrayStack:  # type: ignore[override]
        threads = self.launch.threads_per_block
        lanes = np.minimum(threads - 32 * np.arange(self.warps_per_block), 32)
        masks = ((np.uint64(1) << lanes.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)
        return ArrayStack(np.tile(masks, len(self.thread_blocks)))

    def own_memories(self) -> tuple[int, int, Bytes, Bytes]:
        open_regions(self.code.program, self.memory)
        slots = self.code.slots
        shared = -(-self.shared_bytes // 16) * 16
        local = -(-(slots.local_bytes + slots.call_bytes) // 16) * 16 * slots.frames
        sizes = shared * len(self.thread_blocks), local * 32 * self.warps
        return shared, local, *(Bytes(np.zeros(size // 8, np.uint64).view(np.uint8)) for size in sizes)

    def read(self, slot: int, rows: np.ndarray | None) -> np.ndarray:
        value = self.registers[slot]
        return value if rows is None or len(value) == 1 else value.take(rows, axis=0)

    def write(self, slot: int, value: np.ndarray, rows: np.ndarray | None, mask: np.ndarray | None) -> None:
        """The state keeps the array itself where the whole register is replaced: no two slots share one."""
        value, old = raw(value), self.registers[slot]
        if mask is not None:
            before = old if rows is None or old.shape[0] == 1 else old.take(rows, axis=0)
            value = np.where(mask, value, before)
        if rows is None:
            self.registers[slot] = value
            return
        shape = (self.warps, max(old.shape[1], value.shape[1]))
        if old.shape != shape:
            old = self.registers[slot] = np.broadcast_to(old, shape).copy()
        old[rows] = value

    def enter_block(self, frame: Frame, block: int, instructions: int) -> None:
        self.entered.append((frame.index, block, frame.bits))
        self.issued[frame.index] += instructions

    def finish(self) -> Trace:
        program = self.code.program
        order, events = order_of([rows for rows, _, _ in self.entered], self.warps)
        lengths = [len(rows) for rows, _, _ in self.entered]
        blocks = np.repeat(np.array([b for _, b, _ in self.entered], np.uint16), lengths)[order]
        masks = np.concatenate([bits for _, _, bits in self.entered])
        masks = masks if (masks == FULL).all() else masks[order]
        sizes, unguarded = (
            np.array(program.in_blocks(of_each)) for of_each in
            ([1] * len(program.instructions), [i.guard is None for i in program.instructions])
        )  # fmt: skip
        row = np.repeat(self.all_rows, events)
        warp = np.bincount(row, sizes[blocks], self.warps).astype(np.int64)
        thread = np.bincount(row, unguarded[blocks] * np.bitwise_count(masks), self.warps).astype(np.int64)
        found, accesses = self._stream(self.records, np.uint64)
        records, partial = found.astype(np.uint32), np.flatnonzero(found >> np.uint64(32))
        conflicts, shared = self._stream(self.conflicts, np.uint8)
        starts = offsets_of(events), offsets_of(accesses), offsets_of(shared)
        streams = blocks, masks, records, conflicts
        blocks_run = self.thread_blocks.astype(np.int64)
        counts = warp, thread + self.guarded
        words = ~(found[partial] >> np.uint64(32)).astype(np.uint32)
        return Trace(blocks_run, self.warps_per_block, *streams, *starts, *counts, partial, words)

    def _stream(self, entries: Entries, dtype: type) -> tuple[np.ndarray, np.ndarray]:
        """(values, how many a warp), warp after warp."""
        order, counts = order_of([rows for rows, _ in entries], self.warps)
        return np.concatenate([np.zeros(0, dtype), *(values for _, values in entries)])[order].astype(dtype), counts


def special_values(machine: Machine, name: str) -> np.ndarray:
    """The value of a special register other than the clocks, (1 | warp, 1 | 32)."""
    base, _, axis = name.partition(".")
    if axis:
        return _coordinate(machine, base, "xyz".index(axis))
    if name == "%is_explicit_cluster":
        return np.full((1, 1), machine.launch.asks_for_cluster)
    if name == "%cluster_ctarank":
        return machine.clusters.rank[machine.block_of_row].astype(np.uint32)[:, None]
    if name.startswith("%lanemask_"):
        return LANE_MASKS[name[-2:]][None].copy()
    if name == RESERVED_SHARED:
        first = machine.clusters.first_address[machine.block_of_row].astype(np.uint32)[:, None]
        return first + np.uint32(reserved_shared_offset(machine.launch))
    if name == "%laneid":
        return _LANES.copy()
    if name == "%warpid":
        return (machine.all_rows % machine.warps_per_block).astype(np.uint32)[:, None]
    scalars = {
        **CONSTANTS,
        "%nwarpid": machine.warps_per_block,
        "%cluster_nctarank": machine.clusters.size,
        "%dynamic_smem_size": machine.launch.dynamic_shared_bytes,
        "%total_smem_size": machine.launch.shared_bytes,
        # What CUDA's grid synchronisation reads there (cooperative_groups/details/driver_abi.h)
        "%envreg1": machine.launch.grid_workspace >> 32,
        "%envreg2": machine.launch.grid_workspace & 0xFFFFFFFF,
    }
    return np.full((1, 1), scalars.get(name, 0), np.uint64 if name in WIDE else np.uint32)


def _coordinate(machine: Machine, base: str, axis: int) -> np.ndarray:
    launch = machine.launch
    grid, cluster = launch.grid, launch.cluster
    extents = {"%ntid": launch.block, "%nctaid": grid, "%cluster_nctaid": cluster}.get(base)
    if extents is not None:
        return np.full((1, 1), extents[axis], np.uint32)
    if base == "%nclusterid":
        return np.full((1, 1), grid[axis] // cluster[axis], np.uint32)
    extents = launch.block if base == "%tid" else grid
    below = int(np.prod(extents[:axis], dtype=np.int64))
    if base == "%tid":
        linear = (32 * (machine.all_rows % machine.warps_per_block))[:, None] + _LANES
    elif extents[axis] == 1:
        return np.zeros((1, 1), np.uint32)
    else:
        linear = np.repeat(machine.thread_blocks, machine.warps_per_block)[:, None]
    along = linear // below % extents[axis]
    shown = {"%clusterid": along // cluster[axis], "%cluster_ctaid": along % cluster[axis]}.get(base, along)
    return shown.astype(np.uint32)


def clock(issued: np.ndarray, name: str) -> np.ndarray:
    """A monotone stand-in for a clock, (row, 1): the executor knows no time, so it shows the instructions that the
    warp has issued (int64 [row])."""
    wide = name in WIDE
    value = issued >> 32 if name.endswith("_hi") else issued
    return value[:, None].astype(np.uint64) if wide else (value[:, None] & 0xFFFFFFFF).astype(np.uint32)
