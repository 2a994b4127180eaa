"""`malloc` and `free` of kernels: first fit in a region of global memory that outlives the launch.

All that is known lies in the region itself, so that it goes where memory goes: two words (bytes handed out from the
start, blocks that were given back), then blocks, each behind a header of two words (its bytes, is it taken?).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from functional.launches.memory import Memory, Region

_UNIT_BYTES = 16  # of sizes and headers; what malloc aligns to
_USED, _FREE = 0, 1  # words of the head


class Heap:
    """The heap of a memory."""

    def __init__(self, memory: Memory) -> None:
        self.region: Region = memory.open_heap()
        self.words = memory.bytes_of(self.region).view(np.uint64)

    def allocate(self, size_bytes: int) -> int:
        """The address of so many bytes, 0 if there are not as many."""
        wanted = max(_UNIT_BYTES, -(-size_bytes // _UNIT_BYTES) * _UNIT_BYTES)
        at = self._free_block(wanted) if self.words[_FREE] else 0
        if at:
            self.words[_FREE] -= np.uint64(1)
        else:
            at = _UNIT_BYTES + int(self.words[_USED])
            if size_bytes > self.region.bytes or at + _UNIT_BYTES + wanted > self.region.bytes:
                return 0
            self.words[_USED] += np.uint64(_UNIT_BYTES + wanted)
            self.words[at // 8] = wanted
        self.words[at // 8 + 1] = 1
        return self.region.address + at + _UNIT_BYTES

    def release(self, address: int) -> bool:
        """Give a block back; False if none that is taken begins there."""
        header = address - self.region.address - _UNIT_BYTES
        for at in self._blocks():
            if at == header and self.words[at // 8 + 1]:
                self.words[at // 8 + 1] = 0
                self.words[_FREE] += np.uint64(1)
                return True
        return False

    def _free_block(self, wanted: int) -> int:
        """The first block that was given back and is large enough, 0 if none is."""
        found = (at for at in self._blocks() if not self.words[at // 8 + 1] and int(self.words[at // 8]) >= wanted)
        return next(found, 0)

    def _blocks(self):  # type: ignore[no-untyped-def]
        at, stop = _UNIT_BYTES, _UNIT_BYTES + int(self.words[_USED])
        while at < stop:
            yield at
            at += _UNIT_BYTES + int(self.words[at // 8])
