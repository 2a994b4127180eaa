"""Parameters and return values of functions in registers (`.func (.reg .u32 r) f(.reg .u32 a)`), as PTX had them before
it had a stack: they are handed over in `.param` memory like all others.

A function loads its parameters first and stores what it returns before each `ret`; a call stores and loads likewise.
A vector is so many elements one behind the other, a predicate a word that is not 0 if it is true.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from lark import Token

from functional.ptx import _syntax as raw
from functional.ptx._declare import declare_registers
from functional.ptx._scope import Scope
from functional.ptx.ir import TYPE_BYTES, Address, Guard, Immediate, Instruction, Register, Symbol, Variable

_HIDDEN = "'p"  # behind the name of what stands for it in memory; ' cannot occur in a PTX name
_TRUTH_BYTES = 4


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
        kept = [(q, Token("TYPE", ".b32") if (q, v) == ("type", ".pred") else v) for q, v in item.qualifiers]
        moved = declarator._replace(name=hidden)
        return item._replace(space=Token("SPACE", ".param"), qualifiers=kept, declarators=[moved])

    def loads(self, scope: Scope) -> list[Instruction]:
        """What fills the registers where a function begins."""
        lines = ((name, name.line or 1) for name in self.names)
        return [i for name, line in lines for i in _loads(_registers(name, scope), _hidden(name, scope), line)]

    def stores(self, scope: Scope, line: int) -> list[Instruction]:
        """What keeps the registers where it returns."""
        return [i for name in self.names for i in _stores(_registers(name, scope), _hidden(name, scope), line)]

    def call(
        self, statement: raw.RawInstruction, scope: Scope, guard: Guard | None, variables: list[Variable]
    ) -> tuple[raw.RawInstruction, list[Instruction], list[Instruction]]:
        """A call that hands over memory alone, and what comes before and after it; `variables` gets that memory.
        Raises PtxError for a literal, whose size only the function knows."""
        before, after, operands = list[Instruction](), list[Instruction](), list[Any]()
        line = statement.opcode.line or 1
        for operand in statement.operands:
            if isinstance(operand, raw.RawArguments):
                make, made = (_stores, before) if operands else (_loads, after)
                moved = [self._argument(item, scope, statement.opcode, variables) for item in operand.items]
                made += [replace(i, guard=guard) for _, s, registers in moved for i in make(registers, s, line)]
                operand = raw.RawArguments(tuple(name for name, _, _ in moved))
            operands.append(operand)
        return statement._replace(operands=operands), before, after

    def _argument(
        self, item: Any, scope: Scope, opcode: Token, variables: list[Variable]
    ) -> tuple[Any, Symbol, tuple[Register, ...]]:
        """(what the call names, where that is, the registers that it stands for)"""
        if not isinstance(item, Token):
            raise scope.source.fail(opcode, "a literal as an argument is not supported; move it to a register")
        registers = _registers(item, scope)
        if not registers:
            return item, Symbol(str(item)), ()
        self._calls += 1
        name = Token.new_borrow_pos("NAME", f"call{self._calls}{_HIDDEN}", item)
        size_bytes = sum(map(_bytes, registers))
        scope.symbols[str(name)] = symbol = Symbol(f"{name}{scope.suffix}")
        variables.append(Variable(symbol.name, "param", size_bytes, size_bytes))
        return name, symbol, registers


def _registers(name: Token, scope: Scope) -> tuple[Register, ...]:
    """The registers that a name stands for: one, those of a vector, or none."""
    found = scope.register(str(name))
    return (scope.vector(str(name)) or ()) if found is None else (found,)


def _hidden(name: Token, scope: Scope) -> Symbol:
    return scope.known_symbol(Token("NAME", f"{name}{_HIDDEN}"))


def _bytes(register: Register) -> int:
    return TYPE_BYTES.get(register.type, _TRUTH_BYTES)


def _places(registers: tuple[Register, ...], symbol: Symbol) -> list[tuple[Register, Address]]:
    return [(r, Address(symbol, i * _bytes(r))) for i, r in enumerate(registers)]


def _loads(registers: tuple[Register, ...], symbol: Symbol, line: int) -> list[Instruction]:
    made = []
    for register, where in _places(registers, symbol):
        word = _word(register)
        made.append(Instruction(0, line, "ld", ("param", f"b{8 * _bytes(register)}"), (word,), (where,)))
        if word is not register:
            made.append(Instruction(0, line, "setp", ("ne", "s32"), (register,), (word, Immediate(0))))
    return made


def _stores(registers: tuple[Register, ...], symbol: Symbol, line: int) -> list[Instruction]:
    made = []
    for register, where in _places(registers, symbol):
        word = _word(register)
        if word is not register:
            made.append(Instruction(0, line, "selp", ("b32",), (word,), (Immediate(1), Immediate(0), register)))
        made.append(Instruction(0, line, "st", ("param", f"b{8 * _bytes(register)}"), (), (where, word)))
    return made


def _word(register: Register) -> Register:
    """What holds a register in memory: of a predicate a word of its own."""
    return Register(f"{register.name}{_HIDDEN}", "b32") if register.type == "pred" else register
