"""How the command ends while native code runs, which no exception reaches: two seconds after an interrupt, or when the
time that ABSTIM_SECONDS gives it is over."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import Any

SECONDS = "ABSTIM_SECONDS"  # an environment variable: seconds of wall-clock time that the command may take
GRACE_SECONDS = 1.0  # for Python to end by itself after an interrupt
_EXECUTED = "what was executed is kept, and a rerun times from the first launch on"
_KEPT = {  # command -> what a rerun finds of an interrupted one
    "run": _EXECUTED,
    "advise": _EXECUTED,
    "validate": _EXECUTED,
    "fit": "what was executed is kept, and a rerun searches from the start",
    "explore": "a rerun resumes: points that were timed are kept",
    "sample": "a rerun resumes: what was executed and simulated is kept",
    "app": "a rerun starts the program again",
}
# Who is at work: the first whose module, and function if one is named, is on a thread's stack
_AT_WORK = (
    ("functional.jit.compile", "", "compiling the timing engine"),
    ("functional.llvm_executor.object_code", "_object", "compiling the kernel"),
    ("functional.steps", "", "executing the kernel (in steps)"),
    ("functional.llvm_executor.generate", "", "compiling the kernel"),
    ("functional.llvm_executor", "", "executing the kernel"),
    ("abstim.engine", "", "timing"),
    ("abstim.targets.isolation", "", "executing the kernel (isolated)"),
    ("precharacterize", "", "characterising the kernel"),
    ("functional.ptx.parser", "", "parsing PTX"),
)


def seconds_allowed() -> float | None:
    """The command's wall-clock time, None if it may take any. Raises InputError for a value that is no number."""
    from functional.errors import refuse

    text = os.environ.get(SECONDS, "")
    try:
        seconds = float(text) if text else None
    except ValueError:
        seconds = 0.0
    refuse(seconds is not None and not 0 < seconds < 1e9, f"{SECONDS} = {text!r} is not a number of seconds above 0")
    return seconds


def interrupted(words: Sequence[str]) -> str:
    """What is said of a command, given its words, that an interrupt ended."""
    command = next((word for word in words if not word.startswith("-")), "")
    return f"interrupted; {_KEPT.get(command, 'what was finished before is kept')}"


class Watch:
    """A thread that ends the process where the main thread does not come to it. A context: the command runs in it."""

    def __init__(self, seconds: float | None, interrupted: str = "interrupted") -> None:
        self.seconds, self.interrupted = seconds, interrupted
        self._said, self._interrupted, self._over = threading.Lock(), threading.Event(), threading.Event()

    def __enter__(self) -> Watch:
        self._interrupts, write = os.pipe()
        os.set_blocking(write, False)
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:  # elsewhere nobody may ask for signals
            self._before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._write = write
        self._hook, sys.unraisablehook = sys.unraisablehook, _but_interrupts
        threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """After an interrupt the thread goes on: before it ends, Python waits for pools of native threads."""
        if kind is KeyboardInterrupt and self._interrupted.wait(0.1):
            return
        self._over.set()
        sys.unraisablehook = self._hook
        if self._main:
            signal.set_wakeup_fd(self._before)
        os.write(self._write, b"\0")  # no signal has this number: the thread ends

    def say(self, message: str) -> None:
        """The command's last line, once."""
        from functional.errors import note

        if self._said.acquire(blocking=False):
            note(f"abstim: {message}")

    def _wait(self) -> None:
        end = None if self.seconds is None else monotonic() + self.seconds
        while True:
            left = None if end is None else max(0.0, end - monotonic())
            if not select.select([self._interrupts], [], [], left)[0]:
                self._end(f"stopped after {self.seconds:g} s ({SECONDS}), {_at_work()}; what was finished is kept", 2)
            got = os.read(self._interrupts, 1)[0]
            if not got:
                break
            if got == signal.SIGINT:
                self._interrupted.set()
                if not self._over.wait(GRACE_SECONDS):
                    self._end(self.interrupted, 130)
        os.close(self._interrupts)
        os.close(self._write)

    def _end(self, message: str, status: int) -> None:
        from functional.keep.folder import remove_temporary_files

        self.say(message)
        remove_temporary_files()
        os._exit(status)


def _but_interrupts(unraisable: Any) -> None:
    """Of what happens where nothing can be raised, as in a library's callback when memory is collected: an interrupt
    there needs no traceback, for the thread above ends the command."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)


def _at_work() -> str:
    from traceback import walk_stack

    frames = [frame for top in sys._current_frames().values() for frame, _ in walk_stack(top)]
    seen = {(str(frame.f_globals.get("__name__")), frame.f_code.co_name) for frame in frames}
    for module, function, what in _AT_WORK:
        if any(name.startswith(module) and function in ("", code) for name, code in seen):
            return what
    return "reading and preparing"
