"""Trace stores: whole checksums, other contents."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from random import Random

import numpy as np

from abstim.targets.check_trace import block_counts, problem
from functional.errors import InputError
from functional.traces import store
from functional.traces.store import DamagedError
from functional.traces.trace import Trace
from fuzz_kinds.small_launch import small_launch, timed


def make_store(rng: Random) -> bytes:
    """A frame of a trace whose arrays were altered, or a frame whose bytes were."""
    _, _, trace = small_launch()
    changes = {}
    for name in rng.sample([f.name for f in fields(Trace) if f.name != "warps_per_block"], rng.choice([0, 1, 1, 2])):
        changes[name] = altered_array(getattr(trace, name), rng)
    forged = replace(trace, **changes)
    if rng.random() < 0.1:
        forged = replace(forged, warps_per_block=rng.choice([0, 1, 3, -1, 1 << 40]))
    data = bytearray(store.encode(forged))
    if rng.random() < 0.4:
        for _ in range(rng.choice([1, 1, 3])):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(1, len(data))] if rng.random() < 0.1 else data)


def altered_array(values: np.ndarray, rng: Random) -> np.ndarray:
    found = values.copy()
    if rng.random() < 0.2 or not len(found):
        return found[: rng.randrange(len(found) + 1)]
    for _ in range(rng.choice([1, 1, 2])):
        near = int(found[rng.randrange(len(found))]) + rng.choice([-1, 0, 1])
        number = rng.choice([near, rng.getrandbits(16), rng.getrandbits(63), -rng.getrandbits(40), 0])
        found[rng.randrange(len(found))] = np.array([number & ((1 << 64) - 1)], np.uint64).astype(found.dtype)[0]
    return found


def judge_store(data: bytes, _: Path) -> str:
    """Decoded, held against its launch, and timed if nothing shows."""
    _, launch, _ = small_launch()
    try:
        trace = store.decode(data, launch.thread_blocks * launch.warps_per_block)
    except DamagedError as error:
        raise InputError(str(error)) from None
    if wrong := problem(trace, launch, block_counts(launch.program), np.arange(launch.thread_blocks)):
        raise InputError(wrong)
    timed(launch, trace)
    return "runs"
