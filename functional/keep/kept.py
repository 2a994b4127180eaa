"""Results of slow stages as files: one a result, named by all that it depends on, with a checksum at its head."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from functional.keep.digest import sources_digest
from functional.keep.folder import cache_dir, evict, mark_used, strangers, write_atomic
from functional.terminal import note

Result = TypeVar("Result")
KEPT_BYTES = 1 << 28  # cap on the results of one kind, unless it has another
_CHECKSUM_BYTES = hashlib.sha256().digest_size


def key(modules: tuple[str, ...], *parts: Any) -> str:
    """A name for what the code of some modules makes of some inputs.

    It changes with the source of the modules and of all that they import, with the versions of their libraries
    (`sources_digest`), and with any part: bytes and arrays by their contents, anything else by its text.
    """
    digest = hashlib.sha256(sources_digest(*modules).encode())
    for part in parts:
        data: Any = part if isinstance(part, (bytes, bytearray, np.ndarray)) else str(part).encode()
        digest.update(f"{memoryview(data).nbytes}:".encode())
        digest.update(data)
    return digest.hexdigest()


class Kept:
    """The results of one kind ("traces", "tables", ...), in a folder of their own below the cache folder.

    A file that is damaged is made again, and one that cannot be written is done without; either is said on stderr.
    """

    def __init__(self, kind: str) -> None:
        """The folder is that of the moment: the environment may change."""
        self.folder, self._all = cache_dir(kind), cache_dir(kind.partition("/")[0])

    def path(self, name: str) -> Path:
        """The file of a result."""
        return self.folder / name

    def load(self, name: str, decode: Callable[[bytes], Result]) -> Result | None:
        """What is kept under a name, None if there is nothing; a damaged file is deleted."""
        path = self.path(name)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if who := strangers(path):
            note(f"cache: {who}; {name} is made again")
            return None
        try:
            found = decode(_checked(content))
        except Exception as error:  # whatever is wrong with the file, it can be made again
            note(f"cache: {path} is damaged ({error}); it is made again")
            self.forget(name)
            return None
        mark_used(path)
        return found

    def save(self, name: str, content: bytes, cap_bytes: int = KEPT_BYTES) -> None:
        """Keep a result, and throw away those longest unused if the kind's folder is over its cap."""
        path = self.path(name)
        if len(content) + _CHECKSUM_BYTES > cap_bytes:
            return
        write_atomic(path, lambda file: file.writelines((hashlib.sha256(content).digest(), content)))
        evict(self._all, cap_bytes)

    def load_or_make(self, name: str, make: Callable[[], bytes]) -> bytes:
        """What is kept under a name; made, and kept, if it is not there."""
        found = self.load(name, bytes)
        if found is None:
            found = make()
            self.save(name, found)
        return found

    def forget(self, name: str) -> None:
        """Delete a result, if it is there and can be."""
        try:
            self.path(name).unlink(missing_ok=True)
        except OSError as error:
            note(f"cache: cannot delete {self.path(name)}: {error.strerror}")

    def names(self) -> Iterator[str]:
        """Of all results that are there."""
        return (path.name for path in self.folder.glob("*") if not path.name.endswith(".tmp"))


def _checked(content: bytes) -> bytes:
    """A file's content behind its checksum. Raises ValueError if they do not fit."""
    checksum, data = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if hashlib.sha256(data).digest() != checksum:
        raise ValueError("its checksum differs")
    return data
