"""What sampling keeps on disk: launches simulated in full, so that an interrupted or repeated sample goes on where it
was, and analyses, which no GPU changes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, MutableMapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from abstim.engine.inputs import COUNTERS
from abstim.gpu.config import Gpu
from abstim.session.warm_up import EMPTY, KEPT
from abstim.study.sample.sampled_program import Measured
from abstim.target.trace_cache import execution_key
from functional.case import Case
from functional.disk.digest import sources_digest
from functional.disk.folder import cache_dir, note, write_atomic
from sampling.photon import Analysis

_COLUMNS = ("cycles", "instructions", "execute_seconds", "time_seconds")


class MeasuredStore:
    """Of one case on one GPU with this version of the engine. `caches`: how they were warmed up before each launch."""

    def __init__(self, case: Case, gpu: Gpu, caches: str = EMPTY) -> None:
        sources = sources_digest("abstim.engine.simulation", "precharacterize")
        point = f"{execution_key(case, '')}:{gpu.spec}:{gpu.params}:{gpu.pipeline}:{sources}:{caches}"
        self.path = cache_dir("sampled") / f"{hashlib.sha256(point.encode()).hexdigest()}.npz"
        self.kept, self.alone = 0, caches != KEPT  # a launch that another one's caches decide is none to go on from

    def load(self) -> dict[int, Measured]:
        """What is there; nothing, and a line on stderr, if the file is damaged."""
        if not (self.alone and self.path.is_file()):
            return {}
        try:
            with np.load(self.path, allow_pickle=False) as file:
                columns = {name: file[name].tolist() for name in _COLUMNS}
                counters = [dict(zip(COUNTERS, row, strict=True)) for row in file["counters"].tolist()]
                launches = file["launch"].tolist()
            rows = zip(*(columns[name] for name in _COLUMNS), counters, strict=True)
            found = {launch: Measured(*row) for launch, row in zip(launches, rows, strict=True)}
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
        columns["counters"] = np.array([[measured[n].counters[name] for name in COUNTERS] for n in launches])
        np.savez(buffer, launch=np.array(launches), **columns)
        write_atomic(self.path, lambda file: file.write(buffer.getvalue()))


class AnalysisStore(MutableMapping[int, Analysis]):
    """Photon's analyses of one case's launches, a file each: made on one GPU, they serve all others."""

    def __init__(self, case: Case) -> None:
        self._case = case

    @cached_property
    def folder(self) -> Path:
        """Found when first asked for: the key takes a pass over all launches and all memory."""
        return cache_dir("analyses") / execution_key(self._case, "photon")

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.npz"

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._path(number).is_file()

    def __getitem__(self, number: int) -> Analysis:
        path = self._path(number)
        if number not in self:
            raise KeyError(number)
        try:
            return Analysis.load(path)
        except Exception as error:  # whatever is wrong with the file, it can be made again
            note(f"cache: {path} is damaged ({error}); analysing again")
            path.unlink(missing_ok=True)
            raise KeyError(number) from None

    def __setitem__(self, number: int, analysis: Analysis) -> None:
        buffer = io.BytesIO()
        analysis.save(buffer)
        write_atomic(self._path(number), lambda file: file.write(buffer.getvalue()))

    def __delitem__(self, number: int) -> None:
        self._path(number).unlink()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(int(path.stem) for path in self.folder.glob("*.npz")))

    def __len__(self) -> int:
        return sum(1 for _ in self)
