"""Principal Kernel Projection: stop a launch when its IPC has been stable for a while. PKA, section 3.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.dispatcher import dispatch_equal
from sampling.estimate import Estimate, around, exact
from sampling.photon.launch_in_progress import Run
from sampling.protocol import Simulator
from sampling.statistics import batch_means

if TYPE_CHECKING:
    from jaxtyping import Float64

LOOKS = 8  # at a launch smaller than a wave, while a window passes


@dataclass(frozen=True)
class Pkp:
    """Rolling window of 3,000 cycles, s = 0.25, and at least a wave of thread blocks finished.

    s bounds the deviation of IPC in the window over its mean there, so that it does not depend on how wide the GPU is.
    Launches smaller than a wave need not finish one; but only `in_flight = False` stops them early. Cycles left are
    linear in the thread blocks not yet finished, and so is any statistic that grows with work. Those in flight count
    with what is left of them: each block takes the mean time of the last wave, on the slot that frees first.
    `in_flight = False`, the text, takes cycles so far x blocks / finished blocks, which is too long by what is in
    flight. The interval holds the errors of the mean time (its change over two waves included) and of IPC in the
    window, and the spread of the last block to finish.
    """

    window_cycles: int = 3000
    s: float = 0.25
    in_flight: bool = True
    name = "PKP"

    def launch(self, simulator: Simulator, instructions: float | None = None) -> Estimate:
        """One launch, and every other statistic that the simulator counts. `instructions`: of the whole launch, if
        known."""
        run = Run(simulator)
        ipc: Float64[np.ndarray, " window"] = np.empty(0)
        width, told = simulator.shape.window_cycles, 0
        kept = max(2, self.window_cycles // width)
        while len(run.remaining) or self._goes_on(run):
            seen = run.step() if len(run.remaining) else run.advance(self.window_cycles // LOOKS)
            ipc = np.concatenate([ipc, seen.window_instructions])[-kept:]
            told += len(seen.window_instructions)
            current = told * width + self.window_cycles >= seen.clock_cycles  # a simulator may stop counting windows
            if self._enough(run) and len(ipc) == kept and current and self.quasi_stable(ipc):
                return self._project(run, ipc, instructions)
        total = run.finish()
        return exact(self.name, total, run.whole(total), dict(run.seen.counters))

    def _goes_on(self, run: Run) -> bool:
        """Whether a launch smaller than a wave, of which everything is dispatched, may still stop before its end."""
        small = run.shape.thread_blocks < run.shape.wave_blocks
        return small and not self.in_flight and run.finished < run.shape.thread_blocks

    def _enough(self, run: Run) -> bool:
        """The one-wave rule; and, not in the paper, a wave on warm caches to project from and one to project: a launch
        that drains is not steady."""
        wave = run.shape.wave_blocks
        if run.shape.thread_blocks < wave:
            return 0 < run.finished < run.shape.thread_blocks
        steady = run.settled and len(run.remaining) >= wave
        return run.finished > wave and (steady or not self.in_flight)

    def quasi_stable(self, ipc: Float64[np.ndarray, " window"]) -> bool:
        """Whether the deviation of IPC over the window is below s of its mean."""
        mean = float(ipc.mean())
        return mean > 0 and float(ipc.std()) < self.s * mean

    def _project(self, run: Run, ipc: Float64[np.ndarray, " window"], instructions: float | None) -> Estimate:
        now, whole, finished = run.seen.clock_cycles, run.shape.thread_blocks, run.finished
        cycles = run.retired(run.shape.wave_blocks)[1]
        if len(cycles) == 0:  # on cold caches, which the text does not ask about
            cycles = np.array([now])
        mean, error, degrees = batch_means(cycles)
        left = self.cycles_left(run, finished, mean)
        before = run.retired(2 * run.shape.wave_blocks)[1]
        drift = abs(float(before.mean()) / mean - 1.0) if len(before) else 0.0
        relative = np.hypot(error / mean + drift, float(ipc.std() / ipc.mean()) / np.sqrt(len(ipc)))
        spread = float(np.hypot(left * relative, cycles.std()))
        unseen = self.instructions_left(run, instructions)
        share = run.detailed_share(unseen)
        done = now / (now + left) if self.in_flight else finished / whole
        return around(
            self.name, now + left, spread, degrees, basis="sampled", detailed_fraction=share, functional_fraction=share,
            parts=run.parts("projection", now + left, unseen),
            counters={name: value / done for name, value in run.seen.counters.items()},
        )  # fmt: skip

    def instructions_left(self, run: Run, instructions: float | None) -> float:
        """Warp instructions of what was not dispatched; where the launch's are not known, as many a thread block as
        those dispatched have."""
        done = run.seen.dispatched_instructions
        if instructions is None:
            return done * len(run.remaining) / run.dispatched
        return max(instructions - done, 0.0)

    def cycles_left(self, run: Run, finished: int, mean_cycles: float) -> float:
        """Until the launch ends, if thread blocks go on taking their mean time."""
        now, whole = run.seen.clock_cycles, run.shape.thread_blocks
        if not self.in_flight:
            return now * (whole / finished - 1.0)
        free = run.free_cycles(np.full(len(run.seen.resident_blocks), mean_cycles))
        return float(dispatch_equal(free, mean_cycles, len(run.remaining)).max()) - now
