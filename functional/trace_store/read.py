"""Open a store: its launches as a case, their traces as they were written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from functional.errors import InputError
from functional.launches.case import Case
from functional.launches.launch import Dim3, Launch, check_shape
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.programs.resources import MOST_REGISTERS, Registers
from functional.ptx.parser import parse_bytes
from functional.trace_store import manifest
from functional.trace_store.coding import decode
from functional.trace_store.frames import DamagedError, read_frames
from functional.traces.trace import Trace, concatenate


@dataclass
class StoredCase(Case):
    """A case that has been executed elsewhere: no contents of memory, but the trace of every launch."""

    folder: Path = field(default_factory=Path)
    manifest: manifest.Manifest = field(default_factory=lambda: manifest.Manifest("", "", (), ()))

    def registers(self, launch: Launch) -> Registers:
        """Registers a thread, as they were found when the store was written."""
        entry = next(e for e in self.manifest.launches if e.kernel == launch.program.name)
        return Registers(entry.registers, entry.registers_source)

    def stream(self, number: int) -> Iterator[Trace]:
        """The chunks of a launch. Raises InputError for a file that is damaged."""
        entry, launch = self.manifest.launches[number], self.launches[number]
        path = self.folder / entry.file
        try:
            with path.open("rb") as file:
                for frame in read_frames(file, entry.checksum):
                    yield decode(frame, launch.thread_blocks * launch.warps_per_block)
        except DamagedError as error:
            raise manifest.damaged(path, str(error)) from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None

    def trace(self, number: int) -> Trace:
        """The trace of a launch. Raises InputError for a file that is damaged."""
        launch = self.launches[number]
        chunks = list(self.stream(number))
        try:
            trace = concatenate(chunks, launch.warps_per_block)
        except (ValueError, IndexError, TypeError, OverflowError, MemoryError) as error:
            path = self.folder / self.manifest.launches[number].file
            raise manifest.damaged(path, f"its chunks do not fit together: {error}") from None
        if len(trace.thread_blocks) != launch.thread_blocks:
            path = self.folder / self.manifest.launches[number].file
            raise manifest.damaged(path, f"{len(trace.thread_blocks)} thread blocks of {launch.thread_blocks}")
        return trace


def open_store(folder: str | Path) -> StoredCase:
    """The case in a store. Raises InputError if a file is missing, cut or damaged, as far as that shows without reading
    the traces.
    """
    folder = Path(folder)
    whole = manifest.read(folder)
    for entry in whole.launches:
        if Path(entry.file).name != entry.file or entry.file in ("", ".", ".."):
            raise manifest.damaged(folder, f"its manifest names {entry.file!r}, which is no file of the store")
        _check_size(folder / entry.file, entry.file_bytes)
    path = folder / manifest.PTX
    _check_size(path, None)
    ptx = path.read_bytes()
    if hashlib.sha256(ptx).hexdigest() != whole.ptx_sha256:
        raise manifest.damaged(path, "its checksum differs")
    module = parse_bytes(ptx, str(path))
    programs = {kernel: link(module, kernel) for kernel in dict.fromkeys(e.kernel for e in whole.launches)}
    launches: list[Launch] = []
    for entry in whole.launches:
        program, grid, block = programs[entry.kernel], Dim3(*entry.grid), Dim3(*entry.block)
        check_shape(program, grid, block, entry.dynamic_shared_bytes)
        launch = Launch(program, grid, block, b"", entry.dynamic_shared_bytes, entry.label)
        if entry.shared_bytes != launch.shared_bytes or not 0 < entry.registers <= MOST_REGISTERS:
            said = f"{entry.shared_bytes} B of shared memory, {entry.registers} registers"
            raise manifest.damaged(folder, f"launch {len(launches)} of its manifest has {said}")
        launches.append(launch)
    return StoredCase(whole.name, module, Memory(), tuple(launches), folder=folder, manifest=whole)


def _check_size(path: Path, size_bytes: int | None) -> None:
    """Raise InputError for a file that is not there, or has not the size it had."""
    if not path.is_file():
        raise manifest.damaged(path, "it is missing")
    found = path.stat().st_size
    if size_bytes is not None and found != size_bytes:
        raise manifest.damaged(path, f"it has {found} bytes of {size_bytes}")
