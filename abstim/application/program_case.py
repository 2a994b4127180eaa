"""The case that a running program is: its launches come one by one, of kernels of several modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from functional.launches.case import Case
from functional.programs.registers import Registers, registers_per_thread

if TYPE_CHECKING:
    from abstim.application.loaded_modules import LoadedModules
    from functional.launches.launch import Launch
    from functional.programs.program import Program


@dataclass
class ProgramCase(Case):
    """`module` is that of no kernel: programs name their own."""

    modules: LoadedModules | None = None
    _registers: dict[tuple[str, str], Registers] = field(default_factory=dict)

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
