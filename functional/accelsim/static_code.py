"""The static code of a traced kernel, put together from the instructions its warps executed.

A trace has no labels. What is known: an instruction, its program counter, and which one came next in some warp. An
instruction that was seen right behind another at the next program counter is linked to it; links make chains. A block
begins where a chain begins, where some warp came by a jump, behind a branch or barrier, and where lanes joined. What
each warp went through is kept as runs of instructions until the blocks are known."""

import hashlib
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from functional.accelsim.trace_files import Header
from functional.errors import InputError, refuse
from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import MEMORY_OPCODES, Address, Instruction, Operand, Register

RZ = 255  # reads as zero, writes vanish
ENDS_BLOCK = frozenset({"bra", "exit", "bar"})
WARP_LANES = 32
_TYPES = {1: "b8", 2: "b16", 4: "b32", 8: "b64", 16: "b128"}
_WIDTH = re.compile(r"[US]?(\d+)")


@dataclass(frozen=True)
class Opcodes:
    """SASS opcode (up to any dot) -> PTX operation such as `add.f32`; `where` names the table in error messages."""

    operations: Mapping[str, str]
    where: str

    def operation(self, opcode: str) -> str:
        """The operation of the longest prefix that the table has. Raises InputError if it has none."""
        name = opcode
        while name not in self.operations:
            name, dot, _ = name.rpartition(".")
            refuse(not dot, f"SASS opcode {opcode} is not in the table of opcodes; add it to {self.where}")
        return self.operations[name]


@dataclass(frozen=True)
class StaticInstruction:
    """An instruction of a trace without what changes from one execution to the next. Register numbers, RZ left out."""

    pc: int
    opcode: str
    operation: str  # of PTX, with space: "ld.global"
    destinations: tuple[int, ...]
    sources: tuple[int, ...]

    @property
    def space(self) -> str:
        """State space of a memory instruction, "generic" if it names none."""
        return (*self.operation.split("."), "generic")[1]

    @cached_property
    def access_bytes(self) -> int:
        """Bytes a lane accesses: from the opcode's suffix (`.U8`, `.64`), else 4."""
        if self.operation.startswith("ldmatrix"):
            return 16  # a row of a matrix
        for token in self.opcode.split(".")[1:]:
            match = _WIDTH.fullmatch(token)
            if match and int(match[1]) // 8 in _TYPES:
                return int(match[1]) // 8
        return 4

    @cached_property
    def lanes(self) -> int:
        """Lanes whose address counts: a matrix load takes 8 for each matrix."""
        matrices = int(self.opcode[-1]) if self.opcode.endswith((".2", ".4")) else 1
        return 8 * matrices if self.operation.startswith("ldmatrix") else WARP_LANES

    def instruction(self, index: int) -> Instruction:
        """As characterisation reads it: registers by number, loaded ones as many as the width needs."""
        opcode, *modifiers = self.operation.split(".")
        sources: tuple[Operand, ...] = tuple(_register(n) for n in self.sources)
        destinations = self.destinations
        if opcode in MEMORY_OPCODES:
            modifiers += [_TYPES[self.access_bytes]]
            addresses = 1 if opcode in ("st", "atom", "red") else len(sources)
            sources = (*(Address(_register(n)) for n in self.sources[:addresses]), *sources[addresses:])
            words = self.lanes // 8 if opcode == "ldmatrix" else max(1, self.access_bytes // 4)
            destinations = tuple(n + i for n in destinations for i in range(words) if n + i < RZ)
        return Instruction(index, 0, opcode, tuple(modifiers), tuple(map(_register, destinations)), sources)


def _register(number: int) -> Register:
    return Register(f"R{number}", "b32")


_STATIC = re.compile(r"(\d+)((?:\s+U?R\d+)*)\s+([A-Z]\S*)\s+(\d+)((?:\s+U?R\d+)*)\s+(\d+)(?=\s|$)")
_MAX_BLOCKS = 1 << 16  # the trace numbers blocks in 16 bits
_FILLER = StaticInstruction(pc=0, opcode="NOP", operation="mov", destinations=(), sources=())


class Code:
    """Instructions by id (order of first execution), their links, and the leaders of blocks among them."""

    def __init__(self, header: Header, opcodes: Opcodes) -> None:
        self.header, self.opcodes = header, opcodes
        self.instructions: list[StaticInstruction] = []
        self.is_memory: list[bool] = []  # is it timed as an access to memory?
        self.ends_block: list[bool] = []
        self.has_addresses: list[bool] = []
        self.next: list[int] = []  # id at the next program counter, -1: not seen
        self.leaders: set[int] = set()  # ids some warp came to by a jump, or with lanes that joined
        self.left: set[int] = set()  # ids behind which some warp jumped or ended
        self._linked: set[int] = set()  # ids that some `next` names
        self._ids: dict[tuple[int, str], int] = {}

    def find(self, pc: str, text: str) -> tuple[int, int]:
        """(id, length of the static part of `text`) of what stands behind the mask. Raises InputError."""
        match = _STATIC.match(text)
        if match is None or not re.fullmatch(r"(0x)?[0-9a-f]{1,8}", pc):
            raise InputError(f"not an instruction: {pc} ... {text.strip()[:60]}")
        to, destinations, opcode, of, sources, width = match.groups()
        registers = [_numbers(destinations), _numbers(sources)]
        if [len(destinations.split()), len(sources.split())] != [int(to), int(of)]:
            raise InputError(f"{opcode} says {to} destinations and {of} sources and has others")
        key = (int(pc, 16), match[0])
        if key not in self._ids:
            self._ids[key] = len(self.instructions)
            operation = self.opcodes.operation(opcode)
            self.instructions.append(StaticInstruction(key[0], opcode, operation, *map(tuple, registers)))
            kind = operation.partition(".")[0]
            self.is_memory.append(kind in MEMORY_OPCODES)
            self.ends_block.append(kind in ENDS_BLOCK)
            self.has_addresses.append(width != "0")
            self.next.append(-1)
        return self._ids[key], match.end()

    def link(self, before: int, after: int) -> bool:
        """Note that `after` came right behind `before`; is it at the next program counter, the same one as ever?"""
        if self.next[before] < 0 and after not in self._linked:
            size, pc = self.header.instruction_bytes, self.instructions[before].pc
            step = self.instructions[after].pc - pc
            if step == size or (size == 8 and step == 16 and (pc + 8) % 32 == 0):  # behind a control word
                self.next[before] = after
                self._linked.add(after)
        return self.next[before] == after

    def places(self) -> np.ndarray:
        """Position of each id in the flat program: chains by program counter, an instruction nobody runs between two.
        Without that, a jump from one chain to the next would look like no jump at all."""
        places = np.zeros(len(self.instructions), np.int64)
        heads = [i for i in range(len(places)) if i not in self._linked]
        at = 0
        for head in sorted(heads, key=lambda i: (self.instructions[i].pc, i)):
            i = head
            while i >= 0:
                places[i], at, i = at, at + 1, self.next[i]
            at += 1
        return places

    def leading(self, places: np.ndarray) -> np.ndarray:
        """Does a block begin at each place? The fillers are blocks of their own."""
        leading = np.ones(int(places.max()) + 2, bool)
        leading[places] = False
        behind = [self.next[i] for i in self.left if self.next[i] >= 0]
        leading[places[sorted(self.leaders.union(behind))]] = True
        return leading

    def program(self, places: np.ndarray, leading: np.ndarray, path: str) -> Program:
        """The program. Raises InputError if it has more blocks than a trace can number."""
        order = [_FILLER] * len(leading)
        for i, place in enumerate(places.tolist()):
            order[place] = self.instructions[i]
        starts = np.flatnonzero(leading).tolist()
        refuse(len(starts) > _MAX_BLOCKS, f"{self.header.name} has {len(starts)} basic blocks, more than {_MAX_BLOCKS}")
        instructions = tuple(s.instruction(i) for i, s in enumerate(order))
        ends = enumerate(zip(starts, [*starts[1:], len(order)], strict=True))
        blocks = tuple(BasicBlock(n, start, stop, (), None) for n, (start, stop) in ends)
        registers = dict.fromkeys(r for i in instructions for r in (*i.reads(), *i.writes()))
        listed = (f"{s.pc} {s.opcode} {s.operation} {s.destinations} {s.sources}" for s in order)
        name, text = self.header.name, "\n".join(listed)
        digest = hashlib.sha256(f"{text}\n{starts}".encode()).hexdigest()
        pcs: list[int] = []
        for instruction in order:
            pcs.append(pcs[-1] + 1 if instruction is _FILLER else instruction.pc // self.header.instruction_bytes)
        code, owners = (instructions, tuple(pcs), blocks, tuple(registers)), (name,) * len(order)
        return Program(name, path, digest, (), *code, (), {}, {}, {}, owners)


def _numbers(text: str) -> list[int]:
    """Register numbers of `R4 R255`; uniform registers are not in the register file, RZ holds no value."""
    return [int(r[1:]) for r in text.split() if r[0] == "R" and int(r[1:]) != RZ]


class Runs:
    """Runs: instructions that follow each other in the code, executed by one warp with one mask."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.starts, self.lengths, self.masks = array("I"), array("I"), array("I")
        self.counts = array("q")  # of each warp
        self._before, self._mask, self._length, self._start = -1, 0, 0, 0

    def begin_warp(self) -> None:
        """Instructions are from now on those of the next warp."""
        self._close()
        if self._before >= 0:
            self.code.left.add(self._before)
        self.counts.append(0)
        self._before = -1

    def add(self, i: int, mask: int) -> None:
        """The warp executes instruction `i` with these lanes. Lanes that join begin a block; one that only shrinks may
        come from a predicate: it begins a run, no block."""
        before = self._before
        code = self.code
        straight = before >= 0 and (code.next[before] == i or code.link(before, i))
        if not straight or mask & ~self._mask or code.ends_block[before]:
            code.leaders.add(i)
            if not straight and before >= 0:
                code.left.add(before)
            self._open(i, mask)
        elif mask != self._mask:
            self._open(i, mask)
        else:
            self._length += 1
        self._before = i

    def _open(self, i: int, mask: int) -> None:
        self._close()
        self._start, self._mask, self._length = i, mask, 1

    def _close(self) -> None:
        if self._length:
            self.starts.append(self._start)
            self.lengths.append(self._length)
            self.masks.append(self._mask)
            self.counts[-1] += 1
        self._length = 0

    def streams(self, places: np.ndarray, leading: np.ndarray) -> dict[str, np.ndarray]:
        """Block ids and masks, events a warp, and instructions a warp. A run has an event for every block that begins
        inside it; one in whose middle no block begins goes on with the block of the run before."""
        self.begin_warp()
        self.counts.pop()
        start = places[np.frombuffer(self.starts, np.uint32)]
        length = np.frombuffer(self.lengths, np.uint32).astype(np.int64)
        mask = np.frombuffer(self.masks, np.uint32)
        begun = np.concatenate([np.zeros(1, np.int64), np.cumsum(leading)])
        first, events = begun[start], begun[start + length] - begun[start]
        within = np.arange(int(events.sum())) - np.repeat(np.cumsum(events) - events, events)
        warp = np.repeat(np.arange(len(self.counts)), np.array(self.counts))
        threads = length * np.bitwise_count(mask)
        warps = len(self.counts)
        return {
            "blocks": (np.repeat(first, events) + within).astype(np.uint16),
            "masks": np.repeat(mask, events),
            "events": np.bincount(warp, events, warps).astype(np.int64),
            "warp_instructions": np.bincount(warp, length, warps).astype(np.int64),
            "thread_instructions": np.bincount(warp, threads, warps).astype(np.int64),
        }
