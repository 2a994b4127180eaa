"""Modules that a program loads: PTX out of its fat binaries, parsed when a kernel or variable of it is first used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from abstim.application.device_memory import DeviceMemory
from abstim.application.fat_binary import Image, best_ptx, images, plain_image, registers_of
from functional.errors import InputError
from functional.ir import Kernel, Module, Variable
from functional.lazy_module import open_bytes
from functional.link import link
from functional.memory import Memory
from functional.program import Program


@dataclass
class LoadedModule:
    """One or more texts of PTX, linked as one, or none where a program has machine code alone."""

    number: int
    folder: Path  # where its text is written, for ptxas
    texts: list[bytes]
    machine_code: list[Image]
    architecture: int  # of its PTX; 0: none
    programs: dict[str, Program] = field(default_factory=dict)
    constants_at: int = 0  # where the program finds them
    _module: Module | None = None
    _memory: Memory | None = None

    @property
    def module(self) -> Module:
        """The parsed PTX. Raises InputError if there is none, or it does not parse."""
        if self._module is None:
            if not self.texts:
                names = sorted({name for image in self.machine_code for name in registers_of(image.contents)})
                held = ", ".join(f"sm_{image.architecture}" for image in self.machine_code)
                raise InputError(
                    f"the program holds no PTX of {', '.join(names[:3]) or 'a module'}, only machine code for {held}; "
                    "compile with PTX in it (nvcc -arch=sm_80, or -gencode arch=compute_80,code=compute_80)"
                )
            self._module = merged([self._parsed(text) for text in self.texts])
        return self._module

    def _parsed(self, text: bytes) -> Module:
        path = self.folder / f"{hashlib.sha256(text).hexdigest()[:16]}.ptx"
        if not path.exists():
            path.write_bytes(text)
        return open_bytes(text, str(path))

    def program(self, kernel: str) -> Program:
        """A kernel, linked. Raises InputError."""
        if kernel not in self.programs:
            self.programs[kernel] = link(self.module, kernel)
        return self.programs[kernel]

    def memory(self, device: DeviceMemory) -> Memory:
        """Device memory as this module sees it; its variables are placed on first use. Raises InputError."""
        if self._memory is None:
            self._memory, self.constants_at = device.of_module(self.module.variables)
        self._memory.follow(device.memory)
        return self._memory

    def variable(self, name: str, device: DeviceMemory) -> tuple[int, int]:
        """Address, as the program's process has it, and bytes. Raises InputError for one that is not there."""
        memory = self.memory(device)
        if name in memory.global_variables:
            region = memory.global_variables[name]
            return region.address, region.bytes
        if name in memory.const_variables:
            region = memory.const_variables[name]
            return self.constants_at + region.address, region.bytes
        raise InputError(f"{self.module.path}: no variable '{name}'")


class LoadedModules:
    """All of a program's, by number (from 1)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: list[LoadedModule] = []

    def __getitem__(self, number: int) -> LoadedModule:
        if not 1 <= number <= len(self._modules):
            raise InputError("the program names a module that it did not load")
        return self._modules[number - 1]

    def of_digest(self, digest: str) -> LoadedModule:
        """The module, of those that were used, whose kernels' programs have this digest."""
        return next(m for m in self._modules if any(program.digest == digest for program in m.programs.values()))

    @property
    def architecture(self) -> int:
        """The newest that all modules with PTX have it for (80: 8.0); 80 if there are none. (Of programs linked from
        parts, one is CUDA's own, for kernels that launch kernels: with PTX for the very newest alone.)"""
        return min((module.architecture for module in self._modules if module.architecture), default=80)

    def load(self, is_fat: bool, data: bytes) -> int:
        """A fat binary, or PTX. Raises InputError for a damaged one."""
        found = list(images(data)) if is_fat else [plain_image(data)]
        text = best_ptx(found)
        machine_code = [image for image in found if not image.is_ptx]
        architecture = max((image.architecture for image in found if image.is_ptx), default=0)
        number = len(self._modules) + 1
        self._modules.append(
            LoadedModule(number, self.folder, [] if text is None else [text], machine_code, architecture)
        )
        return number

    def join(self, number: int, part: int) -> None:
        """Make a module's text part of another: both were linked before the program was built."""
        whole, other = self[number], self[part]
        whole.texts += other.texts
        whole.machine_code += other.machine_code


def merged(modules: list[Module]) -> Module:
    """Separately compiled modules as one: what one declares `.extern`, another defines."""
    first, *others = modules
    if not others:
        return first
    variables: dict[str, Variable] = {}
    kernels: dict[str, Kernel] = {}
    base = 0
    for module in modules:  # all of it is parsed: where a function lies depends on those before it
        for variable in module.variables:
            if variable.name not in variables or variables[variable.name].external:
                variables[variable.name] = variable
        for kernel in module.kernels.values():
            kernels.setdefault(kernel.name, replace(kernel, pc_base=base + kernel.pc_base))
        base += sum(len(kernel.instructions) for kernel in module.kernels.values())
    digest = hashlib.sha256("".join(module.digest for module in modules).encode()).hexdigest()
    return replace(first, digest=digest, variables=tuple(variables.values()), kernels=kernels)


def parameter_layout(program: Program) -> Mapping[str, tuple[int, int]]:
    """Offset and bytes of each parameter, by name, in order."""
    return {p.name: (p.offset, p.bytes) for p in program.parameters}
