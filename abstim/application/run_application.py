"""A program from its start to its end: `abstim app`."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from abstim.application.call_server import CallServer
from abstim.application.device_memory import DeviceMemory
from abstim.application.launch_recorder import EVERYTHING, LaunchRecorder, LaunchStores, LaunchTimer, Selection, Timed
from abstim.application.loaded_modules import LoadedModules, ProgramCase
from abstim.application.runtime_environment import MEMORY, PARENT, SOCKET, runtime_environment
from abstim.application.stream_clock import PICOSECONDS, StreamClock
from abstim.brief import brief
from abstim.gpu.config import Gpu
from abstim.models import DETAILED
from abstim.session.result import NO_CLUSTERS, code_notes
from abstim.session.side_by_side import Overlap
from abstim.targets.execution import inherited
from functional.errors import InputError
from functional.execution.default_executor import default_executor
from functional.terminal import note


@dataclass(frozen=True)
class ApplicationResult:
    """What a program did. `launches`: those timed, in order; `seconds`: on the first GPU, from start to end, by the
    clock of its streams; `kernels_waited_seconds`: of these, what kernels waited for kernels of other streams, which a
    GPU may run side by side; `problems`: what could not be done, and how often."""

    __repr__ = brief

    program: str
    gpus: tuple[str, ...]
    status: int  # exit code of the program; negative: ended by that signal
    launches: tuple[Timed, ...]
    executed: int  # launches, timed or not
    seconds: float
    busy_seconds: dict[str, float]  # kernels, copies to and from the device
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
    streams allow. An interrupt ends the program and keeps what is done. Raises InputError for a program that cannot be
    run."""
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
