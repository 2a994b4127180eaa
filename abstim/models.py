"""A target on GPUs, by one of the models.

target --open_session--> Session --model.time--> RunResult (one a GPU)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol, cast

import numpy as np  # noqa: TC002  is loaded anyway

from abstim.gpu.config import Gpu, Overrides, gpu_of, gpus_of, nearest
from abstim.progress import Progress, silent
from abstim.session.result import LaunchResult, RunResult
from abstim.session.session import Session, open_session
from abstim.targets.execution import execute_in_turn
from abstim.targets.resolve import Target, open_target
from functional.errors import InputError
from functional.execution.executor import Executor

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


def run(
    target: Target | Session,
    gpu: str | Gpu = "gtx480",
    overrides: Overrides = (),
    *,
    model: str = DETAILED,
    executor: Executor | None = None,
    instruction_budget: int | None = None,
    flush: str = "all",
    coupled: bool = False,
    serial: bool = False,
    progress: Progress = silent,
) -> RunResult:
    """Every launch of a target on one GPU.

    `target`: a suite benchmark's name, the path of a launches.json, a Case, a function that makes one, or a Session;
    `overrides`: `["sm_count=30"]` or `{"sm_count": 30}`; `progress(what, done, total)` is told how far it is.
    `model`: one of MODELS; `flush`: caches invalidated before each launch (all, l1, l1d, none). `coupled`: which thread
    block comes first, where that matters, the engine's clock says while the kernel is executed. `serial`: launches run
    one after the other, whatever their streams allow. Raises InputError for
    anything a user got wrong; then there is no result.
    """
    return run_many(
        target, [gpu_of(gpu, overrides)], model=model, executor=executor, instruction_budget=instruction_budget,
        flush=flush, coupled=coupled, serial=serial, progress=progress,
    )[0]  # fmt: skip


def run_many(
    target: Target | Session,
    gpus: Sequence[str | Gpu],
    *,
    model: str = DETAILED,
    executor: Executor | None = None,
    instruction_budget: int | None = None,
    flush: str = "all",
    coupled: bool = False,
    serial: bool = False,
    progress: Progress = silent,
) -> list[RunResult]:
    """Every launch of a target on several GPUs: executed once, timed on each. Where what thread blocks do depends on
    their order, it is executed for each GPU. Options and errors as of `run`."""
    gpus = gpus_of(gpus)
    session = open_for(
        model, target, gpus, executor=executor, instruction_budget=instruction_budget, flush=flush, coupled=coupled,
        serial=serial, progress=progress,
    )  # fmt: skip
    time = model_named(model).time
    if not session.is_ordered:
        return time(session, gpus, flush, progress)
    return [time(session.on(gpu), [gpu], flush, progress)[0] for gpu in gpus]


def open_for(
    model: str,
    target: Target | Session,
    gpus: Sequence[Gpu],
    *,
    executor: Executor | None = None,
    instruction_budget: int | None = None,
    flush: str = "all",
    coupled: bool = False,
    serial: bool = False,
    progress: Progress = silent,
    refused: list[tuple[Gpu, str]] | None = None,
) -> Session:
    """What `run_many` times, for callers who ask more of it. Raises InputError as that does: for what the model cannot
    do, before anything is executed. `refused`: as of `Session.check_fit`."""
    model_named(model).refuse(gpus, flush)
    if coupled and model != DETAILED:
        raise InputError(f"the {model} model has no clock to couple to; leave out coupled, or model")
    if coupled and not isinstance(target, Session):
        from abstim.session.coupled import refuse_coupled

        target = open_target(target)
        refuse_coupled(target, flush)
    return open_session(
        target, gpus, executor=executor, instruction_budget=instruction_budget, executing=execute_in_turn,
        progress=progress, refused=refused, coupled=coupled, serial=serial,
    )  # fmt: skip
