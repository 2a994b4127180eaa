"""What a host puts into memory before it launches: variables of a module (`cudaMemcpyToSymbol`), and pointers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from functional.errors import InputError
from functional.launches.launch import Pointer, device_address
from functional.ptx.ir import Address, Symbol
from functional.terminal import note

if TYPE_CHECKING:
    from jaxtyping import Shaped

    from functional.launches.memory import Memory
    from functional.programs.program import Program


def set_symbol(memory: Memory, name: str, values: Shaped[np.ndarray, "*shape"], where: str = "symbols") -> None:
    """Write the first bytes of a `.global` or `.const` variable. Raises InputError for one that is not there, and for
    more bytes than it has."""
    is_constant = name in memory.const_variables
    region = memory.const_variables.get(name) or memory.global_variables.get(name)
    if region is None:
        known = ", ".join([*memory.const_variables, *memory.global_variables]) or "none"
        raise InputError(f"{where}: the module has no variable '{name}'; it has {known}")
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    if data.size > region.bytes:
        raise InputError(f"{where}: variable '{name}' has {region.bytes} bytes, {data.size} are given")
    place = memory.const_arena[region.address :] if is_constant else memory.bytes_of(region)
    place[: data.size] = data


def set_pointer(memory: Memory, buffer: str, at_bytes: int, to: Pointer, where: str = "pointers") -> None:
    """Write an address into a buffer: that of a place in another, or in itself. Raises InputError for a buffer that is
    not there, or a place beyond its end."""
    if buffer not in memory.buffers:
        raise InputError(f"{where}: there is no buffer '{buffer}'")
    place, data = memory.bytes_of(memory.buffers[buffer]), device_address(to, memory, where)
    if not 0 <= at_bytes <= place.size - len(data):
        raise InputError(f"{where}: a pointer at byte {at_bytes} is outside buffer '{buffer}' of {place.size} bytes")
    place[at_bytes : at_bytes + len(data)] = np.frombuffer(data, np.uint8)


def say_unset_constants(program: Program, given: Collection[str]) -> None:
    """Say which constants a kernel reads that neither the PTX nor anybody sets: they are 0, which is seldom meant."""
    operands = [operand for inst in program.instructions for operand in (*inst.sources, *inst.destinations)]
    bases = [operand.base if isinstance(operand, Address) else operand for operand in operands]
    named = {base.name for base in bases if isinstance(base, Symbol)}
    unset = [
        v.name for v in program.variables
        if v.space == "const" and v.initialiser is None and v.name in named and v.name not in given
    ]  # fmt: skip
    if unset:
        names = ", ".join(f"'{name}'" for name in unset)
        note(f"abstim: kernel '{program.name}' reads constants that nothing sets, and finds 0: {names} (see `symbols`)")
