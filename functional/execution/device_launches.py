"""Launches that kernels have asked for, until the host takes them.

All that is known lies in a region of memory of its own, so that it goes where memory goes: two words (bytes handed out
behind them, launches submitted), then buffers, each a header of eight words and the kernel's parameters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from functional.launches.memory import Memory, Region

_UNIT_BYTES = 16
_USED, _COUNT = 0, 1  # words of the head
# Kernel; extents of grid and thread block; bytes of shared memory; of parameters; stream; place in the order, from 1;
# where the header lies, by which it is known
_HEADER = struct.Struct("<Q 12s 12s I I Q Q Q")
_KIND = struct.Struct("<Q 12s 12s I")  # what is launched
_PARAMETER_BYTES_AT, _STREAM_AT, _ORDER_AT, _PLACE_AT = 36, 40, 48, 56
TAIL_STREAM = 3  # `cudaStreamTailLaunch`: after all else that its grid launches


@dataclass(frozen=True)
class DeviceLaunch:
    """`kernel`: its address; extents are x, y, z."""

    kernel: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic_shared_bytes: int
    stream: int
    parameters: bytes


class DeviceLaunches:
    """Those of a memory."""

    def __init__(self, memory: Memory) -> None:
        self.region: Region = memory.open_launches()
        self.bytes = memory.bytes_of(self.region)
        self.words = self.bytes.view(np.uint64)

    def buffer(self, parameter_bytes: int) -> int:
        """Where the parameters of a launch are written to; 0 if there is no room."""
        at = _UNIT_BYTES + int(self.words[_USED])
        size = _HEADER.size + -(-parameter_bytes // _UNIT_BYTES) * _UNIT_BYTES
        if at + size > self.region.bytes:
            return 0
        self.words[_USED] += np.uint64(size)
        _HEADER.pack_into(self.bytes.data, at, 0, b"", b"", 0, parameter_bytes, 0, 0, at)
        return self.region.address + at + _HEADER.size

    def describe(self, address: int, kernel: int, grid: bytes, block: bytes, shared_bytes: int) -> bool:
        """What is to be launched with the parameters at `address`; False if these are none. `grid` and `block`: three
        words each."""
        at = self._header(address)
        if at:
            _KIND.pack_into(self.bytes.data, at, kernel, grid, block, shared_bytes)
        return bool(at)

    def parameter_bytes(self, address: int) -> int:
        """How many were asked for at `address`."""
        at = self._header(address)
        return struct.unpack_from("<I", self.bytes.data, at + _PARAMETER_BYTES_AT)[0] if at else 0

    def submit(self, address: int, stream: int) -> bool:
        """Launch what `address` is the buffer of; False if it is none, or was launched already."""
        at = self._header(address)
        if not at or self.words[(at + _ORDER_AT) // 8]:
            return False
        self.words[_COUNT] += np.uint64(1)
        self.words[(at + _STREAM_AT) // 8] = stream
        self.words[(at + _ORDER_AT) // 8] = self.words[_COUNT]
        return True

    def _header(self, address: int) -> int:
        """Where the header of the parameters at `address` lies; 0 if there is none."""
        at = address - self.region.address - _HEADER.size
        if not _UNIT_BYTES <= at < _UNIT_BYTES + int(self.words[_USED]) or at % _UNIT_BYTES:
            return 0
        return at if self.words[(at + _PLACE_AT) // 8] == at else 0

    def take(self) -> list[DeviceLaunch]:
        """What was submitted, in the order in which it is to be executed; nothing is left."""
        found = []
        for at in self._places():
            header = _HEADER.unpack_from(self.bytes.data, at)
            kernel, grid, block, shared, parameter_bytes, stream, order, _ = header
            if order:
                start = at + _HEADER.size
                extents = struct.unpack("<3I", grid), struct.unpack("<3I", block)
                parameters = self.bytes[start : start + parameter_bytes].tobytes()
                launch = DeviceLaunch(kernel, *extents, shared, stream, parameters)
                found.append((stream == TAIL_STREAM, order, launch))
        self.bytes[: _UNIT_BYTES + int(self.words[_USED])] = 0
        return [launch for *_, launch in sorted(found, key=lambda entry: entry[:2])]

    def _places(self) -> Iterator[int]:
        """Where the header of each buffer begins."""
        at = _UNIT_BYTES
        while at < _UNIT_BYTES + int(self.words[_USED]):
            yield at
            (size,) = struct.unpack_from("<I", self.bytes.data, at + _PARAMETER_BYTES_AT)
            at += _HEADER.size + -(-size // _UNIT_BYTES) * _UNIT_BYTES
