"""The line records of an instruction whose accesses are known sector by sector: copies of many bytes, `mbarrier`s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from functional.numpy_executor.memory_ops import log_records
from functional.traces.line_record import MORE, SHARED_PASS, line_records

if TYPE_CHECKING:
    from functional.numpy_executor.frame import Frame


def log_touched(frame: Frame, touched: dict[int, list[np.ndarray]], passes: np.ndarray) -> None:
    """Log the numbers of the sectors that an instruction touched, by row of the frame, what it did at barriers, and its
    passes of shared memory [row]."""
    phases = frame.machine.phases.take()
    rows, records = [np.zeros(0, np.int64)], [np.zeros(0, np.uint32)]
    for row, sectors in sorted(touched.items()):
        _, lines = line_records(np.unique(np.concatenate([np.zeros(0, np.uint32), *sectors])).astype(np.uint32)[None])
        noted = np.array(sorted(phases.get(int(frame.index[row]), ())), np.uint32)
        made = np.concatenate([lines, noted, np.full(passes[row], SHARED_PASS, np.uint32)])
        made[:-1] |= MORE
        rows.append(np.full(len(made), row))
        records.append(made)
    some = np.zeros(frame.count, bool)
    some[list(touched)] = True
    log_records(frame, (np.concatenate(rows), np.concatenate(records)), None if some.all() else some)


def wait_records(phases: list[int], passes: int) -> np.ndarray:
    """The records of a lone warp's access to barriers."""
    made = np.array([*sorted(phases), *[SHARED_PASS] * passes], np.uint32)
    made[:-1] |= MORE
    return made
