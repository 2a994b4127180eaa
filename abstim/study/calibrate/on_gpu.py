"""A GPU of this computer as what micro-benchmarks run on."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from statistics import median

import numpy as np

from abstim.study.calibrate import cuda_driver as cuda
from abstim.study.calibrate.experiment import Experiment, Facts, KernelCall
from abstim.study.calibrate.ptx_text import module, ticks

REPEATS = 5
TICK_ROUNDS = 1 << 16


class OnGpu:
    """A Device. The clock is measured, for GPUs run faster or slower than they say. Raises InputError without a GPU."""

    effort = 64  # events tell half a microsecond

    def __init__(self, driver: cuda.CudaDriver | None = None) -> None:
        self.driver = driver = driver or cuda.CudaDriver()
        target = 10 * driver.attribute(cuda.MAJOR) + driver.attribute(cuda.MINOR)
        self._module = driver.load(module(target) + ticks())
        self._function = cache(lambda name: driver.function(self._module, name))
        self.facts = Facts(
            driver.name, self._clock_hz(), driver.attribute(cuda.SM_COUNT), target,
            driver.attribute(cuda.SHARED_PER_SM), driver.attribute(cuda.THREADS_PER_SM),
            driver.attribute(cuda.L2_BYTES),
        )  # fmt: skip

    def _clock_hz(self) -> float:
        """Ticks of an SM's clock in a second, of two lengths of one kernel."""
        found = [self._ticks(rounds * TICK_ROUNDS) for rounds in (1, 4)]
        seconds = found[1][1] - found[0][1]
        if seconds <= 0:
            return 1e3 * self.driver.attribute(cuda.CLOCK_RATE)
        return (found[1][0] - found[0][0]) / seconds

    def _ticks(self, rounds: int) -> tuple[int, float]:
        count = np.zeros(1, np.uint64)
        with self.driver.buffer(8) as address:
            self.driver.start()
            self.driver.launch(self._function("ticks"), 1, 32, [address], [rounds], 0)
            seconds = self.driver.stop()
            self.driver.read(address, count)
        return int(count[0]), seconds

    def seconds(self, experiment: Experiment) -> float:
        """Of the timed launch: the median of some repeats, the launches before it each time."""
        with ExitStack() as held:
            addresses = {
                name: held.enter_context(self.driver.buffer(contents))
                for name, contents in (experiment.buffers or {}).items()
            }
            for call in experiment.before[:-1]:  # what makes a chain of addresses must not do so twice
                self._launch(call, addresses)
            return median(self._timed(experiment, addresses) for _ in range(REPEATS))

    def _timed(self, experiment: Experiment, addresses: dict[str, int]) -> float:
        for call in experiment.before[-1:]:
            self._launch(call, addresses)
        self.driver.start()
        self._launch(experiment.timed, addresses)
        return self.driver.stop()

    def _launch(self, call: KernelCall, addresses: dict[str, int]) -> None:
        pointers, numbers = [addresses[name] for name in call.buffers], list(call.numbers)
        self.driver.launch(self._function(call.kernel), call.grid, call.block, pointers, numbers, call.shared_bytes)
