"""One launch as the machine code sees it: its context, its storages, its frames and its streams."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from functional.arrays import Int64
from functional.execution.executor import Interleaving
from functional.isa.slots import Slots, reserved_shared_offset
from functional.launches.launch import Launch
from functional.launches.memory import GLOBAL_BASE, Memory
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.context_layout import MOST_KEPT_BYTES
from functional.llvm_executor.object_code import Compiled, call
from functional.llvm_executor.streams import Buffers, Shadow, Streams
from functional.llvm_executor.undo import Undo
from functional.traces.trace import Trace

GUARD = "ABSTIM_GUARD_PAGES"  # an environment variable: every storage lies between pages that nobody may touch
_NOT_AT_ALL = 0  # PROT_NONE
PAD_BYTES = 512  # around every storage: vector loads reach beyond the lanes that are active


class Storage(NamedTuple):
    """Zeroed bytes with room around them; `address` is that of the first, a multiple of 64."""

    data: np.ndarray
    address: int

    @classmethod
    def of(cls, size_bytes: int) -> Storage:
        """Room for `size_bytes`."""
        if guarded():
            return cls._between_guards(size_bytes)
        data = np.zeros(size_bytes + 2 * PAD_BYTES + 64, np.uint8)
        start = -(-(data.ctypes.data + PAD_BYTES) // 64) * 64 - data.ctypes.data
        return cls(data, data.ctypes.data + start)

    @classmethod
    def _between_guards(cls, size_bytes: int) -> Storage:
        """The last byte, and PAD_BYTES, lie as near to the page behind as 64 allows."""
        page = mmap.PAGESIZE
        inside = -(-(size_bytes + 2 * PAD_BYTES + 64) // page) * page
        data = np.frombuffer(mmap.mmap(-1, inside + 2 * page), np.uint8)
        first = data.ctypes.data
        for guard in (first, first + page + inside):
            if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(guard), page, _NOT_AT_ALL):
                raise OSError(ctypes.get_errno(), "mprotect")
        return cls(data, first + page + (inside - PAD_BYTES - size_bytes) // 64 * 64)

    def view(self, size_bytes: int) -> np.ndarray:
        """The first bytes."""
        start = self.address - self.data.ctypes.data
        return self.data[start : start + size_bytes]


def guarded() -> bool:
    """Is it asked for?"""
    return bool(os.environ.get(GUARD))


class LaunchStorages:
    """Storages of one launch after the other, in one allocation: fresh pages cost as much as the work."""

    def __init__(self) -> None:
        self._all = Storage.of(1 << 16)

    def of(self, sizes_bytes: Sequence[int]) -> list[Storage]:
        """One of each size; what an earlier launch left is still in them."""
        if guarded():
            return [Storage.of(size) for size in sizes_bytes]
        steps = [-(-size // 64) * 64 + PAD_BYTES for size in sizes_bytes]
        if len(self._all.data) < sum(steps) + 2 * PAD_BYTES + 64:
            self._all = Storage.of(sum(steps))
        begins = [sum(steps[:i]) for i in range(len(steps))]
        return [Storage(self._all.data, self._all.address + begin) for begin in begins]


_UNLIMITED = 1 << 62
_LEAST_EVENTS, _EVENT_SHIFT = 1 << 27, 5  # basic blocks a warp may run: one of full warps costs the budget 32 or more
_numbers = count()
T = TypeVar("T", "Worker", Undo, Shadow)


class Abandoned(Exception):
    """The machine code cannot finish: a fault, the budget spent, or thread blocks that depend on one another."""


class OverBudget(Abandoned):
    """The budget is spent. `line`: of the PTX, where; `thread_block`: the linear id of the one that ran."""

    def __init__(self, line: int, thread_block: int) -> None:
        super().__init__()
        self.line, self.thread_block = line, thread_block


class Worker:
    """What one thread runs launches with. Kept from launch to launch, because fresh pages cost as much as the work."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.buffers = Buffers()
        self.storages = LaunchStorages()

    def trim(self) -> None:
        """Let go of buffers that are too large to hold on to."""
        if self.buffers.nbytes > MOST_KEPT_BYTES:
            self.buffers = Buffers()


class Pool(Generic[T]):
    """Objects that are dear to make: each used by one at a time, and then by the next."""

    def __init__(self, make: type[T]) -> None:
        self._make: type[T] = make
        self._idle: list[T] = []

    @contextmanager
    def one(self) -> Iterator[T]:
        """An idle item, or a new one, until the context ends."""
        try:
            item = self._idle.pop()
        except IndexError:
            item = self._make()
        try:
            yield item
        finally:
            item.trim()
            self._idle.append(item)


@dataclass
class Job:
    """A launch, and how far it has come: `blocks[:done]` have run and took `used` thread instructions."""

    compiled: Compiled
    launch: Launch
    memory: Memory
    blocks: np.ndarray
    budget: int
    chunk_bytes: int | None
    workers: Pool[Worker]
    undo: Undo
    interleaving: Interleaving | None  # how they take turns
    leases: ExitStack  # holds the workers until nobody looks at a trace any more
    done: int = 0
    used: int = 0
    machines: list[Machine] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Have all thread blocks run?"""
        return self.done == len(self.blocks)

    def machine(self, number: int) -> Machine:
        """The first, second, ... of the machines that run the launch."""
        while number >= len(self.machines):
            turns, left = self.interleaving, len(self.blocks) - self.done
            resident = 1 if turns is None else min(left, turns.resident_blocks)
            worker = self.leases.enter_context(self.workers.one())
            self.machines.append(Machine(self, worker, self.chunk_bytes is None, resident))
        return self.machines[number]


class Machine:
    """A launch on one worker. Thread blocks run by the chunk. `append`: traces are valid as long as the worker belongs
    to this launch (see `Streams`)."""

    def __init__(self, job: Job, worker: Worker, append: bool, resident: int) -> None:
        self.resident = resident  # thread blocks that have storages and frames
        self.shared_bytes = job.compiled.slots.shared_bytes_of(job.launch)
        compiled, launch, memory = job.compiled, job.launch, job.memory
        self.compiled, self.launch, self.memory, self.undo, self.worker = compiled, launch, memory, job.undo, worker
        self.context = np.zeros(len(at.CONTEXT), np.int64)
        self.kept: list[object] = []  # arrays whose addresses the context holds
        self._storages(memory, compiled.slots)
        self.touched = np.zeros(len(memory.regions) + 1, np.uint8)
        for axis, *extents in zip("xyz", launch.grid, launch.block, launch.cluster, strict=True):
            names = (f"{name}_{axis}" for name in ("nctaid", "ntid", "cluster_nctaid"))
            self.set(**dict(zip(names, extents, strict=True)))
        key = (worker.number, *launch.block)
        frames = (compiled.frames.get(key) if resident == 1 else None) or self._frames()
        if resident == 1:
            compiled.frames[key] = frames
        self.frames, generated = frames, compiled.generated
        addresses = np.array([compiled.slots.address_of(s, memory) for s in generated.symbols], np.uint64)
        self.set(
            frames=frames.address, slot_frames=frames.address, frame_bytes=compiled.frame_bytes,
            kernel=compiled.address, budget=job.budget, used=job.used, warps=launch.warps_per_block,
            most_events=max(_LEAST_EVENTS, job.budget >> _EVENT_SHIFT), nwarpid=launch.warps_per_block,
            dynamic_smem_size=launch.dynamic_shared_bytes, total_smem_size=launch.shared_bytes,
            cluster_nctarank=launch.cluster.total, reserved_smem_offset_1=reserved_shared_offset(launch),
            is_explicit_cluster=launch.asks_for_cluster, envreg1=launch.grid_workspace >> 32,
            envreg2=launch.grid_workspace & 0xFFFFFFFF,
            zero=self._address(np.array(generated.zeroed, np.int64)), zeros=len(generated.zeroed),
            symbols=self._address(addresses), points_left=_UNLIMITED, **job.undo.slots(),
        )  # fmt: skip
        largest = 256 * max(b.stop - b.start for b in launch.program.blocks)
        self.streams = Streams(self.context, largest, len(launch.program.slow_paths), worker.buffers, append)

    def run(self, thread_blocks: Int64[np.ndarray, " tb"]) -> Trace:
        """Run thread blocks to their end, in order. Raises Abandoned for a fault or when the budget is spent."""
        thread_blocks = self.begin(thread_blocks)
        return self.end(self.go("run"), thread_blocks)

    def begin(self, thread_blocks: Int64[np.ndarray, " tb"]) -> Int64[np.ndarray, " tb"]:
        """Make ready to run thread blocks, which are to be held on to."""
        thread_blocks = np.ascontiguousarray(thread_blocks)
        count = len(thread_blocks)
        self.set(thread_blocks=thread_blocks.ctypes.data, thread_block=0, thread_block_stop=count, fresh=1)
        self.touched[:] = 0  # and no region is known, so that each of this chunk is found once
        self.set(touched=self.touched.ctypes.data, last_start=0, last_end=0, stored_start=0, stored_end=0)
        self.streams.begin(count * self.launch.warps_per_block)
        return thread_blocks

    def go(self, routine: str) -> int:
        """Call a routine until it is not for want of room that it returns."""
        while (code := call(routine, self.context.ctypes.data)) == at.STOPPED:
            self.streams.grow()
        return code

    def end(self, code: int, thread_blocks: Int64[np.ndarray, " tb"]) -> Trace:
        """The trace, after a routine has returned `code`. Raises Abandoned."""
        self.streams.keep(self.worker.buffers)
        if code == at.OVER_BUDGET:
            running = int(thread_blocks[self.context[at.SLOT["thread_block"] // 8]])
            raise OverBudget(self.launch.program.line_of(self.streams.last_block), running)
        if code != at.FINISHED:
            raise Abandoned
        return self.streams.trace(thread_blocks, self.launch.warps_per_block)

    @property
    def used(self) -> int:
        """Thread instructions so far, as the budget counts them."""
        return int(self.context[at.SLOT["used"] // 8])

    def set(self, **values: int) -> None:
        """Write slots of the context."""
        for name, value in values.items():
            self.context[at.SLOT[name] // 8] = value

    def _address(self, array: np.ndarray) -> int:
        self.kept.append(array)
        return array.ctypes.data

    def _storages(self, memory: Memory, slots: Slots) -> None:
        """Constant, parameter, shared, local and scratch memory, in one allocation."""
        launch = self.launch
        stride = self.local_stride = -(-(slots.local_bytes + slots.call_bytes) // 16) * 16 * slots.frames
        contents = (memory.const_arena, np.frombuffer(launch.parameters, np.uint8))
        self.shared_stride = -(-self.shared_bytes // 64) * 64
        own = self.shared_stride, 32 * stride * launch.warps_per_block
        sizes = [len(c) for c in contents] + [self.resident * size for size in own] + [64]
        storages = self.worker.storages.of(sizes)
        self.kept += storages
        for storage, data in zip(storages, contents, strict=False):
            storage.view(len(data))[:] = data
        self.shared, self.local = storages[2:4]
        const, param, shared, local, scratch = (storage.address for storage in storages)
        starts, ends = memory.ranges()
        self.set(
            arena=self._address(memory.arena) - GLOBAL_BASE, starts=starts.ctypes.data, ends=ends.ctypes.data,
            regions=len(starts), const=const, const_limit=sizes[0], param=param, param_limit=sizes[1], shared=shared,
            shared_limit=self.shared_bytes, shared_bytes=self.shared_bytes,
            local_limit=slots.local_bytes + slots.frame_bytes * (slots.frames - 1),
            local_stride=stride, local_base=local, local_bytes=32 * stride, scratch=scratch, slot_shared=shared,
            slot_local=local, shared_stride=self.shared_stride,
        )  # fmt: skip

    def _frames(self) -> Storage:
        """A frame a warp of each resident thread block, used again by every block and every launch of this shape."""
        launch, size = self.launch, self.compiled.frame_bytes
        warps = launch.warps_per_block
        storage = Storage.of(self.resident * warps * size)
        frames = storage.view(self.resident * warps * size).reshape(self.resident, warps, size)
        thread = np.arange(32 * warps, dtype=np.uint32).reshape(warps, 32)
        x, y, _ = launch.block
        for offset, tid in zip(at.TID, (thread % x, thread // x % y, thread // (x * y)), strict=True):
            frames[:, :, offset : offset + 128] = np.ascontiguousarray(tid, np.uint32).view(np.uint8)
        lanes = np.clip(launch.threads_per_block - 32 * np.arange(warps), 0, 32)
        masks = ((1 << lanes.astype(np.int64)) - 1).astype(np.uint32)
        frames[:, :, at.WARP : at.WARP + 4] = np.arange(warps, dtype=np.uint32)[:, None].view(np.uint8)
        frames[:, :, at.INITIAL_MASK : at.INITIAL_MASK + 4] = masks[:, None].view(np.uint8)
        return storage
