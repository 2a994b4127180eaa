"""A quick model against the detailed one: does it put design points in the same order?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from abstim.analytic.point import random_points
from abstim.gpu.config import Gpu, load_gpu
from abstim.models import model_named
from abstim.progress import Progress, silent
from abstim.session.detailed import engine_results
from abstim.session.session import open_session
from sampling.statistics import spearman

if TYPE_CHECKING:
    from jaxtyping import Float

    from abstim.targets.resolve import Target


@dataclass(frozen=True, slots=True)
class Ranking:
    """One target on many design points. Cycles are summed over launches; errors are of the predicted ones."""

    target: str
    model: str
    points: int
    correlation: float  # Spearman's
    mean_error: float  # of absolute values
    median_ratio: float  # predicted / detailed
    summary_seconds: float  # what is done once for all points
    point_seconds: float  # a design point, all launches, after the first call
    engine_point_seconds: float  # the same of the detailed engine
    engine_cycles: Float[np.ndarray, " point"]
    predicted_cycles: Float[np.ndarray, " point"]

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        found = asdict(self)
        return found | {key: found[key].tolist() for key in ("engine_cycles", "predicted_cycles")}


def rank(
    target: Target, gpus: Sequence[Gpu], base: Gpu, model: str = "analytic", progress: Progress = silent
) -> Ranking:
    """Compare a model with the detailed one on given design points; `base`: a GPU among them."""
    session = open_session(target)
    started = perf_counter()
    launches = [model_named(model).cycles_on(session, number, base) for number in range(len(session))]
    summarized = perf_counter()
    predicted = np.sum([launch(gpus) for launch in launches], 0)
    warm = perf_counter()
    for launch in launches:
        launch(gpus)
    predicted_again = perf_counter()
    engine = np.zeros(len(gpus))
    for results in engine_results(session, gpus, progress=progress):
        engine += [result.cycles for result in results]
    done = perf_counter()
    return Ranking(
        session.case.name, model, len(gpus), spearman(predicted, engine), float(np.abs(predicted / engine - 1).mean()),
        float(np.median(predicted / engine)), summarized - started, (predicted_again - warm) / len(gpus),
        (done - predicted_again) / len(gpus), engine, predicted,
    )  # fmt: skip


def rank_random(
    targets: Sequence[Target], count: int, seed: int = 0, model: str = "analytic", progress: Progress = silent
) -> list[Ranking]:
    """Each target on the same `count` random design points (`space.random_points`)."""
    gpus, base = random_points(count, seed), load_gpu("gtx480")
    return [rank(target, gpus, base, model, progress) for target in targets]


def pooled(rankings: Sequence[Ranking]) -> float:
    """Rank correlation over all targets and points together."""
    return spearman(
        np.concatenate([r.predicted_cycles for r in rankings]), np.concatenate([r.engine_cycles for r in rankings])
    )
