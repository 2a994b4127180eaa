"""The device that kernels of Python frameworks see: one a process, since Numba asks once what there is.

What is captured changes the GPUs that time, and the clock; memory and modules stay.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from abstim.application.call_server import CallServer
from abstim.application.device_memory import DeviceMemory
from abstim.application.launch_recorder import LaunchRecorder
from abstim.application.loaded_modules import LoadedModules
from abstim.application.program_case import ProgramCase
from abstim.application.runtime_environment import MEMORY, SOCKET
from abstim.application.stream_clock import StreamClock
from abstim.application.timed_launches import LaunchTimer, Selection, Timed
from functional.execution.default_executor import default_executor
from functional.launches.memory import Memory
from functional.ptx.ir import Module

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu


class PythonDevice:
    """Memory, modules, and, once something is captured, what answers calls."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="abstim-capture-")
        self.modules, self.memory = LoadedModules(Path(self._folder.name)), DeviceMemory()
        self.server: CallServer | None = None
        self._listening: tuple[socket.socket, ...] = ()

    def begin(
        self,
        gpus: Sequence[Gpu],
        model: str,
        selection: Selection,
        instruction_budget: int | None,
        told: Callable[[Timed], None],
    ) -> CallServer:
        """From now on launches are timed on these GPUs. Raises InputError for what the model cannot do."""
        case = ProgramCase("python", Module("python", "", "", "", 64, (), {}), Memory(), (), modules=self.modules)
        timer = LaunchTimer(gpus, model, case)
        recorder = LaunchRecorder(default_executor(), case, timer, selection, told, None, instruction_budget)
        clock = StreamClock(gpus[0])
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


@cache
def python_device() -> PythonDevice:
    """The one of this process. Raises InputError where memory cannot be shared."""
    return PythonDevice()
