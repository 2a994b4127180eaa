"""Products of many rows, `wgmma` and `tcgen05`, and how long each holds its unit.

`tcgen05`'s products and copies into tensor memory hold the tensor unit of the sub-core whose warp starts them, loads
and stores of tensor memory a pipeline for a cycle a register. A product's extents are in a register: that has to be a
constant of the text or a parameter of the launch, else its time is not known."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from functional.errors import PtxError, refuse
from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES, Address, Immediate, Instruction, Operand, Register, Symbol, Vector
from precharacterize.synchronisation import COMMITS
from precharacterize.table import LatencyTable, Operation, PipelineParameters

_OPERATIONS: dict[str, Callable[..., int]] = {"mov": int, "cvt": int, "shl": lambda a, b: a << min(b, 64)}
_OPERATIONS |= {"add": operator.add, "sub": operator.sub, "and": operator.and_, "or": operator.or_, "xor": operator.xor}


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
        address, size = by.sources[0], TYPE_BYTES.get(by.type, 0)
        base = address.base if isinstance(address, Address) and by.space == "param" else None
        own = self.program.function_of[by.index] == self.program.name
        found = [p for p in self.program.parameters if own and isinstance(base, Symbol) and p.name == base.name]
        if not found or by.type[:1] == "s" or not isinstance(address, Address) or not isinstance(base, Symbol):
            return None
        at = found[0].offset + base.offset + address.offset
        held = self.parameters[at : at + size]
        return int.from_bytes(held, "little") if size and len(held) == size else None


COLUMNS = 512  # of tensor memory
_LANES, _SUB_CORES, _ROW_BYTES = 128, 4, 32
_ONE = (16, 8)  # rows and columns of what the class `tensor` times


def _tcgen05(instruction: Instruction, program: Program, one: Operation, shared_bytes: int) -> Operation:
    """How it takes its unit, given the operation of its latency class and what shared memory gives a cycle. Raises
    PtxError for a product whose extents are not known."""
    cycles = {"mma": _product_cycles, "cp": _copy_cycles, "ld": _move_cycles, "st": _move_cycles}
    if (count := cycles.get(instruction.modifiers[0])) is None:
        return one
    held = max(1, count(instruction, program, one, shared_bytes))
    behind = max(1, one.latency_cycles - round(one.initiation_cycles))
    return replace(one, latency_cycles=behind + held, initiation_cycles=held)


@lru_cache(128)
def refuse_commits(table: LatencyTable, model: str) -> None:
    """Raises InputError for a program that waits for products, on behalf of a model that would not."""
    refuse((table.copies == COMMITS).any(), f"the model '{model}' knows nothing of tcgen05; use the detailed one")


def unknown_descriptors(program: Program) -> tuple[Register, ...]:
    """Registers that hold instruction descriptors of which the text does not say the value."""
    products = [i for i in program.instructions if i.opcode == "tcgen05" and i.modifiers[0] == "mma"]
    if not products:
        return ()
    from functional.isa.tcgen05_form import form_of

    held = dict.fromkeys(form_of(i).described for i in products)
    return tuple(r for r in held if isinstance(r, Register) and constant(program, r) is None)


def bound(program: Program, descriptors: tuple[Register, ...], parameters: bytes) -> Program:
    """The program, knowing what the parameters of a launch say of those."""
    values = [(r.name, constant(program, r, parameters)) for r in descriptors]
    return replace(program, constants=tuple((name, value) for name, value in values if value is not None))


def _product_cycles(instruction: Instruction, program: Program, one: Operation, shared_bytes: int) -> int:
    """Rows that lie in half of the lanes take as long as those in all. Operands come from shared memory meanwhile,
    those of a pair of thread blocks half from each. 32 bytes of a row of A take as long in every kind: 4-bit products
    are made twice as fast as 8-bit ones, sparse ones of twice the K in the time of dense ones, as a B200 does."""
    from functional.isa.tcgen05_form import form_of, product_of

    form = form_of(instruction)
    if (word := constant(program, form.described)) is None:
        why = "its time is not known: its instruction descriptor is no constant and no parameter"
        raise PtxError(program.path, instruction.line, f"{instruction.name}: {why}")
    try:
        product = product_of(form, word)
    except ValueError as error:
        raise PtxError(program.path, instruction.line, f"{instruction.name}: {error}") from None
    pieces = _LANES // _SUB_CORES // _ONE[0] * (product.columns // product.folds // _ONE[1])
    rows = product.own_columns * (1 if product.selector is None else 2)  # of B, each as long as one of A
    rows += 0 if isinstance(form.a, Address) else product.own_rows
    return max(round(pieces * one.initiation_cycles), rows * _ROW_BYTES // shared_bytes)


def _copy_cycles(instruction: Instruction, program: Program, one: Operation, shared_bytes: int) -> int:
    """As long as shared memory gives its bytes: `.128x256b` has 128 rows of 256 bits."""
    shape = next(m for m in instruction.modifiers if m[0].isdigit())
    return prod(int(n) for n in shape.removesuffix("b").split("x")) // 8 // shared_bytes


def _move_cycles(instruction: Instruction, program: Program, one: Operation, shared_bytes: int) -> int:
    vectors = [o for o in (*instruction.destinations, *instruction.sources) if isinstance(o, Vector)]
    return len(vectors[0].elements) if vectors else 1


def columns_of(program: Program) -> int:
    """Columns of tensor memory that a block allocates in all; all there are, where a number is no constant."""
    allocations = [i for i in program.instructions if i.opcode == "tcgen05" and i.modifiers[0] == "alloc"]
    counts = [constant(program, i.sources[1]) for i in allocations]
    known = sum(count for count in counts if count is not None)
    return COLUMNS if None in counts else min(COLUMNS, known)


def sized(instruction: Instruction, program: Program, name: str, pipeline: PipelineParameters) -> Operation:
    """The operation of an instruction of the latency class `name`. Raises PtxError if that is not known."""
    one = pipeline.operation(name)
    if instruction.opcode == "tcgen05":
        return _tcgen05(instruction, program, one, pipeline.shared_bytes_per_cycle)
    if not instruction.is_warpgroup_product:
        return one
    # the 16 rows of a warp take the unit as often as `mma` of 16 x 8 x 32 bytes would
    columns = re.search(r"m64n(\d+)k", instruction.name)
    times = int(columns[1]) // 8 if columns else 1
    more, held = round((times - 1) * one.initiation_cycles), round(times * one.initiation_cycles)
    return replace(one, latency_cycles=one.latency_cycles + more, initiation_cycles=held)
