"""Write a store, launch by launch and chunk by chunk. A file has its name when it is whole, the manifest comes last."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from functional.errors import InputError
from functional.launches.launch import Launch
from functional.programs.resources import Registers
from functional.ptx.ir import Module
from functional.trace_store import manifest
from functional.trace_store.coding import encode
from functional.trace_store.frames import FrameWriter
from functional.traces.trace import Trace

_OWN_FILES = re.compile(r"manifest\.json|program\.ptx|launch-\d+\.trace|.*\.partial")


class StoreWriter:
    """A store in the making. It holds the launches of one module; until `finish`, nobody takes it for whole."""

    def __init__(self, folder: Path, module: Module, overwrite: bool = False) -> None:
        """Begin a store in a new or empty folder, or with `overwrite` in place of another one.

        Raises InputError if the folder holds anything else or cannot be written, or if the PTX is no longer there.
        """
        self.folder, self._launches = folder, list[manifest.LaunchEntry]()
        ptx = _source(module)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _clear(folder, overwrite)
        self._ptx_sha256 = module.digest
        with self._file(manifest.PTX) as file:
            file.write(ptx)

    def launch(self, launch: Launch, registers: Registers, chunks: Iterable[Trace]) -> None:
        """The next launch: traces of successive thread blocks, together all of them."""
        name = f"launch-{len(self._launches):05d}.trace"
        threads = warps = trace_bytes = 0
        with self._file(name) as file:
            frames = FrameWriter(file)
            for trace in chunks:
                frames.write(encode(trace))
                threads += int(trace.thread_instructions.sum())
                warps += int(trace.warp_instructions.sum())
                trace_bytes += trace.nbytes
            checksum, size = frames.finish(), file.tell()
        entry = manifest.LaunchEntry(
            kernel=launch.program.name, label=launch.label, grid=launch.grid[:], block=launch.block[:],
            dynamic_shared_bytes=launch.dynamic_shared_bytes, shared_bytes=launch.shared_bytes,
            registers=registers.count, registers_source=registers.source, file=name, file_bytes=size,
            checksum=checksum, thread_instructions=threads, warp_instructions=warps, trace_bytes=trace_bytes,
        )  # fmt: skip
        self._launches.append(entry)

    def finish(self, name: str, outputs: Sequence[manifest.OutputEntry], printed: str = "") -> manifest.Manifest:
        """Make it a store: `name` is that of the target, `outputs` the verdict on what it computed, `printed` what its
        kernels wrote with `printf`."""
        whole = manifest.Manifest(name, self._ptx_sha256, tuple(self._launches), tuple(outputs), printed)
        with self._file(manifest.MANIFEST) as file:
            file.write(manifest.encode(whole))
        return whole

    @contextmanager
    def _file(self, name: str) -> Iterator[IO[bytes]]:
        """A file of the store, under another name until it is on the disk."""
        path = self.folder / name
        partial = path.with_name(f".{name}.partial")
        with _writing(path):
            try:
                with partial.open("wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _clear(folder: Path, overwrite: bool) -> None:
    found = sorted(folder.iterdir())
    foreign = [path.name for path in found if not _OWN_FILES.fullmatch(path.name)]
    if foreign:
        raise InputError(f"{folder}: holds {foreign[0]}, which is no part of a trace store; choose another folder")
    if found and not overwrite:
        raise InputError(f"{folder}: is there already; choose another folder, or --overwrite")
    for path in sorted(found, key=lambda p: p.name != manifest.MANIFEST):  # without it the rest counts as unfinished
        path.unlink()


def _source(module: Module) -> bytes:
    """The text the module was parsed from."""
    try:
        text = Path(module.path).read_bytes()
    except OSError:
        text = b""
    if hashlib.sha256(text).hexdigest() != module.digest:
        raise InputError(f"{module.path}: the PTX file has changed since it was read, or is gone")
    return text
