"""Declarations of registers, variables and parameters: their sizes, alignments and initial values."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from functional.ptx import _syntax as raw
from functional.ptx._constants import Constants, Initialiser
from functional.ptx._scope import Scope, Source
from functional.ptx.ir import TYPE_BYTES, Parameter, Register, Symbol, Variable

if TYPE_CHECKING:
    from lark import Token

_MAX_BYTES = 1 << 40
_MAX_ALIGNMENT_BYTES = 1 << 16  # of which ptxas makes gaps, and takes minutes
_MAX_INITIALISED_BYTES = 1 << 28
_MOST_VECTORS = 1 << 16


def declare_variables(item: raw.RawVariable, scope: Scope) -> list[Variable]:
    """The variables of one declaration, entered into `scope`. Raises PtxError."""
    found = []
    for declarator in item.declarators:
        name = declarator.name
        if scope.parent is not None and str(name) in scope.symbols:  # the module allows `.extern` before the definition
            raise scope.source.fail(name, f"variable '{name}' is declared twice")
        owner = f"{scope.function}:" if scope.function and is_static(item) else ""
        scope.symbols[str(name)] = symbol = Symbol(f"{owner}{name}{scope.suffix}")
        scope.source.spaces[symbol.name] = str(item.space)[1:]
        found.append(_variable(item, declarator, scope))
    return found


def is_static(item: raw.RawVariable) -> bool:
    """Does a variable live as long as the module, wherever it is declared?"""
    return str(item.space) in (".global", ".const")


def declare_parameters(items: list[raw.RawVariable], scope: Scope) -> tuple[Parameter, ...]:
    """Parameters with their offsets in the parameter block, entered into `scope`. Raises PtxError."""
    found, offset = [], 0
    for item in items:
        variable = declare_variables(item, scope)[0]
        offset = -(-offset // variable.align) * variable.align
        type_ = str(dict(item.qualifiers)["type"])[1:]
        found.append(Parameter(variable.name, type_, variable.bytes, variable.align, offset))
        offset += variable.bytes
    return tuple(found)


def declare_registers(item: raw.RawRegisters, scope: Scope) -> None:
    """Enter registers and register ranges into `scope`. Raises PtxError."""
    qualifiers = dict(item.qualifiers)
    for name, count in item.names:
        if "type" not in qualifiers:
            raise scope.source.fail(name, f"expected a type such as .b32 before '{name}'")
        type_ = str(qualifiers["type"])[1:]
        if "vector" in qualifiers:
            _declare_vectors(name, count, int(qualifiers["vector"][2:]), type_, scope)
        elif count is not None:
            scope.ranges.append((str(name), raw.integer(count), type_))
        elif str(name) in scope.registers:
            raise scope.source.fail(name, f"register '{name}' is declared twice")
        else:
            scope.registers[str(name)] = Register(f"{name}{scope.suffix}", type_)


_ELEMENTS = ("xr", "yg", "zb", "wa")  # the two names of each


def _declare_vectors(name: Token, count: Token | None, lanes: int, type_: str, scope: Scope) -> None:
    """Enter a vector register, or a range of them, and its elements. Raises PtxError."""
    numbers = [""] if count is None else [str(k) for k in range(raw.integer(count))]
    if lanes > len(_ELEMENTS) or len(numbers) > _MOST_VECTORS:
        raise scope.source.fail(name, f"too many registers in '{name}'")
    for whole in (f"{name}{number}" for number in numbers):
        if whole in scope.vectors:
            raise scope.source.fail(name, f"register '{whole}' is declared twice")
        elements = [Register(f"{whole}.{names[0]}{scope.suffix}", type_) for names in _ELEMENTS[:lanes]]
        scope.vectors[whole] = tuple(elements)
        scope.registers |= {f"{whole}.{n}": e for e, names in zip(elements, _ELEMENTS, strict=False) for n in names}


def _variable(item: raw.RawVariable, declarator: raw.RawDeclarator, scope: Scope) -> Variable:
    name, source = declarator.name, scope.source
    type_, lanes, align = _type(item.qualifiers, name, source)
    constants = Constants(source.fail, scope.known_symbol)
    shape = _shape(declarator, constants, source) + ((lanes,) if lanes > 1 else ())
    size_bytes = TYPE_BYTES[type_] * prod(shape)
    if size_bytes > (_MAX_BYTES if declarator.initialiser is None else _MAX_INITIALISED_BYTES):
        raise source.fail(name, f"'{name}' takes {size_bytes} bytes, too many for a variable")
    data: bytes | None = None
    relocations: tuple[tuple[int, Symbol], ...] = ()
    if declarator.initialiser is not None:
        initialiser = Initialiser(constants, type_, shape)
        initialiser.fill(declarator.initialiser)
        data, relocations = bytes(initialiser.data), tuple(initialiser.relocations)
    external, space = item.linkage == ".extern", str(item.space)[1:]
    return Variable(scope.symbols[str(name)].name, space, size_bytes, align, data, external, relocations)


def _type(qualifiers: list[tuple[str, Any]], name: Token, source: Source) -> tuple[str, int, int]:
    """(element type, vector lanes, alignment in bytes)."""
    values: dict[str, Any] = dict(qualifiers)
    if "type" not in values:
        raise source.fail(name, f"expected a type such as .b32 before '{name}'")
    type_ = str(values["type"])[1:]
    if type_ not in TYPE_BYTES:
        raise source.fail(name, f"'{name}' of type .{type_} cannot be kept in memory")
    lanes = int(values["vector"][2:]) if "vector" in values else 1
    own = "align" in values and "pointer" not in values  # else it is that of what a pointer leads to
    align = raw.integer(values["align"]) if own else TYPE_BYTES[type_] * lanes
    if align <= 0 or align & (align - 1):
        raise source.fail(name, f"alignment {align} of '{name}' is not a power of two")
    if align > _MAX_ALIGNMENT_BYTES:
        raise source.fail(name, f"alignment {align} of '{name}' is more than {_MAX_ALIGNMENT_BYTES}")
    return type_, lanes, align


def _shape(declarator: raw.RawDeclarator, constants: Constants, source: Source) -> tuple[int, ...]:
    """Extents of an array; an empty first `[]` is as long as its initialiser, or 0."""
    extents = []
    for position, dimension in enumerate(declarator.dimensions):
        if dimension is not None:
            extents.append(constants.integer(dimension))
        else:
            listed = position == 0 and isinstance(declarator.initialiser, raw.RawElements)
            extents.append(len(declarator.initialiser.items) if listed else 0)
    if any(extent < 0 for extent in extents):
        raise source.fail(declarator.name, f"array '{declarator.name}' has a negative size")
    return tuple(extents)
