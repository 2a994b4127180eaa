"""From syntax tree to ir.Module: names are resolved, scopes flattened, instructions numbered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from lark import Token

from functional.ptx import _operands as operands
from functional.ptx import _syntax as raw
from functional.ptx._constants import MAX_NESTING
from functional.ptx._declare import declare_parameters, declare_registers, declare_variables, is_static
from functional.ptx._register_parameters import RegisterParameters
from functional.ptx._scope import Scope, Source
from functional.ptx.ir import Address, Instruction, Kernel, Module, Operand, Register, Symbol, Variable

# A modifier that names a state space as seen by one thread block or one function: the same space
_SPACE_ALIASES = {"shared::cta": "shared", "param::entry": "param", "param::func": "param"}
_ACCESSES = frozenset({"ld", "st", "atom", "red"})
_NEVER_FALLS_THROUGH = frozenset({"ret", "exit", "trap", "bra", "brx"})


def lower(tree: raw.RawModule, path: str, digest: str, elsewhere: Mapping[str, int] = MappingProxyType({})) -> Module:
    """The module of a syntax tree. Raises PtxError for undeclared or repeated names and bad constants.

    `elsewhere`: functions of the text that may not be in the tree, and how many instructions come before each.
    """
    source = Source(path, functions_of(tree) | elsewhere.keys())
    address_bits = 64 if tree.address_size is None else int(tree.address_size)
    if address_bits not in (32, 64):
        raise source.fail(tree.address_size, f".address_size is 32 or 64, not {address_bits}")
    aliases = aliases_of(tree)
    scope, variables, kernels, pc_base = Scope(source), dict[str, Variable](), dict[str, Kernel](), 0
    for item in tree.items:
        if isinstance(item, raw.RawVariable):
            _declare(item, scope, variables)
        elif isinstance(item, raw.RawFunction) and item.statements is not None:
            if str(item.name) in kernels:
                raise source.fail(item.name, f"'{item.name}' is defined twice")
            builder = _FunctionBuilder(item, scope, aliases)
            pc_base = elsewhere.get(str(item.name), pc_base)
            kernel = builder.build(pc_base)
            kernels[kernel.name] = kernel
            variables |= {variable.name: variable for variable in builder.statics}
            pc_base += len(kernel.instructions)
    return Module(path, digest, str(tree.version), str(tree.target), address_bits, tuple(variables.values()), kernels)


def lower_function(
    tree: raw.RawModule, module: Module, aliases: dict[str, str], declared: frozenset[str], pc_base: int
) -> Kernel:
    """The one function of a syntax tree, of a module whose variables and functions (`declared`) are known. Raises
    PtxError."""
    function = next(item for item in tree.items if isinstance(item, raw.RawFunction))
    scope = Scope(Source(module.path, declared, {v.name: v.space for v in module.variables}))
    scope.symbols.update({variable.name: Symbol(variable.name) for variable in module.variables})
    return _FunctionBuilder(function, scope, aliases).build(pc_base)


def functions_of(tree: raw.RawModule) -> frozenset[str]:
    """Names of the functions, kernels and aliases that it declares."""
    return frozenset(str(item.name) for item in tree.items if isinstance(item, (raw.RawFunction, raw.RawAlias)))


def aliases_of(tree: raw.RawModule) -> dict[str, str]:
    """Name -> function that it stands for."""
    return {str(item.name): str(item.target) for item in tree.items if isinstance(item, raw.RawAlias)}


def _declare(item: raw.RawVariable, scope: Scope, variables: dict[str, Variable]) -> None:
    """Add module-scope variables; a definition replaces an `.extern` declaration."""
    for variable in declare_variables(item, scope):
        known = variables.get(variable.name)
        if known is not None and not known.external and not variable.external:
            raise scope.source.fail(item.declarators[0].name, f"variable '{variable.name}' is declared twice")
        if known is None or known.external:
            variables[variable.name] = variable


class _FunctionBuilder:
    """Lowers one function body."""

    def __init__(self, function: raw.RawFunction, module: Scope, aliases: dict[str, str]) -> None:
        self.function, self.aliases, self.source = function, aliases, module.source
        self.scope = Scope(module.source, module, function=str(function.name))
        self.nested_scopes = 0
        self.instructions: list[Instruction] = []
        self.branches: list[tuple[int, Scope, list[Token]]] = []  # (instruction, where its labels are seen, labels)
        self.registers: dict[Register, None] = {}
        self.variables: list[Variable] = []
        self.passed, self.returned = RegisterParameters(), RegisterParameters()
        self.statics: list[Variable] = []  # declared inside, and the module's: `.global`, `.const`

    def build(self, pc_base: int) -> Kernel:
        function = self.function
        parameters = declare_parameters(self.passed.in_memory(function.parameters, self.scope), self.scope)
        for instruction in self.passed.loads(self.scope):
            self._append(instruction)
        returns = declare_parameters(self.returned.in_memory(function.returns, self.scope), self.scope)
        self._statements(function.statements or [], 0)
        for index, scope, labels in self.branches:
            self._resolve(index, tuple(scope.label(label) for label in labels))
        self._end()
        return Kernel(
            str(function.name), function.name.line or 1, function.is_entry, parameters, returns,
            tuple(self.instructions), tuple(self.registers), tuple(self.variables), pc_base, dict(function.directives),
        )  # fmt: skip

    def _statements(self, statements: list[Any], depth: int) -> None:
        if depth > MAX_NESTING:
            raise self.source.fail(statements or self.function, f"scopes nested more than {MAX_NESTING} deep")
        for statement in statements:
            match statement:
                case raw.RawInstruction():
                    self._instruction(statement)
                case raw.RawLabel(name=name):
                    self._label(name)
                case raw.RawScope(statements=inner):
                    self._nested(inner, depth)
                case raw.RawRegisters():
                    declare_registers(statement, self.scope)
                case raw.RawVariable():
                    kept = self.statics if is_static(statement) else self.variables
                    kept += declare_variables(statement, self.scope)
                case raw.RawTargets(name=name, labels=labels):
                    self.scope.target_lists[_label_name(name)] = labels

    def _nested(self, statements: list[Any], depth: int) -> None:
        outer = self.scope
        self.nested_scopes += 1
        self.scope = Scope(self.source, outer, f"'{self.nested_scopes}", outer.function)
        self._statements(statements, depth + 1)
        self.scope = outer

    def _label(self, token: Token) -> None:
        name = _label_name(token)
        if name in self.scope.labels:
            raise self.source.fail(token, f"label '{name}' is defined twice")
        self.scope.labels[name] = len(self.instructions)

    def _instruction(self, statement: raw.RawInstruction) -> None:
        opcode, *rest = statement.opcode.split(".")
        modifiers = tuple(_SPACE_ALIASES.get(m, m) for m in rest)
        guard = None if statement.guard is None else operands.guard(statement.guard, self.scope)
        line, after = statement.opcode.line or 1, list[Instruction]()
        if opcode == "ret":
            self._return(line)
        if opcode == "call":
            statement, before, after = self.passed.call(statement, self.scope, guard, self.variables)
            for instruction in before:
                self._append(instruction)
        instruction = Instruction(len(self.instructions), line, opcode, modifiers, (), (), guard)
        lowered = {"bra": self._branch, "brx": self._branch, "call": self._call}.get(opcode, self._plain)
        for made in (lowered(instruction, statement), *after):
            self._append(made)

    def _append(self, instruction: Instruction) -> None:
        instruction, guard = replace(instruction, index=len(self.instructions)), instruction.guard
        self.instructions.append(instruction)
        for register in (*instruction.reads(), *instruction.writes(), *([guard.register] if guard else [])):
            self.registers.setdefault(register)

    def _plain(self, instruction: Instruction, statement: raw.RawInstruction) -> Instruction:
        remaining = statement.operands
        written: tuple[Operand | None, ...] = ()
        if remaining and operands.writes_first(instruction.opcode, instruction.modifiers):
            written, remaining = operands.destinations(remaining[0], self.scope), remaining[1:]
        sources: list[Operand] = []
        negated = set()
        for operand in remaining:
            if isinstance(operand, raw.RawNegated):
                negated.add(len(sources))
                operand = operand.name
            sources += operands.source(operand, self.scope)
        if instruction.opcode == "wgmma" and written:  # accumulators are read, too
            sources += [o for o in written if o is not None]
        made = replace(instruction, destinations=written, sources=tuple(sources), negated_sources=frozenset(negated))
        return replace(made, modifiers=(*self._space(made), *made.modifiers))

    def _space(self, instruction: Instruction) -> tuple[str, ...]:
        """The space of a variable that an access names without saying where it lies: assemblers look it up."""
        address = instruction.sources[0] if instruction.sources else None
        if instruction.opcode not in _ACCESSES or instruction.space != "generic" or not isinstance(address, Address):
            return ()
        space = self.source.spaces.get(address.base.name, "") if isinstance(address.base, Symbol) else ""
        return (space,) if space in ("global", "shared", "local", "const") else ()

    def _branch(self, instruction: Instruction, statement: raw.RawInstruction) -> Instruction:
        *index, label = statement.operands or [None]
        if not isinstance(label, Token) or len(index) != (instruction.opcode == "brx"):
            raise self.source.fail(statement.opcode, f"expected one label after '{statement.opcode}'")
        labels = self.scope.target_list(label) if index else [label]
        self.branches.append((instruction.index, self.scope, labels))
        return replace(instruction, sources=tuple(s for i in index for s in operands.source(i, self.scope)))

    def _resolve(self, index: int, targets: tuple[int, ...]) -> None:
        instruction = self.instructions[index]
        if instruction.opcode == "bra":
            self.instructions[index] = replace(instruction, target=targets[0])
        else:
            self.instructions[index] = replace(instruction, targets=targets)

    def _call(self, instruction: Instruction, statement: raw.RawInstruction) -> Instruction:
        """`call (returns), function, (arguments)`; of an indirect call the register is the first source."""
        remaining = list(statement.operands)
        lists = (raw.RawArguments,)
        returns = remaining.pop(0).items if remaining and isinstance(remaining[0], lists) else ()
        name = remaining.pop(0) if remaining else None
        if not isinstance(name, Token):
            raise self.source.fail(statement.opcode, f"expected a function name in '{statement.opcode}'")
        arguments = remaining[0].items if remaining and isinstance(remaining[0], lists) else ()
        indirect = self.scope.register(str(name)) is not None
        if not indirect and str(name) not in self.source.functions:
            raise self.source.fail(name, f"function '{name}' is not declared")
        read = (name, *arguments) if indirect else arguments
        return replace(
            instruction,
            destinations=tuple(operands.destination(r, self.scope) for r in returns),
            sources=tuple(s for argument in read for s in operands.source(argument, self.scope)),
            callee=None if indirect else self.aliases.get(str(name), str(name)),
        )

    def _return(self, line: int) -> None:
        for instruction in self.returned.stores(self.scope, line):
            self._append(instruction)

    def _end(self) -> None:
        """A body that can run off its end returns, as if a `ret` stood there."""
        count = len(self.instructions)
        last = self.instructions[-1] if count else None
        ends = last is not None and last.guard is None and last.opcode in _NEVER_FALLS_THROUGH
        if not ends or any(count in (i.target, *i.targets) for i in self.instructions):
            line = last.line if last is not None else self.function.name.line or 1
            self._return(line)
            self._append(Instruction(count, line, "ret", (), (), ()))


def _label_name(token: Token) -> str:
    return token[:-1].rstrip()
