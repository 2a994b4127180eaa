"""What a SASS opcode is timed as: the PTX operation the table of opcodes names for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from functional.errors import InputError
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
            if not dot:
                raise InputError(f"SASS opcode {opcode} is not in the table of opcodes; add it to {self.where}")
        return self.operations[name]


@dataclass(frozen=True)
class StaticInstruction:
    """An instruction of a trace without what changes from one execution to the next. Register numbers, RZ left out."""

    pc: int
    opcode: str
    operation: str  # of PTX, with space: "ld.global"
    destinations: tuple[int, ...]
    sources: tuple[int, ...]

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The PTX opcode and its modifiers."""
        return tuple(self.operation.split("."))

    @property
    def is_memory(self) -> bool:
        """Is it timed as an access to memory?"""
        return self.parts[0] in MEMORY_OPCODES

    @property
    def is_atomic(self) -> bool:
        """Is it timed as an atomic access?"""
        return self.parts[0] in ("atom", "red")

    @cached_property
    def space(self) -> str:
        """State space of a memory instruction, "generic" if it names none."""
        return self.parts[1] if len(self.parts) > 1 else "generic"

    @cached_property
    def ends_block(self) -> bool:
        """Does a basic block end with it?"""
        return self.parts[0] in ENDS_BLOCK

    @cached_property
    def access_bytes(self) -> int:
        """Bytes a lane accesses: from the opcode's suffix (`.U8`, `.64`), else 4."""
        if self.parts[0] == "ldmatrix":
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
        return 8 * matrices if self.parts[0] == "ldmatrix" else WARP_LANES

    def instruction(self, index: int) -> Instruction:
        """As characterisation reads it: registers by number, loaded ones as many as the width needs."""
        opcode, *modifiers = self.parts
        sources: tuple[Operand, ...] = tuple(_register(n) for n in self.sources)
        destinations = self.destinations
        if self.is_memory:
            modifiers += [_TYPES[self.access_bytes]]
            addresses = 1 if opcode in ("st", "atom", "red") else len(sources)
            sources = (*(Address(_register(n)) for n in self.sources[:addresses]), *sources[addresses:])
            words = self.lanes // 8 if opcode == "ldmatrix" else max(1, self.access_bytes // 4)
            destinations = tuple(n + i for n in destinations for i in range(words) if n + i < RZ)
        return Instruction(
            index=index,
            line=0,
            opcode=opcode,
            modifiers=tuple(modifiers),
            destinations=tuple(_register(n) for n in destinations),
            sources=sources,
        )


def _register(number: int) -> Register:
    return Register(f"R{number}", "b32")
