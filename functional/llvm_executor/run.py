"""The LLVM executor: sets a launch up, lets the machine code run it, and hands to the oracle whatever goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from functional.executor import DEFAULT_INSTRUCTION_BUDGET
from functional.launch import Launch
from functional.llvm_executor import layout as at
from functional.llvm_executor.compile import Compiled, call, load
from functional.llvm_executor.streams import Buffers, Streams
from functional.llvm_executor.unit import NotGenerated
from functional.memory import GLOBAL_BASE, Backup, Memory
from functional.numpy_executor import NumpyExecutor
from functional.numpy_executor.run import _checked_blocks
from functional.numpy_executor.slots import Slots
from functional.program import Program
from functional.trace import Trace

_PAD = 512  # bytes around every storage: vector loads reach beyond the lanes that are active
_CACHED_PROGRAMS = 64
_LEAST_TURNS, _TURN_SHIFT = 1 << 16, 10  # as the oracle: basic blocks a warp may run


class LlvmExecutor:
    """Executes a launch as machine code, a warp at a time. Programs it does not know go to the NumPy executor.

    Not for use by two threads at once: launches share trace buffers and frames.
    """

    def __init__(self) -> None:
        self.oracle = NumpyExecutor()
        self._buffers, self._backup = Buffers(), Backup()
        self._programs: dict[tuple[str, str, str], tuple[Program, Compiled | None]] = {}

    def supports(self, program: Program) -> bool:
        """Does this executor run the program itself? If not, the NumPy executor does, with the same result."""
        return self.compiled(program) is not None

    def compiled(self, program: Program) -> Compiled | None:
        """Machine code of a program, made on first use; None if it holds an instruction that is not generated."""
        key = (program.path, program.digest, program.name)
        known = self._programs.get(key)
        if known is None or known[0] is not program:
            while len(self._programs) >= _CACHED_PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            try:
                known = program, load(program)
            except NotGenerated:
                known = program, None
            self._programs[key] = known
        return known[1]

    def run(
        self,
        launch: Launch,
        memory: Memory,
        thread_blocks: Sequence[int] | None = None,
        instruction_budget: int = DEFAULT_INSTRUCTION_BUDGET,
    ) -> Trace:
        """See `functional.executor.Executor`."""
        compiled = self.compiled(launch.program)
        if compiled is None:
            return self.oracle.run(launch, memory, thread_blocks, instruction_budget)
        blocks = _checked_blocks(launch, thread_blocks)
        if compiled.writes:
            self._backup.take(memory)
        machine = Machine(compiled, launch, memory, blocks, instruction_budget, self._buffers)
        code = machine.run()
        machine.streams.keep(self._buffers)
        if code == at.FINISHED:
            return machine.streams.trace(blocks, launch.warps_per_block)
        if compiled.writes:  # a fault, or over budget perhaps because blocks wait for later ones: the oracle decides
            self._backup.restore(memory)
        return self.oracle.run(launch, memory, thread_blocks, instruction_budget)


class Storage(NamedTuple):
    """Zeroed bytes with room around them; `address` is that of the first, a multiple of 64."""

    data: np.ndarray
    address: int

    @classmethod
    def of(cls, size_bytes: int) -> Storage:
        data = np.zeros(size_bytes + 2 * _PAD + 64, np.uint8)
        start = -(-(data.ctypes.data + _PAD) // 64) * 64 - data.ctypes.data
        return cls(data, data.ctypes.data + start)

    def view(self, size_bytes: int) -> np.ndarray:
        start = self.address - self.data.ctypes.data
        return self.data[start : start + size_bytes]


class Machine:
    """One launch: its context, its storages and its streams."""

    def __init__(
        self, compiled: Compiled, launch: Launch, memory: Memory, blocks: np.ndarray, budget: int, buffers: Buffers
    ) -> None:
        self.compiled, self.launch, self.blocks = compiled, launch, np.ascontiguousarray(blocks)
        self.context = np.zeros(len(at.CONTEXT), np.int64)
        self.kept: list[object] = []  # arrays whose addresses the context holds
        slots = compiled.slots
        self._storages(memory, slots)
        self._geometry()
        frames = compiled.frames.get(launch.block)
        if frames is None:
            frames = compiled.frames[launch.block] = self._frames()
        self._set(frames=frames.address, frame_bytes=compiled.generated.frame_bytes)
        generated = compiled.generated
        addresses = np.array([slots.address_of(s, memory) for s in generated.symbols], np.uint64)
        self._set(
            budget=budget, most_events=max(_LEAST_TURNS, budget >> _TURN_SHIFT), kernel=compiled.address, fresh=1,
            thread_blocks=self.blocks.ctypes.data, thread_block_stop=len(blocks),
            zero=self._address(np.array(generated.zeroed, np.int64)), zeros=len(generated.zeroed),
            symbols=self._address(addresses),
        )  # fmt: skip
        largest = 256 * max(b.stop - b.start for b in launch.program.blocks)
        self.streams = Streams(self.context, len(blocks) * launch.warps_per_block, largest, buffers)

    def _set(self, **values: int) -> None:
        for name, value in values.items():
            self.context[at.SLOT[name] // 8] = value

    def _address(self, array: np.ndarray) -> int:
        self.kept.append(array)
        return array.ctypes.data

    def _storages(self, memory: Memory, slots: Slots) -> None:
        """Constant, parameter, shared, local and scratch memory, in one allocation."""
        launch = self.launch
        stride = -(-(slots.local_bytes + slots.call_bytes) // 16) * 16
        contents = (memory.const_arena, np.frombuffer(launch.parameters, np.uint8))
        sizes = [len(c) for c in contents] + [launch.shared_bytes, 32 * stride * launch.warps_per_block, 64]
        steps = [-(-size // 64) * 64 + _PAD for size in sizes]
        pool = Storage.of(sum(steps))
        self.kept.append(pool)
        begins = [sum(steps[:i]) for i in range(len(steps))]
        for data, begin in zip(contents, begins, strict=False):
            pool.view(sum(steps))[begin : begin + len(data)] = data
        const, param, shared, local, scratch = (pool.address + begin for begin in begins)
        starts, ends = memory.ranges()
        self._set(
            arena=self._address(memory.arena) - GLOBAL_BASE, starts=starts.ctypes.data, ends=ends.ctypes.data,
            regions=len(starts), const=const, const_limit=sizes[0], param=param, param_limit=sizes[1], shared=shared,
            shared_limit=sizes[2], shared_bytes=sizes[2], local_limit=slots.local_bytes, local_stride=stride,
            local_base=local, local_bytes=32 * stride, scratch=scratch,
        )  # fmt: skip

    def _geometry(self) -> None:
        launch = self.launch
        for axis, blocks, threads in zip("xyz", launch.grid, launch.block, strict=True):
            self._set(**{f"nctaid_{axis}": blocks, f"ntid_{axis}": threads})
        self._set(
            warps=launch.warps_per_block, nwarpid=launch.warps_per_block,
            dynamic_smem_size=launch.dynamic_shared_bytes, total_smem_size=launch.shared_bytes,
        )  # fmt: skip

    def _frames(self) -> Storage:
        """A frame a warp of a thread block, used again by every block and every launch of this shape."""
        launch, size = self.launch, self.compiled.generated.frame_bytes
        warps = launch.warps_per_block
        storage = Storage.of(warps * size)
        frames = storage.view(warps * size).reshape(warps, size)
        thread = np.arange(32 * warps, dtype=np.uint32).reshape(warps, 32)
        x, y, _ = launch.block
        for offset, tid in zip(at.TID, (thread % x, thread // x % y, thread // (x * y)), strict=True):
            frames[:, offset : offset + 128] = np.ascontiguousarray(tid, np.uint32).view(np.uint8)
        lanes = np.clip(launch.threads_per_block - 32 * np.arange(warps), 0, 32)
        masks = ((1 << lanes.astype(np.int64)) - 1).astype(np.uint32)
        frames[:, at.WARP : at.WARP + 4] = np.arange(warps, dtype=np.uint32)[:, None].view(np.uint8)
        frames[:, at.INITIAL_MASK : at.INITIAL_MASK + 4] = masks[:, None].view(np.uint8)
        return storage

    def run(self) -> int:
        """Run to the end, with room made in the streams as they fill. Yields a code of layout.py."""
        while (code := call("run", self.context.ctypes.data)) == at.STOPPED:
            self.streams.grow()
        return code
