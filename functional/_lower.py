"""From syntax tree to ir.Module: names are resolved, scopes flattened, instructions numbered."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from lark import Token

from functional import _syntax as raw
from functional._constants import MAX_NESTING, Constants, Initialiser
from functional.errors import PtxError
from functional.ir import (
    TYPE_BYTES,
    Address,
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Module,
    Operand,
    Parameter,
    Register,
    Special,
    Symbol,
    Variable,
    Vector,
)

_SPECIAL = re.compile(
    r"%(((tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz])|laneid|warpid|nwarpid|smid"
    r"|nsmid|gridid|is_explicit_cluster|cluster_ctarank|cluster_nctarank|lanemask_(eq|le|lt|ge|gt)|clock(_hi|64)?"
    r"|pm\d+(_64)?|envreg\d+|globaltimer(_lo|_hi)?|reserved_smem_\w+|total_smem_size|aggr_smem_size|dynamic_smem_size"
    r"|current_graph_exec)"
)
# opcodes whose first operand is not written
_NO_DESTINATION = frozenset(
    "st red ret exit trap brkpt bra brx membar fence prefetch prefetchu pmevent nanosleep sust sured stmatrix cp "
    "discard applypriority griddepcontrol setmaxnreg stackrestore multimem_red".split()
)
_BARRIER_WITHOUT_RESULT = frozenset({"sync", "arrive", "wait", "warp"})
# the state space of a modifier such as `shared::cta`, which names a single-CTA view of the same space
_SPACE_ALIASES = {"shared::cta": "shared", "param::entry": "param", "param::func": "param"}
_MAX_BYTES = 1 << 40
_MAX_INITIALISED_BYTES = 1 << 28


@dataclass
class _Scope:
    parent: _Scope | None
    registers: dict[str, Register] = field(default_factory=dict)
    ranges: list[tuple[str, int, str]] = field(default_factory=list)  # prefix, count, type
    symbols: dict[str, str] = field(default_factory=dict)  # printed name -> unique name
    labels: dict[str, int] = field(default_factory=dict)
    target_lists: dict[str, list[Token]] = field(default_factory=dict)
    suffix: str = ""  # makes the names of a nested scope unique; ' cannot occur in a PTX name


def lower(tree: raw.RawModule, path: str, digest: str) -> Module:
    """The module of a syntax tree. Raises PtxError for undeclared or repeated names and bad constants."""
    return _ModuleBuilder(path).build(tree, digest)


class _Errors:
    def __init__(self, path: str) -> None:
        self.path = path

    def fail(self, where: Any, message: str) -> PtxError:
        return PtxError(self.path, _line(where), message)


def _line(node: Any) -> int:
    """Line of the first token inside a syntax node."""
    while isinstance(node, (tuple, list)) and not isinstance(node, Token):
        node = next((x for x in node if isinstance(x, (Token, tuple, list)) and x), None)
    return getattr(node, "line", None) or 1


class _ModuleBuilder(_Errors):
    def build(self, tree: raw.RawModule, digest: str) -> Module:
        if tree.address_size is not None and tree.address_size != "64":
            raise self.fail(tree.address_size, f"only .address_size 64 is supported, not {tree.address_size}")
        self.scope = _Scope(None)
        self.functions = {f.name: f for f in tree.items if isinstance(f, raw.RawFunction)}
        self.aliases = {str(a.name): str(a.target) for a in tree.items if isinstance(a, raw.RawAlias)}
        self.variables: dict[str, Variable] = {}
        self.kernels: dict[str, Kernel] = {}
        pc_base = 0
        for item in tree.items:
            if isinstance(item, raw.RawVariable):
                self._declare(item)
            elif isinstance(item, raw.RawFunction) and item.statements is not None:
                pc_base += self._define(item, pc_base)
        return Module(
            self.path, digest, str(tree.version), str(tree.target), 64, tuple(self.variables.values()), self.kernels
        )

    def _declare(self, item: raw.RawVariable) -> None:
        for variable in variables_of(self, item, self.scope, self.functions):
            known = self.variables.get(variable.name)
            if known is not None and not known.external and not variable.external:
                raise self.fail(item.declarators[0].name, f"variable '{variable.name}' is declared twice")
            if known is None or known.external:
                self.variables[variable.name] = variable

    def _define(self, function: raw.RawFunction, pc_base: int) -> int:
        if str(function.name) in self.kernels:
            raise self.fail(function.name, f"'{function.name}' is defined twice")
        kernel = _FunctionBuilder(self, function).build(pc_base)
        self.kernels[kernel.name] = kernel
        return len(kernel.instructions)


def type_of(errors: _Errors, qualifiers: list[tuple[str, Any]], where: Token) -> tuple[str, int, int]:
    """(type, bytes, alignment) of the qualifiers of a declaration; a vector counts as one element."""
    values: dict[str, Any] = dict(qualifiers)
    if "type" not in values:
        raise errors.fail(where, f"expected a type such as .b32 before '{where}'")
    type_ = str(values["type"])[1:]
    size = TYPE_BYTES.get(type_)
    if size is None:
        raise errors.fail(where, f"'{where}' of type .{type_} cannot be kept in memory")
    lanes = int(values["vector"][2:]) if "vector" in values else 1
    align = raw.integer(values["align"]) if "align" in values else size * lanes
    if align <= 0 or align & (align - 1):
        raise errors.fail(where, f"alignment {align} of '{where}' is not a power of two")
    return type_, size * lanes, align


def variables_of(
    errors: _Errors, item: raw.RawVariable, scope: _Scope, functions: Any
) -> list[Variable]:
    """The variables of one declaration, entered into `scope`."""
    found = []
    for declarator in item.declarators:
        name = declarator.name
        type_, element_bytes, align = type_of(errors, item.qualifiers, name)
        unique = f"{name}{scope.suffix}"
        if scope.parent is not None and str(name) in scope.symbols:
            raise errors.fail(name, f"variable '{name}' is declared twice")
        scope.symbols[str(name)] = unique
        constants = Constants(errors.fail, lambda token: _global_symbol(errors, token, scope, functions))
        shape = _shape(errors, constants, declarator, element_bytes // TYPE_BYTES[type_])
        external = item.linkage == ".extern"
        data, relocations, size = None, (), TYPE_BYTES[type_]
        for extent in shape:
            size *= extent
        if size > (_MAX_BYTES if declarator.initialiser is None else _MAX_INITIALISED_BYTES):
            raise errors.fail(name, f"'{name}' takes {size} bytes, too many for a variable")
        if declarator.initialiser is not None:
            initialiser = Initialiser(constants, type_, shape)
            initialiser.fill(declarator.initialiser)
            data, relocations = bytes(initialiser.data), tuple(initialiser.relocations)
        found.append(Variable(unique, str(item.space)[1:], size, align, data, external, relocations))
    return found


def _shape(errors: _Errors, constants: Constants, declarator: raw.RawDeclarator, lanes: int) -> tuple[int, ...]:
    """Extents of an array, the vector lanes last; an empty first `[]` is as long as its initialiser."""
    extents = []
    for position, dimension in enumerate(declarator.dimensions):
        if dimension is not None:
            extents.append(constants.integer(dimension))
        elif position == 0 and isinstance(declarator.initialiser, raw.RawElements):
            extents.append(len(declarator.initialiser.items))
        else:
            extents.append(0)
    if any(extent < 0 for extent in extents):
        raise errors.fail(declarator.name, f"array '{declarator.name}' has a negative size")
    return (*extents, lanes) if lanes > 1 else tuple(extents)


def _global_symbol(errors: _Errors, token: Token, scope: _Scope | None, functions: Any) -> Symbol:
    while scope is not None:
        if str(token) in scope.symbols:
            return Symbol(scope.symbols[str(token)])
        scope = scope.parent
    if token in functions:
        return Symbol(str(token))
    raise errors.fail(token, f"'{token}' is not declared")


class _FunctionBuilder(_Errors):
    """Lowers one function body."""

    def __init__(self, module: _ModuleBuilder, function: raw.RawFunction) -> None:
        super().__init__(module.path)
        self.module, self.function = module, function
        self.scope = _Scope(module.scope)
        self.scopes = 0
        self.instructions: list[Instruction] = []
        self.branches: list[tuple[int, _Scope, list[Token]]] = []
        self.registers: dict[Register, None] = {}
        self.variables: list[Variable] = []

    def build(self, pc_base: int) -> Kernel:
        function = self.function
        parameters, returns = self._parameters(function.parameters), self._parameters(function.returns)
        self._statements(function.statements or [], 0)
        self._end_function()
        for index, scope, labels in self.branches:
            self._resolve_branch(index, scope, labels)
        return Kernel(
            str(function.name), function.name.line or 1, function.is_entry, parameters, returns,
            tuple(self.instructions), tuple(self.registers), tuple(self.variables), pc_base, dict(function.directives),
        )  # fmt: skip

    def _parameters(self, items: list[raw.RawVariable]) -> tuple[Parameter, ...]:
        found, offset = [], 0
        for item in items:
            name = item.declarators[0].name
            if item.space == ".reg":
                raise self.fail(name, f"parameter '{name}' in a register is not supported; declare it .param")
            type_ = str(dict(item.qualifiers).get("type", ""))[1:]
            variable = variables_of(self, item, self.scope, {})[0]
            offset = -(-offset // variable.align) * variable.align
            found.append(Parameter(variable.name, type_, variable.bytes, variable.align, offset))
            offset += variable.bytes
        return tuple(found)

    # -- statements
    def _statements(self, statements: list[Any], depth: int) -> None:
        if depth > MAX_NESTING:
            raise self.fail(statements, f"scopes nested more than {MAX_NESTING} deep")
        for statement in statements:
            match statement:
                case raw.RawInstruction():
                    self._instruction(statement)
                case raw.RawLabel(name=name):
                    self._label(name, len(self.instructions))
                case raw.RawScope(statements=inner):
                    self._nested(inner, depth)
                case raw.RawRegisters():
                    self._declare_registers(statement)
                case raw.RawVariable():
                    self.variables += variables_of(self, statement, self.scope, self.module.functions)
                case raw.RawTargets(name=name, labels=labels):
                    self.scope.target_lists[_label_name(name)] = labels

    def _nested(self, statements: list[Any], depth: int) -> None:
        outer = self.scope
        self.scopes += 1
        self.scope = _Scope(outer, suffix=f"'{self.scopes}")
        self._statements(statements, depth + 1)
        self.scope = outer

    def _label(self, token: Token, position: int) -> None:
        name = _label_name(token)
        if name in self.scope.labels:
            raise self.fail(token, f"label '{name}' is defined twice")
        self.scope.labels[name] = position

    def _declare_registers(self, statement: raw.RawRegisters) -> None:
        qualifiers = dict(statement.qualifiers)
        for name, count in statement.names:
            if "type" not in qualifiers:
                raise self.fail(name, f"expected a type such as .b32 before '{name}'")
            if "vector" in qualifiers:
                raise self.fail(name, f"vector register '{name}' is not supported; declare its elements one by one")
            type_ = str(qualifiers["type"])[1:]
            if count is not None:
                self.scope.ranges.append((str(name), raw.integer(count), type_))
            elif str(name) in self.scope.registers:
                raise self.fail(name, f"register '{name}' is declared twice")
            else:
                self.scope.registers[str(name)] = Register(f"{name}{self.scope.suffix}", type_)

    # -- instructions
    def _instruction(self, statement: raw.RawInstruction) -> None:
        opcode, *modifiers = statement.opcode.split(".")
        modifiers = [_SPACE_ALIASES.get(m, m) for m in modifiers]
        index = len(self.instructions)
        instruction = Instruction(
            index, statement.opcode.line or 1, str(opcode), tuple(modifiers), (), (), self._guard(statement.guard)
        )
        if opcode in ("bra", "brx"):
            instruction = self._branch(instruction, statement)
        elif opcode == "call":
            instruction = self._call(instruction, statement)
        else:
            instruction = self._plain(instruction, statement)
        self.instructions.append(instruction)
        found = (*instruction.reads(), *instruction.writes())
        for register in found if instruction.guard is None else (*found, instruction.guard.register):
            self.registers.setdefault(register)

    def _plain(self, instruction: Instruction, statement: raw.RawInstruction) -> Instruction:
        operands = list(statement.operands)
        destinations: list[Operand | None] = []
        if operands and _writes_first(instruction):
            first = operands.pop(0)
            parts = [first.first, first.second] if isinstance(first, raw.RawPair) else [first]
            destinations = [self._destination(part) for part in parts]
        sources: list[Operand] = []
        negated = set()
        for operand in operands:
            if isinstance(operand, raw.RawNegated):
                negated.add(len(sources))
                operand = operand.name
            sources.extend(self._source(operand))
        return replace(
            instruction,
            destinations=tuple(destinations),
            sources=tuple(sources),
            negated_sources=frozenset(negated),
        )

    def _guard(self, token: Token | None) -> Guard | None:
        if token is None:
            return None
        text = token[1:].strip()
        negated = text.startswith("!")
        name = text[1:].strip() if negated else text
        register = self._register(name)
        if register is None:
            raise self.fail(token, f"register '{name}' is not declared")
        if register.type != "pred":
            raise self.fail(token, f"the guard '{name}' is a .{register.type} register, not a .pred")
        return Guard(register, negated)

    def _branch(self, instruction: Instruction, statement: raw.RawInstruction) -> Instruction:
        operands = statement.operands
        if not operands or not isinstance(operands[-1], Token) or len(operands) != (1 if instruction.opcode == "bra" else 2):
            raise self.fail(statement.opcode, f"expected a label after '{statement.opcode}'")
        labels, sources = [operands[-1]], ()
        if instruction.opcode == "brx":
            sources = tuple(self._source(operands[0]))
            labels = self._target_list(operands[-1])
        self.branches.append((instruction.index, self.scope, labels))
        return replace(instruction, sources=sources)

    def _target_list(self, token: Token) -> list[Token]:
        scope: _Scope | None = self.scope
        while scope is not None:
            if str(token) in scope.target_lists:
                return scope.target_lists[str(token)]
            scope = scope.parent
        raise self.fail(token, f"'{token}' is not the label of a .branchtargets list above")

    def _resolve_branch(self, index: int, scope: _Scope, labels: list[Token]) -> None:
        found = tuple(self._find_label(scope, label) for label in labels)
        instruction = self.instructions[index]
        if instruction.opcode == "bra":
            self.instructions[index] = replace(instruction, target=found[0])
        else:
            self.instructions[index] = replace(instruction, targets=found)

    def _find_label(self, start: _Scope, label: Token) -> int:
        scope: _Scope | None = start
        while scope is not None:
            if str(label) in scope.labels:
                return scope.labels[str(label)]
            scope = scope.parent
        raise self.fail(label, f"label '{label}' is not defined in '{self.function.name}'")

    def _call(self, instruction: Instruction, statement: raw.RawInstruction) -> Instruction:
        operands = list(statement.operands)
        returns = operands.pop(0).items if operands and isinstance(operands[0], raw.RawArguments) else ()
        if not operands or not isinstance(operands[0], Token):
            raise self.fail(statement.opcode, "expected a function name in 'call'")
        name = operands.pop(0)
        if self._register(str(name)) is not None:  # an indirect call; refused only where a kernel reaches it (link.py)
            return replace(instruction, sources=tuple(self._source(name)))
        callee = self.module.aliases.get(str(name), str(name))
        if callee not in self.module.functions:
            raise self.fail(name, f"function '{name}' is not declared")
        arguments = operands[0].items if operands and isinstance(operands[0], raw.RawArguments) else ()
        sources = tuple(s for argument in arguments for s in self._source(argument))
        destinations = tuple(self._destination(r) for r in returns)
        return replace(instruction, destinations=destinations, sources=sources, callee=callee)

    def _end_function(self) -> None:
        """A body that runs off its end returns, as if a `ret` stood there."""
        count = len(self.instructions)
        last = self.instructions[-1] if count else None
        ends = last is not None and last.guard is None and last.opcode in ("ret", "exit", "trap", "bra", "brx")
        labelled = any(
            self._find_label(scope, label) == count
            for _, scope, labels in self.branches
            for label in labels
        )
        if not ends or labelled:
            line = last.line if last is not None else self.function.name.line or 1
            self.instructions.append(Instruction(count, line, "ret", (), (), ()))

    # -- operands
    def _register(self, name: str) -> Register | None:
        scope: _Scope | None = self.scope
        while scope is not None:
            register = scope.registers.get(name)
            if register is not None:
                return register
            for prefix, count, type_ in scope.ranges:
                number = name[len(prefix) :]
                if name.startswith(prefix) and number.isdecimal() and number.isascii() and int(number) < count:
                    return scope.registers.setdefault(name, Register(f"{name}{scope.suffix}", type_))
            scope = scope.parent
        return None

    def _destination(self, node: Any) -> Operand | None:
        if isinstance(node, Token) and node == "_":
            return None
        return self._source(node)[0]

    def _source(self, node: Any) -> list[Operand]:
        """One operand, or two if an address carries coordinates."""
        match node:
            case Token():
                return [self._name(node)]
            case Immediate():
                return [node]
            case raw.RawOffset(name=name, offset=offset):
                return [Symbol(_global_symbol(self, name, self.scope, self.module.functions).name, offset)]
            case raw.RawElements(items=items):
                return [Vector(tuple(self._destination(item) for item in items))]
            case raw.RawAddress(base=base, offset=offset, rest=rest):
                return [self._address(base, offset), *(s for r in rest for s in self._source(r))]
        raise self.fail(node, f"operand '{_printed(node)}' cannot stand here")

    def _address(self, base: Token | None, offset: int) -> Address:
        if base is None:
            return Address(None, offset)
        operand = self._name(base)
        if not isinstance(operand, (Register, Symbol)):
            raise self.fail(base, f"'{base}' cannot be the base of an address")
        return Address(operand, offset)

    def _name(self, token: Token) -> Operand:
        text = str(token)
        register = self._register(text)
        if register is not None:
            return register
        if text == "WARP_SZ":
            return Special(text)
        if text[0] == "%" and _SPECIAL.fullmatch(text):
            return Special(text)
        if "." in text and self._register(text.split(".")[0]) is not None:
            raise self.fail(token, f"vector element '{text}' is not supported; use one register for each element")
        if text[0] == "%" and not self._is_symbol(text):
            raise self.fail(token, f"register '{text}' is not declared")
        if text == "_":
            raise self.fail(token, "the sink '_' can only be a destination")
        return _global_symbol(self, token, self.scope, self.module.functions)

    def _is_symbol(self, name: str) -> bool:
        scope: _Scope | None = self.scope
        while scope is not None:
            if name in scope.symbols:
                return True
            scope = scope.parent
        return False


def _writes_first(instruction: Instruction) -> bool:
    """Is the first operand a destination?"""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode in ("bar", "barrier"):
        return "red" in modifiers
    if opcode == "wmma":
        return "store" not in modifiers
    if opcode == "mbarrier":
        return bool({"arrive", "test_wait", "try_wait", "pending_count", "arrive_drop"} & set(modifiers))
    return opcode not in _NO_DESTINATION


def _label_name(token: Token) -> str:
    return token[:-1].rstrip()


def _printed(node: Any) -> str:
    if isinstance(node, raw.RawPair):
        return f"{node.first}|{node.second}"
    if isinstance(node, raw.RawNegated):
        return f"!{node.name}"
    return "(...)"
