"""How many thread blocks to run at a time: few enough that their trace fits, enough that the time counts. And the
traces of successive chunks as one, copied by several threads where that pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np

from functional.launches.launch import Launch
from functional.traces.trace import COUNTS, OFFSETS, STREAMS, Trace

_FIRST_WARPS = 8
_MOST_GROWTH = 8


# Thread instructions of a chunk where several run at once: some milliseconds
_LEAST_INSTRUCTIONS, _MOST_INSTRUCTIONS = 1 << 24, 1 << 26
# Neighbouring blocks often write bytes of one sector, which belong in one chunk: 8 blocks a float each, 32 a byte each
_ALIGNMENTS = (32, 8)


class Sizes:
    """Sizes of the chunks of a launch, from what its chunks so far took. `chunk_bytes`: of a trace, None for any."""

    def __init__(self, launch: Launch, chunk_bytes: int | None, threads: int = 1) -> None:
        self.chunk_bytes, self.threads = chunk_bytes, threads
        self._first = max(1, _FIRST_WARPS // launch.warps_per_block)
        columns, rows = launch.grid.x, launch.grid.y * launch.grid.z
        self._alignments = (-(-_ALIGNMENTS[0] // columns) * columns, columns) if rows > 1 else _ALIGNMENTS
        self._size = self._blocks = self._bytes = self._instructions = 0

    @property
    def instructions_per_block(self) -> float:
        """Mean thread instructions of the thread blocks that have run."""
        return max(1, self._instructions) / max(1, self._blocks)

    def saw(self, trace: Trace) -> None:
        """Take account of a chunk."""
        self._blocks += len(trace.thread_blocks)
        self._bytes += trace.nbytes
        self._instructions += int(trace.thread_instructions.sum())

    def serial(self, left: int) -> int:
        """Thread blocks of the next chunk, where one runs after the other; `left` remain."""
        return left if self.chunk_bytes is None else self._next(left, self._fitting(left))

    def parallel(self, position: int, stop: int) -> int:
        """Thread blocks of the next chunk, where several run at once and `position` of `stop` are under way.

        Smaller towards the end, so that all threads end at about the same time; whole rows of a grid, if possible.
        """
        if not self._blocks:
            return self._next(stop - position, stop - position)
        least, most = (max(1, int(n / self.instructions_per_block)) for n in (_LEAST_INSTRUCTIONS, _MOST_INSTRUCTIONS))
        left = stop - position
        share = min(most, max(least, left // (2 * self.threads)), self._fitting(left))
        size = self._next(left, share)
        if size == left:
            return left
        ends = [(position + size) // unit * unit for unit in self._alignments]
        ends += [(position // unit + 1) * unit for unit in self._alignments if position % unit + share >= unit]
        return next((end for end in ends if end > position), position + size) - position

    def _fitting(self, left: int) -> int:
        """Thread blocks whose trace is about as large as it may be."""
        if self.chunk_bytes is None or not self._bytes:
            return left
        return self.chunk_bytes * self._blocks // self._bytes

    def _next(self, left: int, wanted: int) -> int:
        self._size = max(1, min(wanted, _MOST_GROWTH * self._size if self._size else self._first))
        return min(left, self._size)


_DTYPES = {
    "thread_blocks": np.int64, **dict(zip(STREAMS, (np.uint16, np.uint32, np.uint32, np.uint8), strict=True)),
    **dict.fromkeys(COUNTS, np.int64),
}  # fmt: skip
_CUT = {offsets: stream for stream, offsets in STREAMS.items()}  # offsets -> a stream that they cut
_WORTH_THREADS = 1 << 22  # bytes below which starting threads takes as long as it saves


def joined(traces: Sequence[Trace], warps_per_block: int, threads: int) -> Trace:
    """What `functional.traces.trace.concatenate` gives."""
    lengths = {name: [len(getattr(trace, name)) for trace in traces] for name in _DTYPES}
    starts = {name: list(accumulate(own, initial=0)) for name, own in lengths.items()}
    whole = {name: np.empty(starts[name][-1], dtype) for name, dtype in _DTYPES.items()}
    warps = starts["warp_instructions"]
    whole.update({name: np.zeros(warps[-1] + 1, np.int64) for name in OFFSETS})

    def copy(number: int) -> None:
        trace = traces[number]
        for name in _DTYPES:
            whole[name][starts[name][number] : starts[name][number + 1]] = getattr(trace, name)
        for name, stream in _CUT.items():
            target = whole[name][warps[number] + 1 : warps[number + 1] + 1]
            np.add(getattr(trace, name)[1:], starts[stream][number], out=target)

    numbers = range(len(traces))
    if threads == 1 or sum(array.nbytes for array in whole.values()) < _WORTH_THREADS:
        list(map(copy, numbers))
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(copy, numbers))
    return Trace(warps_per_block=warps_per_block, **whole)
