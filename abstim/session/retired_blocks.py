"""How far the launches under way are: thread blocks that have retired on every GPU, read while the engine runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu
from abstim.progress import Progress
from abstim.session.session import Session
from abstim.targets.workloads.lazy_launches import StreamedCase

if TYPE_CHECKING:
    from abstim.engine.simulation import Simulation


class RetiredBlocks:
    """Counts the thread blocks of a session's launches on some GPUs, and tells `progress` of them.

    Of launches that are made when it is their turn nobody knows how many thread blocks they will have: launches are
    counted there.
    """

    def __init__(self, session: Session, gpus: Sequence[Gpu], what: str, progress: Progress) -> None:
        self._what, self._progress, launches = what, progress, session.case.launches
        self._by_launch = isinstance(session.case, StreamedCase)
        each = len(launches) if self._by_launch else sum(launch.thread_blocks for launch in launches)
        self._total, self._done = each * len(gpus), 0
        self._running: deque[np.ndarray] = deque()  # whose ends several threads may take and give

    def watch(self, simulation: Simulation) -> None:
        """A launch on a GPU that is about to run, in any thread."""
        self._running.append(simulation.blocks)

    def tell(self) -> None:
        """In one thread: how many have retired by now."""
        part = 0
        for _ in range(len(self._running)):
            blocks = self._running.popleft()
            retired = int(np.count_nonzero(blocks["retire_cycle"] >= 0))
            if retired == len(blocks):
                self._done += 1 if self._by_launch else retired
            else:
                self._running.append(blocks)
                part += 0 if self._by_launch else retired
        self._progress(self._what, self._done + part, self._total)
