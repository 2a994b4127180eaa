"""What a target did, whatever the GPU: executed once, kept on disk, characterised once a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.result import OutputCheck
from abstim.target import trace_cache
from abstim.target.trace_cache import Execution
from functional.case import Case
from functional.errors import InputError
from functional.trace_store import StoredCase, StoreWriter

if TYPE_CHECKING:
    from abstim.engine import LaunchInputs
    from functional.executor import Executor
    from functional.launch import Launch
    from functional.memory import Memory
    from functional.program import Program
    from functional.trace import Trace
    from functional.trace_store.manifest import Manifest
    from precharacterize import LatencyTable, PipelineParameters


@dataclass
class Workload:
    """A target that has been executed: everything about it that no GPU changes."""

    case: Case
    execution: Execution
    wall_seconds: dict[str, float]
    from_cache: bool
    _tables: dict[tuple[str, str, PipelineParameters], LatencyTable] = field(default_factory=dict, repr=False)

    def inputs(self, launch: int, gpu: Gpu) -> LaunchInputs:
        """What the engine needs of a launch; characterises its program on first use of a pipeline."""
        from abstim.engine import LaunchInputs

        launched = self.case.launches[launch]
        program = launched.program
        key = (program.digest, program.name, gpu.pipeline)
        if key not in self._tables:
            self._tables[key] = latency_table(program, gpu)
        return LaunchInputs(self._tables[key], self.execution.traces[launch], launched.shared_bytes)


def execute(
    case: Case,
    executor: Executor | None = None,
    instruction_budget: int | None = None,
    progress: Progress = silent,
) -> Workload:
    """Run every launch of a case, or take what an earlier process kept of it, in a trace store or in the cache.

    `instruction_budget`: thread instructions a launch after which it counts as endless (default: `default_budget`).
    """
    if case.traces:
        return Workload(case, Execution(case.traces, ()), {"execute": 0.0}, True)
    started = perf_counter()
    if isinstance(case, StoredCase):
        return Workload(case, _stored(case, progress), {"execute": perf_counter() - started}, from_cache=True)
    key = trace_cache.execution_key(case, type(executor).__name__)
    execution = trace_cache.load(key)
    from_cache = execution is not None
    if execution is None:
        from functional.default_executor import default_executor  # not needed, and not imported, if the cache has it

        execution = execute_case(case, executor or default_executor(), instruction_budget, progress)
        trace_cache.save(key, execution)
    return Workload(case, execution, {"execute": perf_counter() - started}, from_cache)


def default_budget(launch: Launch) -> int:
    """Thread instructions: 2^18 a thread, and at least 2^27, so that an endless loop ends in a minute or so."""
    return max(1 << 27, launch.thread_blocks * launch.threads_per_block << 18)


def execute_case(
    case: Case, executor: Executor, instruction_budget: int | None = None, progress: Progress = silent
) -> Execution:
    """Run every launch of a case, in order, on a copy of its memory, and compare its outputs."""
    _check_executable(case)
    memory, traces = case.memory.copy(), []
    for number, launch in enumerate(case.launches):
        progress(f"execute {case.name}", number, len(case.launches))
        traces.append(executor.run(launch, memory, instruction_budget=instruction_budget or default_budget(launch)))
    return Execution(tuple(traces), _checked_outputs(case, memory), memory.printed.text())


def write_store(
    case: Case,
    folder: Path,
    executor: Executor,
    instruction_budget: int | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Manifest:
    """Run every launch of a case and write its trace to a store in `folder`, a chunk at a time.

    Raises InputError if the folder cannot be used (see `StoreWriter`) and for whatever executing raises.
    """
    _check_executable(case)
    writer, memory = StoreWriter(folder, case.module, overwrite), case.memory.copy()
    done, total = 0, sum(launch.thread_blocks for launch in case.launches)

    def reported(chunks: Iterator[Trace]) -> Iterator[Trace]:
        nonlocal done
        for trace in chunks:
            yield trace
            done += len(trace.thread_blocks)
            progress(f"trace {case.name}", done, total)

    for launch in case.launches:
        budget = instruction_budget or default_budget(launch)
        chunks = executor.stream(launch, memory, instruction_budget=budget)
        writer.launch(launch, case.registers(launch), reported(chunks))
    outputs = [asdict(check) for check in _checked_outputs(case, memory)]
    return writer.finish(case.name, outputs, memory.printed.text())


def _stored(case: StoredCase, progress: Progress) -> Execution:
    """What a trace store holds."""
    traces = []
    for number in range(len(case.launches)):
        progress(f"read {case.name}", number, len(case.launches))
        traces.append(case.trace(number))
    outputs = tuple(OutputCheck(**output) for output in case.manifest.outputs)
    return Execution(tuple(traces), outputs, case.manifest.printed)


def _check_executable(case: Case) -> None:
    if isinstance(case, StoredCase):
        raise InputError(f"{case.folder}: a trace store holds no data to execute on; name what it was made from")


def _checked_outputs(case: Case, memory: Memory) -> tuple[OutputCheck, ...]:
    wrong = {m.buffer: m for m in case.compare(memory)}
    return tuple(
        OutputCheck(
            buffer=name,
            elements=expected.values.size,
            mismatches=wrong[name].elements if name in wrong else 0,
            message=str(wrong[name]) if name in wrong else "",
        )
        for name, expected in case.expected.items()
    )


def latency_table(program: Program, gpu: Gpu) -> LatencyTable:
    """A program's table for a GPU's pipeline, kept on disk if that can be written."""
    from precharacterize import characterize

    return characterize(program, gpu.pipeline)
