"""Launches of a session with every issue logged: what a timeline is drawn from, where in the source time goes, and what
each instruction waited for before it issued."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from abstim.brief import grouped
from abstim.engine import Simulation
from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.memory_accesses import accesses_of
from abstim.session.session import Session
from abstim.session.side_by_side import timed_stretches
from abstim.session.warm_up import Flushed
from functional.arrays import Int64
from functional.errors import InputError
from functional.files import read_text
from functional.jit.machine_code import compiled
from functional.launches.launch import Launch
from functional.programs.program import Program
from functional.ptx.source import SourceLine, ptx_text, shown_name, source_lines
from functional.traces.line_record import sectors_of
from functional.traces.trace import Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind
from precharacterize.timed_code import TimedCode

# Columns of `stalls`, cycles between a warp's issues: for a load, for an arithmetic result, at a barrier, and the rest:
# for its turn, its unit, its port, its fetch
STALLS = ("memory", "arithmetic", "barrier", "turn_or_unit")
MEMORY, ARITHMETIC, AT_BARRIER, TURN = range(len(STALLS))


@compiled
def attribute(warp, cycle, instruction, result, place, kind, waits, writes, ready, of_memory, found):
    """Add to `found` [place, STALLS]. Of the log, by warp and then time: `warp`, `cycle`, `instruction`, `result`
    cycle, and the `place` where the wait before it counts; of the program `kind`, `waits`, `writes` [instruction,
    register]; scratch `ready`, `of_memory` [register]."""
    last, before, previous = -1, 0, 0
    for k in range(len(warp)):
        i = instruction[k]
        if warp[k] != last:
            last = warp[k]
            ready[:] = 0
            of_memory[:] = 0
        elif cycle[k] > before + 1:
            left, memory, arithmetic = cycle[k] - before - 1, 0, 0
            if kind[previous] == Kind.BARRIER:
                found[place[k], AT_BARRIER] += left
                left = 0
            elif kind[previous] in (Kind.FENCE, Kind.SHARED_ATOMIC, Kind.GLOBAL_ATOMIC):
                found[place[k], MEMORY] += left
                left = 0
            for j in range(waits.shape[1]):
                r = waits[i, j]
                if r >= 0 and of_memory[r]:
                    memory = max(memory, ready[r] - before - 1)
                elif r >= 0:
                    arithmetic = max(arithmetic, ready[r] - before - 1)
            memory = min(memory, left)
            arithmetic = min(max(arithmetic - memory, 0), left - memory)
            found[place[k], MEMORY] += memory
            found[place[k], ARITHMETIC] += arithmetic
            found[place[k], TURN] += left - memory - arithmetic
        for j in range(writes.shape[1]):
            r = writes[i, j]
            if r >= 0:
                ready[r] = result[k]
                of_memory[r] = kind[i] >= Kind.PARAM_LOAD
        before, previous = cycle[k], i


def add_stalls(
    log: np.ndarray, table: LatencyTable, place: Int64[np.ndarray, " issue"], found: Int64[np.ndarray, "place reason"]
) -> None:
    """What the issues of a log (ISSUE, by warp and then time) waited for, each added to its place of `found`."""
    columns = (np.ascontiguousarray(log[name], np.int64) for name in ("warp", "cycle", "instruction", "result_cycle"))
    kinds = np.where(table.copies >= 0, Kind.FENCE, table.kind)  # what waits for copies waits for memory
    program = (np.ascontiguousarray(a, np.int64) for a in (kinds, table.waits, table.writes))
    ready, of_memory = (np.zeros(table.register_count + 1, np.int64) for _ in range(2))
    attribute(*columns, np.ascontiguousarray(place, np.int64), *program, ready, of_memory, found)


MOST_ISSUES = 20_000_000  # of a launch: a gigabyte of log


class Span(NamedTuple):
    """A launch on its stream, in cycles from the beginning of what is drawn."""

    kernel: str
    stream: str
    start_cycle: int
    end_cycle: int


@dataclass(frozen=True)
class LaunchLog:
    """A launch, or launches side by side, to be drawn. `log`: every warp instruction issued (ISSUE of
    `abstim.engine.state`), by warp, then time; `stalls`: cycles that the warp waited before each, by STALLS.
    `block_start`: first instruction of every basic block, ascending; `block_line`: the line of the PTX where it begins
    (of machine code: where the PTX block begins that it was made of)."""

    name: str
    log: np.recarray
    stalls: Int64[np.ndarray, "issue reason"]
    block_start: Int64[np.ndarray, " basic_block"]
    block_line: Int64[np.ndarray, " basic_block"]
    cycles: int
    sm_count: int
    spans: tuple[Span, ...] = ()


def _logged(
    session: Session, gpu: Gpu, flush: str, what: str, who: str, progress: Progress
) -> Iterator[tuple[Launch, TimedCode | None, Simulation, np.ndarray]]:
    """Every launch, run in order, and its log of issues, by warp, then time. Raises InputError for one that is too long
    for what `who` asks."""
    policy = Flushed(flush)
    for number, launch, trace in session.each():
        progress(f"{what} {session.case.name}", number, len(session))
        code = session.timed_code(number, gpu)
        count = _checked(_issues(session, number, trace, gpu), range(number, number + 1), who)
        run = session.simulation(number, gpu, trace, policy.before(session, number, gpu))
        log = run.run(np.arange(len(trace.thread_blocks)), drain=True, log_rows=count)
        policy.after(run)
        yield launch, code, run, log[np.lexsort((log["cycle"], log["warp"]))]


def _issues(session: Session, number: int, trace: Trace, gpu: Gpu) -> int:
    """Of a launch on a GPU, on which machine code may be timed in place of its PTX."""
    code = session.timed_code(number, gpu)
    return int(trace.warp_instructions.sum()) if code is None else session.projected(trace, code).instructions


def _checked(count: int, numbers: range, who: str) -> int:
    """The issues of some launches. Raises InputError for more than `who` takes."""
    if count > MOST_ISSUES:
        which = f"launch {numbers[0]} issues" if len(numbers) == 1 else f"launches {numbers[0]} to {numbers[-1]} issue"
        raise InputError(f"{which} {count:,} instructions; {who} takes {MOST_ISSUES:,} at most")
    return count


def _lines(launch: Launch, code: TimedCode | None, table: LatencyTable) -> list[int]:
    """Of the PTX, where each basic block begins."""
    blocks = range(len(table.block_start)) if code is None else code.numbers[:, 0].tolist()
    return [launch.program.line_of(block) for block in blocks]


def _drawn(name: str, log: np.ndarray, table: LatencyTable, lines: list[int], cycles: int, gpu: Gpu,
           spans: Sequence[Span]) -> LaunchLog:  # fmt: skip
    stalls = np.zeros((len(log), len(STALLS)), np.int64)
    add_stalls(log, table, np.arange(len(log)), stalls)
    drawn = log.view(np.recarray), stalls, table.block_start, np.array(lines, np.int64)
    return LaunchLog(name, *drawn, cycles, gpu.spec.sm_count, tuple(spans))


def issue_logs(session: Session, gpu: Gpu, flush: str = "all", progress: Progress = silent) -> Iterator[LaunchLog]:
    """Time every launch in order, logging it, or those side by side that overlap. Raises InputError for more than can
    be logged."""
    if session.overlaps:
        yield from _logs_side_by_side(session, gpu, flush)
        return
    for launch, code, run, log in _logged(session, gpu, flush, "log", "a timeline", progress):
        name, table, cycles = _shown(launch), run.inputs.table, run.result().cycles
        spans = [Span(name, launch.order.stream, 0, cycles)]
        yield _drawn(name, log, table, _lines(launch, code, table), cycles, gpu, spans)


def _shown(launch: Launch) -> str:
    return shown_name(launch.program.name) + (f" ({launch.label})" if launch.label else "")


def _logs_side_by_side(session: Session, gpu: Gpu, flush: str) -> Iterator[LaunchLog]:
    """A log a stretch of launches that overlap; the tables of their code stand one behind the other in it."""

    def rows(stretch: range) -> int:
        count = sum(_issues(session, number, session.traces.trace(number), gpu) for number in stretch)
        return _checked(count, stretch, "a timeline")

    for stretch, timed in timed_stretches(session, gpu, Flushed(flush), rows):
        launches = {number: session.launch(number) for number in stretch}
        tables = {session.table(number, gpu): number for number in reversed(stretch)}  # the first launch of each
        lines = [line for table, number in sorted(tables.items(), key=lambda own: own[1])
                 for line in _lines(launches[number], session.timed_code(number, gpu), table)]  # fmt: skip
        spans = [Span(_shown(launch), launch.order.stream, int(start), int(end))
                 for launch, start, end in zip(launches.values(), timed.starts, timed.ends, strict=True)]  # fmt: skip
        log = timed.log[np.lexsort((timed.log["cycle"], timed.log["warp"]))]
        name = ", ".join(dict.fromkeys(span.kernel for span in spans))
        yield _drawn(name, log, timed.table, lines, timed.whole.cycles, gpu, spans)


LOGGED = {"l1d_misses": "l1d_misses", "l2_sectors": "l2_accesses", "dram_sectors": "dram_reads"}
COUNTS = ("issues", "l1d_misses", "l2_sectors", "dram_sectors", "requests", "sectors", "shared_requests", "bank_passes")


@dataclass(frozen=True, kw_only=True)
class HotSpot:
    """One instruction of a kernel, over all its launches; sums over warps.

    `stalls`: cycles that warps waited before it, by STALLS. `requests` are executions that touched memory, `sectors`
    those of 32 B that they touched; `shared_requests` and `bank_passes` the same of shared memory. L2 and DRAM sectors
    are those that its accesses waited for; several may wait for one of what is read-only."""

    kernel: str
    line: int  # of the PTX
    text: str
    source: SourceLine | None
    stalls: dict[str, int]
    issues: int
    l1d_misses: int
    l2_sectors: int
    dram_sectors: int
    requests: int
    sectors: int
    shared_requests: int
    bank_passes: int

    @property
    def cycles(self) -> int:
        """Of warps: its issues and what they waited."""
        return self.issues + sum(self.stalls.values())

    @property
    def worst(self) -> str:
        """What its warps waited for most; "" if they did not."""
        name = max(self.stalls, key=self.stalls.__getitem__)
        return name.replace("_", " ") if self.stalls[name] else ""

    @property
    def sectors_per_request(self) -> float | None:
        """4 are 32 lanes of 4 B side by side; None if it asks for none."""
        return self.sectors / self.requests if self.requests else None

    @property
    def passes_per_request(self) -> float | None:
        """1: no bank conflict; None if it uses no shared memory."""
        return self.bank_passes / self.shared_requests if self.shared_requests else None

    def to_json(self) -> dict[str, Any]:
        """As what `json.dumps` takes."""
        derived = {name: getattr(self, name) for name in ("cycles", "sectors_per_request", "passes_per_request")}
        return asdict(self) | derived | {"source": self.source._asdict() if self.source else None}


class _Kernel:
    """Sums of a kernel, an element an instruction."""

    def __init__(self, program: Program) -> None:
        self.program, self.size = program, len(program.instructions)
        self.stalls: Int64[np.ndarray, "instr reason"] = np.zeros((self.size, len(STALLS)), np.int64)
        self.counts = {name: np.zeros(self.size, np.int64) for name in COUNTS}

    def add(self, name: str, instruction: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Count executions, or what each of them weighs."""
        self.counts[name] += np.bincount(instruction, weights, self.size).astype(np.int64)


def hot_spots(session: Session, gpu: Gpu, flush: str = "all", progress: Progress = silent) -> list[HotSpot]:
    """Of every kernel of a target, in the order of the text; machine instructions count at the PTX instruction that
    they were made of. Raises InputError for a launch too long to log."""
    kernels: dict[tuple[str, str], _Kernel] = {}
    for launch, code, run, log in _logged(session, gpu, flush, "hot spots of", "--hot", progress):
        program = launch.program
        kernel = kernels.setdefault((program.digest, program.name), _Kernel(program))
        origins = np.arange(kernel.size) if code is None else code.origins.astype(np.int64)
        instruction = origins[log["instruction"]]
        add_stalls(log, run.inputs.table, instruction, kernel.stalls)
        kernel.add("issues", instruction)
        for name, column in LOGGED.items():
            kernel.add(name, instruction, log[column])
        found, passes = accesses_of(run.inputs), run.inputs.trace.conflicts
        bits = np.bitwise_count(sectors_of(run.inputs.trace.records)).astype(np.int64)
        sectors = np.add.reduceat(bits, found.first) if len(found.first) else np.zeros(0, np.int64)
        kernel.add("requests", origins[found.instruction[sectors > 0]])
        kernel.add("sectors", origins[found.instruction], sectors)
        kernel.add("shared_requests", origins[found.shared[passes > 0]])
        kernel.add("bank_passes", origins[found.shared], passes)
    return [spot for kernel in kernels.values() for spot in _spots(kernel)]


def _spots(kernel: _Kernel) -> Iterator[HotSpot]:
    text = ptx_text(kernel.program)
    lines, sources = text.splitlines(), source_lines(text)
    for i, instruction in enumerate(kernel.program.instructions):
        at = instruction.line
        counts = {name: int(values[i]) for name, values in kernel.counts.items()}
        stalls = dict(zip(STALLS, kernel.stalls[i].tolist(), strict=True))
        written = lines[at - 1].strip() if 0 < at <= len(lines) else instruction.name
        name, source = kernel.program.name, sources.get(at)
        yield HotSpot(kernel=name, line=at, source=source, text=written, stalls=stalls, **counts)


@lru_cache(maxsize=64)
def source_text(file: str) -> tuple[str, ...]:
    """The lines of a source; none if it is not there."""
    try:
        return tuple(read_text(file, errors="replace").splitlines())
    except OSError:
        return ()


class HotLine(NamedTuple):
    """A line of the source and all that was made of it."""

    file: str
    line: int
    text: str
    spots: tuple[HotSpot, ...]

    @property
    def cycles(self) -> int:
        """Of warps: issues and stalls."""
        return sum(spot.cycles for spot in self.spots)


def by_source_line(spots: Sequence[HotSpot]) -> list[HotLine]:
    """By CUDA line where the PTX says it; else none. In the order of file and line."""
    groups, found = grouped(spots, lambda spot: spot.source), []
    for at in sorted(source for source in groups if source is not None):
        text = source_text(at.file)
        line = text[at.line - 1] if at.line <= len(text) else ""
        found.append(HotLine(at.file, at.line, line, tuple(groups[at])))
    return found
