"""Execution driven by the clock of the detailed engine: it says when a warp comes to where its outcome depends on the
order of thread blocks, and the warp is executed then."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from abstim.engine.coupling import COLUMNS
from abstim.engine.simulation import LaunchInputs, Simulation
from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.turns import Launches
from abstim.targets.execution import Execution, came_along, chosen_executor, execute_case, is_ordered
from abstim.targets.isolation.isolated_executor import IsolatedExecutor
from functional.errors import ExecutionError, InputError, refuse
from functional.execution.executor import Executor, Request
from functional.launches.case import Case, StreamedCase
from functional.llvm_executor import LlvmExecutor
from functional.llvm_executor.attempts import Stepped
from functional.llvm_executor.streams import StreamPart
from functional.traces.store import StoredCase
from functional.traces.trace import COUNTS, DTYPES, STREAMS, Trace, offsets_of

WINDOW_CYCLES = 8  # after which warps that wait are executed: what a turn of one may come too late
_LONGEST_WAIT = 1 << 16  # windows in which no warp that waits can go on: nobody is left who could release them


class CoupledExecutor(Executor):
    """Executes the launches of a session as a GPU's clock says; those whose outcome depends on no order as `inner`.

    `cycles`: of each coupled launch, by that clock, to be held against the cycles of the trace that came of it."""

    def __init__(self, inner: LlvmExecutor, session: Launches, gpu: Gpu) -> None:
        self.inner, self.session, self.gpu = inner, session, gpu
        self.cycles: dict[int, int] = {}

    def whole(self, request: Request) -> Trace:
        """See `Executor.run`. Raises InputError for a launch that the engine, or the stepping executor, cannot do."""
        if not is_ordered(request.launch):
            return self.inner.whole(request)
        numbers = [k for k in range(len(self.session)) if self.session.launch(k) is request.launch]
        with self.inner.stepped(request) as stepped:
            coupled = _Coupled(stepped, self.session, numbers[0], self.gpu)
            coupled.run()
            self.cycles[numbers[0]] = coupled.simulation.result().cycles
            return stepped.trace()

    def chunked(self, request: Request) -> Iterator[Trace]:
        """See `Executor.stream`."""
        return iter([self.whole(request)])


_NOTHING = Trace(warps_per_block=1, **{name: np.zeros(0, dtype) for name, dtype in DTYPES.items()})


class _Streams:
    """Streams as they come, part behind part, whosever they are."""

    def __init__(self) -> None:
        self._arrays = {name: np.zeros(1 << 12, DTYPES[name]) for name in ("blocks", "records", "conflicts")}
        self.used = dict.fromkeys(self._arrays, 0)

    def append(self, part: StreamPart) -> tuple[int, int, int, int]:
        """Where its events begin and end, its records and its bank passes begin."""
        begins = dict(self.used)
        for name, array in self._arrays.items():
            values = getattr(part, name)
            self.used[name] = end = begins[name] + len(values)
            if end > len(array):
                self._arrays[name] = array = np.concatenate([array, np.zeros(end, DTYPES[name])])
            array[begins[name] : end] = values
        return begins["blocks"], self.used["blocks"], begins["records"], begins["conflicts"]

    def of(self, trace: Trace) -> Trace:
        """A trace that reads from here."""
        arrays: dict[str, Any] = {**self._arrays}
        return replace(trace, **arrays)


class _Coupled:
    """A launch that is executed and timed at the same time. Warps are counted in the order of the thread blocks."""

    def __init__(self, stepped: Stepped, session: Launches, number: int, gpu: Gpu) -> None:
        launch, self.stepped = session.launch(number), stepped
        table = session.table(number, gpu)
        self.accessed = partial(session.accessed, number, table=table, gpu=gpu)
        self.blocks, self.streams = np.arange(launch.thread_blocks), _Streams()
        self.pending: dict[int, deque[tuple[int, int, int, int]]] = {}
        firsts = self._firsts(launch.thread_blocks * launch.warps_per_block)
        zeros = np.zeros(len(firsts["block_offsets"]) - 1, np.int64)
        did: dict[str, Any] = dict.fromkeys(COUNTS, zeros) | firsts
        self.trace = replace(_NOTHING, thread_blocks=self.blocks, warps_per_block=launch.warps_per_block, **did)
        inputs = LaunchInputs(table, self.streams.of(self.trace), launch.shared_bytes)
        self.simulation = Simulation(inputs, gpu, session.blocks_per_sm(number, gpu), coupled_cycles=WINDOW_CYCLES)
        self.warps = self.simulation.warps
        for warp in range(len(self.warps)):
            self._say_more(warp)

    def _new(self) -> Iterator[StreamPart]:
        """What warps have done since they were asked last, with what the GPU executes and accesses of it."""
        for part in self.stepped.new():
            streams: dict[str, Any] = {name: own for name, own in part._asdict().items() if name in STREAMS}
            ends: dict[str, Any] = {STREAMS[name]: np.array([0, len(own)]) for name, own in streams.items()}
            lanes = np.zeros(len(part.blocks), np.uint32)  # which nobody asks for
            own = self.accessed(replace(_NOTHING, **streams, **ends, masks=lanes))
            yield part._replace(blocks=own.blocks, records=own.records)

    def _firsts(self, warps: int) -> dict[str, np.ndarray]:
        """Offsets of what each warp does before its first order point."""
        parts: list[list[StreamPart]] = [[] for _ in range(warps)]
        for part in self._new():
            parts[part.warp].append(part)
        counts = np.zeros((3, warps), np.int64)
        for warp, own in enumerate(parts):
            for part in own:
                self.streams.append(part)
                counts[:, warp] += len(part.blocks), len(part.records), len(part.conflicts)
        names = ("block_offsets", "record_offsets", "conflict_offsets")
        return {name: offsets_of(row) for name, row in zip(names, counts, strict=True)}

    def _say_more(self, warp: int) -> None:
        """Is there more to come of a warp, behind what the engine has of it?"""
        self.warps["more"][warp] = int(not self.stepped.is_done(warp) or bool(self.pending.get(warp)))

    def run(self) -> None:
        """To the end. Raises ExecutionError for a deadlock."""
        handed, waited, simulation = 0, 0, self.simulation
        while handed < len(self.blocks) or not simulation.finished:
            handed += simulation.run_to(self.blocks[handed:], 0)
            waited = 0 if self._serve() else waited + 1
            if waited > _LONGEST_WAIT:
                raise ExecutionError(f"deadlock: nothing has happened for {waited * WINDOW_CYCLES:,} cycles")

    def _serve(self) -> bool:
        """Execute the warps that wait, in the order in which they came, and let go on who can; does any?"""
        parked = np.flatnonzero(self.warps["parked_cycle"] >= 0)
        for warp in parked[np.argsort(self.warps["parked_cycle"][parked], kind="stable")].tolist():
            if not self.pending.get(warp) and self.stepped.is_before_point(warp):
                self.stepped.step(warp)
                for part in self._new():
                    self.pending.setdefault(part.warp, deque()).append(self.streams.append(part))
        going = [warp for warp in parked.tolist() if self.pending.get(warp)]
        if not going:
            return not len(parked)
        simulation, per_block = self.simulation, self.trace.warps_per_block
        simulation.extend(replace(simulation.inputs, trace=self.streams.of(self.trace)))
        parts = np.zeros((len(going), len(COLUMNS)), np.int64)
        for k, warp in enumerate(going):
            sm, slot = simulation.blocks["sm"][warp // per_block], self.warps["slot"][warp]
            parts[k] = sm, slot, *self.pending[warp].popleft()
            self.warps["parked_cycle"][warp] = -1
            self._say_more(warp)
        simulation.resume(parts, simulation.paused_cycle + 1)
        return True


def execute_coupled(
    session: Launches, gpu: Gpu, executor: Executor | None = None, instruction_budget: int | None = None,
    progress: Progress = silent,
) -> Execution:  # fmt: skip
    """Every launch of a session, none of it kept. Raises InputError for a GPU that is timed from machine code, which is
    not executed, for an executor that runs kernels elsewhere, and for a target that is a trace."""
    started, executor = perf_counter(), executor or chosen_executor()
    if gpu.spec.timed_code != "ptx":
        raise InputError(f"--coupled executes what it times, and {gpu.name} times machine code; add --timed-code ptx")
    if isinstance(executor, IsolatedExecutor) and all(came_along(one.program) for one in session.case.launches):
        executor = executor.inner
    if type(executor) is not LlvmExecutor:
        raise InputError("--coupled executes kernels in this process: `abstim --no-isolate run`, and no --strict")
    found = execute_case(session.case, CoupledExecutor(executor, session, gpu), instruction_budget, progress)
    return replace(found, seconds=perf_counter() - started)


def refuse_coupled(case: Case, flush: str) -> None:
    """Raises InputError for what cannot be executed by the engine's clock, or would come out the same without it."""
    if case.traces or isinstance(case, StreamedCase | StoredCase):
        what = "is made launch by launch" if isinstance(case, StreamedCase) else "is a trace, nothing is executed"
        raise InputError(f"--coupled: {case.name} {what}")
    refuse(flush != "all", "--coupled executes each launch with empty caches; leave out --flush")
    if not any(map(is_ordered, case.launches)):
        raise InputError(f"--coupled: no effect on {case.name}, where no order of thread blocks decides anything")
