"""Kernels that a Python program launches by Triton or Numba, executed and timed without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from abstim.application.python_device import python_device
from abstim.application.run_application import ApplicationResult, application_result
from abstim.application.timed_launches import Selection, Timed
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu

_active: list[Capture] = []


class Capture:
    """A stretch of a Python program whose kernels run here. Times are those of `abstim app`.

    `result` is there after the end; `launches` are those of it, without those that only tried configurations
    (`triton.autotune`), which are in `trials`.
    """

    def __init__(
        self,
        gpu: str | Gpu | Sequence[str | Gpu] = "rtx3070",
        *,
        model: str = "detailed",
        only: str = "",
        instruction_budget: int | None = None,
        told: Callable[[Timed], None] = lambda timed: None,
    ) -> None:
        """`gpu`: one or several; the first is what kernels are compiled for, and what events read. `only`: a part of
        the name of kernels that are timed (all are executed). Raises InputError for GPUs or a model that are not
        there."""
        from abstim.gpu.config import Gpu, load_gpu

        given = [gpu] if isinstance(gpu, (str, Gpu)) else list(gpu)
        self.gpus = [load_gpu(each) if isinstance(each, str) else each for each in given]
        self._model, self._selection, self._budget, self._told = model, Selection(only), instruction_budget, told
        self._stack = ExitStack()
        self._trials: set[int] = set()
        self.result: ApplicationResult | None = None

    def __enter__(self) -> Capture:
        """Raises InputError if another one is active, or neither Triton nor numba.cuda is imported."""
        if _active:
            raise InputError("abstim.capture: another capture is active; end it first")
        found = [name for name in ("triton", "numba.cuda") if name in sys.modules]
        if not found:
            raise InputError("abstim.capture: import triton or numba.cuda before the capture begins")
        with ExitStack() as stack:
            device = python_device()
            self.server = device.begin(self.gpus, self._model, self._selection, self._budget, self._told)
            if "triton" in found:
                from abstim.application.triton_kernels import attached

                stack.enter_context(attached(self))
            if "numba.cuda" in found:
                from abstim.application.numba_kernels import attach

                attach(device)
            self._stack = stack.pop_all()
        _active.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        _active.clear()
        self._stack.close()
        self.result = application_result("python", self.server, self.gpus, self._model, stopped=kind is not None)

    def trial(self, launched: Callable[[], object]) -> float:
        """Run something that is not of the program itself. Returns the seconds of what it launched, on the first
        GPU; launches that are not timed count as none."""
        first, before = self.server.recorder.count, self.server.clock.settle()
        launched()
        self._trials |= set(range(first, self.server.recorder.count))
        return self.server.clock.seconds_since(before)

    @property
    def launches(self) -> tuple[Timed, ...]:
        """Launches that were timed, in order."""
        return tuple(timed for timed in self._timed if timed.number not in self._trials)

    @property
    def trials(self) -> tuple[Timed, ...]:
        """Launches that only tried how long something takes."""
        return tuple(timed for timed in self._timed if timed.number in self._trials)

    @property
    def _timed(self) -> tuple[Timed, ...]:
        if self.result is None:
            raise InputError("abstim.capture: its launches are known after its end")
        return self.result.launches


def capture(gpu: str | Gpu | Sequence[str | Gpu] = "rtx3070", **options: object) -> Capture:
    """Execute and time kernels that Triton or Numba launches: `with abstim.capture(gpu="h100") as c: ...`.

    Options, and errors, are those of `Capture`.
    """
    return Capture(gpu, **options)  # type: ignore[arg-type]
