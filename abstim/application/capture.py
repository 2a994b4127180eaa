"""Kernels that a Python program launches by Triton or Numba, executed and timed without a GPU."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from abstim.application.call_server import CallServer
from abstim.application.device_memory import DeviceMemory
from abstim.application.launch_recorder import LaunchRecorder, LaunchTimer, Selection, Timed
from abstim.application.loaded_modules import LoadedModules, ProgramCase
from abstim.application.run_application import ApplicationResult, application_result, stream_clock
from abstim.application.runtime_environment import DRIVER, MEMORY, SOCKET, driver_folder
from abstim.application.stream_clock import PICOSECONDS
from abstim.gpu.config import Gpu, load_gpu
from functional.errors import InputError, refuse
from functional.execution.default_executor import default_executor


class PythonDevice:
    """The device that kernels of Python frameworks see: one a process, since Numba asks once what there is. What is
    captured changes the GPUs that time, and the clock; memory and modules stay."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="abstim-capture-")
        self.modules, self.memory = LoadedModules(Path(self._folder.name)), DeviceMemory()
        self.server: CallServer | None = None
        self._listening: tuple[socket.socket, ...] = ()

    def begin(self, gpus: Sequence[Gpu], model: str, flush: str, **options: Any) -> CallServer:
        """From now on time launches on these GPUs; `options`: LaunchRecorder's. Raises InputError as the model does."""
        case = ProgramCase.of("python", self.modules)
        timer = LaunchTimer(gpus, model, case, flush)
        clock = stream_clock(gpus[0], model, timer)
        recorder = LaunchRecorder(default_executor(), case, timer, **options)
        if self.server is None:
            self.server = CallServer(self.memory, self.modules, clock, case, recorder)
        self.server.clock, self.server.case, self.server.recorder = clock, case, recorder
        self.server.problems = {}
        return self.server

    def listen(self) -> None:
        """Answer the shim in this very process, which finds the socket by its environment; from the first time on."""
        assert self.server is not None
        if self._listening:
            return
        ours, theirs = self._listening = socket.socketpair()
        os.environ[SOCKET], os.environ[MEMORY] = str(theirs.fileno()), str(self.memory.file)
        requests, replies = ours.makefile("rb"), ours.makefile("wb")
        threading.Thread(target=self.server.serve, args=(requests, replies), daemon=True).start()


python_device = cache(PythonDevice)  # the one of this process


def attach(device: PythonDevice) -> None:
    """Make Numba find the device; for as long as the process lives. Raises InputError if it has found another one."""
    from numba.core import config
    from numba.cuda.cudadrv.driver import driver

    library = str(driver_folder("libcudart.so.13") / DRIVER)
    if library == config.CUDA_DRIVER:
        return
    if driver.is_initialized and driver.initialization_error is None:
        raise InputError("abstim.capture: Numba uses a GPU's driver already; capture before its first use of CUDA")
    device.listen()
    config.CUDA_DRIVER = library
    driver.__init__()  # it looked for a library when it was imported, and found none


_active: list[Capture] = []


class Capture:
    """Execute and time kernels that Triton or Numba launches: `with abstim.capture(gpu="h100") as c: ...`.

    A stretch of a Python program whose kernels run here. Times are those of `abstim app --flush all`.

    `result` is there after the end; `launches` are those of it, without those that only tried configurations
    (`triton.autotune`), which are in `trials`."""

    def __init__(
        self,
        gpu: str | Gpu | Sequence[str | Gpu] = "rtx3070",
        *,
        model: str = "detailed",
        flush: str = "all",
        only: str = "",
        instruction_budget: int | None = None,
        told: Callable[[Timed], None] = lambda timed: None,
    ) -> None:
        """`gpu`: one or several; the first is what kernels are compiled for, and what events read. `flush`: caches
        emptied before each launch ("none": as on a GPU, where arrays stay at their places; Triton's arguments that are
        in the host's memory do not). `only`: a part of the name of kernels that are timed (all are executed). Raises
        InputError for GPUs or a model that are not there."""
        given = [gpu] if isinstance(gpu, (str, Gpu)) else list(gpu)
        self.gpus = [load_gpu(each) if isinstance(each, str) else each for each in given]
        self._model, self._flush = model, flush
        self._options = {"selection": Selection(only), "told": told, "instruction_budget": instruction_budget}
        self._stack = ExitStack()
        self._trials: set[int] = set()
        self.result: ApplicationResult | None = None

    def __enter__(self) -> Capture:
        """Raises InputError if another one is active, or neither Triton nor numba.cuda is imported."""
        refuse(_active, "abstim.capture: another capture is active; end it first")
        found = [name for name in ("triton", "numba.cuda") if name in sys.modules]
        refuse(not found, "abstim.capture: import triton or numba.cuda before the capture begins")
        with ExitStack() as stack:
            device = python_device()
            self.server = device.begin(self.gpus, self._model, self._flush, **self._options)
            if "triton" in found:
                from abstim.application.triton_kernels import attached

                stack.enter_context(attached(self.server, self.gpus[0], self.trial))
            if "numba.cuda" in found:
                attach(device)
            self._stack = stack.pop_all()
        _active.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        _active.clear()
        self._stack.close()
        self.result = application_result("python", self.server, self.gpus, self._model, stopped=kind is not None)

    def trial(self, launched: Callable[[], object]) -> float:
        """Run something that is not of the program; returns the seconds of its timed launches on the first GPU."""
        first, before = self.server.recorder.count, self.server.clock.settle()
        launched()
        self._trials |= set(range(first, self.server.recorder.count))
        return (self.server.clock.settle() - before) / PICOSECONDS

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


capture = Capture
