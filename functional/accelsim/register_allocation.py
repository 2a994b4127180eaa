"""PTX's virtual registers on the 255 of a SASS thread.

Colouring by interference. A register keeps its bank (the number in its name modulo 16) where it can, because the
operand collector of the timing model looks at it. A value that a load writes wider than 4 bytes takes as many
consecutive registers, as in SASS; so do the elements of a vector load. Predicates become ordinary registers: a trace
has no others, and without them a branch would not wait for its condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from functional.accelsim.opcodes import RZ
from functional.programs.liveness import live_behind
from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES, Instruction, Register, Vector

_BANKS = 16


def allocate(program: Program) -> dict[Register, int]:
    """A register number for every virtual register; two that live at the same time differ while 255 are enough."""
    colours = _Colours(program)
    for instruction in program.instructions:
        if instruction.is_memory:
            for destination in instruction.destinations:
                if isinstance(destination, Vector):
                    colours.take_together([e for e in destination.elements if isinstance(e, Register)])
    for register in program.registers:
        colours.take_together([register])
    return dict(zip(program.registers, colours.numbers, strict=True))


class _Colours:
    def __init__(self, program: Program) -> None:
        self.registers = program.registers
        self.ids = {r: n for n, r in enumerate(program.registers)}
        self.neighbours = _interference(program, self.ids)
        self.words = [1] * len(self.ids)
        for instruction in program.instructions:
            if instruction.is_memory and TYPE_BYTES.get(instruction.type, 4) > 4:
                for register in instruction.writes():
                    self.words[self.ids[register]] = 2
        self.numbers = [-1] * len(self.ids)

    def take_together(self, registers: Sequence[Register]) -> None:
        """Give consecutive numbers to registers that have none; one by one if that is not possible."""
        members = [self.ids[r] for r in registers]
        new = [m for m in dict.fromkeys(members) if self.numbers[m] < 0]
        if new == members and self._take(new):
            return
        for member in new:
            if not self._take([member]):
                self.numbers[member] = number_in_name(self.registers[member]) % RZ  # more live values than registers

    def _take(self, members: list[int]) -> bool:
        offsets = [sum(self.words[m] for m in members[:k]) for k in range(len(members))]
        blocked = [self._blocked(m) for m in members]
        shapes = [(1 << self.words[m]) - 1 for m in members]
        last = RZ - offsets[-1] - self.words[members[-1]]
        bank = number_in_name(self.registers[members[0]]) % _BANKS
        for number in [*range(bank, last + 1, _BANKS), *range(last + 1)]:
            places = zip(blocked, shapes, offsets, strict=True)
            if not any(taken & shape << number + offset for taken, shape, offset in places):
                for member, offset in zip(members, offsets, strict=True):
                    self.numbers[member] = number + offset
                return True
        return False

    def _blocked(self, member: int) -> int:
        """Bit set of the numbers that registers living at the same time have."""
        taken = 0
        for other in _bits(self.neighbours[member]):
            if self.numbers[other] >= 0:
                taken |= (1 << self.words[other]) - 1 << self.numbers[other]
        return taken


def number_in_name(register: Register) -> int:
    """5 of `%rd5`."""
    digits = re.search(r"(\d+)\D*$", register.name)
    return int(digits.group(1)) if digits else 0


def _interference(program: Program, ids: dict[Register, int]) -> list[int]:
    """Bit set of the registers each one must differ from: those live where it is written, also across calls."""
    neighbours = [0] * len(ids)
    inside = _registers_of_functions(program, ids)
    for index, live in live_behind(program):
        instruction = program.instructions[index]
        written = [ids[r] for r in instruction.writes()]
        together = live | sum(1 << w for w in set(written))
        if instruction.callee is not None:
            written += _bits(inside[instruction.callee])
        for w in written:
            neighbours[w] |= together & ~(1 << w)
    for n, others in enumerate(list(neighbours)):
        for other in _bits(others):
            neighbours[other] |= 1 << n
    return neighbours


def _registers_of_functions(program: Program, ids: dict[Register, int]) -> dict[str, int]:
    """Bit set of the registers a function and all it calls use. There is no recursion."""
    own: dict[str, list[Instruction]] = {}
    for instruction, function in zip(program.instructions, program.function_of, strict=True):
        own.setdefault(function, []).append(instruction)

    def used(function: str) -> int:
        found = 0
        for instruction in own[function]:
            for register in (*instruction.reads(), *instruction.writes()):
                found |= 1 << ids[register]
            if instruction.callee is not None:
                found |= used(instruction.callee)
        return found

    return {function: used(function) for function in own}


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
