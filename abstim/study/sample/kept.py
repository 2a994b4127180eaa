"""Samples kept on disk, so that an interrupted or repeated one goes on where it was: launches, parts, analyses."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

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

Found = TypeVar("Found")
MADE_BY = ("abstim.study.sample.automatic", "abstim.study.sample.inside")
ANALYSED_BY = ("sampling.photon.analysis", "abstim.study.sample.counts", "functional.keep.kept")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What one way to simulate a launch found. `executed_instructions`: of warps, what it had executed; seconds that
    executing, of a launch in full, and timing took; `history`: see `EngineSimulator`; `timed_shares`: as of a
    LaunchResult."""

    estimate: Estimate
    executed_instructions: float
    execute_seconds: float = 0.0
    time_seconds: float
    history: list[tuple[float, float]] = field(default_factory=list)
    timed_shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class InPart:
    """Of one launch: its segments in the order in which they were simulated, its first waves and its end, what parts of
    its trace take (by name), and what the ways of `inside.INSIDE` found, by name."""

    segments: list[Batch] = field(default_factory=list)
    steady: list[Batch] = field(default_factory=list)
    timed: dict[str, Timed] = field(default_factory=dict)
    found: dict[str, Finished] = field(default_factory=dict)
    timed_shares: Mapping[str, float] = field(default_factory=dict)  # as of `Finished`, of its first waves


def name_of(modules: tuple[str, ...], case: Case, gpu: Gpu, caches: str = EMPTY) -> str:
    """Of what these modules find of a case on a GPU. `caches`: how each launch finds them."""
    return key(modules, execution_key(case, ""), gpu.spec, gpu.params, gpu.pipeline, caches)


@contextmanager
def _kept(
    kind: str, name: str, decode: Callable[[bytes], dict[int, Found]], encode: Callable[[dict[int, Found]], bytes]
) -> Iterator[dict[int, Found]]:
    kept = Kept(kind)
    found = kept.load(name, decode) or {}
    before = encode(found)
    try:
        yield found
    finally:  # after an interrupt too
        if (content := encode(found)) != before:
            kept.save(name, content)


def kept_parts(
    case: Case, gpu: Gpu, caches: str = EMPTY, model: str = DETAILED
) -> AbstractContextManager[dict[int, InPart]]:
    """What was simulated of the launches of one case on one GPU, by number, with this version of the code: what was
    kept, to which more may be added. Of other models (`model`), which are fast, and where one launch's caches decide
    another, nothing is kept."""
    if caches == KEPT or model != DETAILED:
        return nullcontext({})

    def encoded(launches: dict[int, InPart]) -> bytes:
        return msgspec.msgpack.encode(dict(sorted(launches.items())), enc_hook=lambda number: number.item())

    decode = msgspec.msgpack.Decoder(dict[int, InPart]).decode
    return _kept("parts", name_of(MADE_BY, case, gpu, caches), decode, encoded)


def kept_analyses(case: Case, share: float, keeps: bool = True) -> AbstractContextManager[dict[int, Analysis]]:
    """Photon's analyses of one case's launches, of which a `share` of the warps is analysed: those that were kept, to
    which others may be added. They are in one file: made on one GPU, they serve all others. Unless it `keeps`, none."""
    if not keeps:
        return nullcontext({})

    def decoded(content: bytes) -> dict[int, Analysis]:
        kept = msgspec.msgpack.decode(content, type=dict[int, bytes])
        return {number: Analysis.of_columns(decode_arrays(columns)) for number, columns in kept.items()}

    def encoded(found: dict[int, Analysis]) -> bytes:
        return msgspec.msgpack.encode({number: encode_arrays(each.columns()) for number, each in sorted(found.items())})

    return _kept("analyses", key(ANALYSED_BY, execution_key(case, "photon"), share), decoded, encoded)
