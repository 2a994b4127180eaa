"""The static code of a traced kernel, put together from the instructions its warps executed.

A trace has no labels. What is known: an instruction, its program counter, and which one came next in some warp. An
instruction that was seen right behind another at the next program counter is linked to it; links make chains. A block
begins where a chain begins, where some warp came by a jump, behind a branch or barrier, and where lanes joined.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from functional.accelsim.header import Header
from functional.accelsim.opcodes import RZ, Opcodes, StaticInstruction
from functional.errors import InputError
from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import Instruction, Register

_STATIC = re.compile(r"(\d+)((?:\s+U?R\d+)*)\s+([A-Z]\S*)\s+(\d+)((?:\s+U?R\d+)*)\s+(\d+)(?=\s|$)")
_MAX_BLOCKS = 1 << 16  # the trace numbers blocks in 16 bits
_FILLER = StaticInstruction(pc=0, opcode="NOP", operation="mov", destinations=(), sources=())


class Code:
    """Instructions by id (order of first execution), their links, and the leaders of blocks among them."""

    def __init__(self, header: Header, opcodes: Opcodes) -> None:
        self.header, self.opcodes = header, opcodes
        self.instructions: list[StaticInstruction] = []
        self.is_memory: list[bool] = []
        self.has_addresses: list[bool] = []
        self.next: list[int] = []  # id at the next program counter, -1: not seen
        self.leaders: set[int] = set()  # ids some warp came to by a jump, or with lanes that joined
        self.left: set[int] = set()  # ids behind which some warp jumped or ended
        self._linked: set[int] = set()  # ids that some `next` names
        self._ids: dict[tuple[int, str], int] = {}

    def find(self, pc: str, text: str) -> tuple[int, int]:
        """(id, length of the static part of `text`) of what stands behind the mask. Raises InputError."""
        match = _STATIC.match(text)
        if match is None or not _is_hex(pc):
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
            self.is_memory.append(self.instructions[-1].is_memory)
            self.has_addresses.append(width != "0")
            self.next.append(-1)
        return self._ids[key], match.end()

    def link(self, before: int, after: int) -> bool:
        """Note that `after` came right behind `before`; is it at the next program counter, the same one as ever?"""
        if self.next[before] < 0 and after not in self._linked and self._adjacent(before, after):
            self.next[before] = after
            self._linked.add(after)
        return self.next[before] == after

    def _adjacent(self, before: int, after: int) -> bool:
        size, pc = self.header.instruction_bytes, self.instructions[before].pc
        step = self.instructions[after].pc - pc
        control_word = size == 8 and step == 16 and (pc + 8) % 32 == 0
        return step == size or control_word

    def places(self) -> np.ndarray:
        """Position of each id in the flat program: chains by program counter, an instruction nobody runs between two.

        Without that, a jump from one chain to the next would look like no jump at all.
        """
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
        if len(starts) > _MAX_BLOCKS:
            raise InputError(f"{self.header.name} has {len(starts)} basic blocks, more than {_MAX_BLOCKS}")
        instructions = tuple(s.instruction(i) for i, s in enumerate(order))
        blocks = tuple(
            BasicBlock(n, start, stop, (), None)
            for n, (start, stop) in enumerate(zip(starts, [*starts[1:], len(order)], strict=True))
        )
        return Program(
            name=self.header.name, path=path, digest=_digest(order, starts), parameters=(),
            instructions=instructions, pcs=self._pcs(order), blocks=blocks, registers=_registers(instructions),
            variables=(), directives={}, callee_entry={}, function_parameters={},
            function_of=(self.header.name,) * len(order),
        )  # fmt: skip

    def _pcs(self, order: list[StaticInstruction]) -> tuple[int, ...]:
        """Program counters in instructions; a filler's is that behind the instruction before it."""
        pcs: list[int] = []
        for instruction in order:
            pcs.append(pcs[-1] + 1 if instruction is _FILLER else instruction.pc // self.header.instruction_bytes)
        return tuple(pcs)


def _is_hex(text: str) -> bool:
    return re.fullmatch(r"(0x)?[0-9a-f]{1,8}", text) is not None


def _numbers(text: str) -> list[int]:
    """Register numbers of `R4 R255`; uniform registers are not in the register file, RZ holds no value."""
    return [int(r[1:]) for r in text.split() if r[0] == "R" and int(r[1:]) != RZ]


def _registers(instructions: tuple[Instruction, ...]) -> tuple[Register, ...]:
    return tuple(dict.fromkeys(r for i in instructions for r in (*i.reads(), *i.writes())))


def _digest(order: list[StaticInstruction], starts: list[int]) -> str:
    text = "\n".join(f"{s.pc} {s.opcode} {s.operation} {s.destinations} {s.sources}" for s in order)
    return hashlib.sha256(f"{text}\n{starts}".encode()).hexdigest()
