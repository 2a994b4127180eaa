"""From a module to a Program: one entry and every function it can reach, by direct calls, or by indirect ones of any
function whose address is taken."""

from collections.abc import Collection
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter

from msgspec.structs import replace

from functional.errors import InputError, PtxError
from functional.isa.slow_paths import test_of
from functional.programs.program import BasicBlock, Program, basic_blocks, order_points_of, publishing
from functional.ptx import ir
from functional.ptx.source import shown_name

# Functions of the device run time that an executor provides: they have no body in any PTX file
HEAP_FUNCTIONS = frozenset({"malloc", "free"})
# Calls by which kernels launch kernels -> arguments, by their public names and those that CUDA's own library for it has
LAUNCH_FUNCTIONS = {
    "__cudaCDP2GetParameterBufferV2": 4, "__cuda_syscall_cnpv2GetParameterBufferV2": 4, "cudaGetParameterBufferV2": 4,
    "__cudaCDP2GetParameterBuffer": 2, "__cuda_syscall_cnpv2GetParameterBuffer": 2, "cudaGetParameterBuffer": 2,
    "__cudaCDP2LaunchDevice": 6, "__cuda_syscall_cnpv2LaunchDevice": 6, "cudaLaunchDevice": 6,
    "__cudaCDP2LaunchDeviceV2": 2, "__cuda_syscall_cnpv2LaunchDeviceV2": 2, "cudaLaunchDeviceV2": 2,
    "__cudaCDP2LaunchDeviceV2_ptsz": 2, "cudaLaunchDeviceV2_ptsz": 2,
    "__cudaCDP2StreamCreateWithFlags": 2, "__cuda_syscall_cnpv2StreamCreate": 2,
    "__cudaCDP2StreamDestroy": 1, "__cuda_syscall_cnpv2StreamDestroy": 1,
    "__cudaCDP2GetLastError": 0, "__cudaCDP2PeekAtLastError": 0, "__cuda_syscall_cnpv2GetLastError": 0,
    "__cuda_syscall_cnpv2SetLastError": 1,
}  # fmt: skip
SET_CONDITIONAL = "cudaGraphSetConditional"  # of a graph's conditional node
BUILTINS = frozenset({"vprintf", "__assertfail", SET_CONDITIONAL, *HEAP_FUNCTIONS, *LAUNCH_FUNCTIONS})


def reachable(module: ir.Module, entry: ir.Kernel) -> tuple[list[ir.Kernel], bool]:
    """(functions that `entry` can call, directly or not, in file order; can one of them call itself?).

    Raises PtxError for a call to a function without a body."""
    edges: dict[str, list[str]] = {}
    waiting = [entry]
    while waiting:
        caller = waiting.pop()
        if caller.name in edges:
            continue
        calls = [i for i in caller.instructions if i.opcode == "call"]
        calls = [i for i in calls if i.callee not in BUILTINS or i.callee in module.kernels]
        callees = [name for call in calls for name in _targets(module, caller, call)]
        edges[caller.name] = list(dict.fromkeys(callees))
        waiting += [module.kernels[name] for name in callees]
    return [module.kernels[name] for name in module.kernels if name in edges and name != entry.name], _has_cycle(edges)


def _targets(module: ir.Module, caller: ir.Kernel, call: ir.Instruction) -> list[str]:
    if call.callee is None:  # any whose address the code or an initialiser names
        functions = {k.name for k in module.kernels.values() if not k.is_entry}
        named = {name for k in module.kernels.values() for i in k.instructions for name in i.symbols}
        return sorted(functions & (named | {symbol.name for v in module.variables for _, symbol in v.relocations}))
    if call.callee not in module.kernels:
        raise PtxError(module.path, call.line, f"'{caller.name}' calls '{call.callee}', which has no body in this file")
    return [call.callee]


def _has_cycle(edges: dict[str, list[str]]) -> bool:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError:
        return True
    return False


def calls_any(program: Program, builtins: Collection[str]) -> bool:
    """Does a program call one of these functions of the device run time?"""
    calls = (i for i in program.instructions if i.opcode == "call" and i.index not in program.callee_entry)
    return any(call.callee in builtins for call in calls)


_MAX_BLOCKS = 1 << 16  # the trace numbers blocks in 16 bits


def link(module: ir.Module, kernel_name: str) -> Program:
    """The program of an entry of `module`.

    The names a called function declares (registers, variables, parameters) get the prefix `function:`, so that
    they are unique in the program; those of the entry stay as printed. Raises InputError for an unknown entry, PtxError
    for a call to a function without a body or with parameters of other sizes."""
    entry = _entry(module, kernel_name)
    callees, recursive = reachable(module, entry)
    functions = [entry, *callees]
    _check_calls(module, functions)
    starts: dict[str, int] = {}
    instructions: list[ir.Instruction] = []
    named = {name for f in functions for i in f.instructions for name in i.symbols}
    # Of shared variables those that the code names: others take no space in a launch
    variables = [v for v in module.variables if v.space != "shared" or v.name in named]
    named |= {symbol.name for v in module.variables for _, symbol in v.relocations}
    launchable = [module.kernels[name] for name in module.entries if name in named]
    registers: dict[ir.Register, None] = {}
    signatures = {}
    for function in functions:
        names = _Renamer(function)
        starts[function.name] = len(instructions)
        instructions += [names.instruction(i, starts[function.name]) for i in function.instructions]
        variables += [names.variable(v) for v in function.variables]
        registers.update(dict.fromkeys(names.register(r) for r in function.registers))
        if not function.is_entry:
            signatures[function.name] = (names.parameters(function.parameters), names.parameters(function.returns))
    return Program(
        name=entry.name,
        path=module.path,
        digest=module.digest,
        parameters=entry.parameters,
        instructions=tuple(_meeting(instructions)),
        pcs=tuple(f.pc_base + i for f in functions for i in range(len(f.instructions))),
        blocks=_blocks(module, entry, instructions, starts),
        registers=tuple(registers),
        variables=tuple(variables),
        directives=entry.directives | {"address_size": (module.address_size,)},
        callee_entry={i.index: starts[i.callee] for i in instructions if i.callee in starts},
        function_parameters=signatures,
        function_of=tuple(f.name for f in functions for _ in f.instructions),
        functions={f.name: starts[f.name] for f in callees},
        launchable={k.name: max((p.offset + p.bytes for p in k.parameters), default=0) for k in launchable},
        recursive=recursive,
    )


def _meeting(instructions: list[ir.Instruction]) -> list[ir.Instruction]:
    """The trace says who meets whom at a cluster's barrier, and, where a barrier's number or count is in a register, at
    all barriers."""
    barriers = [i for i in instructions if i.opcode in ("bar", "barrier") and "warp" not in i.modifiers]
    named = [i for i in barriers if "cluster" not in i.modifiers]
    operands = (i.sources[:-1] if "red" in i.modifiers else i.sources for i in named)
    if all(isinstance(operand, ir.Immediate) for each in operands for operand in each):
        barriers = [i for i in barriers if i not in named]
    return [replace(i, meets=True) if i in barriers else i for i in instructions]


def _blocks(
    module: ir.Module, entry: ir.Kernel, instructions: list[ir.Instruction], starts: dict[str, int]
) -> tuple[BasicBlock, ...]:
    """The basic blocks. Where the order of thread blocks matters, one begins at each write that publishes what came
    before it. Raises PtxError for more than a trace can number."""
    entries = list(starts.values())
    blocks = basic_blocks(instructions, entries)
    block_of = [block.index for block in blocks for _ in range(block.start, block.stop)]
    if order_points_of(instructions, block_of.__getitem__, [block.successors for block in blocks]):
        blocks = basic_blocks(instructions, entries, publishing(instructions))
    slow = (i.index for i in instructions if test_of(i) is not None)
    blocks += tuple(BasicBlock(number, at, at, (), None) for number, at in enumerate(slow, len(blocks)))
    if len(blocks) > _MAX_BLOCKS:
        many = f"{len(blocks)} basic blocks, more than {_MAX_BLOCKS}"
        raise PtxError(module.path, entry.line, f"'{entry.name}' has {many}")
    return blocks


def _entry(module: ir.Module, name: str) -> ir.Kernel:
    """By its name in PTX, or by that of its C++ function, if no other has it."""
    entries = module.entries
    if name in entries:
        return module.kernels[name]
    called = [entry for entry in entries if shown_name(entry) == name]
    if len(called) == 1:
        return module.kernels[called[0]]
    if called:
        raise InputError(f"{module.path}: {len(called)} kernels are called '{name}'; choose {' or '.join(called)}")
    near = get_close_matches(name, [*entries, *map(shown_name, entries)], 1)
    hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(entries) or 'none'}"
    raise InputError(f"{module.path}: no kernel '{name}'; {hint}")


def _check_calls(module: ir.Module, callers: list[ir.Kernel]) -> None:
    """What a call by name hands over must be as large as the function declares: executors copy what it declares."""
    for caller in callers:
        sizes = {v.name: v.bytes for v in caller.variables if v.space == "param"}
        sizes |= {p.name: p.bytes for p in (*caller.parameters, *caller.returns)}
        for call in caller.instructions:
            callee = module.kernels.get(call.callee or "") if call.opcode == "call" else None
            if callee is None:
                continue
            wrong = _mismatch("argument", call.sources, callee.parameters, sizes)
            wrong = wrong or _mismatch("return value", call.destinations, callee.returns, sizes)
            if wrong:
                raise PtxError(module.path, call.line, f"call of '{callee.name}': {wrong}")


def _mismatch(
    what: str, given: tuple[ir.Operand | None, ...], declared: tuple[ir.Parameter, ...], sizes: dict[str, int]
) -> str:
    """How what a call gives differs from what the function declares, "" if it does not. `sizes`: bytes of the caller's
    `.param` variables; operands that are none are left to the executors."""
    if len(given) != len(declared):
        return f"{len(given)} {what}s, the function has {len(declared)}"
    for operand, parameter in zip(given, declared, strict=True):
        size = sizes.get(operand.name, parameter.bytes) if isinstance(operand, ir.Symbol) else parameter.bytes
        if size != parameter.bytes:
            return f"{what} '{parameter.name}' has {parameter.bytes} B, the call gives {size}"
    return ""


class _Renamer:
    """Makes the names of one function unique in the program."""

    def __init__(self, function: ir.Kernel) -> None:
        self.prefix = "" if function.is_entry else f"{function.name}:"
        self.own = {v.name for v in function.variables} | {p.name for p in (*function.parameters, *function.returns)}

    def instruction(self, i: ir.Instruction, base: int) -> ir.Instruction:
        if not base and not self.prefix:
            return i
        return replace(
            i,
            index=base + i.index,
            destinations=tuple(self.operand(d) for d in i.destinations),
            sources=tuple(self.operand(s) for s in i.sources),  # type: ignore[misc]
            guard=ir.Guard(self.register(i.guard.register), i.guard.negated) if i.guard else None,
            target=None if i.target is None else base + i.target,
            targets=tuple(base + t for t in i.targets),
        )

    def operand(self, operand: ir.Operand | None) -> ir.Operand | None:
        match operand:
            case ir.Register():
                return self.register(operand)
            case ir.Symbol(name=name, offset=offset):
                return ir.Symbol(self.name(name), offset)
            case ir.Address(base=base, offset=offset):
                return ir.Address(self.operand(base), offset)  # type: ignore[arg-type]
            case ir.Vector(elements=elements):
                return ir.Vector(tuple(self.operand(e) for e in elements))
        return operand

    def register(self, register: ir.Register) -> ir.Register:
        return ir.Register(self.prefix + register.name, register.type) if self.prefix else register

    def name(self, name: str) -> str:
        return self.prefix + name if name in self.own else name

    def variable(self, variable: ir.Variable) -> ir.Variable:
        moved = tuple((at, replace(s, name=self.name(s.name))) for at, s in variable.relocations)
        return replace(variable, name=self.name(variable.name), relocations=moved)

    def parameters(self, parameters: tuple[ir.Parameter, ...]) -> tuple[ir.Parameter, ...]:
        return tuple(replace(p, name=self.name(p.name)) for p in parameters)
