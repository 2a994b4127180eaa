"""Launches already simulated in full, on disk, so that an interrupted or repeated sample goes on where it was."""

from __future__ import annotations

import hashlib
import io

import numpy as np

from abstim.cache import cache_dir, note, write_atomic
from abstim.config import Gpu
from abstim.engine.compiled.native import sources_digest
from abstim.sampled.program import Measured
from abstim.trace_cache import execution_key
from functional.case import Case


class MeasuredStore:
    """Of one case on one GPU with this version of the engine."""

    def __init__(self, case: Case, gpu: Gpu) -> None:
        point = f"{execution_key(case, '')}:{gpu.spec}:{gpu.params}:{gpu.pipeline}:{sources_digest()}"
        self.path = cache_dir("sampled") / f"{hashlib.sha256(point.encode()).hexdigest()}.npz"
        self.kept = 0

    def load(self) -> dict[int, Measured]:
        """What is there; nothing, and a line on stderr, if the file is damaged."""
        if not self.path.is_file():
            return {}
        try:
            with np.load(self.path, allow_pickle=False) as file:
                rows = zip(*(file[name].tolist() for name in ("launch", "cycles", "seconds")), strict=True)
            found = {launch: Measured(cycles, seconds) for launch, cycles, seconds in rows}
        except Exception as error:  # whatever is wrong with the file, it can be made again
            note(f"cache: {self.path} is damaged ({error}); simulating again")
            return {}
        self.kept = len(found)
        return found

    def save(self, measured: dict[int, Measured]) -> None:
        """Replace the file, if there is more to keep than it has."""
        if len(measured) <= self.kept:
            return
        launches = sorted(measured)
        buffer = io.BytesIO()
        np.savez(
            buffer,
            launch=np.array(launches),
            cycles=np.array([measured[n].cycles for n in launches]),
            seconds=np.array([measured[n].seconds for n in launches]),
        )
        write_atomic(self.path, lambda file: file.write(buffer.getvalue()))
