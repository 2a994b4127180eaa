"""Files of frames: pieces of bytes, each behind its length and checksum, and a mark where the file is complete.

A file is `MAGIC`, then for each frame {u64 bytes, SHA-256, the bytes}, then a frame of no bytes, whose SHA-256 is that
of the checksums before it: the checksum of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import IO

MAGIC = b"abstrc01"  # the last two digits are the version


class DamagedError(ValueError):
    """A file is not what it was when it was written."""


class FrameWriter:
    """Writes frames to an open file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._all = file, hashlib.sha256()
        file.write(MAGIC)

    def write(self, data: bytes) -> None:
        """One frame, of at least a byte."""
        self._frame(data, hashlib.sha256(data).digest())

    def finish(self) -> str:
        """Write the mark; the checksum of the file, in hexadecimal."""
        checksum = self._all
        self._frame(b"", checksum.digest())
        return checksum.hexdigest()

    def _frame(self, data: bytes, digest: bytes) -> None:
        self._file.write(len(data).to_bytes(8, "little") + digest + data)
        if data:
            self._all.update(digest)


def read_frames(file: IO[bytes], checksum: str = "") -> Iterator[bytes]:
    """The frames of an open file, one at a time.

    Raises DamagedError where the file is cut, altered, of another version, or has not the `checksum` that is given.
    """
    magic = file.read(len(MAGIC))
    if magic != MAGIC:
        raise DamagedError(_wrong_start(magic))
    every = hashlib.sha256()
    number = 0
    while True:
        size, digest = int.from_bytes(_exactly(file, 8, number), "little"), _exactly(file, 32, number)
        if not size:
            break
        data = _exactly(file, size, number)
        if hashlib.sha256(data).digest() != digest:
            raise DamagedError(f"the checksum of frame {number} differs")
        every.update(digest)
        number += 1
        yield data
    if digest != every.digest() or (checksum and every.hexdigest() != checksum):
        raise DamagedError("the checksum of the file differs")
    if file.read(1):
        raise DamagedError("there are bytes behind its end")


def _wrong_start(magic: bytes) -> str:
    if len(magic) == len(MAGIC) and magic[:6] == MAGIC[:6] and magic[6:].isdigit():
        return f"it is of version {int(magic[6:])}, this program reads version {int(MAGIC[6:])}"
    return "it does not start as a trace does"


def _exactly(file: IO[bytes], size: int, number: int) -> bytes:
    data = file.read(min(size, 1 << 62))
    if len(data) != size:
        raise DamagedError(f"it ends within frame {number}")
    return data
