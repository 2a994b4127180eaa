"""`--record`: the traces of a program's launches as stores that `abstim run` and `abstim sample` take."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from functional.errors import InputError
from functional.trace_store import StoreWriter

if TYPE_CHECKING:
    from abstim.application.loaded_modules import LoadedModules
    from functional.launches.launch import Launch
    from functional.programs.registers import Registers
    from functional.traces.trace import Trace


class LaunchStores:
    """A store for each module whose kernels are launched, `module-1` and so on, in a folder that is new or empty."""

    def __init__(self, folder: Path, modules: LoadedModules) -> None:
        """Raises InputError for a folder that holds something."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder}: is there already; choose another folder to record in")
        self.folder, self._modules = folder, modules
        self._writers: dict[str, StoreWriter] = {}

    def add(self, launch: Launch, registers: Registers, chunks: Iterable[Trace]) -> None:
        """The next launch."""
        digest = launch.program.digest
        if digest not in self._writers:
            module = self._modules.of_digest(digest)
            self._writers[digest] = StoreWriter(self.folder / f"module-{len(self._writers) + 1}", module.module)
        self._writers[digest].launch(launch, registers, chunks)

    @property
    def folders(self) -> tuple[Path, ...]:
        """One a module, in the order of their first launches."""
        return tuple(writer.folder for writer in self._writers.values())

    def finish(self, name: str) -> None:
        """Make them whole; until then, nobody takes them for stores."""
        for writer in self._writers.values():
            writer.finish(name, [])
