"""Nothing is predicted from a launch whose caches are on their way to overflowing."""

from __future__ import annotations

import numpy as np
import pytest

from sampling.launch_in_progress import Run
from sampling.photon import KernelSampling
from sampling.protocol import LaunchShape, Observation


class Scripted:
    """A simulator of 100 thread blocks of which each is over at the next step; `fill` is told step by step."""

    shape = LaunchShape(name="scripted", thread_blocks=100, warps_per_block=1, wave_blocks=40, cores=10)

    def __init__(self, fill: list[float]) -> None:
        self.fill = fill

    def begin(self) -> None:
        self.state = 0

    def step(self, thread_blocks: np.ndarray) -> Observation:
        state, self.state = self.state, self.state + 1
        flying, clock = np.asarray(thread_blocks), 10.0 * (state + 1)
        gone = flying - len(flying) if state else flying[:0]
        return Observation(
            clock_cycles=clock,
            blocks=gone,
            block_dispatch_cycles=np.full(len(gone), clock - 10),
            block_retire_cycles=np.full(len(gone), clock - 1),
            resident_dispatch_cycles=np.full(len(flying), clock),
            resident_blocks=flying,
            dispatched_instructions=10.0 * len(flying) * (state + 1),
            cache_fill=self.fill[state],
        )


@pytest.mark.parametrize(
    ("fill", "since"),
    [
        ([1.0, 1.0, 1.0], 10.0),  # full from the start, or no cache
        ([0.3, 0.6, 0.96], 30.0),  # would overflow: wait until it has
        ([0.01, 0.02, 0.03], 20.0),  # never will: steady, once something has retired to judge by
        ([0.3, 0.1, 0.6], None),  # seemed not to fill, and then did
    ],
)
def test_warm_caches(fill: list[float], since: float | None) -> None:
    run = Run(Scripted(fill), chunk=10)
    for _ in fill:
        run.step()
    assert run.warm_since == since
    assert not run.settled  # that takes a wave more


def shape(blocks: int) -> LaunchShape:
    return LaunchShape(name="k", thread_blocks=blocks, warps_per_block=4, wave_blocks=60, cores=15)


@pytest.mark.parametrize(
    ("a", "b", "comparable"),
    [
        (50, 50, True),
        (50, 47, True),  # both held at once, nearly as large
        (50, 25, False),  # IPC grows with the warps there
        (50, 80, False),  # one fills the GPU, the other does not
        (600, 6000, True),
        (3, 3, True),
        (3, 2, False),  # fewer warps than cores: equal ones only
    ],
)
def test_launches_that_kernel_sampling_compares(a: int, b: int, comparable: bool) -> None:
    assert KernelSampling()._comparable(shape(a), shape(b)) is comparable
