"""A program from its start to its end: `abstim app`; and kernels that a Python program launches by Triton or Numba,
executed and timed without a GPU: `abstim.capture`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from abstim.application.call_server import CallServer
from abstim.application.device_memory import DeviceMemory
from abstim.application.launch_recorder import EVERYTHING, LaunchRecorder, LaunchStores, LaunchTimer, Selection, Timed
from abstim.application.loaded_modules import LoadedModules, ProgramCase
from abstim.application.runtime_environment import DRIVER, MEMORY, PARENT, SOCKET, driver_folder, runtime_environment
from abstim.application.stream_clock import PICOSECONDS, StreamClock
from abstim.brief import Brief
from abstim.gpu.config import Gpu, gpus_of
from abstim.models import DETAILED
from abstim.session.result import NO_CLUSTERS, code_notes
from abstim.session.side_by_side import Overlap
from abstim.targets.execution import inherited
from functional.errors import InputError, note, refuse
from functional.execution.default_executor import default_executor


@dataclass(frozen=True, repr=False)
class ApplicationResult(Brief):
    """What a program did. `launches`: those timed, in order; `seconds`: on the first GPU, from start to end, by the
    clock of its streams; `kernels_waited_seconds`: of these, what kernels waited for kernels of other streams, which a
    GPU may run side by side; `problems`: what could not be done, and how often."""

    program: str
    gpus: tuple[str, ...]
    status: int  # exit code of the program; negative: ended by that signal
    launches: tuple[Timed, ...]
    executed: int  # launches, timed or not
    seconds: float
    busy_seconds: dict[str, float]  # kernels, copies within, to and from the device
    kernels_waited_seconds: float
    problems: dict[str, int]
    model: str
    known_errors: tuple[str, ...]  # of the model on each GPU
    notes: tuple[str, ...]  # as of a RunResult
    interrupted: bool = False
    overlap: Overlap | None = None  # of kernels, where any ran side by side

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        runs = []
        for k, (gpu, known, text) in enumerate(zip(self.gpus, self.known_errors, self.notes, strict=True)):
            launches = [asdict(timed.results[k]) for timed in self.launches]
            runs.append({"gpu": gpu, "known_error": known, "note": text, "launches": launches})
        said = ("program", "status", "executed", "seconds", "busy_seconds", "kernels_waited_seconds", "problems")
        own = {name: getattr(self, name) for name in (*said, "interrupted", "model")}
        return {"kind": "application"} | own | {"overlap": self.overlap and asdict(self.overlap), "runs": runs}


def run_application(
    command: Sequence[str], gpus: Sequence[Gpu], *, model: str = "detailed", flush: str = "",
    selection: Selection = EVERYTHING, instruction_budget: int | None = None, record: Path | None = None,
    timed: bool = True, told: Callable[[Timed], None] = lambda timed: None, output: int | None = None,
    serial: bool = False,
) -> ApplicationResult:  # fmt: skip
    """Run a program whose CUDA runtime is a shared library, and time its launches on GPUs.

    `flush`: caches emptied before each launch; "": none, as on a GPU, or all where the model keeps none. The first GPU
    is the one that the program sees: its properties, and the times of its events. `told` hears of each launch when it
    is timed; `record`: a folder for the traces of launches that are timed, or, if nothing is `timed`, of those that are
    selected; `output`: an open file that takes the program's standard output; `serial`: kernels one at a time, whatever
    streams allow. An interrupt ends the program and keeps what is done. Raises InputError if it cannot be run."""
    found = shutil.which(command[0]) or shutil.which(f"./{command[0]}")
    if found is None:
        raise InputError(f"{command[0]}: there is no such program, or it may not be executed")
    path = Path(found).resolve()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="abstim-app-")))
        modules, memory = LoadedModules(scratch), DeviceMemory()
        case = ProgramCase.of(path.name, modules)
        timer = LaunchTimer(gpus, model, case, flush or ("none" if model == DETAILED else "all")) if timed else None
        stores = None if record is None else LaunchStores(record, modules)
        recorder = LaunchRecorder(default_executor(), case, timer, selection, told, stores, instruction_budget)
        clock = stream_clock(gpus[0], model, timer, serial)
        server = CallServer(memory, modules, clock, case, recorder)
        status, interrupted = _serve(server, [str(path), *command[1:]], runtime_environment(path, scratch), output)
        result = application_result(path.name, server, gpus, model, status, interrupted)
        if stores is not None:
            stores.finish(path.name)
            if clock.is_overlapping:
                note(f"abstim: {record} keeps no streams: abstim run times its launches one after the other")
    return result


def stream_clock(gpu: Gpu, model: str, timer: LaunchTimer | None, serial: bool = False) -> StreamClock:
    """The clock of a program's streams: kernels side by side by the detailed model, which alone can."""
    if timer is None:
        return StreamClock(gpu)
    return StreamClock(gpu, None if serial or model != DETAILED else timer.side_by_side, timer.pool.submit)


def application_result(
    name: str, server: CallServer, gpus: Sequence[Gpu], model: str, status: int = 0, stopped: bool = False
) -> ApplicationResult:
    """What a server's program did. `stopped`: what is not timed yet is left out."""
    timer = server.recorder.timer
    seconds, clock = 0.0 if stopped else server.clock.settle() / PICOSECONDS, server.clock
    overlap = None if stopped else server.clock.overlap()
    launches = [] if timer is None else timer.stop() if stopped else timer.finish()
    busy = {engine: time / PICOSECONDS for engine, time in clock.busy.items()}
    found = [code_notes(gpu, model, [timed.results[k] for timed in launches]) for k, gpu in enumerate(gpus)]
    clusters = NO_CLUSTERS * (model != DETAILED and any(timed.launch.cluster.total > 1 for timed in launches))
    notes = tuple(known for known, _ in found), tuple("; ".join(filter(None, (own, clusters))) for _, own in found)
    times = (seconds, busy, clock.kernels_waited / PICOSECONDS)
    did = (name, tuple(gpu.name for gpu in gpus), status, tuple(launches), server.recorder.count)
    return ApplicationResult(*did, *times, server.problems, model, *notes, stopped, overlap)


def _serve(server: CallServer, command: list[str], environment: dict[str, str], output: int | None) -> tuple[int, bool]:
    """The program's exit code, and whether an interrupt ended it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        files = (theirs.fileno(), server.memory.file)
        told = dict(zip((SOCKET, MEMORY, PARENT), map(str, (*files, os.getpid())), strict=True))
        environment = os.environ | inherited() | environment | told
        process = subprocess.Popen(command, env=environment, pass_fds=files, stdout=output)
        theirs.close()
        threading.Thread(target=_end_with, args=(process, ours), daemon=True).start()
        try:
            with ours.makefile("rb") as requests, ours.makefile("wb") as replies:
                server.serve(requests, replies)
            return process.wait(), False
        except KeyboardInterrupt:  # gigabytes take seconds to be given back, which the results do not wait for
            process.kill()
            return -signal.SIGKILL, True
        except BaseException:
            process.kill()
            process.wait()
            raise


def _end_with(process: subprocess.Popen[bytes], ours: socket.socket) -> None:
    """What has come from the program is read when it has ended, and nothing is waited for: others may hold its end."""
    process.wait()
    with suppress(OSError):  # closed already
        ours.shutdown(socket.SHUT_RD)


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
        self.server.problems, self.server.allowed = {}, set()
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
        self, gpu: str | Gpu | Sequence[str | Gpu] = "rtx3070", *, model: str = "detailed", flush: str = "all",
        only: str = "", instruction_budget: int | None = None, told: Callable[[Timed], None] = lambda timed: None,
    ) -> None:  # fmt: skip
        """`gpu`: one or several; the first is what kernels are compiled for, and what events read. `flush`: caches
        emptied before each launch ("none": as on a GPU, where arrays stay at their places; Triton's arguments that are
        in the host's memory do not). `only`: a part of the name of kernels that are timed (all are executed). Raises
        InputError for GPUs or a model that are not there."""
        self.gpus = gpus_of(gpu)
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
