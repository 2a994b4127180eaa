"""Samples kept on disk, so that an interrupted or repeated one goes on where it was: launches, parts, analyses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from abstim.gpu.config import Gpu
from abstim.models import DETAILED
from abstim.session.warm_up import EMPTY, KEPT
from abstim.targets.execution import execution_key
from functional.keep.kept import Kept, decode_arrays, encode_arrays, key
from functional.launches.case import Case
from sampling import Estimate
from sampling.auto.iterations import Timed
from sampling.auto.segment_simulation import Batch
from sampling.photon import Analysis

MODULES = ("abstim.engine.simulation", "precharacterize", "functional.ptx.parser")
MADE_BY = ("abstim.study.sample.automatic", "abstim.study.sample.inside", "abstim.study.sample.quick_estimates")
ANALYSED_BY = ("sampling.photon.analysis", "abstim.study.sample.counts", "functional.keep.kept")
Content = TypeVar("Content")


@dataclass(frozen=True)
class Measured:
    """A launch that was simulated in full: the engine's counters (of other models none), and the seconds that executing
    and timing it took."""

    cycles: int
    instructions: float  # of warps
    execute_seconds: float
    time_seconds: float
    counters: Mapping[str, int]
    timed_shares: Mapping[str, float] = field(default_factory=dict)  # as of a LaunchResult


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What one way to sample a launch found. `executed_instructions`: of warps, what it had executed; `seconds` it
    took; `history`: see `EngineSimulator`."""

    estimate: Estimate
    executed_instructions: float
    seconds: float
    history: list[tuple[float, float]]


@dataclass(kw_only=True)
class InPart:
    """Of one launch: its segments in the order in which they were simulated, its first waves and its end, shares of its
    iterations, what it takes on one SM, if that was asked for, and what the ways of `inside.INSIDE` found, by name."""

    segments: list[Batch] = field(default_factory=list)
    steady: list[Batch] = field(default_factory=list)
    shares: dict[float, Timed] = field(default_factory=dict)
    one_sm: Timed | None = None
    found: dict[str, Finished] = field(default_factory=dict)


class _Launches(Generic[Content]):
    """Launches of one case on one GPU by number, with this version of the code. `caches`: how each found them. Of other
    models (`model`), which are fast, and where one launch's caches decide another, nothing is kept."""

    kind: str
    content: type
    modules: tuple[str, ...]

    def __init__(self, case: Case, gpu: Gpu, caches: str = EMPTY, model: str = DETAILED) -> None:
        self.name = key(self.modules, execution_key(case, ""), gpu.spec, gpu.params, gpu.pipeline, caches)
        self.alone = caches != KEPT and model == DETAILED
        self._kept = _encoded({})

    def load(self) -> dict[int, Content]:
        """What is there, by launch; nothing, and a line on stderr, if the file is damaged."""
        decoder = msgspec.msgpack.Decoder(dict[int, self.content])  # type: ignore[name-defined]
        found = (Kept(self.kind).load(self.name, decoder.decode) if self.alone else None) or {}
        self._kept = _encoded(found)
        return found

    def save(self, launches: Mapping[int, Content]) -> None:
        """Replace the file, if there is more to keep than it has."""
        content = _encoded(launches)
        if self.alone and content != self._kept:
            Kept(self.kind).save(self.name, content)


def _encoded(launches: Mapping[int, Any]) -> bytes:
    return msgspec.msgpack.encode(dict(sorted(launches.items())), enc_hook=lambda number: number.item())


class MeasuredStore(_Launches[Measured]):
    """Launches that were simulated in full."""

    kind, content, modules = "measured", Measured, MODULES


class PartStore(_Launches[InPart]):
    """Launches of which parts were simulated."""

    kind, content, modules = "parts", InPart, MADE_BY


class AnalysisStore(dict[int, Analysis]):
    """Photon's analyses of one case's launches, in one file: made on one GPU, they serve all others. `share`: of the
    warps that are analysed; `loaded`: those that were asked for and kept before."""

    def __init__(self, case: Case, share: float) -> None:
        super().__init__()
        self._case, self._share = case, share
        self.loaded: dict[int, Analysis] = {}

    @cached_property
    def name(self) -> str:
        """Found when first asked for: the key takes a pass over all launches and all memory."""
        return key(ANALYSED_BY, execution_key(self._case, "photon"), self._share)

    @cached_property
    def _kept(self) -> dict[int, Analysis]:
        return Kept("analyses").load(self.name, _analyses) or {}

    def get(self, number: int, default: Any = None) -> Any:
        """One made now or before."""
        if number not in self and number in self._kept:
            self.loaded[number] = self[number] = self._kept[number]
        return super().get(number, default)

    def save(self) -> None:
        """Replace the file, if anything was added."""
        if self.keys() > self.loaded.keys():
            whole = sorted((self._kept | self).items())
            columns = {number: encode_arrays(found.columns()) for number, found in whole}
            Kept("analyses").save(self.name, msgspec.msgpack.encode(columns))


def _analyses(content: bytes) -> dict[int, Analysis]:
    """The launches of a file, by number."""
    kept = msgspec.msgpack.decode(content, type=dict[int, bytes])
    return {number: Analysis.of_columns(decode_arrays(columns)) for number, columns in kept.items()}
