"""Parameters and return values of functions in registers (`.func (.reg .u32 r) f(.reg .u32 a)`), as PTX had them before
it had a stack: they are handed over in `.param` memory like all others.

A function loads its parameters first and stores what it returns before each `ret`; a call stores and loads likewise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from lark import Token

from functional import _syntax as raw
from functional._declare import declare_registers
from functional._scope import Scope
from functional.ir import TYPE_BYTES, Address, Guard, Instruction, Register, Symbol, Variable

_HIDDEN = "'p"  # behind the name of what stands for it in memory; ' cannot occur in a PTX name


@dataclass
class RegisterParameters:
    """Those of one function, by the name of the register."""

    names: list[Token] = field(default_factory=list)
    _calls: int = 0

    def in_memory(self, items: list[raw.RawVariable], scope: Scope) -> list[raw.RawVariable]:
        """Declarations in which no register is left; the registers are declared. Raises PtxError."""
        return [self._moved(item, scope) if item.space == ".reg" else item for item in items]

    def _moved(self, item: raw.RawVariable, scope: Scope) -> raw.RawVariable:
        declarator = item.declarators[0]
        declare_registers(raw.RawRegisters(item.qualifiers, [(declarator.name, None)]), scope)
        self.names.append(declarator.name)
        hidden = Token.new_borrow_pos("NAME", f"{declarator.name}{_HIDDEN}", declarator.name)
        return item._replace(space=Token("SPACE", ".param"), declarators=[declarator._replace(name=hidden)])

    def loads(self, scope: Scope) -> list[Instruction]:
        """What fills the registers where a function begins."""
        return [_load(_register(name, scope), _hidden(name, scope), name.line or 1) for name in self.names]

    def stores(self, scope: Scope, line: int) -> list[Instruction]:
        """What keeps the registers where it returns."""
        return [_store(_register(name, scope), _hidden(name, scope), line) for name in self.names]

    def call(
        self, statement: raw.RawInstruction, scope: Scope, guard: Guard | None, variables: list[Variable]
    ) -> tuple[raw.RawInstruction, list[Instruction], list[Instruction]]:
        """A call that hands over memory alone, and what comes before and after it; `variables` gets that memory.
        Raises PtxError for a literal, whose size only the function knows."""
        before, after, operands = list[Instruction](), list[Instruction](), list[Any]()
        line = statement.opcode.line or 1
        for operand in statement.operands:
            if isinstance(operand, raw.RawArguments):
                make, made = (_store, before) if operands else (_load, after)
                moved = [self._argument(item, scope, statement.opcode, variables) for item in operand.items]
                made += [replace(make(r, s, line), guard=guard) for _, s, r in moved if r is not None]
                operand = raw.RawArguments(tuple(name for name, _, _ in moved))
            operands.append(operand)
        return statement._replace(operands=operands), before, after

    def _argument(
        self, item: Any, scope: Scope, opcode: Token, variables: list[Variable]
    ) -> tuple[Any, Symbol, Register | None]:
        """(what the call names, where that is, the register that it stands for)"""
        register = scope.register(str(item)) if isinstance(item, Token) else None
        if register is None:
            if not isinstance(item, Token):
                raise scope.source.fail(opcode, "a literal as an argument is not supported; move it to a register")
            return item, Symbol(str(item)), None
        self._calls += 1
        name = Token.new_borrow_pos("NAME", f"call{self._calls}{_HIDDEN}", item)
        size_bytes = TYPE_BYTES.get(register.type)
        if size_bytes is None:
            raise scope.source.fail(item, f"'{item}' of type .{register.type} cannot be passed to a function")
        scope.symbols[str(name)] = symbol = Symbol(f"{name}{scope.suffix}")
        variables.append(Variable(symbol.name, "param", size_bytes, size_bytes))
        return name, symbol, register


def _register(name: Token, scope: Scope) -> Register:
    found = scope.register(str(name))
    assert found is not None
    return found


def _hidden(name: Token, scope: Scope) -> Symbol:
    return scope.known_symbol(Token("NAME", f"{name}{_HIDDEN}"))


def _load(register: Register, symbol: Symbol, line: int) -> Instruction:
    return Instruction(0, line, "ld", ("param", _untyped(register)), (register,), (Address(symbol),))


def _store(register: Register, symbol: Symbol, line: int) -> Instruction:
    return Instruction(0, line, "st", ("param", _untyped(register)), (), (Address(symbol), register))


def _untyped(register: Register) -> str:
    return f"b{8 * TYPE_BYTES[register.type]}"
