"""The folder in which results of slow stages are kept, and how files are written and thrown away.

The folder is `ABSTIM_CACHE`, else `XDG_CACHE_HOME/abstim`, else `~/.cache/abstim`; it can be deleted at any time."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EPERM
from functools import partial
from pathlib import Path
from threading import get_ident
from time import time
from typing import IO

from functional.errors import InputError, note, refuse

TRACE_CACHE_BYTES = 1 << 30  # cap on the traces kept, unless ABSTIM_TRACE_CACHE_BYTES says otherwise
_HALF_WRITTEN_SECONDS = 24 * 3600  # after which nobody is writing a file any more
_told: set[str] = set()  # why files could not be written, said once a process
_temporary: set[str] = set()  # files that are being written


def cache_dir(kind: str) -> Path:
    """The folder of one kind of result ("traces", "tables", ...); it may not exist yet."""
    if own := os.environ.get("ABSTIM_CACHE"):
        return Path(own) / kind
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # there is no home: a folder that cannot be read or written costs time
        base = os.devnull
    return Path(base) / "abstim" / kind


def make_folder(path: Path) -> None:
    """Make a folder and those it is in, for their owner alone: machine code is run as it is found there."""
    for folder in reversed([path, *path.parents]):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and path.stat().st_uid == os.getuid() and path.stat().st_mode & 0o022:
        path.chmod(0o700)  # made by an older version: what is in it is made again, once


def strangers(path: Path) -> str:
    """Who else may have written a file, "" if nobody: one that is not this user's, or in a folder others may write."""
    if not hasattr(os, "getuid"):
        return ""
    for place in (path, path.parent):
        found = place.stat()
        if found.st_uid != os.getuid():
            return f"{place} belongs to another user"
        if found.st_mode & 0o022:
            return f"others may write {place}"
    return ""


def trace_cache_bytes() -> int:
    """Cap on the bytes of traces kept. Raises InputError if the environment's value is not a whole number."""
    text = os.environ.get("ABSTIM_TRACE_CACHE_BYTES", str(TRACE_CACHE_BYTES))
    refuse(not text.isdecimal(), f"ABSTIM_TRACE_CACHE_BYTES = {text!r} is not a whole number of bytes")
    return int(text)


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file that other processes see whole or not at all.

    A cache that cannot be written (read-only, disk full) costs time, not correctness: it is said on stderr."""
    try:
        make_folder(path.parent)
        alone = partial(os.open, mode=0o600)  # the owner's alone, whatever others are allowed otherwise
        with replacing(path) as temporary, open(temporary, "wb", opener=alone) as file:
            write(file)
    except OSError as error:
        if error.strerror not in _told:
            note(f"cache: cannot write {path}: {error.strerror}; what cannot be written is made again each time")
        _told.add(str(error.strerror))


def may_not_write() -> None:
    """This process may write no file, which is no news."""
    _told.add(os.strerror(EPERM))


def check_output(path: Path, *endings: str) -> None:
    """Raises InputError where `write_output` could not write, and for a name that does not end in one of `endings`:
    asked before the work whose result it is to hold."""
    folder = path.absolute().parent
    refuse(path.is_dir(), f"{path}: cannot be written: it is a folder")
    refuse(not folder.is_dir(), f"{path}: cannot be written: there is no folder {folder}")
    refuse(not os.access(folder, os.W_OK), f"{path}: cannot be written: {folder} is not yours to write to")
    if endings and path.suffix not in endings:
        raise InputError(f"{path}: the name must end in {' or '.join(endings)}")


def write_output(path: Path, data: bytes) -> None:
    """Write a file that a user asked for, whole or not at all. Raises InputError if it cannot be written."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place once it is written: nobody sees that half written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}.tmp")
    _temporary.add(str(temporary))
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        _temporary.discard(str(temporary))


def remove_temporary_files() -> None:
    """Of all that is being written: the process is about to end, and no exception will."""
    for path in tuple(_temporary):
        with suppress(OSError):
            os.unlink(path)


def mark_used(path: Path) -> None:
    """Make a file the youngest of its folder: `evict` keeps what is used."""
    with suppress(OSError):  # evicted by another process, or a read-only cache
        os.utime(path)


def evict(folder: Path, cap_bytes: int) -> list[Path]:
    """Delete the files longest unused until the folder and those in it hold at most `cap_bytes`, and what a process
    that was killed has left half written; returns what was deleted."""
    found = []
    for entry in _files(folder):
        with suppress(OSError):  # another process deleted it
            about = entry.stat()
            if not entry.name.endswith(".tmp"):
                found.append((about.st_mtime_ns, about.st_size, entry.path))
            elif time() - about.st_mtime > _HALF_WRITTEN_SECONDS:
                os.unlink(entry.path)
    total, deleted = sum(size for _, size, _ in found), []
    for _, size, path in sorted(found):
        if total <= cap_bytes:
            break
        Path(path).unlink(missing_ok=True)
        deleted.append(Path(path))
        total -= size
    return deleted


def _files(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Of a folder and those in it. `evict` asks after each result that is kept, and there may be thousands."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry
