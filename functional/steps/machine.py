"""The state of a chunk of thread blocks: registers, shared and local memory, stacks, barriers, trace log; and one
basic block on the warps that are about to run it, its operands as getters `Frame -> array`, its results as setters,
with the widening PTX allows from type to register.

Inside a block, values live in `Frame.values`, one array a register slot that broadcasts to [row, 32]: (1, 1) where all
threads agree, (row, 1) where those of a warp do. Lanes that are not active compute garbage nobody sees: only at the end
of the block are the registers that live on blended into the machine state under the lane mask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from functional.errors import ExecutionError
from functional.isa.operation import DTYPES, RAW_BY_BYTES, Unsupported, raw, refuse_if
from functional.isa.slots import Slots, immediate, register_dtype, special_register
from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.programs.program import Program
from functional.ptx.ir import Immediate, Instruction, Operand, Register, Special, Symbol
from functional.steps.barriers import Barriers, Clusters, Phases, access_records
from functional.steps.stack import FULL, Stack, pack, unpack
from functional.steps.tensor_memory import TensorMemory
from functional.steps.turns import Turns
from functional.traces.line_record import MOST_COUNT
from functional.traces.trace import Trace

Entries = list[tuple[np.ndarray, np.ndarray]]  # (rows, values)


def order_of(rows: list[np.ndarray], warps: int) -> tuple[np.ndarray, np.ndarray]:
    """What puts entries in the order of their warps, stable, and how many each warp has."""
    small = np.uint16 if warps <= 1 << 16 else np.int64  # NumPy sorts 16-bit keys by radix
    joined = np.concatenate([np.zeros(0, small), *(r.astype(small) for r in rows)])
    return np.argsort(joined, kind="stable"), np.bincount(joined, minlength=warps)


@dataclass(frozen=True)
class Block:
    """A decoded basic block: its steps and its end are functions of a frame."""

    index: int
    steps: tuple[Callable, ...]
    end: Callable
    instructions: int


class Code:
    """A program as a chunk runs it."""

    program: Program
    slots: Slots
    blocks: tuple[Block, ...]
    frame_type: type[Frame]  # what steps and ends are called with


class Watch:
    """What looks at every access of a launch; this one at none. Parts of accesses are memory_ops.Lanes."""

    strict = False  # does it find fault with what a GPU leaves open?
    follows_copies = False  # does it look at what copies move, which takes time?

    def begin(self, machine: Machine) -> None:
        """A chunk begins."""

    def look(
        self, how: str, part: Any, offsets: np.ndarray, size_bytes: int, values: Sequence[np.ndarray] = ()
    ) -> None:
        """`how`: "loads", "stores" (still to be done) or "updates", at offsets [row, lane] of the storage of a space.
        `values`: elements [row, lane] of what is stored, if that is known."""

    def box(
        self, frame: Any, inst: Instruction, place: tuple[int, int], space: str, starts: np.ndarray, size_bytes: int,
        writes: bool,
    ) -> None:  # fmt: skip
        """What one lane, `place` (row, lane), reads or writes at many offsets [element] of a storage."""

    def lanes(self, rows: np.ndarray, lanes: np.ndarray) -> None:
        """Of warps, those with a true guard of an instruction that is about to run, bits [row]."""

    def addresses(self, rows: np.ndarray, addresses: np.ndarray) -> None:
        """Of the lanes of warps, within the space of a memory instruction, [row, 1 or lane]."""

    def note_writes(self, offsets: np.ndarray, size_bytes: int) -> None:
        """Global memory is about to be written by what is no access of lanes, at offsets of any shape."""


UNWATCHED = Watch()


class Bytes:
    """A byte array with views of 1, 2, 4 and 8-byte words."""

    def __init__(self, data: np.ndarray) -> None:
        whole = data[: len(data) // 8 * 8]
        self.data, self.words = data, {n: whole.view(f"u{n}") for n in (2, 4, 8)} | {1: data}

    @classmethod
    def copy_of(cls, data: bytes) -> Bytes:
        """With zeros behind the last byte, up to a whole word."""
        return cls(np.frombuffer(data + bytes(-len(data) % 8), np.uint8))


class Saved:
    """Registers that callers at one depth of calls still need, by warp."""

    def __init__(self, warps: int) -> None:
        self.lanes = np.zeros(warps, np.uint32)
        self.values: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by slot: values, and of which warps they are

    def keep(self, machine: Machine, rows: np.ndarray, lanes: np.ndarray, slots: tuple[int, ...]) -> None:
        """Put registers of `rows` aside, to come back in `lanes`."""
        self.lanes[rows] = lanes
        for slot in {*self.values, *slots}:
            now, warps = machine.read(slot, rows), machine.warps
            values, kept = self.values.setdefault(slot, (np.zeros((warps, 32), now.dtype), np.zeros(warps, bool)))
            values[rows], kept[rows] = now, slot in slots

    def restore(self, machine: Machine, rows: np.ndarray) -> None:
        """Bring them back."""
        for slot, (values, kept) in self.values.items():
            at = rows[kept[rows]]
            machine.write(slot, values[at], at, unpack(self.lanes[at]))


class Machine:
    """Warps of `thread_blocks` (linear ids) of a launch, all on the same `memory`. Rows are warps in block order."""

    def __init__(
        self, code: Code, launch: Launch, memory: Memory, thread_blocks: np.ndarray, watch: Watch, turns: Turns
    ) -> None:
        self.turns = turns
        self.code, self.launch, self.memory = code, launch, memory
        self.thread_blocks = thread_blocks
        self.warps_per_block = launch.warps_per_block
        self.warps = len(thread_blocks) * self.warps_per_block
        self.all_rows = np.arange(self.warps)
        self.block_of_row = self.all_rows // self.warps_per_block
        self.stack = self.new_stack()
        self.clusters = Clusters(launch, thread_blocks)
        told = (self._completed, self._met_cluster)
        self.barriers = Barriers(self.block_of_row, self.clusters, self.stack, *told, turns)
        self.launched_registers = code.program.directives.get("maxnreg", (0,))[0]  # a thread; 0: not known
        self.registers_held = np.full(self.warps, self.launched_registers)  # a thread of each warp, now
        self.registers_changed: Instruction | None = None  # by which, last
        self.held: dict[int, Any] = {}  # rows that wait for a phase of an mbarrier -> mbarriers.Waiting
        # What nobody has taken yet: line records, those of one instruction of one warp adjacent and in order, and bank
        # passes, one a warp and instruction
        self.records, self.conflicts = Entries(), Entries()
        self.guarded = np.zeros(self.warps, np.int64)  # thread instructions of guarded instructions
        self.saved: dict[int, Saved] = {}  # by level
        if code.program.recursive:
            self.stack.on_return = self._returned
        self.printed: list[tuple[int, str]] = []  # (warp of the chunk, text)
        self._addresses: dict[Symbol, np.ndarray] = {}
        self.shared_bytes = code.slots.shared_bytes_of(launch)
        self.shared_stride, self.local_stride, self.shared, self.local = self.own_memories()
        self.globals = Bytes(memory.arena)
        self.constants, self.parameters = map(Bytes.copy_of, (memory.const_arena.tobytes(), launch.parameters))
        self.phases = Phases(self.block_of_row, self.shared_stride, self.clusters, self.turns)
        self.watch = watch
        watch.begin(self)

    def new_stack(self) -> Stack:
        """Those of all warps, which stand at the first basic block."""
        raise NotImplementedError

    def address_of(self, symbol: Symbol, rows: np.ndarray | None) -> np.ndarray:
        """The address of a variable within its space for warps, uint64 [1 or row, 1]."""
        if symbol not in self._addresses:
            address = np.full((1, 1), self.code.slots.address_of(symbol, self.memory), np.uint64)
            if self.clusters.size > 1 and symbol.name in self.code.slots.shared:
                address = address + self.clusters.first_address[self.block_of_row][:, None]
            self._addresses[symbol] = address
        address = self._addresses[symbol]
        return address if rows is None or len(address) == 1 else address.take(rows, axis=0)

    def own_memories(self) -> tuple[int, int, Bytes, Bytes]:
        """Bytes of shared memory of a thread block and of local memory of a thread, and all of both."""
        raise NotImplementedError

    @cached_property
    def tensor_memory(self) -> TensorMemory:
        """Of all thread blocks, once something asks for it."""
        return TensorMemory(len(self.thread_blocks))

    def read(self, slot: int, rows: np.ndarray | None) -> np.ndarray:
        """A register of warps (None: of all), [1 or row, 1 or lane]."""
        raise NotImplementedError

    def write(self, slot: int, value: np.ndarray, rows: np.ndarray | None, mask: np.ndarray | None) -> None:
        """Set a register of warps (None: of all) in the lanes of `mask` (None: in all)."""
        raise NotImplementedError

    def enter(self, rows: np.ndarray, inst: Instruction, lanes: np.ndarray, kept: tuple[int, ...]) -> None:
        """Lanes of warps are about to be in a function: put their registers `kept` aside until they are back. Raises
        ExecutionError if they have no frame left."""
        if not self.code.program.recursive:
            return
        rows, lanes = rows[lanes != 0], lanes[lanes != 0]
        levels = self.stack.level[rows]
        if rows.size and int(levels.max()) + 1 >= self.code.slots.frames:
            row = int(rows[levels.argmax()])
            raise self.fault(inst, f"the stack overflows: {self.code.slots.frames - 1} calls in progress", row)
        for level in np.unique(levels):
            here = levels == level
            self.saved.setdefault(int(level), Saved(self.warps)).keep(self, rows[here], lanes[here], kept)

    def _returned(self, rows: np.ndarray, levels: np.ndarray) -> None:
        """Calls have ended: registers of their callers, at these levels, come back."""
        for level in np.unique(levels):
            self.saved[int(level)].restore(self, rows[levels == level])

    def _completed(self, rows: np.ndarray) -> None:
        barriers, instructions = self.barriers, self.code.program.instructions
        for instruction, (slot, operation) in self.code.slots.barrier_results.items():  # of `bar.red`
            mine = rows[barriers.instruction[rows] == instruction]
            if mine.size:
                total, true = barriers.votes[self.block_of_row[mine], barriers.waiting[mine]].T
                value = {"popc": true.astype(np.uint32), "and": true == total, "or": true > 0}[operation]
                self.write(slot, value[:, None], mine, self.lanes(mine))
        for row, name, i in zip(rows, barriers.waiting[rows], barriers.instruction[rows], strict=True):
            if instructions[i].meets:
                self.meet(int(row), int(name), int(barriers.arrived[self.block_of_row[row], name]))

    def meet(self, row: int, name: int, count: int) -> None:
        """Log that a warp has arrived at a barrier, and waited for so many (0: not at all)."""
        self.phases.meet(row, name, int(self.barriers.phase[self.block_of_row[row], name]), count)
        self._log_met(row)

    def _log_met(self, row: int) -> None:
        records = access_records(self.phases.take().get(row, []), 1)
        self.records.append((np.full(len(records), row), records))

    def _met_cluster(self, rows: np.ndarray, waited: bool) -> None:
        """Log that warps arrive at the barrier of their cluster, or have waited for those of its last phase."""
        for row, cluster in zip(rows.tolist(), self.barriers.cluster_of_row[rows].tolist(), strict=True):
            phase, count = int(self.barriers.cluster_phase[cluster]), int(self.barriers.cluster_arrived[cluster])
            if not waited:
                self.phases.meet_cluster(row, phase, 0)
            elif 0 < count <= MOST_COUNT:
                self.phases.meet_cluster(row, phase - 1, count)
            self._log_met(row)

    def lanes(self, rows: np.ndarray) -> np.ndarray:
        """Active lanes of warps, bool [row, 32]."""
        return unpack(self.stack.mask[rows])

    def finish(self) -> Trace:
        """The trace of the chunk, once all warps are done."""
        raise NotImplementedError

    def fault(self, inst: Instruction, message: str, row: int | None = None, lane: int = 0) -> ExecutionError:
        """The error of an instruction, with kernel, PTX line and (given a row) the thread's coordinates."""
        where = f"kernel '{self.code.program.name}', {self.code.program.path}:{inst.line}: {inst.name}"
        if row is not None:
            thread = 32 * (row % self.warps_per_block) + lane
            x, y, _ = self.launch.block
            tid = (thread % x, thread // x % y, thread // (x * y))
            block = self.block_coordinates(int(self.thread_blocks[self.block_of_row[row]]))
            where += f", thread {tid} of block {block}"
        return ExecutionError(f"{where}: {message}")

    def block_coordinates(self, block: int) -> tuple[int, int, int]:
        """(x, y, z) of a linear thread block id."""
        x, y, _ = self.launch.grid
        return block % x, block // x % y, block // (x * y)


Step = Callable[["Frame"], None]  # an instruction
Terminator = Callable[["Frame"], None]  # what ends a basic block, and says where its warps go


class Frame:
    """Warps `rows` of a machine (None: all of them), `bits` their active lanes, in one basic block."""

    __slots__ = ("bits", "count", "executing", "guard", "index", "machine", "mask", "rows", "values")

    def __init__(self, machine: Machine, rows: np.ndarray | None) -> None:
        self.machine = machine
        self.rows = rows
        self.index = machine.all_rows if rows is None else rows
        self.count = len(self.index)
        self.bits = machine.stack.mask.copy() if rows is None else machine.stack.mask[rows]
        self.mask = None if (self.bits == FULL).all() else unpack(self.bits)  # bool [row, 32]; None: all lanes
        self.values: Any = {}  # by slot
        self.guard: np.ndarray | None = None  # of the running instruction
        self.executing = self.bits  # lanes in which it runs, uint32 [row]

    def store(self, slots: Iterable[int]) -> None:
        """Write registers to the machine state, active lanes only."""
        for slot in slots:
            self.machine.write(slot, self.values[slot], self.rows, self.mask)

    def accumulate(self, a: np.ndarray, b: np.ndarray, of: np.ndarray, registers: Any, added: np.ndarray) -> bool:
        """D = A B + C of matrices [row, 16, k], [matrix, k, n], that one whose number is in `of` [row], and of slots of
        float32 `registers`, (those of C, those of D); C where it is `added` [row]. Was there a fast way?"""
        return False

    def fused_product(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        """A B + C of float64 [row, m, k], [row, k, n], [row, m, n]: fused multiply-adds, beginning with C."""
        raise NotImplementedError

    def active(self, lanes: np.ndarray | None = None) -> np.ndarray | None:
        """The active ones among some lanes (None: those with a true guard), bool [row, 32]; None if all are."""
        lanes = self.guard if lanes is None else lanes
        if lanes is None:
            return self.mask
        return np.broadcast_to(lanes, (self.count, 32)) if self.mask is None else lanes & self.mask

    def lanes(self) -> np.ndarray:
        """Lanes that execute the running instruction, bool [row, 32]."""
        active = self.active()
        return np.ones((self.count, 32), bool) if active is None else active

    def full(self, value: np.ndarray) -> np.ndarray:
        """A value spread over all rows and lanes."""
        return value if value.shape == (self.count, 32) else np.broadcast_to(value, (self.count, 32))

    def run_guarded(self, guard: Getter, step: Step) -> None:
        """Run a guarded instruction: it is a thread instruction for each active lane with a true guard."""
        self.guard = guard(self)
        self.executing = self.bits & pack(self.guard, self.count)
        self.machine.guarded[self.index] += np.bitwise_count(self.executing)
        self.machine.watch.lanes(self.index, self.executing)
        step(self)
        self.guard, self.executing = None, self.bits

    def fault(self, inst: Instruction, message: str, row: int = 0, lane: int = 0) -> ExecutionError:
        """The error of a thread of one of these warps; the caller raises it."""
        return self.machine.fault(inst, message, int(self.index[row]), lane)

    def check(self, inst: Instruction, wrong: np.ndarray, say: Callable[[tuple[int, int]], str]) -> None:
        """Raise ExecutionError for the first of the threads [row, lane] that are wrong, with what there is to say."""
        if wrong.any():
            row, lane = np.argwhere(wrong)[0].tolist()
            raise self.fault(inst, say((row, lane)), row, lane)


Getter = Callable[[Frame], np.ndarray]
Setter = Callable[[Frame, np.ndarray], None]


def getter(slots: Slots, operand: Operand, type_: str, negated: bool = False) -> Getter:
    """Reads an operand as an array of `type_`."""
    if negated:
        plain = getter(slots, operand, type_)
        return lambda frame: ~plain(frame)
    match operand:
        case Register():
            return _slot_getter(slots.register(operand), register_dtype(operand), DTYPES[type_])
        case Immediate(value=value):
            constant = immediate(value, type_)
            return lambda _: constant
        case Special(name=name):
            register = special_register(name)
            return _slot_getter(slots.register(register), DTYPES[register.type], DTYPES[type_], widen=True)
        case Symbol():
            return _address_getter(slots, operand, DTYPES[type_])
    raise Unsupported


def _address_getter(slots: Slots, symbol: Symbol, dtype: np.dtype) -> Getter:
    """Of a variable of a recursive function: in the frame of the running call."""
    moves = slots.frame_bytes and (symbol.name in slots.local or symbol.name in slots.call_parameters)
    size = np.uint64(slots.frame_bytes)

    def get(frame: Frame) -> np.ndarray:
        machine = frame.machine
        address = machine.address_of(symbol, frame.rows)
        if moves:
            address = address + machine.stack.level[frame.index].astype(np.uint64)[:, None] * size
        return address.astype(dtype, copy=False)

    return get


def _slot_getter(slot: int, kept: np.dtype, wanted: np.dtype, widen: bool = False) -> Getter:
    if kept.itemsize == wanted.itemsize and (kept.kind == "b") == (wanted.kind == "b"):

        def same(frame: Frame) -> np.ndarray:
            value = frame.values[slot]
            return value if value.dtype is wanted else value.view(wanted)

        return same
    refuse_if(kept.kind == "b" or wanted.kind == "b" or (kept.itemsize < wanted.itemsize and not widen))
    narrow = RAW_BY_BYTES[wanted.itemsize]
    return lambda frame: raw(frame.values[slot]).astype(narrow).view(wanted)


def setter(slots: Slots, operand: Operand | None, type_: str) -> Setter:
    """Writes an array of `type_` to a register, extended if the register is wider; only where the guard is true."""
    if operand is None:
        return lambda frame, value: None
    if not isinstance(operand, Register):
        raise Unsupported
    slot = slots.register(operand)
    fit = _fit(register_dtype(operand), DTYPES[type_])

    def put(frame: Frame, value: np.ndarray) -> None:
        guard, values = frame.guard, frame.values
        values[slot] = value if guard is None else np.where(guard, raw(value), raw(values[slot]))

    return put if fit is None else lambda frame, value: put(frame, fit(value))


def _fit(kept: np.dtype, given: np.dtype) -> Callable[[np.ndarray], np.ndarray] | None:
    """Sign or zero extension to the width of a register; None if there is nothing to do."""
    refuse_if((kept.kind == "b") != (given.kind == "b"))
    if kept.itemsize == given.itemsize:
        return None
    refuse_if(kept.itemsize < given.itemsize)
    if given.kind == "i":
        return lambda value: value.view(given).astype(f"i{kept.itemsize}")  # a load yields raw bits
    return lambda value: raw(value).astype(kept)


def under_guard(slots: Slots, inst: Instruction, step: Step) -> Step:
    """The step of an instruction, or its terminator, in lanes with a true guard if it has one."""
    if inst.guard is None:
        return step
    guard = getter(slots, inst.guard.register, "pred", inst.guard.negated)
    return lambda frame: frame.run_guarded(guard, step)
