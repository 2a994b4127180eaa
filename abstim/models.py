"""A target on GPUs, by one of the models.

target --open_session--> Session --model.time--> RunResult (one a GPU)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol, Unpack, cast

import numpy as np  # noqa: TC002  is loaded anyway

from abstim.gpu.config import Gpu, Overrides, gpu_of, gpus_of, nearest
from abstim.progress import Progress, silent
from abstim.session.result import LaunchResult, RunResult
from abstim.session.session import Session, open_session
from abstim.targets.execution import How, execute_in_turn
from abstim.targets.resolve import Target, open_target
from functional.errors import InputError, refuse

# Model -> the module that is it; imported when it is asked for.
MODELS = {
    "detailed": "abstim.session.detailed",
    "occupancy": "abstim.occupancy_vector.occupancy_model",
    "analytic": "abstim.analytic.predictions",
}
DETAILED = next(iter(MODELS))


class Model(Protocol):
    """What can time a session."""

    @staticmethod
    def refuse(gpus: Sequence[Gpu], flush: str) -> None:
        """Raises InputError for what the model cannot do, before anything is executed."""

    @staticmethod
    def launch_on(session: Session, number: int, gpus: Sequence[Gpu]) -> Sequence[LaunchResult]:
        """One launch on every GPU, from empty caches."""

    @staticmethod
    def cycles_on(session: Session, number: int, around: Gpu) -> Callable[[Sequence[Gpu]], np.ndarray]:
        """Cycles of one launch as a function of GPUs [gpu], from empty caches; by the formula as around one of them."""

    @staticmethod
    def time(session: Session, gpus: Sequence[Gpu], flush: str, progress: Progress) -> list[RunResult]:
        """Every launch on every GPU."""


def model_named(name: str) -> Model:
    """A model. Raises InputError for a name that is none of MODELS."""
    if name not in MODELS:
        raise InputError(f"no model {name!r}{nearest(name, MODELS)}")
    return cast(Model, import_module(MODELS[name]))


class Options(How, total=False):
    """What may be said of a run besides its target and GPUs, and how it is executed."""

    model: str  # one of MODELS
    flush: str  # caches invalidated before each launch: all, data, l1, l1d, none
    coupled: bool  # where the order of thread blocks matters, the engine's clock says it while the kernel is executed
    serial: bool  # launches run one after the other, whatever their streams allow


def run(
    target: Target | Session, gpu: str | Gpu = "gtx480", overrides: Overrides = (), **options: Unpack[Options]
) -> RunResult:
    """Every launch of a target on one GPU.

    `target`: a suite benchmark's name, the path of a launches.json, a Case, a function that makes one, or a Session;
    `overrides`: `["sm_count=30"]` or `{"sm_count": 30}`; `options`: see `Options`. Raises InputError for anything a
    user got wrong; then there is no result."""
    return run_many(target, [gpu_of(gpu, overrides)], **options)[0]


def run_many(target: Target | Session, gpus: Sequence[str | Gpu], **options: Unpack[Options]) -> list[RunResult]:
    """Every launch of a target on several GPUs: executed once, timed on each. Where what thread blocks do depends on
    their order, it is executed for each GPU. Errors as of `run`."""
    points = gpus_of(gpus)
    session = open_for(target, points, **options)
    time = model_named(options.get("model", DETAILED)).time
    flush, progress = options.get("flush", "all"), options.get("progress", silent)
    if not session.is_ordered:
        return time(session, points, flush, progress)
    return [time(session.on(gpu), [gpu], flush, progress)[0] for gpu in points]


def open_for(
    target: Target | Session, gpus: Sequence[Gpu], *, refused: list[tuple[Gpu, str]] | None = None,
    model: str = DETAILED, flush: str = "all", coupled: bool = False, serial: bool = False, **how: Unpack[How],
) -> Session:  # fmt: skip
    """What `run_many` times, for callers who ask more of it. Raises InputError as that does: for what the model cannot
    do, before anything is executed. `refused`: as of `Session.check_fit`."""
    model_named(model).refuse(gpus, flush)
    refuse(coupled and model != DETAILED, f"the {model} model has no clock to couple to; leave out coupled, or model")
    if coupled and not isinstance(target, Session):
        from abstim.session.coupled import refuse_coupled

        target = open_target(target)
        refuse_coupled(target, flush)
    how_opened: dict[str, Any] = {"refused": refused, "coupled": coupled, "serial": serial}
    return open_session(target, gpus, executing=execute_in_turn, **how_opened, **how)
