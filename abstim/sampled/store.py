"""Launches already simulated in full, on disk, so that an interrupted or repeated sample goes on where it was."""

from __future__ import annotations

import hashlib
import io
from dataclasses import fields
from typing import Any

import numpy as np

from abstim.cache import cache_dir, note, write_atomic
from abstim.config import Gpu
from abstim.engine.compiled.compile import sources_digest
from abstim.sampled.program import Measured
from abstim.sampled.warm_up import EMPTY, KEPT
from abstim.trace_cache import execution_key
from functional.case import Case

_COLUMNS = tuple(field.name for field in fields(Measured))


class MeasuredStore:
    """Of one case on one GPU with this version of the engine. `caches`: how they were warmed up before each launch."""

    def __init__(self, case: Case, gpu: Gpu, caches: str = EMPTY) -> None:
        point = f"{execution_key(case, '')}:{gpu.spec}:{gpu.params}:{gpu.pipeline}:{sources_digest()}:{caches}"
        self.path = cache_dir("sampled") / f"{hashlib.sha256(point.encode()).hexdigest()}.npz"
        self.kept, self.alone = 0, caches != KEPT  # a launch that another one's caches decide is none to go on from

    def load(self) -> dict[int, Measured]:
        """What is there; nothing, and a line on stderr, if the file is damaged."""
        if not (self.alone and self.path.is_file()):
            return {}
        try:
            with np.load(self.path, allow_pickle=False) as file:
                rows = zip(file["launch"].tolist(), *(file[name].tolist() for name in _COLUMNS), strict=True)
            found = {launch: Measured(*columns) for launch, *columns in rows}
        except Exception as error:  # whatever is wrong with the file, it can be made again
            note(f"cache: {self.path} is damaged ({error}); simulating again")
            return {}
        self.kept = len(found)
        return found

    def save(self, measured: dict[int, Measured]) -> None:
        """Replace the file, if there is more to keep than it has."""
        if len(measured) <= self.kept or not self.alone:
            return
        launches = sorted(measured)
        buffer = io.BytesIO()
        columns: dict[str, Any] = {name: np.array([getattr(measured[n], name) for n in launches]) for name in _COLUMNS}
        np.savez(buffer, launch=np.array(launches), **columns)
        write_atomic(self.path, lambda file: file.write(buffer.getvalue()))
