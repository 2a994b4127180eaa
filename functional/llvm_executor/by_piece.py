"""Programs with instructions that are not generated, and clusters of thread blocks.

Generated pieces of basic blocks run for one warp after the other, and between them steps for all warps that are there,
on the frames and storages of the machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from functional.arrays import Int64
from functional.execution.executor import Request
from functional.isa.operation import raw
from functional.isa.slots import Slots
from functional.launches.memory import GLOBAL_BASE
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.launch_state import Abandoned, Job
from functional.llvm_executor.launch_state import Machine as Native
from functional.llvm_executor.object_code import Compiled, call
from functional.llvm_executor.pieces import pieces_of
from functional.llvm_executor.undo import PAGE_SHIFT, Undo
from functional.programs.program import ENDS, BasicBlock
from functional.ptx.ir import Instruction, Register
from functional.steps.machine import Block, Bytes, Code, Frame, Machine, Step, Watch, under_guard
from functional.steps.mbarriers import is_wait
from functional.steps.run import decoded, end_of, run_chunks, step_of
from functional.steps.stack import Stack, pack, unpack
from functional.steps.turns import Turns
from functional.traces.trace import Trace

_UNLIMITED = 1 << 62
_MOST_HELD = 1 << 12  # what steps have logged, accesses


class _Values(dict[int, np.ndarray]):
    """Registers by slot, read when somebody asks for them. `written`: slots that a step has set."""

    def __init__(self, read: Callable[[int], np.ndarray]) -> None:
        super().__init__()
        self._read, self.written = read, set[int]()

    def __missing__(self, slot: int) -> np.ndarray:
        super().__setitem__(slot, self._read(slot))
        return self[slot]

    def __setitem__(self, slot: int, value: np.ndarray) -> None:
        self.written.add(slot)
        super().__setitem__(slot, value)


class PieceFrame(Frame):
    """Registers come from the frames of the machine code, one instruction at a time."""

    machine: PieceMachine

    def run(self, step: Step) -> None:
        """A step of one instruction."""
        values = self.values = _Values(lambda slot: self.machine.read(slot, self.rows))  # type: ignore[assignment]
        step(self)
        self.store(values.written)

    def accumulate(self, a: np.ndarray, b: np.ndarray, of: np.ndarray, registers: Any, added: np.ndarray) -> bool:
        """In the frames themselves, if all lanes run and no register is one word for all."""
        machine = self.machine
        places = [[machine.code.places[slot] for slot in slots] for slots in registers]
        if self.mask is not None or any(one for each in places for _, one in each):
            return False
        frames = machine.first_address + self.index * machine.frame_bytes
        offsets = [np.array([place for place, _ in each]) for each in places]
        a, b, room = np.ascontiguousarray(a, float), np.ascontiguousarray(b, float), np.empty((2, 16, b.shape[2]))
        arrays = a, b, of, room, frames, added.astype(np.int64), *offsets
        call("accumulate", *(array.ctypes.data for array in arrays), len(a), b.shape[2], b.shape[1])
        return True

    def fused_product(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        a, b, total = (np.array(matrix, float, order="C") for matrix in (a, b, c))
        call("multiply_fused", *(m.ctypes.data for m in (a, b, total)), *total.shape, a.shape[2])
        return total


class PieceCode(Code):
    """A program whose basic blocks are made of calls of its machine code and of steps."""

    frame_type = PieceFrame

    def __init__(self, compiled: Compiled) -> None:
        program, generated = compiled.program, compiled.generated
        self.left_out = frozenset(generated.left_out)
        self._watched = generated.watched(program)
        self._pieces = pieces_of(program, self.left_out, self._watched)
        self.program, self.slots = program, Slots(program)
        self.blocks = tuple(map(self.of_pieces, program.code_blocks))
        # Of registers that steps name, by slot: place in a frame, and whether it is one word for all lanes
        self.places = {self.slots.register(Register(*name)): (at, one) for name, at, one in generated.places}

    def of_pieces(self, block: BasicBlock) -> Block:
        """A basic block. Raises PtxError for an instruction that is not supported."""
        last, steps = self.program.instructions[block.stop - 1], list[Step]()
        for piece in self._pieces[block.index]:
            if steps and piece.start in self._watched:
                steps.append(self._loaded(self.program.instructions[piece.start], _TOLD))
            steps.append(run_piece(piece.entry))
            inst = self.program.instructions[piece.stop - 1]
            if piece.is_cut and inst.opcode not in ENDS and not is_wait(inst):
                steps.append(self._loaded(inst, step_of))
        end: Callable = _nothing
        if last.opcode in ("ret", "exit"):
            end = lambda frame: frame.machine.barriers.exited(frame.index)  # noqa: E731
        if last.index in self.left_out:
            end = self._loaded(last, lambda slots, inst: end_of(slots, block, inst))
        return Block(block.index, tuple(steps), end, block.stop - block.start)

    def _loaded(self, inst: Instruction, build: Callable[[Slots, Instruction], Step]) -> Step:
        """A step, or an end, that reads and writes registers where the machine code keeps them. Raises PtxError."""
        step = decoded(self.program, inst, lambda: build(self.slots, inst))
        return lambda frame: frame.run(step)  # type: ignore[attr-defined]


def run_piece(entry: int) -> Step:
    """What runs generated code."""
    return lambda frame: frame.machine.run(frame.index, entry)  # type: ignore[attr-defined]


def _nothing(frame: Frame) -> None:
    pass


_TOLD = partial(under_guard, step=_nothing)  # in which lanes a generated instruction is about to run


class _Keeper(Watch):
    follows_copies = True

    def __init__(self, undo: Undo) -> None:
        self._undo, self._context = undo, 0

    def begin(self, machine: Machine) -> None:
        self._context = machine.native.context.ctypes.data  # type: ignore[attr-defined]

    def look(self, how, part, offsets, size_bytes, values=()) -> None:  # type: ignore[no-untyped-def]
        if how != "loads" and part.space.name == "global":
            named = offsets if part.active is None else part.frame.full(offsets)[part.active]  # of a matrix: any number
            self.note_writes(named, size_bytes)

    def box(self, frame, inst, place, space, starts, size_bytes, writes) -> None:  # type: ignore[no-untyped-def]
        if writes and space == "global":
            self.note_writes(starts, size_bytes)

    def note_writes(self, offsets: np.ndarray, size_bytes: int) -> None:
        if not offsets.size:
            return
        pages = np.unique(np.concatenate([offsets.reshape(-1), offsets.reshape(-1) + (size_bytes - 1)]) >> PAGE_SHIFT)
        for page in self._undo.unwritten(pages).tolist():
            call("keep_pages", self._context, *[page + (GLOBAL_BASE >> PAGE_SHIFT)] * 2)


class PieceMachine(Machine):
    """A chunk of thread blocks whose registers, stacks and storages are those of the machine code."""

    code: PieceCode

    def __init__(
        self, native: Native, code: PieceCode, thread_blocks: np.ndarray, watch: Watch, turns: Turns
    ) -> None:  # fmt: skip
        self.native, launch = native, native.launch
        self._blocks_of_list = native.begin(thread_blocks.astype(np.int64))
        count, size = len(thread_blocks) * launch.warps_per_block, native.compiled.frame_bytes
        self.frame_bytes, self.first_address = size, native.frames.address
        self._frames = native.frames.view(count * size).reshape(count, size)
        super().__init__(code, launch, native.memory, thread_blocks, watch, turns)
        self._bases = self.clusters.first_address.astype(np.int64)
        native.set(rank_bases=self._bases.ctypes.data, budget=_UNLIMITED)
        call("begin_blocks", native.context.ctypes.data)
        self._homes = {slot: self._home(slot, *place) for slot, place in code.places.items()}

    def new_stack(self) -> Stack:
        def words(start: int, count: int = 1) -> np.ndarray:
            return self._frames[:, start : start + 4 * count].view(np.int32)

        starts = (at.BLOCK, at.MASK, at.RECONVERGENCE, at.LEVEL, at.BASE)
        block, mask, meets, level, base = (words(start)[:, 0] for start in starts)
        depth, size = self.native.compiled.stack_depth, len(at.ENTRY)
        saved = words(self.frame_bytes - at.ENTRY_BYTES * depth, size * depth)[:, ::size][:, ::-1]
        return Stack(block, mask.view(np.uint32), meets, level, base, saved, self._move)

    def _move(self, routine: str, rows: np.ndarray, *given: np.ndarray | int) -> None:
        arrays = [np.ascontiguousarray(array) for array in (rows, *given) if isinstance(array, np.ndarray)]
        numbers = [number for number in given if isinstance(number, int)]
        addresses = (array.ctypes.data for array in arrays)
        call(routine, self.native.context.ctypes.data, len(rows), *addresses, *numbers)

    def own_memories(self) -> tuple[int, int, Bytes, Bytes]:
        native = self.native
        shared, local = native.shared_stride, native.local_stride
        whole = shared * len(self.thread_blocks), local * 32 * self.warps
        return shared, local, Bytes(native.shared.view(whole[0])), Bytes(native.local.view(whole[1]))

    def _home(self, slot: int, place: int, one: bool) -> np.ndarray:
        dtype = self.code.slots.dtypes[slot]
        truth = dtype.kind == "b"
        size = 4 if truth else dtype.itemsize * (1 if one else 32)
        return self._frames[:, place : place + size].view(np.uint32 if truth else dtype)

    def read(self, slot: int, rows: np.ndarray | None) -> np.ndarray:
        """A register of warps, [row, 1 or lane]."""
        home = self._homes[slot]
        value = home.copy() if rows is None else home[rows]
        if self.code.slots.dtypes[slot].kind != "b":
            return value
        return value != 0 if self.code.places[slot][1] else unpack(value)

    def write(self, slot: int, value: np.ndarray, rows: np.ndarray | None, mask: np.ndarray | None) -> None:
        home, which = self._homes[slot], slice(None) if rows is None else rows
        count = self.warps if rows is None else len(rows)
        if self.code.slots.dtypes[slot].kind != "b":
            home[which] = raw(value) if mask is None else np.where(mask, raw(value), home[which])
            return
        bits, lanes = pack(value, count)[:, None], np.uint32(0xFFFFFFFF) if mask is None else pack(mask, count)[:, None]
        home[which] = home[which] & ~lanes | bits & lanes

    def _flush(self) -> None:
        """Write what steps have logged, before the machine code writes more."""
        for stream, entries in (("records", self.records), ("conflicts", self.conflicts)):
            if entries:
                self.native.streams.add(stream, *map(np.concatenate, zip(*entries, strict=True)))
                entries.clear()

    def run(self, rows: np.ndarray, entry: int) -> None:
        """Warps run a piece. Raises Abandoned for a fault."""
        native, held = self.native, len(self.records) + len(self.conflicts)
        if not native.compiled.generated.care or held > _MOST_HELD:  # careful code logs nothing itself
            self._flush()
        native.set(piece_row=0)
        while (code := call("run_piece", native.context.ctypes.data, rows.ctypes.data, len(rows), entry)) == at.STOPPED:
            native.streams.grow()
        if code != at.FINISHED:
            raise Abandoned

    @property
    def counts(self) -> Int64[np.ndarray, "row 2"]:
        """Warp instructions and thread instructions so far."""
        return self._frames[:, at.WARP_INSTRUCTIONS : at.EVENTS].view(np.int64)

    def finish(self) -> Trace:
        self._flush()
        self.native.streams.counts[:] = self.counts
        return self.native.end(at.FINISHED, self._blocks_of_list)


def by_piece(job: Job, watch: Watch | None = None) -> Iterator[Trace]:
    """The blocks left, under `watch`, else so that it can be undone. Abandoned for a fault, but of careful code."""
    code, watch = job.compiled.steps(PieceCode), watch or _Keeper(job.undo)
    for trace in run_pieces(job, lambda native, *chunk: PieceMachine(native, code, *chunk), watch):
        job.done += len(trace.thread_blocks)
        yield trace


def run_pieces(job: Job, machine_of: Callable[..., PieceMachine], watch: Watch) -> Iterator[Trace]:
    """Traces of the thread blocks that are left. `machine_of` is given the machine code's state of a chunk, its thread
    blocks, what looks at it, and turns."""
    left = Request(job.launch, job.memory, job.blocks[job.done :], job.budget, 0, job.interleaving)
    worker = job.leases.enter_context(job.workers.one())

    def machine(chosen: np.ndarray, turns: Turns) -> PieceMachine:
        return machine_of(Native(job, worker, False, len(chosen)), chosen, watch, turns)

    return run_chunks(left, machine, job.used)
