"""Launches of a program, timed while it goes on: those that did the same are timed once."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from abstim.gpu.config import Gpu
from abstim.models import model_named
from abstim.progress import silent
from abstim.session.session import Session
from abstim.targets.execution import Execution
from functional.launches.case import Case
from functional.ptx.shown_name import shown_name
from functional.traces.trace import OFFSETS, STREAMS, Trace

if TYPE_CHECKING:
    from abstim.session.result import LaunchResult
    from functional.launches.launch import Launch

MOST_WAITING, MOST_WAITING_BYTES = 4, 1 << 30  # launches whose traces are held until they are timed


@dataclass(frozen=True)
class Selection:
    """Which launches are timed: of one kernel (a part of its name; "": of all), and a stretch of their numbers."""

    kernel: str = ""
    first: int = 0
    after: int | None = None

    def holds(self, number: int, kernel: str) -> bool:
        """Is this launch one of them?"""
        named = self.kernel in kernel or self.kernel in shown_name(kernel)
        return named and self.first <= number and (self.after is None or number < self.after)


EVERYTHING = Selection()


@dataclass(frozen=True)
class Timed:
    """A launch on every GPU, in their order."""

    number: int
    launch: Launch
    results: tuple[LaunchResult, ...]


class LaunchTimer:
    """Times launches on GPUs by a model, in a thread of its own, in order. Caches are empty before each."""

    def __init__(self, gpus: Sequence[Gpu], model: str, case: Case) -> None:
        """`case` knows the registers of the kernels. Raises InputError for what the model cannot do."""
        self.gpus, self.case, self._model = list(gpus), case, model_named(model)
        self._model.refuse(self.gpus, "all")
        self._session = Session(case)
        self._pool = ThreadPoolExecutor(1)
        self._known: dict[str, tuple[LaunchResult, ...]] = {}
        self._waiting: deque[tuple[Future[Timed], int]] = deque()
        self.done: list[Future[Timed]] = []

    def time(
        self, number: int, launch: Launch, key: str, trace: Trace | None, also: Callable[[Timed], Any]
    ) -> Future[float]:
        """Begin to time a launch; the future has its seconds on the first GPU. `also` is told the result.

        `key`: its likeness; `trace`: None if one that it is like was given before.
        """
        if key in self._known:  # nothing to wait for
            future = _answered(self._result(key, number, launch))
        else:
            size_bytes = 0 if trace is None else trace.nbytes
            while self._is_full(size_bytes):
                self._waiting.popleft()[0].result()
            future = self._pool.submit(self._timed, key, number, launch, trace)
            self._waiting.append((future, size_bytes))
        self.done.append(future)
        seconds: Future[float] = Future()

        def told(finished: Future[Timed]) -> None:
            if (error := finished.exception()) is not None:
                seconds.set_exception(error)
                return
            also(finished.result())
            seconds.set_result(finished.result().results[0].seconds)

        future.add_done_callback(told)
        return seconds

    def _is_full(self, more_bytes: int) -> bool:
        held = more_bytes + sum(size_bytes for _, size_bytes in self._waiting)
        return bool(self._waiting) and (len(self._waiting) >= MOST_WAITING or held > MOST_WAITING_BYTES)

    def finish(self) -> list[Timed]:
        """All results, in order. Raises what timing raised."""
        self._pool.shutdown()
        return [future.result() for future in self.done]

    def stop(self) -> list[Timed]:
        """The results that are there; nothing new is begun."""
        self._pool.shutdown(cancel_futures=True)
        ended = [future for future in self.done if future.done() and not future.cancelled()]
        return [future.result() for future in ended if future.exception() is None]

    def _timed(self, key: str, number: int, launch: Launch, trace: Trace | None) -> Timed:
        if key not in self._known:
            assert trace is not None  # the one that came first
            self._session.case.launches = (launch,)
            self._session.traces = Execution((trace,))
            runs = self._model.time(self._session, self.gpus, "all", silent)
            self._known[key] = tuple(run.launches[0] for run in runs)
        return self._result(key, number, launch)

    def _result(self, key: str, number: int, launch: Launch) -> Timed:
        return Timed(number, launch, tuple(replace(result, launch=number) for result in self._known[key]))


def _answered(timed: Timed) -> Future[Timed]:
    future: Future[Timed] = Future()
    future.set_result(timed)
    return future


def likeness_of(launch: Launch, trace: Trace) -> str:
    """Equal for launches that take the same time: the same code did the same to the same lines."""
    shape = f"{launch.program.digest}:{launch.program.name}:{launch.grid}:{launch.block}:{launch.shared_bytes}"
    digest = hashlib.blake2b(shape.encode())
    for name in (*STREAMS, *OFFSETS, "warp_instructions", "thread_instructions"):
        digest.update(memoryview(getattr(trace, name)).cast("B"))
    return digest.hexdigest()
