"""What was simulated of launches that were not simulated in full, kept on disk: a later sample goes on from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from abstim.gpu.config import Gpu
from abstim.models import DETAILED
from abstim.session.warm_up import EMPTY, KEPT
from abstim.targets.execution import execution_key
from functional.keep.kept import Kept, key
from functional.launches.case import Case
from sampling import Estimate
from sampling.auto import Batch, Timed

MADE_BY = ("abstim.study.sample.automatic", "abstim.study.sample.inside", "abstim.study.sample.one_sm")


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
    """Of one launch: its segments in the order in which they were simulated, shares of its iterations, what it takes on
    one SM, if that was asked for, and what the ways of `inside.INSIDE` found, by name."""

    segments: list[Batch] = field(default_factory=list)
    shares: dict[float, Timed] = field(default_factory=dict)
    one_sm: Timed | None = None
    found: dict[str, Finished] = field(default_factory=dict)


class PartStore:
    """Of one case on one GPU with this version of the engine and of the ways to sample a launch. `caches`: how they
    were warmed up before each launch. Of other models (`model`) there is nothing to keep."""

    def __init__(self, case: Case, gpu: Gpu, caches: str = EMPTY, model: str = DETAILED) -> None:
        self.name = key(MADE_BY, execution_key(case, ""), gpu.spec, gpu.params, gpu.pipeline, caches)
        self.alone = caches != KEPT and model == DETAILED
        self._kept = b""

    def load(self) -> dict[int, InPart]:
        """What is there, by launch; nothing, and a line on stderr, if the file is damaged."""
        found = (Kept("parts").load(self.name, _decoded) if self.alone else None) or {}
        self._kept = _encoded(found)
        return found

    def save(self, parts: dict[int, InPart]) -> None:
        """Replace the file, if there is more to keep than it has."""
        content = _encoded(parts)
        if self.alone and content != self._kept:
            Kept("parts").save(self.name, content)


def _encoded(parts: dict[int, InPart]) -> bytes:
    return msgspec.msgpack.encode(dict(sorted(parts.items())))


def _decoded(content: bytes) -> dict[int, InPart]:
    return msgspec.msgpack.decode(content, type=dict[int, InPart])
