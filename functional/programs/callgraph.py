"""Which functions a kernel can reach: by direct calls, by indirect ones of any function whose address is taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from functional.errors import PtxError
from functional.ptx.ir import Address, Instruction, Kernel, Module, Operand, Symbol

if TYPE_CHECKING:
    from functional.programs.program import Program

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


def reachable(module: Module, entry: Kernel) -> tuple[list[Kernel], bool]:
    """(functions that `entry` can call, directly or not, in file order; can one of them call itself?).

    Raises PtxError for a call to a function without a body.
    """
    edges: dict[str, list[str]] = {}
    waiting = [entry]
    while waiting:
        caller = waiting.pop()
        if caller.name in edges:
            continue
        callees = [name for call in _calls(module, caller) for name in _targets(module, caller, call)]
        edges[caller.name] = list(dict.fromkeys(callees))
        waiting += [module.kernels[name] for name in callees]
    return [module.kernels[name] for name in module.kernels if name in edges and name != entry.name], _has_cycle(edges)


def _calls(module: Module, function: Kernel) -> Iterable[Instruction]:
    calls = (i for i in function.instructions if i.opcode == "call")
    return (i for i in calls if i.callee not in BUILTINS or i.callee in module.kernels)


def _targets(module: Module, caller: Kernel, call: Instruction) -> list[str]:
    if call.callee is None:
        return sorted(_taken(module))
    if call.callee not in module.kernels:
        raise PtxError(module.path, call.line, f"'{caller.name}' calls '{call.callee}', which has no body in this file")
    return [call.callee]


def _taken(module: Module) -> set[str]:
    """Functions whose address the code or an initialiser names."""
    functions = {k.name for k in module.kernels.values() if not k.is_entry}
    operands = (o for k in module.kernels.values() for i in k.instructions for o in (*i.sources, *i.destinations))
    named = {base.name for base in map(_base, operands) if isinstance(base, Symbol)}
    return functions & (named | {symbol.name for v in module.variables for _, symbol in v.relocations})


def launchable(module: Module, functions: Iterable[Kernel]) -> dict[str, int]:
    """Kernels that functions, or a variable's values, take the address of -> bytes of their parameters."""
    operands = (o for f in functions for i in f.instructions for o in i.sources)
    named = {base.name for base in map(_base, operands) if isinstance(base, Symbol)}
    named |= {symbol.name for v in module.variables for _, symbol in v.relocations}
    kernels = [module.kernels[name] for name in module.entries if name in named]
    return {k.name: max((p.offset + p.bytes for p in k.parameters), default=0) for k in kernels}


def _base(operand: Operand | None) -> Operand | None:
    return operand.base if isinstance(operand, Address) else operand


def _has_cycle(edges: dict[str, list[str]]) -> bool:
    """Take away functions that call nothing, until all are gone or none can go."""
    left = {name: set(callees) for name, callees in edges.items()}
    while left:
        leaves = {name for name, callees in left.items() if not callees & left.keys()}
        if not leaves:
            return True
        left = {name: callees for name, callees in left.items() if name not in leaves}
    return False


def uses_heap(program: Program) -> bool:
    """Does a program call `malloc` or `free`?"""
    return any(i.callee in HEAP_FUNCTIONS for i in _builtin_calls(program))


def launches_kernels(program: Program) -> bool:
    """Does a program launch kernels?"""
    return any(i.callee in LAUNCH_FUNCTIONS for i in _builtin_calls(program))


def _builtin_calls(program: Program) -> Iterable[Instruction]:
    return (i for i in program.instructions if i.opcode == "call" and i.index not in program.callee_entry)
