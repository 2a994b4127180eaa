"""From syntax tree to ir.Module: names are resolved, scopes flattened, instructions numbered."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from lark import Token
from msgspec.structs import replace

from functional.ptx import _syntax as raw
from functional.ptx import ir
from functional.ptx._declarations import (
    MAX_NESTING,
    Scope,
    Source,
    declare_parameters,
    declare_registers,
    declare_variables,
    is_static,
)

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


def _writes_first(opcode: str, modifiers: tuple[str, ...]) -> bool:
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


def _guard(token: Token, scope: Scope) -> ir.Guard:
    """`@%p1` or `@!%p1`. Raises PtxError if that is no predicate."""
    text = token[1:].strip()
    name = text.removeprefix("!").strip()
    if (register := scope.register(name)) is None:
        raise scope.source.fail(token, f"register '{name}' is not declared")
    if register.type != "pred":
        raise scope.source.fail(token, f"the guard '{name}' is a .{register.type} register, not a .pred")
    return ir.Guard(register, text.startswith("!"))


def _destination(node: Any, scope: Scope) -> ir.Operand | None:
    return None if isinstance(node, Token) and node == "_" else _source(node, scope)[0]


def _source(node: Any, scope: Scope) -> list[ir.Operand]:
    """One read operand, or more if an address carries coordinates. Raises PtxError."""
    match node:
        case Token():
            return [_name(node, scope)]
        case ir.Immediate():
            return [node]
        case raw.RawOffset(name=name, offset=offset):
            return [ir.Symbol(scope.known_symbol(name).name, offset)]
        case raw.RawElements(items=items):
            return [ir.Vector(tuple(_destination(item, scope) for item in items))]
        case raw.RawAddress(base=base, offset=offset, rest=rest):
            return [_address(base, offset, scope), *(operand for r in rest for operand in _source(r, scope))]
    raise scope.source.fail(node, f"operand '{_printed(node)}' cannot stand here")


def _address(base: Token | None, offset: int, scope: Scope) -> ir.Address:
    if base is None:
        return ir.Address(None, offset)
    operand = _name(base, scope)
    if not isinstance(operand, (ir.Register, ir.Symbol)):
        raise scope.source.fail(base, f"'{base}' cannot be the base of an address")
    return ir.Address(operand, offset)


def _name(token: Token, scope: Scope) -> ir.Operand:
    text = str(token)
    if (found := scope.register(text) or scope.symbol(text)) is not None:
        return found
    if (elements := scope.vector(text)) is not None:
        return ir.Vector(elements)
    if _SPECIAL.fullmatch(text):
        return ir.Special(text)
    scope.source.refuse(text == "_", token, "the sink '_' can only be a destination")
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

    def loads(self, scope: Scope) -> list[ir.Instruction]:
        """What fills the registers where a function begins."""
        lines = ((name, name.line or 1) for name in self.names)
        return [i for name, line in lines for i in _loads(_registers(name, scope), _hidden(name, scope), line)]

    def stores(self, scope: Scope, line: int) -> list[ir.Instruction]:
        """What keeps the registers where it returns."""
        return [i for name in self.names for i in _stores(_registers(name, scope), _hidden(name, scope), line)]

    def call(
        self, statement: raw.RawInstruction, scope: Scope, guard: ir.Guard | None, variables: list[ir.Variable]
    ) -> tuple[raw.RawInstruction, list[ir.Instruction], list[ir.Instruction]]:
        """A call that hands over memory alone, and what comes before and after it; `variables` gets that memory.
        Raises PtxError for a literal, whose size only the function knows."""
        before, after, operands = list[ir.Instruction](), list[ir.Instruction](), list[Any]()
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
        self, item: Any, scope: Scope, opcode: Token, variables: list[ir.Variable]
    ) -> tuple[Any, ir.Symbol, tuple[ir.Register, ...]]:
        """(what the call names, where that is, the registers that it stands for)"""
        if not isinstance(item, Token):
            raise scope.source.fail(opcode, "a literal as an argument is not supported; move it to a register")
        if not (registers := _registers(item, scope)):
            return item, ir.Symbol(str(item)), ()
        self._calls += 1
        name = Token.new_borrow_pos("NAME", f"call{self._calls}{_HIDDEN}", item)
        size_bytes = sum(map(_bytes, registers))
        scope.symbols[str(name)] = symbol = ir.Symbol(f"{name}{scope.suffix}")
        variables.append(ir.Variable(symbol.name, "param", size_bytes, size_bytes))
        return name, symbol, registers


def _registers(name: Token, scope: Scope) -> tuple[ir.Register, ...]:
    """The registers that a name stands for: one, those of a vector, or none."""
    found = scope.register(str(name))
    return (scope.vector(str(name)) or ()) if found is None else (found,)


def _hidden(name: Token, scope: Scope) -> ir.Symbol:
    return scope.known_symbol(Token("NAME", f"{name}{_HIDDEN}"))


def _bytes(register: ir.Register) -> int:
    return ir.TYPE_BYTES.get(register.type, _TRUTH_BYTES)


def _places(registers: tuple[ir.Register, ...], symbol: ir.Symbol) -> list[tuple[ir.Register, ir.Address]]:
    return [(r, ir.Address(symbol, i * _bytes(r))) for i, r in enumerate(registers)]


def _loads(registers: tuple[ir.Register, ...], symbol: ir.Symbol, line: int) -> list[ir.Instruction]:
    made = []
    for register, where in _places(registers, symbol):
        word = _word(register)
        made.append(ir.Instruction(0, line, "ld", ("param", f"b{8 * _bytes(register)}"), (word,), (where,)))
        if word is not register:
            made.append(ir.Instruction(0, line, "setp", ("ne", "s32"), (register,), (word, ir.Immediate(0))))
    return made


def _stores(registers: tuple[ir.Register, ...], symbol: ir.Symbol, line: int) -> list[ir.Instruction]:
    made = []
    for register, where in _places(registers, symbol):
        word = _word(register)
        if word is not register:
            made.append(
                ir.Instruction(0, line, "selp", ("b32",), (word,), (ir.Immediate(1), ir.Immediate(0), register))
            )
        made.append(ir.Instruction(0, line, "st", ("param", f"b{8 * _bytes(register)}"), (), (where, word)))
    return made


def _word(register: ir.Register) -> ir.Register:
    """What holds a register in memory: of a predicate a word of its own."""
    return ir.Register(f"{register.name}{_HIDDEN}", "b32") if register.type == "pred" else register


# A modifier that names a state space as seen by one thread block or one function: the same space
_SPACE_ALIASES = {"shared::cta": "shared", "param::entry": "param", "param::func": "param"}
_ACCESSES = frozenset({"ld", "st", "atom", "red"})


def lower(
    tree: raw.RawModule, path: str, digest: str, elsewhere: Mapping[str, int] = MappingProxyType({})
) -> ir.Module:
    """The module of a syntax tree. Raises PtxError for undeclared or repeated names and bad constants.

    `elsewhere`: functions of the text that may not be in the tree, and how many instructions come before each."""
    source = Source(path, functions_of(tree) | elsewhere.keys())
    address_bits = 64 if tree.address_size is None else int(tree.address_size)
    source.refuse(address_bits not in (32, 64), tree.address_size, f".address_size is 32 or 64, not {address_bits}")
    aliases = aliases_of(tree)
    scope, variables, kernels, pc_base = Scope(source), dict[str, ir.Variable](), dict[str, ir.Kernel](), 0
    for item in tree.items:
        if isinstance(item, raw.RawVariable):
            _declare(item, scope, variables)
        elif isinstance(item, raw.RawFunction) and item.statements is not None:
            source.refuse(str(item.name) in kernels, item.name, f"'{item.name}' is defined twice")
            builder = _FunctionBuilder(item, scope, aliases)
            pc_base = elsewhere.get(str(item.name), pc_base)
            kernel = builder.build(pc_base)
            kernels[kernel.name] = kernel
            variables |= {variable.name: variable for variable in builder.statics}
            pc_base += len(kernel.instructions)
    return ir.Module(
        path, digest, str(tree.version), str(tree.target), address_bits, tuple(variables.values()), kernels
    )


def lower_function(
    tree: raw.RawModule, module: ir.Module, aliases: dict[str, str], declared: frozenset[str], pc_base: int
) -> ir.Kernel:
    """The one function of a syntax tree, of a module whose variables and functions (`declared`) are known. Raises
    PtxError."""
    function = next(item for item in tree.items if isinstance(item, raw.RawFunction))
    scope = Scope(Source(module.path, declared, {v.name: v.space for v in module.variables}))
    scope.symbols.update({variable.name: ir.Symbol(variable.name) for variable in module.variables})
    return _FunctionBuilder(function, scope, aliases).build(pc_base)


def functions_of(tree: raw.RawModule) -> frozenset[str]:
    return frozenset(str(item.name) for item in tree.items if isinstance(item, (raw.RawFunction, raw.RawAlias)))


def aliases_of(tree: raw.RawModule) -> dict[str, str]:
    """Name -> function that it stands for."""
    return {str(item.name): str(item.target) for item in tree.items if isinstance(item, raw.RawAlias)}


def _declare(item: raw.RawVariable, scope: Scope, variables: dict[str, ir.Variable]) -> None:
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
        self.instructions: list[ir.Instruction] = []
        self.branches: list[tuple[int, Scope, list[Token]]] = []  # (instruction, where its labels are seen, labels)
        self.registers: dict[ir.Register, None] = {}
        self.variables: list[ir.Variable] = []
        self.passed, self.returned = RegisterParameters(), RegisterParameters()
        self.statics: list[ir.Variable] = []  # declared inside, and the module's: `.global`, `.const`

    def build(self, pc_base: int) -> ir.Kernel:
        function = self.function
        parameters = declare_parameters(self.passed.in_memory(function.parameters, self.scope), self.scope)
        for instruction in self.passed.loads(self.scope):
            self._append(instruction)
        returns = declare_parameters(self.returned.in_memory(function.returns, self.scope), self.scope)
        self._statements(function.statements or [], 0)
        for index, scope, labels in self.branches:
            targets, branch = tuple(scope.label(label) for label in labels), self.instructions[index]
            found: dict[str, Any] = {"target": targets[0]} if branch.opcode == "bra" else {"targets": targets}
            self.instructions[index] = replace(branch, **found)
        self._end()
        named = (str(function.name), function.name.line or 1, function.is_entry)
        body = tuple(self.instructions), tuple(self.registers), tuple(self.variables)
        return ir.Kernel(*named, parameters, returns, *body, pc_base, dict(function.directives))

    def _statements(self, statements: list[Any], depth: int) -> None:
        if depth > MAX_NESTING:
            raise self.source.fail(statements or self.function, f"scopes nested more than {MAX_NESTING} deep")
        for statement in statements:
            match statement:
                case raw.RawInstruction():
                    self._instruction(statement)
                case Token():
                    if (name := _label_name(statement)) in self.scope.labels:
                        raise self.source.fail(statement, f"label '{name}' is defined twice")
                    self.scope.labels[name] = len(self.instructions)
                case list():
                    outer, self.nested_scopes = self.scope, self.nested_scopes + 1
                    self.scope = Scope(self.source, outer, f"'{self.nested_scopes}", outer.function)
                    self._statements(statement, depth + 1)
                    self.scope = outer
                case raw.RawRegisters():
                    declare_registers(statement, self.scope)
                case raw.RawVariable():
                    kept = self.statics if is_static(statement) else self.variables
                    kept += declare_variables(statement, self.scope)
                case raw.RawTargets(name=name, labels=labels):
                    self.scope.target_lists[_label_name(name)] = labels

    def _instruction(self, statement: raw.RawInstruction) -> None:
        opcode, *rest = statement.opcode.split(".")
        modifiers = tuple(_SPACE_ALIASES.get(m, m) for m in rest)
        guard = None if statement.guard is None else _guard(statement.guard, self.scope)
        line, after = statement.opcode.line or 1, list[ir.Instruction]()
        if opcode == "ret":
            self._return(line)
        if opcode == "call":
            statement, before, after = self.passed.call(statement, self.scope, guard, self.variables)
            for instruction in before:
                self._append(instruction)
        instruction = ir.Instruction(len(self.instructions), line, opcode, modifiers, (), (), guard)
        lowered = {"bra": self._branch, "brx": self._branch, "call": self._call}.get(opcode, self._plain)
        for made in (lowered(instruction, statement), *after):
            self._append(made)

    def _append(self, instruction: ir.Instruction) -> None:
        instruction, guard = replace(instruction, index=len(self.instructions)), instruction.guard
        self.instructions.append(instruction)
        for register in (*instruction.reads(), *instruction.writes(), *([guard.register] if guard else [])):
            self.registers.setdefault(register)

    def _plain(self, instruction: ir.Instruction, statement: raw.RawInstruction) -> ir.Instruction:
        remaining = statement.operands
        written: tuple[ir.Operand | None, ...] = ()
        if remaining and _writes_first(instruction.opcode, instruction.modifiers):
            node = remaining[0]
            parts = (node.first, node.second) if isinstance(node, raw.RawPair) else (node,)
            written, remaining = tuple(_destination(part, self.scope) for part in parts), remaining[1:]
        sources: list[ir.Operand] = []
        negated = set()
        for operand in remaining:
            if isinstance(operand, raw.RawNegated):
                negated.add(len(sources))
                operand = operand.name
            sources += _source(operand, self.scope)
        if instruction.opcode == "wgmma" and written:  # accumulators are read, too
            sources += [o for o in written if o is not None]
        made = replace(instruction, destinations=written, sources=tuple(sources), negated_sources=frozenset(negated))
        return replace(made, modifiers=(*self._space(made), *made.modifiers))

    def _space(self, instruction: ir.Instruction) -> tuple[str, ...]:
        """The space of a variable that an access names without saying where it lies: assemblers look it up."""
        address = instruction.sources[0] if instruction.sources else None
        if instruction.opcode not in _ACCESSES or instruction.space != "generic" or not isinstance(address, ir.Address):
            return ()
        space = self.source.spaces.get(address.base.name, "") if isinstance(address.base, ir.Symbol) else ""
        return (space,) if space in ("global", "shared", "local", "const") else ()

    def _branch(self, instruction: ir.Instruction, statement: raw.RawInstruction) -> ir.Instruction:
        *index, label = statement.operands or [None]
        if not isinstance(label, Token) or len(index) != (instruction.opcode == "brx"):
            raise self.source.fail(statement.opcode, f"expected one label after '{statement.opcode}'")
        labels = self.scope.target_list(label) if index else [label]
        self.branches.append((instruction.index, self.scope, labels))
        return replace(instruction, sources=tuple(s for i in index for s in _source(i, self.scope)))

    def _call(self, instruction: ir.Instruction, statement: raw.RawInstruction) -> ir.Instruction:
        """`call (returns), function, (arguments)`; of an indirect call the register is the first source."""
        remaining = list(statement.operands)
        returns = remaining.pop(0).items if remaining and isinstance(remaining[0], raw.RawArguments) else ()
        name = remaining.pop(0) if remaining else None
        if not isinstance(name, Token):
            raise self.source.fail(statement.opcode, f"expected a function name in '{statement.opcode}'")
        arguments = remaining[0].items if remaining and isinstance(remaining[0], raw.RawArguments) else ()
        indirect = self.scope.register(str(name)) is not None
        if not indirect and str(name) not in self.source.functions:
            raise self.source.fail(name, f"function '{name}' is not declared")
        read = (name, *arguments) if indirect else arguments
        return replace(
            instruction,
            destinations=tuple(_destination(r, self.scope) for r in returns),
            sources=tuple(s for argument in read for s in _source(argument, self.scope)),
            callee=None if indirect else self.aliases.get(str(name), str(name)),
        )

    def _return(self, line: int) -> None:
        for instruction in self.returned.stores(self.scope, line):
            self._append(instruction)

    def _end(self) -> None:
        """A body that can run off its end returns, as if a `ret` stood there."""
        count = len(self.instructions)
        last = self.instructions[-1] if count else None
        ends = last is not None and last.guard is None and last.opcode in ir.NEVER_FALLS_THROUGH
        if not ends or any(count in (i.target, *i.targets) for i in self.instructions):
            line = last.line if last is not None else self.function.name.line or 1
            self._return(line)
            self._append(ir.Instruction(count, line, "ret", (), (), ()))


def _label_name(token: Token) -> str:
    return token[:-1].rstrip()
