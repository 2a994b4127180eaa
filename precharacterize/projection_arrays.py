"""The arrays that `precharacterize.projection` hands to its walk, apart from it: the walk loads a compiler."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np  # noqa: TC002 (named tuples are read as types by the compiler)


class Given(NamedTuple):
    """A trace's arrays."""

    blocks: np.ndarray
    masks: np.ndarray
    records: np.ndarray
    conflicts: np.ndarray
    block_offsets: np.ndarray
    record_offsets: np.ndarray
    conflict_offsets: np.ndarray


class Rules(NamedTuple):
    """The arrays of a TimedCode."""

    choices_at: np.ndarray
    choices: np.ndarray
    fallback: np.ndarray
    streams: np.ndarray
    covers_at: np.ndarray
    covers: np.ndarray
    operations: np.ndarray
    bits: np.ndarray
    rivals: np.ndarray
    numbers: np.ndarray
    accesses_at: np.ndarray
    accesses: np.ndarray
    sources: np.ndarray


class Scratch(NamedTuple):
    """Of one warp: what has been said of each event, where its accesses begin; of one timed block: events it covers."""

    emitted: np.ndarray
    first_access: np.ndarray  # [event, stream]
    record_start: np.ndarray  # by access
    found: np.ndarray  # by cover
    gathered: np.ndarray  # records of accesses made one
    span: np.ndarray  # the warp's first event, the end of its events, the end of its passes, accesses with records


class Made(NamedTuple):
    """The projected trace; `at` is the next place in each stream."""

    blocks: np.ndarray
    masks: np.ndarray
    records: np.ndarray
    conflicts: np.ndarray
    at: np.ndarray
    counts: np.ndarray
