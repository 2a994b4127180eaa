"""One way from a target to the engine: registers, latency tables, occupancy and traces of its launches, on any GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from types import SimpleNamespace
from typing import Any, TypeVar, Unpack

import numpy as np

from abstim.engine import Caches, EngineResult, LaunchInputs, simulate_point
from abstim.engine.simulation import Simulation, warm, warm_code
from abstim.gpu.config import Gpu
from abstim.gpu.occupancy import Occupancy, check_cluster, occupancy
from abstim.session.limits import block_operations
from abstim.session.memory_accesses import first_elements, words_of_vectors
from abstim.session.turns import AS_TRACED, BY_CLOCK, BY_ESTIMATE, order_note, timed_turns_of, turns_of
from abstim.targets.execution import Execution, How, Traces, execute, is_ordered
from abstim.targets.resolve import Target, open_target
from functional.arrays import Int64
from functional.errors import InputError
from functional.isa.slots import register_notes
from functional.keep.kept import key
from functional.launches.case import Case, StreamedCase
from functional.launches.launch import Launch, may_overlap, places
from functional.programs.program import Program
from functional.programs.registers import Registers
from functional.traces.store import StoredCase
from functional.traces.trace import Trace
from precharacterize import LatencyTable, characterize
from precharacterize.projection import Projected, project
from precharacterize.tensor_work import bound, columns_of, unknown_descriptors
from precharacterize.timed_code import TimedCode, why_not_machine

Made = TypeVar("Made")
MOST_HELD = 4  # traces of timed code that a session holds


def likeness_of(launch: Launch, trace: Trace) -> str:
    """Equal for launches that do the same, on the same addresses, and ask for as much: where they find the same caches
    they take as long."""
    program = bound(launch.program, unknown_descriptors(launch.program), launch.parameters)
    asks = launch.grid, launch.block, launch.cluster, launch.shared_bytes
    return key((), program.name, program.digest, program.constants, *asks, *vars(trace).values())


class Session:
    """A target opened to be timed: what the engine needs of each launch, made once, on whatever GPU is asked for.

    Whatever times something asks here, and is a policy on it: ordinary runs (`detailed`), sweeps, samples, warm-up,
    timelines, recordings for gradients, the analytic model. Safe to use from several threads."""

    def __init__(self, case: Case, traces: Traces | None = None, parse_seconds: float = 0.0) -> None:
        self.case, self.parse_seconds = case, parse_seconds
        self.traces: Traces = Execution(()) if traces is None else traces
        self._execute_on: Callable[[Session, Gpu | None], Traces] | None = None  # None: the traces are given
        self._executed_on: Gpu | None = None
        self.order_note = ""  # what to say of launches whose outcome depends on the order of thread blocks
        self.serial = False  # one launch after the other, whatever their streams allow?
        self._made: dict[tuple, Any] = {}
        self._of_traces: dict[tuple[int, int], tuple[Trace, Any]] = {}
        self._characterize_seconds = 0.0

    @property
    def wall_seconds(self) -> dict[str, float]:
        """What parsing, executing and characterising took so far, in this process."""
        execute, characterize = self.traces.seconds, self._characterize_seconds
        return {"parse": self.parse_seconds, "execute": execute, "characterize": characterize}

    @property
    def prepared_seconds(self) -> float:
        """Their sum."""
        return sum(self.wall_seconds.values())

    def __len__(self) -> int:
        return len(self.case.launches)

    def execute_on(self, gpu: Gpu | None, how: Callable[[Session, Gpu | None], Traces]) -> None:
        """Take what `how` yields for traces. None: of a GPU that nobody knows."""
        self._execute_on, self._executed_on = how, gpu
        self.traces = how(self, gpu)

    @property
    def is_ordered(self) -> bool:
        """Does what its launches do depend on the order of their thread blocks, and so on the GPU?"""
        if isinstance(self.case, StreamedCase | StoredCase) or self.case.traces or self._execute_on is None:
            return False
        return self.once(("ordered",), lambda: any(map(is_ordered, self.case.launches)))

    @property
    def overlaps(self) -> bool:
        """Are launches of it timed side by side?"""
        return self.may_overlap and not self.serial

    @property
    def may_overlap(self) -> bool:
        """May any of its launches run side by side?"""
        launches = () if isinstance(self.case, StreamedCase) else self.case.launches
        return self.once(("overlap",), lambda: may_overlap(launches))

    @property
    def in_clusters(self) -> bool:
        """Do thread blocks of any of its launches come in clusters?"""
        launches = () if isinstance(self.case, StreamedCase) else self.case.launches
        return self.once(("clusters",), lambda: any(launch.cluster.total > 1 for launch in launches))

    def on(self, gpu: Gpu) -> Session:
        """The session with what a GPU executes: another one where that depends on the GPU and this has another's."""
        if gpu is self._executed_on or not self.is_ordered:
            return self

        def other() -> Session:
            found, how = Session(self.case), self._execute_on
            found.serial = self.serial
            assert how is not None
            found.execute_on(gpu, how)
            return found

        return self.once(("on", gpu), other)

    def alone(self, number: int) -> Session:
        """One launch as a session of its own, which another process can be sent: with all that is known of the kernel,
        which may come from tools and files that are not there."""
        launch = self.launch(number)
        self.registers(number), self.tensor_columns(number)
        case: Any = SimpleNamespace(launches=(launch,))
        found = Session(case, Execution((self.traces.trace(number),)))
        own = (launch.program.name, launch.program.digest)
        kinds = ("registers", "tensor columns", "descriptors", "table", "timed code")
        found._made = {key: made for key, made in self._made.items() if key[0] in kinds and key[1] in own}
        return found

    def each(self) -> Iterator[tuple[int, Launch, Trace]]:
        """Launches in order: number, launch, trace."""
        for number, trace in enumerate(self.traces.in_order()):
            yield number, self.launch(number), trace

    def launch(self, number: int) -> Launch:
        """A launch of the target."""
        return self.case.launches[number]

    def once(self, key: tuple, make: Callable[[], Made]) -> Made:
        """What `make` gives, made when it is first asked for."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]

    def once_of(self, number: int, trace: Trace, key: tuple, make: Callable[[], Made]) -> Made:
        """The same of a launch's trace, made anew for another trace, and where that is not held."""
        if not isinstance(self.traces, Execution) or self.traces.traces[number] is not trace:
            return make()
        if key not in self._made or self._made[key][0] is not trace:  # an application's launches come one by one
            self._made[key] = trace, make()
        return self._made[key][1]  # type: ignore[no-any-return]

    def _characterized(self, key: tuple, make: Callable[[], Made]) -> Made:
        """The same of what counts as characterising."""

        def timed() -> Made:
            started = perf_counter()
            made = make()
            self._characterize_seconds += perf_counter() - started
            return made

        return self.once(key, timed)

    def _of_program(self, number: int, what: str, make: Callable[[Program], Made]) -> Made:
        """What is made of a launch's program, once; other code may have the same name."""
        program = self.launch(number).program
        return self.once((what, program.name, program.digest), lambda: make(program))

    def first_launch_of(self, number: int) -> int:
        """The first launch of the same kernel."""
        names = ((x.program.name, x.program.digest) for x in self.case.launches)
        firsts = self.once(("firsts",), lambda: {name: k for k, name in reversed([*enumerate(names)])})
        return firsts[self.launch(number).program.name, self.launch(number).program.digest]

    def first_alike(self, number: int, trace: Trace) -> int:
        """The first launch asked for of the same likeness."""
        if len(self) == 1:
            return number
        alike = self.once_of(number, trace, ("likeness", number), lambda: likeness_of(self.launch(number), trace))
        return self.once(("alike", alike), lambda: number)

    def registers(self, number: int) -> Registers:
        """Registers a thread of a launch's program, and where the number is from."""
        return self._of_program(number, "registers", lambda _: self.case.registers(self.launch(number)))

    def block_operations(self, number: int) -> Int64[np.ndarray, "block kind"]:
        """Floating-point operations of each basic block of a launch's program."""
        return self._of_program(number, "operations", block_operations)

    def tensor_columns(self, number: int) -> int:
        """Columns of tensor memory that a thread block of a launch allocates."""
        return self._of_program(number, "tensor columns", columns_of)

    def register_notes(self, number: int) -> list[str]:
        """What is said of a launch that reads a register in which no GPU has what it has here."""
        return self._of_program(number, "register notes", register_notes)

    def occupancy(self, number: int, gpu: Gpu) -> Occupancy:
        """Thread blocks an SM. Raises InputError for a thread block that an SM cannot hold."""
        launch = self.launch(number)
        own = launch.program.name, launch.program.digest, launch.shared_bytes, launch.requested_cluster

        def made() -> Occupancy:
            check_cluster(gpu.spec, launch.cluster.total)
            registers, columns = self.registers(number).count, self.tensor_columns(number)
            needs = launch.block, registers, launch.shared_bytes, columns
            return occupancy(gpu.spec, launch.grid, *needs, launch.cluster.total)

        try:
            return self.once(("occupancy", gpu.spec, launch.grid, launch.block, *own), made)
        except InputError as error:
            name = launch.program.name
            raise InputError(f"kernel '{name}' (launch {number}) does not fit {gpu.name}: {error}") from None

    def check_fit(self, gpus: Sequence[Gpu], refused: list[tuple[Gpu, str]] | None = None) -> None:
        """Raises InputError for a launch with a thread block that an SM of one of the GPUs cannot hold; where there is
        a list, `refused` has those GPUs then, and why, and it is raised if there is no other. Raises InputError for a
        kernel without machine code on a GPU that insists on it."""
        for gpu in gpus:
            try:
                for number in range(len(self)):
                    self.occupancy(number, gpu)
            except InputError as error:
                if refused is None or len(refused) + 1 == len(gpus):
                    raise
                refused.append((gpu, str(error)))
            for number in range(len(self)) if gpu.code_asked else ():
                self.timed_code(number, gpu)

    def blocks_per_sm(self, number: int, gpu: Gpu) -> int:
        """`occupancy`, its number alone."""
        return self.occupancy(number, gpu).blocks_per_sm

    def timed_program(self, number: int) -> Program:
        """A launch's program, knowing what its parameters say that decides how long an instruction takes."""
        launch = self.launch(number)
        descriptors = self._of_program(number, "descriptors", unknown_descriptors)
        return bound(launch.program, descriptors, launch.parameters) if descriptors else launch.program

    def table(self, number: int, gpu: Gpu) -> LatencyTable:
        """The latency table of a launch's program on a GPU's pipeline."""
        program = self.timed_program(number)
        key = ("table", program.digest, program.name, program.constants, gpu.pipeline)
        return self._characterized(key, lambda: characterize(program, gpu.pipeline))

    def inputs(self, number: int, gpu: Gpu, trace: Trace | None = None) -> LaunchInputs:
        """What the engine needs of a launch. `trace`: of some of its thread blocks; None: of all."""
        found = self.traces.trace(number) if trace is None else trace
        launch, code = self.launch(number), self.timed_code(number, gpu)
        table = self.table(number, gpu) if code is None else code.table
        timed = self.accessed(number, found, table, gpu) if code is None else self.projected(found, code).trace
        size = launch.cluster.total
        order = np.lexsort(places(launch, timed.thread_blocks)[::-1]) if size > 1 else None
        module = launch.program.digest + (f" {launch.program.name}" if code else "")  # of which each has its own code
        return LaunchInputs(table, timed, launch.shared_bytes, self.registers(number).count, size, order, module)

    def timed_code(self, number: int, gpu: Gpu) -> TimedCode | None:
        """What is timed in place of a launch's PTX on a GPU that asks for it (`timed_code = machine`)."""
        if gpu.spec.timed_code == "ptx":
            return None
        from precharacterize.build_timed import timed_code_of

        program, architecture = self.timed_program(number), gpu.spec.architecture
        key = ("timed code", program.digest, program.name, program.constants, gpu.pipeline, architecture)
        found = self._characterized(key, lambda: timed_code_of(program, gpu.pipeline, architecture))
        if gpu.code_asked and (why := why_not_machine(found.description)):
            raise InputError(f"kernel '{program.name}' on {gpu.name}: {gpu.code_asked}: no machine code: {why}")
        return found

    def projected(self, trace: Trace, code: TimedCode) -> Projected:
        """A trace as one of timed code."""
        return self._held(trace, code, lambda: project(trace, code))

    def accessed(self, number: int, trace: Trace, table: LatencyTable, gpu: Gpu) -> Trace:
        """A trace of PTX with what a GPU executes and accesses of it: no slow paths, which machine code has; hardware,
        whose stores are posted, accesses all."""
        whole, program = trace, self.launch(number).program
        if program.slow_paths:
            trace = self._held(whole, program, lambda: whole.without_slow_paths(len(program.code_blocks)))
        words = self._of_program(number, "local vectors", lambda program: words_of_vectors(program, table))
        if words is None or gpu.spec.posted_stores:
            return trace
        return self._held(trace, table, lambda: first_elements(trace, table, words))

    def _held(self, trace: Trace, code: object, make: Callable[[], Made]) -> Made:
        """What is made of a trace for some code; the latest are held, for they are asked for again."""
        key = (id(trace), id(code))
        held = self._of_traces.get(key)
        if held is None or held[0] is not trace:
            held = self._of_traces[key] = (trace, make())
            for old in list(self._of_traces)[:-MOST_HELD]:
                self._of_traces.pop(old, None)
        return held[1]  # type: ignore[no-any-return]

    def simulation(
        self, number: int, gpu: Gpu, trace: Trace | None = None, caches: Caches | None = None, **record: Any
    ) -> Simulation:
        """A launch on a GPU, ready to be run by the detailed engine. `caches`: what it finds in them (None: nothing);
        `record`: what to keep of it on the way (see `Simulation`)."""
        inputs = self.inputs(number, gpu, trace)
        return Simulation(inputs, gpu, self.blocks_per_sm(number, gpu), caches=caches, **record)

    def simulate(
        self, number: int, gpu: Gpu, trace: Trace | None = None, caches: Caches | None = None, threads: int = 1,
        watch: Callable[[Simulation], None] = lambda launch: None,
    ) -> EngineResult:  # fmt: skip
        """A whole launch on a GPU, run, its SMs on so many threads; `caches` are left as they are after it. `watch` is
        shown what is about to run."""
        inputs = self.inputs(number, gpu, trace)
        return simulate_point(inputs, gpu, self.blocks_per_sm(number, gpu), caches, threads, watch)

    def warm(self, number: int, gpu: Gpu, caches: Caches, share: float = 1.0) -> None:
        """Send the memory accesses of the last `share` of a launch's thread blocks through the caches, without time."""
        inputs = self.inputs(number, gpu, self.traces.accesses(number))
        warm(inputs, gpu, self.blocks_per_sm(number, gpu), caches, share)

    def warm_code(self, number: int, gpu: Gpu, caches: Caches) -> None:
        """Send what a launch's first wave reads of instructions and constants through the caches, without time."""
        inputs = self.inputs(number, gpu, self.traces.accesses(number))
        warm_code(inputs, gpu, self.blocks_per_sm(number, gpu), caches)


def open_session(
    target: Target | Session, gpus: Sequence[Gpu] = (), *, executing: Callable[..., Traces] = execute,
    refused: list[tuple[Gpu, str]] | None = None, coupled: bool = False, serial: bool = False, **how: Unpack[How],
) -> Session:  # fmt: skip
    """A target, executed as `executing` does it (`execute`, `execute_in_turn`); a session as it is. `refused`: as of
    `Session.check_fit`; the rest: as of `abstim.models.Options`.

    Raises InputError for anything a user got wrong; among it a thread block that an SM of `gpus` cannot hold, before
    minutes of execution."""
    if isinstance(target, Session):
        return target
    started = perf_counter()
    case = open_target(target)
    session = Session(case, parse_seconds=perf_counter() - started)
    session.serial = serial
    if isinstance(case, StoredCase) and any(map(is_ordered, case.launches)):
        session.order_note = order_note(case, AS_TRACED)
    if not isinstance(case, StreamedCase):  # whose launches may be too many to look at twice
        session.check_fit(gpus, refused)
    fitting = [gpu for gpu in gpus if gpu not in [without for without, _ in refused or ()]]

    def execute_on(session: Session, gpu: Gpu | None) -> Traces:
        if gpu is None or not session.is_ordered:
            return executing(case, **how)
        session.order_note = order_note(session.case, BY_CLOCK if coupled else BY_ESTIMATE)
        if coupled:
            from abstim.session.coupled import execute_coupled

            return execute_coupled(session, gpu, **how)
        turns = turns_of(session, gpu)
        first = executing(case, turns=turns, **how)
        return executing(case, turns=timed_turns_of(session, gpu, turns, first.trace), **how)

    session.execute_on(fitting[0] if fitting else None, execute_on)
    return session
