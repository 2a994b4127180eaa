"""What a register holds in every thread and at every time, where the text says it: written once, with a constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from functional.ir import TYPE_BYTES, Immediate, Instruction, Operand, Register
from functional.program import Program

_OPERATIONS: dict[str, Callable[..., int]] = {
    "mov": lambda a: a, "cvt": lambda a: a, "add": lambda a, b: a + b, "sub": lambda a, b: a - b,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << min(b, 64),
}  # fmt: skip


def constant(program: Program, operand: Operand) -> int | None:
    """The value of a 32 or 64-bit operand as an unsigned number; None if the text does not say it."""
    written: dict[str, list[Instruction]] = {}
    for instruction in program.instructions:
        for register in instruction.writes():
            written.setdefault(register.name, []).append(instruction)
    return _value(operand, written)


def _value(operand: Operand, written: Mapping[str, list[Instruction]]) -> int | None:
    if isinstance(operand, Immediate):
        return operand.value if isinstance(operand.value, int) else None
    by = written.get(operand.name, []) if isinstance(operand, Register) else []
    if (
        len(by) != 1
        or by[0].guard is not None
        or by[0].opcode not in _OPERATIONS
        or by[0].type[:1] not in ("b", "u", "s")
    ):
        return None
    if by[0].opcode == "cvt" and any(m[:1] == "s" for m in by[0].modifiers):
        return None
    values = [_value(source, written) for source in by[0].sources]
    if by[0].destinations != (operand,) or not values or None in values:
        return None
    return _OPERATIONS[by[0].opcode](*values) % (1 << 8 * TYPE_BYTES[by[0].type])
