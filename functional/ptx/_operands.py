"""Operands of instructions: from names to registers, symbols and addresses; which of them are written."""

from __future__ import annotations

import re
from typing import Any

from lark import Token

from functional.ptx import _syntax as raw
from functional.ptx._scope import Scope
from functional.ptx.ir import Address, Guard, Immediate, Operand, Register, Special, Symbol, Vector

_SPECIAL = re.compile(
    r"WARP_SZ|%(((tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz])|laneid|warpid|nwarpid"
    r"|smid|nsmid|gridid|is_explicit_cluster|cluster_ctarank|cluster_nctarank|lanemask_(eq|le|lt|ge|gt)|clock(_hi|64)?"
    r"|pm\d+(_64)?|envreg\d+|globaltimer(_lo|_hi)?|reserved_smem_\w+|total_smem_size|aggr_smem_size|dynamic_smem_size"
    r"|current_graph_exec)"
)
# Opcodes whose first operand is read
_NO_DESTINATION = frozenset({
    "st", "red", "ret", "exit", "trap", "brkpt", "bra", "brx", "membar", "fence", "prefetch", "prefetchu", "pmevent",
    "nanosleep", "sust", "sured", "stmatrix", "cp", "discard", "applypriority", "griddepcontrol", "setmaxnreg",
    "stackrestore", "tensormap",
})  # fmt: skip
_MBARRIER_RESULTS = frozenset({"arrive", "arrive_drop", "test_wait", "try_wait", "pending_count"})


def writes_first(opcode: str, modifiers: tuple[str, ...]) -> bool:
    """Is the first operand of an instruction its destination?"""
    if opcode in ("bar", "barrier"):
        return "red" in modifiers
    if opcode == "wmma":
        return "store" not in modifiers
    if opcode == "wgmma":
        return "mma_async" in modifiers
    if opcode == "tcgen05":
        return modifiers[0] == "ld"
    if opcode == "mbarrier":
        return not _MBARRIER_RESULTS.isdisjoint(modifiers)
    return opcode not in _NO_DESTINATION


def guard(token: Token, scope: Scope) -> Guard:
    """`@%p1` or `@!%p1`. Raises PtxError if that is no predicate."""
    text = token[1:].strip()
    name = text.removeprefix("!").strip()
    register = scope.register(name)
    if register is None:
        raise scope.source.fail(token, f"register '{name}' is not declared")
    if register.type != "pred":
        raise scope.source.fail(token, f"the guard '{name}' is a .{register.type} register, not a .pred")
    return Guard(register, text.startswith("!"))


def destinations(node: Any, scope: Scope) -> tuple[Operand | None, ...]:
    """The written operand: one, or two for `d|p`; None for the sink `_`. Raises PtxError."""
    parts = (node.first, node.second) if isinstance(node, raw.RawPair) else (node,)
    return tuple(destination(part, scope) for part in parts)


def destination(node: Any, scope: Scope) -> Operand | None:
    """A written operand, or None for the sink `_`. Raises PtxError."""
    return None if isinstance(node, Token) and node == "_" else source(node, scope)[0]


def source(node: Any, scope: Scope) -> list[Operand]:
    """One read operand, or more if an address carries coordinates. Raises PtxError."""
    match node:
        case Token():
            return [_name(node, scope)]
        case Immediate():
            return [node]
        case raw.RawOffset(name=name, offset=offset):
            return [Symbol(scope.known_symbol(name).name, offset)]
        case raw.RawElements(items=items):
            return [Vector(tuple(destination(item, scope) for item in items))]
        case raw.RawAddress(base=base, offset=offset, rest=rest):
            return [_address(base, offset, scope), *(operand for r in rest for operand in source(r, scope))]
    raise scope.source.fail(node, f"operand '{_printed(node)}' cannot stand here")


def _address(base: Token | None, offset: int, scope: Scope) -> Address:
    if base is None:
        return Address(None, offset)
    operand = _name(base, scope)
    if not isinstance(operand, (Register, Symbol)):
        raise scope.source.fail(base, f"'{base}' cannot be the base of an address")
    return Address(operand, offset)


def _name(token: Token, scope: Scope) -> Operand:
    text = str(token)
    found = scope.register(text) or scope.symbol(text)
    if found is not None:
        return found
    if (elements := scope.vector(text)) is not None:
        return Vector(elements)
    if _SPECIAL.fullmatch(text):
        return Special(text)
    if text == "_":
        raise scope.source.fail(token, "the sink '_' can only be a destination")
    if "." in text and scope.register(text.partition(".")[0]) is not None:
        raise scope.source.fail(token, f"'{text}' is no element of a vector")
    what = "register " if text[0] == "%" else ""
    raise scope.source.fail(token, f"{what}'{text}' is not declared")


def _printed(node: Any) -> str:
    match node:
        case raw.RawPair(first=first, second=second):
            return f"{first}|{second}"
        case raw.RawNegated(name=name):
            return f"!{name}"
    return "(...)"
