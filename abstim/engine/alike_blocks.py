"""Thread blocks that are alike in all that the engine reads with perfect memory but the lines of their data, and
whether SMs that get such thread blocks are worth being run once (equal_sms.py)."""

from hashlib import blake2b
from weakref import finalize

import numpy as np

from abstim.gpu.config import Gpu
from functional.arrays import Int64
from functional.traces.line_record import FIRST_GLOBAL_LINE, LINE_SHIFT, is_data, line_of
from functional.traces.trace import LOCAL_WINDOW_LINE, STREAMS, Trace

EVERY_BLOCK_ITS_OWN = np.zeros(0, np.int64)
LEAST_WARP_INSTRUCTIONS = 1 << 14  # fewer take no longer than to tell thread blocks apart
MOST_UNEQUAL = 0.6  # of the SMs: more are run one by one
_HELD: dict[int, Int64[np.ndarray, " tb"]] = {}  # kinds by trace


def kinds_of(trace: Trace, gpu: Gpu) -> Int64[np.ndarray, " tb"]:
    """The kind of each thread block of a launch from empty caches; none where SMs are to be run one by one."""
    spec = gpu.spec
    alone = not spec.perfect_memory or gpu.params.dispatch_interval_cycles or spec.sm_count == 1
    if alone or trace.warp_instructions.sum() < LEAST_WARP_INSTRUCTIONS:
        return EVERY_BLOCK_ITS_OWN
    if id(trace) not in _HELD:
        finalize(trace, _HELD.pop, id(trace), None)
        _HELD[id(trace)] = _told_apart(trace)
    kinds, sms = _HELD[id(trace)], spec.sm_count
    turns = np.append(kinds, np.full(-len(kinds) % sms, -1)).reshape(-1, sms).T  # of each SM, if they come by turns
    unlike = len(set(map(bytes, np.ascontiguousarray(turns[: len(kinds)]))))
    return kinds if unlike <= MOST_UNEQUAL * min(sms, max(1, len(kinds))) else EVERY_BLOCK_ITS_OWN


def _told_apart(trace: Trace) -> Int64[np.ndarray, " tb"]:
    """Kinds by a digest, of 128 bits, of what the warps of a thread block execute and access."""
    lines, each = line_of(trace.records), trace.warps_per_block
    one, local = (np.uint32(line << LINE_SHIFT) for line in (FIRST_GLOBAL_LINE, LOCAL_WINDOW_LINE))
    like = trace.records & np.uint32((1 << LINE_SHIFT) - 1) | np.where(lines < LOCAL_WINDOW_LINE, one, local)
    records = np.where(is_data(lines), like, trace.records)
    streams = {name: np.ascontiguousarray(getattr(trace, name)) for name in STREAMS} | {"records": records}
    cuts = {name: getattr(trace, STREAMS[name]) for name in ("blocks", "records", "conflicts")}
    parts = [(streams[name].view(np.uint8).data, cuts[name][::each] * streams[name].itemsize) for name in cuts]
    lengths = np.stack([np.diff(cut) for cut in cuts.values()], axis=1).reshape(len(trace.thread_blocks), -1)
    numbers, kinds = dict[bytes, int](), np.empty(len(lengths), np.int64)
    for k, own in enumerate(lengths):
        digest = blake2b(own.tobytes(), digest_size=16)
        for stream, starts in parts:
            digest.update(stream[starts[k] : starts[k + 1]])
        kinds[k] = numbers.setdefault(digest.digest(), len(numbers))
    return kinds
