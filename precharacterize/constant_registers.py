"""What a register holds in every thread and at every time, where the text says it, or a launch: written once, with a
constant or a parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES, Address, Immediate, Instruction, Operand, Register, Symbol

_OPERATIONS: dict[str, Callable[..., int]] = {
    "mov": lambda a: a, "cvt": lambda a: a, "add": lambda a, b: a + b, "sub": lambda a, b: a - b,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << min(b, 64),
}  # fmt: skip


def constant(program: Program, operand: Operand, parameters: bytes = b"") -> int | None:
    """The value of a 32 or 64-bit operand as an unsigned number; None if neither the text says it, nor what the program
    knows of a launch (`Program.constants`), nor the parameters of one."""
    written: dict[str, list[Instruction]] = {}
    for instruction in program.instructions:
        for register in instruction.writes():
            written.setdefault(register.name, []).append(instruction)
    return _Values(program, parameters, written, dict(program.constants)).of(operand)


class _Values(NamedTuple):
    """What to evaluate registers with: who writes each, and those that are known."""

    program: Program
    parameters: bytes
    written: Mapping[str, list[Instruction]]
    known: Mapping[str, int]

    def of(self, operand: Operand) -> int | None:
        """The value of an operand."""
        if isinstance(operand, Immediate):
            return operand.value if isinstance(operand.value, int) else None
        if not isinstance(operand, Register):
            return None
        by = self.written.get(operand.name, [])
        if operand.name in self.known or len(by) != 1 or by[0].guard is not None or by[0].destinations != (operand,):
            return self.known.get(operand.name)
        return self._parameter(by[0]) if by[0].opcode == "ld" else self._computed(by[0])

    def _computed(self, by: Instruction) -> int | None:
        signed = by.opcode == "cvt" and any(m[:1] == "s" for m in by.modifiers)
        if by.opcode not in _OPERATIONS or by.type[:1] not in ("b", "u", "s") or signed:
            return None
        values = [self.of(source) for source in by.sources]
        if not values or None in values:
            return None
        return _OPERATIONS[by.opcode](*values) % (1 << 8 * TYPE_BYTES[by.type])

    def _parameter(self, by: Instruction) -> int | None:
        """What a load of a parameter of the kernel yields."""
        address, size = by.sources[0], TYPE_BYTES.get(by.type, 0)
        base = address.base if isinstance(address, Address) and by.space == "param" else None
        own = self.program.function_of[by.index] == self.program.name
        found = [p for p in self.program.parameters if own and isinstance(base, Symbol) and p.name == base.name]
        if not found or by.type[:1] == "s" or not isinstance(address, Address) or not isinstance(base, Symbol):
            return None
        at = found[0].offset + base.offset + address.offset
        held = self.parameters[at : at + size]
        return int.from_bytes(held, "little") if size and len(held) == size else None
