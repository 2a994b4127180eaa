"""The analytic model against the engine: does it put design points in the same order?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from abstim.analytic.point import points_of
from abstim.analytic.predictions import predict_points, summaries
from abstim.analytic.space import random_points
from abstim.gpu.config import Gpu, load_gpu
from abstim.progress import Progress, silent
from abstim.session.detailed import engine_results
from abstim.session.session import open_session

if TYPE_CHECKING:
    from abstim.target.resolve import Target


@dataclass(frozen=True, slots=True)
class Ranking:
    """One target on many design points. Cycles are summed over launches; errors are of the analytic ones."""

    target: str
    points: int
    correlation: float  # Spearman's
    mean_error: float  # of absolute values
    median_ratio: float  # predicted / engine
    summary_seconds: float
    point_seconds: float  # a design point, all launches, after the first call
    engine_point_seconds: float  # the same of the engine
    engine_cycles: Float[np.ndarray, " point"]
    analytic_cycles: Float[np.ndarray, " point"]

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        found = asdict(self)
        return found | {key: found[key].tolist() for key in ("engine_cycles", "analytic_cycles")}


def rank(target: Target, gpus: Sequence[Gpu], base: Gpu, progress: Progress = silent) -> Ranking:
    """Compare on given design points; `base` is the GPU for which launches are summarised."""
    session = open_session(target)
    started = perf_counter()
    launches = summaries(session, base, progress)
    summarized = perf_counter()
    points = points_of(gpus)
    predicted = sum(predict_points(launch, points).cycles.astype(float) for launch in launches)
    warm = perf_counter()
    for launch in launches:
        predict_points(launch, points)
    predicted_again = perf_counter()
    engine = np.zeros(len(gpus))
    for results in engine_results(session, gpus, progress=progress):
        engine += [result.cycles for result in results]
    done = perf_counter()
    return Ranking(
        session.case.name, len(gpus), spearman(predicted, engine), float(np.abs(predicted / engine - 1).mean()),
        float(np.median(predicted / engine)), summarized - started, (predicted_again - warm) / len(gpus),
        (done - predicted_again) / len(gpus), engine, predicted,
    )  # fmt: skip


def rank_random(targets: Sequence[Target], count: int, seed: int = 0, progress: Progress = silent) -> list[Ranking]:
    """Each target on the same `count` random design points (`space.random_points`)."""
    gpus, base = random_points(count, seed), load_gpu("gtx480")
    return [rank(target, gpus, base, progress) for target in targets]


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation, -1 to 1."""
    from scipy.stats import spearmanr

    return float(spearmanr(a, b)[0])


def pooled(rankings: Sequence[Ranking]) -> float:
    """Rank correlation over all targets and points together."""
    return spearman(
        np.concatenate([r.analytic_cycles for r in rankings]), np.concatenate([r.engine_cycles for r in rankings])
    )
