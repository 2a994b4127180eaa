"""The traces of successive chunks as one, copied by several threads where that pays."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np

from functional.traces.trace import COUNTS, OFFSETS, STREAMS, Trace

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
