"""Launches that kernels have asked for, until the host takes them.

All that is known lies in a region of memory of its own, so that it goes where memory goes: two words (bytes handed out
behind them, launches submitted), then buffers, each a header of eight words and the kernel's parameters."""

from dataclasses import dataclass

import numpy as np

from functional.errors import ExecutionError
from functional.launches.memory import LAUNCHES, Memory, Region

_UNIT_BYTES = 16
_USED, _COUNT = 0, 1  # words of the head
# Of a buffer. `order`: place in the order, from 1; `place`: where the header lies, by which it is known
_HEADER = np.dtype("<u8, 3<u4, 3<u4, <u4, <u4, <u8, <u8, <u8")
_HEADER.names = ("kernel", "grid", "block", "shared_bytes", "parameter_bytes", "stream", "order", "place")
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
        self.region: Region = memory.opened(LAUNCHES)
        self.bytes = memory.bytes_of(self.region)
        self.words = self.bytes.view(np.uint64)

    def buffer(self, parameter_bytes: int) -> int:
        """Where the parameters of a launch are written to; 0 if there is no room."""
        at = _UNIT_BYTES + int(self.words[_USED])
        size = _size(parameter_bytes)
        if at + size > self.region.bytes:
            return 0
        self.words[_USED] += np.uint64(size)
        self._at(at)[0] = (0, (0, 0, 0), (0, 0, 0), 0, parameter_bytes, 0, 0, at)
        return self.region.address + at + _HEADER.itemsize

    def describe(self, address: int, kernel: int, grid: bytes, block: bytes, shared_bytes: int) -> bool:
        """What is to be launched with the parameters at `address`; False if these are none. `grid` and `block`: three
        words each."""
        header = self._header(address)
        if header is not None:
            header["kernel"], header["shared_bytes"] = kernel, shared_bytes
            header["grid"], header["block"] = np.frombuffer(grid, "<u4"), np.frombuffer(block, "<u4")
        return header is not None

    def parameter_bytes(self, address: int) -> int:
        """How many were asked for at `address`."""
        header = self._header(address)
        return 0 if header is None else int(header["parameter_bytes"][0])

    def submit(self, address: int, stream: int) -> bool:
        """Launch what `address` is the buffer of; False if it is none, or was launched already."""
        header = self._header(address)
        if header is None or header["order"][0]:
            return False
        self.words[_COUNT] += np.uint64(1)
        header["stream"], header["order"] = stream, self.words[_COUNT]
        return True

    def _at(self, at: int) -> np.ndarray:
        return self.bytes[at : at + _HEADER.itemsize].view(_HEADER)

    def _header(self, address: int) -> np.ndarray | None:
        """The header of the parameters at `address`, an array of one; None if there is none."""
        at = address - self.region.address - _HEADER.itemsize
        if not _UNIT_BYTES <= at < _UNIT_BYTES + int(self.words[_USED]) or at % _UNIT_BYTES:
            return None
        return header if (header := self._at(at))["place"][0] == at else None

    def take(self) -> list[DeviceLaunch]:
        """What was submitted, in the order in which it is to be executed; nothing is left. Raises ExecutionError where
        a kernel has written over what stands in front of its parameters."""
        found, at, end = [], _UNIT_BYTES, _UNIT_BYTES + int(self.words[_USED])
        while at < end:
            if at % _UNIT_BYTES or not at + _HEADER.itemsize <= end <= self.region.bytes:
                raise self._damaged()
            kernel, grid, block, shared, size, stream, order, place = self._at(at).tolist()[0]
            if place != at or at + _size(size) > end:
                raise self._damaged()
            if order:
                start = at + _HEADER.itemsize
                parameters = self.bytes[start : start + size].tobytes()
                launch = DeviceLaunch(kernel, tuple(grid.tolist()), tuple(block.tolist()), shared, stream, parameters)
                found.append((stream == TAIL_STREAM, order, launch))
            at += _size(size)
        self.bytes[:end] = 0
        return [launch for *_, launch in sorted(found, key=lambda entry: entry[:2])]

    def _damaged(self) -> ExecutionError:
        self.bytes[:] = 0
        return ExecutionError("a kernel wrote over the header of a launch that it asked for")


def _size(parameter_bytes: int) -> int:
    """Bytes of a buffer, its header included."""
    return _HEADER.itemsize + -(-parameter_bytes // _UNIT_BYTES) * _UNIT_BYTES
