"""PTX types and `Operation`, of which the tables of instructions are made.

Every table maps an opcode to a builder `Instruction -> Operation`. A builder raises `Unsupported` for a modifier
or type that it does not know, which decoding turns into the error that names the instruction and its line."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from functional.ptx.ir import TYPE_BYTES, Address, Immediate, Instruction, Operand

KINDS = {  # PTX type -> kind of an emitter
    **{f"{k}{n}": f"i{n}" for k in "bus" for n in (8, 16, 32, 64)},
    **{"f16": "half", "f32": "float", "f64": "double", "bf16": "i16", "tf32": "i32", "pred": "i1"},
    **dict.fromkeys(("f16x2", "bf16x2", "u16x2", "s16x2"), "i32"), **dict.fromkeys(("e4m3x2", "e5m2x2"), "i16"),
}  # fmt: skip
DTYPES: dict[str, np.dtype] = {
    **{f"{k}{n}": np.dtype(f"{'i' if k == 's' else 'u'}{n // 8}") for k in "bus" for n in (8, 16, 32, 64)},
    "f16": np.dtype("f2"), "f32": np.dtype("f4"), "f64": np.dtype("f8"), "pred": np.dtype("?"),
    **dict.fromkeys(("tf32", "f16x2", "bf16x2", "u16x2", "s16x2"), np.dtype("u4")),
    **dict.fromkeys(("bf16", "e4m3x2", "e5m2x2"), np.dtype("u2")),
}  # fmt: skip
RAW_BY_BYTES: dict[int, np.dtype] = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}
FLOATS = frozenset({"f16", "f32", "f64", "bf16"})
PACKED = frozenset({"f16x2", "bf16x2", "u16x2", "s16x2"})
ROUNDINGS = frozenset({"rn", "rz", "rm", "rp"})


class Unsupported(Exception):
    """An instruction form that no table holds. Decoding adds its name and line."""


def refuse_if(wrong: object) -> None:
    """Raises Unsupported if something about an instruction is not as its form has it."""
    if wrong:
        raise Unsupported


def as_address(operand: Operand | None) -> Address:
    """An operand in brackets. Raises Unsupported for another one."""
    if not isinstance(operand, Address):
        raise Unsupported
    return operand


def as_number(operand: Operand | None) -> int:
    """The value of a literal. Raises Unsupported for another operand."""
    if not isinstance(operand, Immediate):
        raise Unsupported
    return int(operand.value)


# What decoding an instruction raises if its form is not known, or if its operands are not those of the form: an operand
# that is missing or of another sort, a type that is none. All of it becomes one error with the name and the line.
REFUSALS = (Unsupported, LookupError, ValueError, TypeError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class Operation:
    """`emit(emitter, *sources)` yields one value, or a tuple for several results. `sources` and `destinations` are PTX
    type names. `across`: do lanes look at each other?"""

    emit: Callable
    destinations: tuple[str, ...]
    sources: tuple[str, ...]
    across: bool = False


Builder = Callable[[Instruction], Operation]


def kind_of(type_: str) -> str:
    """The kind of a PTX type. Raises Unsupported."""
    refuse_if(type_ not in KINDS)
    return KINDS[type_]


def types_of(inst: Instruction) -> tuple[str, ...]:
    """The type modifiers in order: ("f32", "s32") of `cvt.rn.f32.s32`."""
    return tuple(m for m in inst.modifiers if m in TYPE_BYTES or m == "pred")


def flags_of(inst: Instruction, allowed: Iterable[str] = ()) -> frozenset[str]:
    """The modifiers that are no types. Raises Unsupported on one that is not in `allowed`."""
    flags = frozenset(m for m in inst.modifiers if m not in TYPE_BYTES and m != "pred")
    refuse_if(flags - frozenset(allowed))
    return flags


def only_type(inst: Instruction, allowed: Iterable[str]) -> str:
    """The single type of the instruction, which must be in `allowed`."""
    types = types_of(inst)
    refuse_if(len(types) != 1 or types[0] not in allowed)
    return types[0]


def same_type(function: Callable, allowed: Iterable[str], arity: int, flags: Iterable[str] = ()) -> Builder:
    """Builder of an operation on one type alone: it emits `function(emitter, instruction, *sources)`."""

    def build(inst: Instruction) -> Operation:
        flags_of(inst, flags)
        type_ = only_type(inst, allowed)
        return Operation(lambda e, *values: function(e, inst, *values), (type_,), (type_,) * arity)

    return build


def rounding(flags: Iterable[str]) -> str:
    """The IEEE rounding mode among modifiers; round to nearest even by default."""
    return next((flag for flag in flags if flag in ROUNDINGS), "rn")


def raw(value: np.ndarray) -> np.ndarray:
    """The same bits as an unsigned integer array; predicates stay bool."""
    return value if value.dtype.kind in "ub" else value.view(RAW_BY_BYTES[value.dtype.itemsize])
