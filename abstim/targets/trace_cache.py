"""Executions on disk: the traces of every launch of a target and the verdict on its outputs, one file a target.

A file holds a trace a launch, then the outputs and what was printed. The folder is capped; the file longest unused goes
first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from functional.keep.folder import trace_cache_bytes
from functional.keep.kept import Kept, key
from functional.launches.case import Case
from functional.traces.coding import decode, encode
from functional.traces.trace import Trace

MODULES = (
    "functional.launches.case", "functional.execution.default_executor",
    "functional.ptx.parser", "functional.traces.coding", "abstim.targets.isolation.isolated_executor",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCheck:
    """One output buffer against what it should hold."""

    buffer: str
    elements: int
    mismatches: int
    message: str = ""  # the first mismatch, if any


@dataclass(frozen=True)
class Execution:
    """What a target did: one trace a launch, and its output buffers compared with what they should hold."""

    traces: tuple[Trace, ...]
    outputs: tuple[OutputCheck, ...] = ()
    printed: str = ""  # what the kernels wrote with printf
    seconds: float = 0.0  # that executing it, or reading it, took in this process
    from_cache: bool = False

    def trace(self, number: int) -> Trace:
        """A whole launch."""
        return self.traces[number]

    def accesses(self, number: int) -> Trace:
        """The same."""
        return self.trace(number)

    def in_order(self) -> Iterator[Trace]:
        """Every launch."""
        return iter(self.traces)


def execution_key(case: Case, executor: str, instruction_budget: int | None = None) -> str:
    """What an execution depends on: programs, launches, contents of memory and where buffers begin and end, expected
    outputs, executor, budget, code."""
    parts: list[Any] = [executor] if instruction_budget is None else [executor, instruction_budget]
    for launch in case.launches:
        program, shape = launch.program, f"{launch.grid}:{launch.block}:{launch.dynamic_shared_bytes}:{launch.cluster}"
        parts += [program.digest, program.name, shape, launch.parameters]
    parts += [(region.name, region.address, region.bytes) for region in case.memory.regions]
    parts += case.memory.contents()
    for name, expected in case.expected.items():
        how = f"{expected.values.dtype}:{expected.rtol}:{expected.atol}:{expected.first}:{expected.compared is None}"
        parts += [name, how, expected.values, b"" if expected.compared is None else expected.compared]
    return key(MODULES, *parts)


def load(key: str) -> Execution | None:
    """The execution kept under `key`, if any. A damaged file is deleted and said so on stderr."""
    return Kept("traces").load(key, _decode)


def save(key: str, execution: Execution) -> None:
    """Keep an execution, and throw away what has been unused longest if the folder is over its cap."""
    Kept("traces").save(key, _encode(execution), trace_cache_bytes())


def _encode(execution: Execution) -> bytes:
    rest = {"outputs": [asdict(o) for o in execution.outputs], "printed": execution.printed}
    return msgspec.msgpack.encode([*map(encode, execution.traces), rest])


def _decode(content: bytes) -> Execution:
    *traces, rest = msgspec.msgpack.decode(content)
    outputs = tuple(OutputCheck(**o) for o in rest["outputs"])
    return Execution(tuple(map(decode, traces)), outputs, rest["printed"])
