"""The LLVM executor: machine code runs a launch, on several threads where that changes nothing, and what goes wrong
runs once more, with care."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from threading import Lock

import numpy as np

from functional.errors import BudgetSpent, PtxError, note, refuse
from functional.execution.computer import default_threads
from functional.execution.executor import CHUNK_BYTES, Executor, Interleaving, Request
from functional.isa.operation import Unsupported
from functional.launches.launch import Launch, open_regions
from functional.llvm_executor.attempts import Conflict, Stepped, interleaved, parallel, serial
from functional.llvm_executor.by_piece import PieceCode, by_piece
from functional.llvm_executor.launch_state import Abandoned, Job, Machine, OverBudget, Pool, Worker
from functional.llvm_executor.object_code import Compiled, load
from functional.llvm_executor.pieces import Care
from functional.llvm_executor.streams import Shadow
from functional.llvm_executor.undo import Undo
from functional.programs.program import Program
from functional.steps.machine import UNWATCHED, Watch
from functional.traces.trace import Trace, concatenate, rechunk

_TOGETHER_WARPS = 1 << 12  # of blocks that wait for each other, where nobody says how many are resident
_RACE = "thread blocks touch 32-byte sectors that others write; they ran in block order, which a GPU does not promise"
_CACHED_PROGRAMS, _KNOWN_LAUNCHES = 64, 4096
Way = Callable[[Job], Iterator[Trace]]  # to run what is left of a launch


class LlvmExecutor(Executor):
    """Executes a launch as machine code, a warp at a time. `threads`: how many run chunks of thread blocks at the same
    time (default: `default_threads`). Memory and trace are those of one thread: a launch whose blocks turn out to touch
    each other's data is run again, in order. `care`: at least; `watch`: what looks at every access of a careful run."""

    def __init__(
        self, threads: int | None = None, care: Care = Care.NONE, watch: Callable[[Job], Watch] = lambda _: UNWATCHED
    ) -> None:
        self.threads = default_threads() if threads is None else threads
        self._care, self._watch = care, watch
        self._programs: dict[tuple[str, str, str, bool, Care], tuple[Program, Compiled]] = {}
        # Launches, by program and shape, for which several threads do not pay: too short, or in conflict
        self._one_thread: set[tuple[object, ...]] = set()
        self._lock = Lock()
        self._workers, self._undos, self._shadows = Pool(Worker), Pool(Undo), Pool(Shadow)

    def compiled(self, program: Program, in_clusters: bool = False, care: Care = Care.NONE) -> Compiled:
        """Machine code of a program, made on first use. Raises PtxError for an instruction that is not supported."""
        care = max(care, self._care)
        key = (program.path, program.digest, program.name, in_clusters, care)
        with self._lock:
            known = self._programs.get(key)
            if known is None or known[0] is not program:
                while len(self._programs) >= _CACHED_PROGRAMS:
                    self._programs.pop(next(iter(self._programs)))
                try:
                    known = program, load(program, in_clusters, care)
                except Unsupported as error:
                    message = f"kernel '{program.name}' cannot be compiled: {error}"
                    raise PtxError(program.path, program.instructions[0].line, message) from None
                if known[1].generated.by_piece:
                    known[1].steps(PieceCode)
                self._programs[key] = known
        return known[1]

    def _own(self, launch: Launch) -> Compiled:
        return self.compiled(launch.program, launch.cluster.total > 1)

    def prepare(self, program: Program) -> None:
        self.compiled(program)

    def whole(self, request: Request) -> Trace:
        compiled = self._own(request.launch)
        with ExitStack() as leases:
            job = self._job(compiled, request, None, leases)
            return concatenate(list(self._chunks(job)), request.launch.warps_per_block, self.threads)

    def chunked(self, request: Request) -> Iterator[Trace]:
        compiled = self._own(request.launch)
        with ExitStack() as leases:
            job = self._job(compiled, request, request.chunk_bytes, leases)
            with closing(self._chunks(job)) as chunks:
                yield from rechunk(chunks, request.chunk_bytes)

    @contextmanager
    def stepped(self, request: Request) -> Iterator[Stepped]:
        """A launch whose warps pass order points when told to. Raises InputError for one executed by the piece."""
        compiled = self._own(request.launch)
        refuse(compiled.generated.by_piece, f"kernel '{request.launch.program.name}' is only executed as a whole")
        with ExitStack() as leases:
            job = self._job(compiled, request, None, leases)
            job.undo.begin(job.memory)
            machine = Machine(job, leases.enter_context(self._workers.one()), append=False, resident=len(job.blocks))
            yield Stepped(machine, job.blocks, len(request.launch.program.blocks))

    def _job(self, compiled: Compiled, request: Request, chunk_bytes: int | None, leases: ExitStack) -> Job:
        if compiled.generated.care:
            open_regions(request.launch.program, request.memory)
        undo, budget = leases.enter_context(self._undos.one()), request.instruction_budget
        what = compiled, request.launch, request.memory, request.thread_blocks, budget
        turns = request.interleaving if compiled.ordered and len(request.thread_blocks) > 1 else None
        return Job(*what, chunk_bytes, self._workers, undo, turns, leases)

    def _chunks(self, job: Job) -> Generator[Trace]:
        """Run a job in the first way that comes to its end."""
        job.undo.begin(job.memory)
        ways = self._ways(job)
        while not job.finished:
            try:
                yield from ways.pop(0)(job)
            except Abandoned as stop:
                job.undo.restore(job.memory)
                if isinstance(stop, OverBudget):
                    ways = [self._together(job, stop)]
                elif not job.done:  # the first chunk runs alone, in any way but the last
                    ways = [self._carefully]
                _replay(job)

    def _ways(self, job: Job) -> list[Way]:
        if job.compiled.generated.care:
            return [self._carefully]
        own = _own_ways(job) or ([interleaved] if job.interleaving else [self._parallel, serial])
        return [*own, self._carefully]

    def _parallel(self, job: Job) -> Iterator[Trace]:
        program = job.launch.program
        key = (program.digest, program.name, job.launch.grid, job.launch.block)
        if self.threads == 1 or len(job.blocks) == 1 or key in self._one_thread:
            return
        if len(self._one_thread) >= _KNOWN_LAUNCHES:
            self._one_thread.clear()
        if not job.compiled.independent:
            self._one_thread.add(key)
            return
        try:
            yield from parallel(job, self.threads, self._shadows)
        except Conflict:
            self._one_thread.add(key)
            note(f"abstim: kernel '{program.name}': {_RACE}")
            raise
        if not job.finished:
            self._one_thread.add(key)

    def _carefully(self, job: Job) -> Iterator[Trace]:
        """After a fault, whose reason is found this time. Raises ExecutionError, if the machine code was right."""
        compiled = job.compiled
        if not compiled.generated.care:
            compiled = self.compiled(job.launch.program, job.launch.cluster.total > 1, Care.FAULTS)
        yield from by_piece(replace(job, compiled=compiled, machines=[]), self._watch(job))
        job.done = len(job.blocks)

    def _together(self, job: Job, stop: OverBudget) -> Way:
        """Over budget, perhaps since blocks wait for later ones: many take turns. Raises BudgetSpent if not."""
        program = job.launch.program
        if job.interleaving or stop.thread_block == job.blocks[-1] or not job.compiled.ordered:
            raise BudgetSpent(program.name, program.path, stop.line, job.budget) from None
        many = max(1, _TOGETHER_WARPS // job.launch.warps_per_block)
        job.interleaving = Interleaving(many, np.ones(len(program.blocks), np.int64))
        return interleaved


def _own_ways(job: Job) -> list[Way]:
    """Of programs that are executed by the piece."""
    return [by_piece] if job.compiled.generated.by_piece else []


def _replay(job: Job) -> None:
    """Run what has been handed out once more, for what it writes, on other machines: the old ones are in disorder."""
    with ExitStack() as leases:
        done = job.blocks[: job.done]
        again = replace(job, blocks=done, chunk_bytes=CHUNK_BYTES, leases=leases, done=0, used=0, machines=[])
        for _ in (_own_ways(job) or [serial])[0](again):
            pass
    job.used, job.machines = again.used, []
