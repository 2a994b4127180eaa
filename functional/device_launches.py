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
    from functional.memory import Memory, Region

_UNIT_BYTES = 16
_USED, _COUNT = 0, 1  # words of the head
# Kernel; extents of grid and thread block; bytes of shared memory; of parameters; stream; place in the order, from 1;
# where the header lies, by which it is known
_HEADER = struct.Struct("<Q 12s 12s I I Q Q Q")
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

    def buffer(self, kernel: int, grid: int, block: int, shared_bytes: int, parameter_bytes: int) -> int:
        """Where the parameters of a launch are written to; 0 if there is no room. `grid` and `block`: three words."""
        at = _UNIT_BYTES + int(self.words[_USED])
        size = _HEADER.size + -(-parameter_bytes // _UNIT_BYTES) * _UNIT_BYTES
        if at + size > self.region.bytes:
            return 0
        self.words[_USED] += np.uint64(size)
        extents = grid.to_bytes(12, "little"), block.to_bytes(12, "little")
        header = _HEADER.pack(kernel, *extents, shared_bytes, parameter_bytes, 0, 0, at)
        self.bytes[at : at + _HEADER.size] = np.frombuffer(header, np.uint8)
        return self.region.address + at + _HEADER.size

    def submit(self, address: int, stream: int) -> bool:
        """Launch what `address` is the buffer of; False if it is none, or was launched already."""
        at = address - self.region.address - _HEADER.size
        if not _UNIT_BYTES <= at < _UNIT_BYTES + int(self.words[_USED]) or at % _UNIT_BYTES:
            return False
        if self.words[(at + _PLACE_AT) // 8] != at or self.words[(at + _ORDER_AT) // 8]:
            return False
        self.words[_COUNT] += np.uint64(1)
        self.words[(at + _STREAM_AT) // 8] = stream
        self.words[(at + _ORDER_AT) // 8] = self.words[_COUNT]
        return True

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
