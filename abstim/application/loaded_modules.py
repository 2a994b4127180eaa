"""Modules that a program loads: PTX out of its fat binaries, parsed when a kernel or variable of it is first used; and
the case that a program is, whose launches come one by one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from abstim.application.device_memory import DeviceMemory
from abstim.application.fat_binary import Image, best_ptx, images, plain_image, registers_of
from functional.errors import InputError, refuse
from functional.launches.case import Case
from functional.launches.launch import Launch
from functional.launches.memory import Memory, function_address
from functional.programs.link import link
from functional.programs.program import Program
from functional.programs.registers import Registers, registers_per_thread
from functional.ptx.ir import Module
from functional.ptx.joined_parts import joined_parts
from functional.ptx.parser import open_bytes, text_of


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
    _memory: Memory | None = None

    @cached_property
    def module(self) -> Module:
        """The parsed PTX. Raises InputError if there is none, or it does not parse."""
        if not self.texts:
            names = sorted({name for image in self.machine_code for name in registers_of(image.contents)})
            held = ", ".join(f"sm_{image.architecture}" for image in self.machine_code)
            raise InputError(
                f"the program holds no PTX of {', '.join(names[:3]) or 'a module'}, only machine code for {held}; "
                "compile with PTX in it (nvcc -arch=sm_80, or -gencode arch=compute_80,code=compute_80)"
            )
        text = self.texts[0]
        if len(self.texts) > 1:
            text = joined_parts([text_of(part, "a part of the program") for part in self.texts]).encode()
        path = self.folder / f"{hashlib.sha256(text).hexdigest()[:16]}.ptx"
        if not path.exists():
            path.write_bytes(text)
        return open_bytes(text, str(path))

    def program(self, kernel: str) -> Program:
        """A kernel, linked. Raises InputError."""
        if kernel not in self.programs:
            self.programs[kernel] = link(self.module, kernel)
        return self.programs[kernel]

    def program_at(self, address: int) -> Program:
        """The kernel that kernels know by an address. Raises InputError if there is none, or more than one."""
        named = [name for name in self.module.entries if function_address(name) == address]
        refuse(len(named) != 1, f"{self.module.path}: {len(named)} kernels have the address {address:#x}")
        return self.program(named[0])

    def memory(self, device: DeviceMemory) -> Memory:
        """Device memory as this module sees it; its variables are placed on first use. Raises InputError."""
        if self._memory is None:
            self._memory, self.constants_at = device.of_module(self.module.variables)
        self._memory.follow(device.memory)
        return self._memory

    def variable(self, name: str, device: DeviceMemory) -> tuple[int, int]:
        """Address, as the program's process has it, and bytes. Raises InputError for one that is not there."""
        memory = self.memory(device)
        for variables, start in ((memory.global_variables, 0), (memory.const_variables, self.constants_at)):
            if region := variables.get(name):
                return start + region.address, region.bytes
        raise InputError(f"{self.module.path}: no variable '{name}'")


class LoadedModules:
    """All of a program's, by number (from 1)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: list[LoadedModule] = []

    def __getitem__(self, number: int) -> LoadedModule:
        refuse(not 1 <= number <= len(self._modules), "the program names a module that it did not load")
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
        number, texts = len(self._modules) + 1, [] if text is None else [text]
        self._modules.append(LoadedModule(number, self.folder, texts, machine_code, architecture))
        return number

    def join(self, number: int, part: int) -> None:
        """Make a module's text part of another: both were linked before the program was built."""
        whole, other = self[number], self[part]
        whole.texts += other.texts
        whole.machine_code += other.machine_code


@dataclass
class ProgramCase(Case):
    """`module` is that of no kernel: programs name their own."""

    modules: LoadedModules | None = None
    _registers: dict[tuple[str, str], Registers] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, modules: LoadedModules) -> ProgramCase:
        """A program that has not launched anything yet."""
        return cls(name, Module(name, "", "", "", 64, (), {}), Memory(), (), modules=modules)

    def registers(self, launch: Launch) -> Registers:
        """Registers a thread of a launched kernel."""
        return self.registers_of(launch.program)

    def registers_of(self, program: Program) -> Registers:
        """Registers a thread, and where the number is from."""
        key = (program.digest, program.name)
        if key not in self._registers:
            assert self.modules is not None
            target = self.modules.of_digest(program.digest).module.target
            self._registers[key] = registers_per_thread(program, target, self.resources)
        return self._registers[key]
