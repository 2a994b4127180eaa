"""What sampling keeps on disk: launches simulated in full, so that an interrupted or repeated sample goes on where it
was, and analyses, which no GPU changes."""

from __future__ import annotations

import io
from collections.abc import Iterator, MutableMapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from abstim.engine.inputs import COUNTERS
from abstim.gpu.config import Gpu
from abstim.models import DETAILED
from abstim.session.warm_up import EMPTY, KEPT
from abstim.study.sample.measured import Measured
from abstim.targets.execution import execution_key
from functional.keep.kept import Kept, key
from functional.launches.case import Case
from sampling.photon import Analysis

MODULES = ("abstim.engine.simulation", "precharacterize", "functional.ptx.parser")
ANALYSED_BY = ("sampling.photon.bbv", "abstim.study.sample.warp_profiles")
_COLUMNS = ("cycles", "instructions", "execute_seconds", "time_seconds")


class MeasuredStore:
    """Of one case on one GPU with this version of the engine. `caches`: how they were warmed up before each launch.
    Nothing is kept of other models (`model`), which are fast."""

    def __init__(self, case: Case, gpu: Gpu, caches: str = EMPTY, model: str = DETAILED) -> None:
        self.name = key(MODULES, execution_key(case, ""), gpu.spec, gpu.params, gpu.pipeline, caches)
        # a launch that another one's caches decide is none to go on from
        self.kept, self.alone = 0, caches != KEPT and model == DETAILED

    @property
    def path(self) -> Path:
        """The file."""
        return Kept("sampled").path(self.name)

    def load(self) -> dict[int, Measured]:
        """What is there; nothing, and a line on stderr, if the file is damaged."""
        found = (Kept("sampled").load(self.name, _measured) if self.alone else None) or {}
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
        Kept("sampled").save(self.name, buffer.getvalue())


def _measured(content: bytes) -> dict[int, Measured]:
    """The launches of a file, by number."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        columns = [file[name].tolist() for name in _COLUMNS]
        counters = [dict(zip(COUNTERS, row, strict=True)) for row in file["counters"].tolist()]
        launches = file["launch"].tolist()
    return {launch: Measured(*row) for launch, *row in zip(launches, *columns, counters, strict=True)}


class AnalysisStore(MutableMapping[int, Analysis]):
    """Photon's analyses of one case's launches, in one file: made on one GPU, they serve all others."""

    def __init__(self, case: Case, share: float) -> None:
        """`share` of the warps that is analysed."""
        self._case, self._share = case, share
        self._made: dict[int, Analysis] = {}
        self.loaded: dict[int, Analysis] = {}  # of those kept before, what was asked for

    @cached_property
    def name(self) -> str:
        """Found when first asked for: the key takes a pass over all launches and all memory."""
        return key(ANALYSED_BY, execution_key(self._case, "photon"), self._share)

    @cached_property
    def _kept(self) -> dict[int, Analysis]:
        return Kept("analyses").load(self.name, _analyses) or {}

    def save(self) -> None:
        """Replace the file, if anything was added."""
        if self._made:
            columns = {n: {name: _packed(c) for name, c in a.columns().items()} for n, a in dict(self).items()}
            Kept("analyses").save(self.name, msgspec.msgpack.encode(columns))

    def __getitem__(self, number: int) -> Analysis:
        if number in self._kept and number not in self._made:
            self.loaded[number] = self._kept[number]
        return self._made[number] if number in self._made else self._kept[number]

    def __setitem__(self, number: int, analysis: Analysis) -> None:
        self._made[number] = analysis

    def __delitem__(self, number: int) -> None:
        if number not in self:
            raise KeyError(number)
        self._made.pop(number, None)
        self._kept.pop(number, None)

    def __contains__(self, number: object) -> bool:
        return number in self._made or number in self._kept

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._made.keys() | self._kept.keys()))

    def __len__(self) -> int:
        return len(self._made.keys() | self._kept.keys())


def _packed(column: np.ndarray) -> tuple[str, list[int], bytes]:
    return column.dtype.str, list(column.shape), column.tobytes()


def _analyses(content: bytes) -> dict[int, Analysis]:
    """The launches of a file, by number."""
    kept = msgspec.msgpack.decode(content, type=dict[int, dict[str, tuple[str, list[int], bytes]]])
    return {
        number: Analysis.of_columns(
            {name: np.frombuffer(data, dtype).reshape(shape) for name, (dtype, shape, data) in columns.items()}
        )
        for number, columns in kept.items()
    }
