"""A trace as bytes, and files of such bytes.

Every array is kept as differences of successive elements, their bytes sorted by significance, by zstd. Differences of
line records repeat from access to access, and so do those of offsets; equal high bytes in one place take zstd almost
nothing.

A file is `MAGIC`, then for each frame {u64 bytes, SHA-256, the bytes}, then a frame of no bytes, whose SHA-256 is that
of the checksums before it: the checksum of the file."""

import hashlib
from collections.abc import Iterator
from typing import IO

import msgspec
import numpy as np

from functional.errors import refuse
from functional.traces.trace import COUNTS, DTYPES, OFFSETS, Trace

MAGIC = b"abstrc02"  # the last two digits are the version


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

    Raises DamagedError where the file is cut, altered, of another version, or has not the `checksum` that is given."""
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
        refuse(hashlib.sha256(data).digest() != digest, f"the checksum of frame {number} differs", DamagedError)
        every.update(digest)
        number += 1
        yield data
    if digest != every.digest() or (checksum and every.hexdigest() != checksum):
        raise DamagedError("the checksum of the file differs")
    refuse(file.read(1), "there are bytes behind its end", DamagedError)


def _wrong_start(magic: bytes) -> str:
    if len(magic) == len(MAGIC) and magic[:6] == MAGIC[:6] and magic[6:].isdigit():
        return f"it is of version {int(magic[6:])}, this program reads version {int(MAGIC[6:])}"
    return "it does not start as a trace does"


def _exactly(file: IO[bytes], size: int, number: int) -> bytes:
    data = file.read(min(size, 1 << 62))
    refuse(len(data) != size, f"it ends within frame {number}", DamagedError)
    return data


_LEVEL = 3  # of zstd; 9 takes a seventh less space and three times as long


class _Head(msgspec.Struct, array_like=True):
    warps_per_block: int
    lengths: list[int]  # elements of each array, in the order of DTYPES
    sizes: list[int]  # bytes of each, compressed


def encode(trace: Trace) -> bytes:
    """The bytes that `decode` makes an equal trace of."""
    import zstandard

    compress = zstandard.ZstdCompressor(level=_LEVEL).compress
    arrays = [np.asarray(getattr(trace, name), dtype) for name, dtype in DTYPES.items()]
    parts = [compress(_planes(array)) for array in arrays]
    head = msgspec.msgpack.encode(_Head(trace.warps_per_block, [len(a) for a in arrays], [len(p) for p in parts]))
    return b"".join([len(head).to_bytes(4, "little"), head, *parts])


def decode(data: bytes, most_warps: int | None = None) -> Trace:
    """Raises DamagedError if `data` is not what `encode` makes, or of more than `most_warps`."""
    import zstandard

    try:
        return _decode(data, most_warps)
    except (msgspec.DecodeError, zstandard.ZstdError, ValueError) as error:
        raise DamagedError(f"it cannot be decoded: {error}") from None


def _decode(data: bytes, most_warps: int | None) -> Trace:
    start = 4 + int.from_bytes(data[:4], "little")
    head = msgspec.msgpack.decode(data[4:start], type=_Head)
    lengths = dict(zip(DTYPES, head.lengths, strict=True))
    _check_lengths(lengths, head.warps_per_block, most_warps)
    arrays = {}
    for (name, dtype), size in zip(DTYPES.items(), head.sizes, strict=True):
        refuse(size < 0, f"{size} bytes of {name}", ValueError)
        planes = _decompressed(data[start : start + size], lengths[name] * np.dtype(dtype).itemsize)
        arrays[name] = _from_planes(planes, np.dtype(dtype), lengths[name])
        start += size
    return Trace(warps_per_block=head.warps_per_block, **arrays)


def _check_lengths(lengths: dict[str, int], warps_per_block: int, most_warps: int | None) -> None:
    """Raise ValueError for lengths that do not fit together: what they say is room to be taken."""
    warps = lengths["thread_blocks"] * warps_per_block
    if warps_per_block < 1 or warps < 0 or (most_warps is not None and warps > most_warps):
        raise ValueError(f"{lengths['thread_blocks']} thread blocks of {warps_per_block} warps")
    wrong = [name for name in OFFSETS if lengths[name] != warps + 1] + [n for n in COUNTS if lengths[n] != warps]
    pairs = lengths["masks"] != lengths["blocks"] or lengths["partial_at"] != lengths["partial_words"]
    if wrong or pairs or min(lengths.values()) < 0:
        raise ValueError(f"not every array is as long as {warps} warps need")


def _decompressed(part: bytes, size: int) -> bytes:
    import zstandard

    said = zstandard.get_frame_parameters(part).content_size
    refuse(said != size, f"{said} bytes where {size} belong", ValueError)
    return zstandard.ZstdDecompressor().decompress(part)


def _planes(array: np.ndarray) -> bytes:
    """The differences' lowest bytes, then their second bytes, and so on."""
    differences = array.copy()
    differences[1:] -= array[:-1]
    return differences.view(np.uint8).reshape(-1, array.itemsize).T.tobytes()


def _from_planes(data: bytes, dtype: np.dtype, length: int) -> np.ndarray:
    planes = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, length)
    differences = np.ascontiguousarray(planes.T).reshape(-1).view(dtype)
    return np.cumsum(differences, dtype=dtype)  # wraps around as the subtraction did
