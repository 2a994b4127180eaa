"""Launches by kernels, where a kernel has written over what abstim keeps in front of their parameters."""

from __future__ import annotations

import numpy as np
import pytest

from functional.errors import ExecutionError
from functional.execution.device_launches import DeviceLaunches
from functional.launches.memory import Memory

_SIZE, _PLACE = 36, 56  # bytes of a header in front of its fields


@pytest.mark.parametrize(
    ("at", "value"), [(-80, 10**12), (-80, 24), (_SIZE - 64, 2 * 10**9), (_PLACE - 64, 0), (_PLACE - 64, 8)]
)
def test_a_header_that_a_kernel_wrote_over(at: int, value: int) -> None:
    memory = Memory()
    launches = DeviceLaunches(memory)
    address = launches.buffer(16)
    launches.describe(address, 5, bytes(12), bytes(12), 0)
    assert launches.submit(address, 0)
    start = address - launches.region.address + at
    launches.bytes[start : start + 4 + 4 * (at != _SIZE - 64)] = np.frombuffer(
        value.to_bytes(4 + 4 * (at != _SIZE - 64), "little"), np.uint8
    )
    with pytest.raises(ExecutionError, match="wrote over the header"):
        launches.take()
    assert launches.take() == []
