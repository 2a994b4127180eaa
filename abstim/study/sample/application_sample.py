"""A whole CUDA program, all of it executed and little of it timed: `abstim app --sample METHOD`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abstim.application.run_application import ApplicationResult, run_application
from abstim.study.sample.methods import method_named
from abstim.study.sample.sample_result import SampleResult
from abstim.study.sample.sampler import sample

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu


def sample_application(
    command: Sequence[str],
    gpus: Sequence[Gpu],
    method: str,
    *,
    model: str = "detailed",
    record: Path | None = None,
    **options: Any,
) -> tuple[ApplicationResult, list[SampleResult]]:
    """Run a program, keep what its kernels did, and estimate from a sample how long that takes: one result for each
    module with kernels that were launched, and each GPU.

    `record`: where traces are kept (default: nowhere, afterwards). `options` are those of `run_application`. Raises
    InputError for a method that is not there, before anything runs.
    """
    method_named(method)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="abstim-sample-"))
        folder = record or Path(scratch) / "traces"
        result = run_application(command, gpus, model=model, record=folder, timed=False, **options)
        stores = sorted(folder.glob("module-*"), key=lambda store: int(store.name.removeprefix("module-")))
        return result, [sample(str(store), gpu, method, model=model) for store in stores for gpu in gpus]
