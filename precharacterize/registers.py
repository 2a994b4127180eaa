"""Registers as the scoreboard and the register file see them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from functional.ptx.ir import Address, Instruction, Register, registers_of


def number_of(register: Register) -> int:
    """The number in a register's name (`%rd5` -> 5), which picks its bank (docs/timing-rules.md, rule 3)."""
    digits = re.search(r"(\d+)\D*$", register.name)
    return int(digits.group(1)) if digits else 0


def unique(values: Iterable[int]) -> list[int]:
    """Values without repeats, first occurrence first."""
    return list(dict.fromkeys(values))


def waits_of(instruction: Instruction, ids: dict[str, int]) -> list[int]:
    """Scoreboard registers to be free before issue: RAW on sources and guard, WAW on destinations."""
    guard = (instruction.guard.register,) if instruction.guard else ()
    if instruction.opcode == "wgmma":  # products of one accumulator follow each other in the unit
        return unique(ids[r.name] for operand in instruction.sources[:-1] for r in registers_of(operand))
    return unique(ids[r.name] for r in (*instruction.reads(), *instruction.writes(), *guard))


def long_waits_of(instruction: Instruction, ids: dict[str, int]) -> list[int]:
    """Plain source registers, without address bases and guard (GPGPU-Sim 4.2, two-level demotion)."""
    operands = [s for s in instruction.sources if not isinstance(s, Address)]
    return unique(ids[r.name] for s in operands for r in registers_of(s))


def read_banks_of(instruction: Instruction) -> list[int]:
    """Register numbers read from the register file: a repeated register once, predicates never."""
    if instruction.opcode == "wgmma":  # accumulators are read as the product needs them
        instruction = replace(instruction, sources=instruction.sources[:-1])
    return unique(number_of(r) for r in dict.fromkeys(instruction.reads()) if r.type != "pred")


def write_banks_of(instruction: Instruction) -> list[int]:
    """Register numbers written back, -1 for a predicate; parallel to `Instruction.writes()`."""
    return [-1 if r.type == "pred" else number_of(r) for r in instruction.writes()]
