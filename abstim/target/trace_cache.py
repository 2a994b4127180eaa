"""Executions on disk: the traces of every launch of a target and the verdict on its outputs, one file a target.

A file is one of frames, like those of a trace store: a frame a launch, then one with the outputs and what was printed.
The folder is capped; the file longest unused goes first.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from functional.case import Case
from functional.disk.folder import cache_dir, evict, mark_used, note, trace_cache_bytes, write_atomic
from functional.store.coding import decode, encode
from functional.store.frames import FrameWriter, read_frames
from functional.trace import Trace


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


def execution_key(case: Case, executor: str) -> str:
    """What an execution depends on: programs, launches, contents of memory, expected outputs, and the executor."""
    digest = hashlib.sha256(f"{executor}:{_code_digest()}".encode())
    for launch in case.launches:
        program = launch.program
        digest.update(f"{program.digest}:{program.name}:{launch.grid}:{launch.block}".encode())
        digest.update(f":{launch.dynamic_shared_bytes}:{launch.parameters.hex()}\n".encode())
    for contents in case.memory.contents():
        digest.update(contents.data)
    for name, expected in case.expected.items():
        digest.update(f"{name}:{expected.values.dtype}:{expected.rtol}:{expected.atol}".encode())
        digest.update(expected.values.tobytes())
    return digest.hexdigest()


def _code_digest() -> str:
    """Of the source of functional/: a changed executor makes no use of what the old one left."""
    import functional

    digest = hashlib.sha256()
    root = Path(next(iter(functional.__path__)))
    for path in sorted(p for p in root.rglob("*.py") if "suite" not in p.parts):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def load(key: str) -> Execution | None:
    """The execution kept under `key`, if any. A damaged file is deleted and said so on stderr."""
    path = _path(key)
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        execution = _decode(content)
    except Exception as error:  # whatever is wrong with the file, it can be made again
        note(f"cache: {path} is damaged ({error}); executing again")
        path.unlink(missing_ok=True)
        return None
    mark_used(path)
    return execution


def save(key: str, execution: Execution) -> None:
    """Keep an execution, and throw away what has been unused longest if the folder is over its cap."""
    content, cap_bytes = _encode(execution), trace_cache_bytes()
    if len(content) > cap_bytes:
        return
    write_atomic(_path(key), lambda file: file.write(content))
    evict(_path(key).parent, cap_bytes)


def _path(key: str) -> Path:
    return cache_dir("traces") / f"{key}.trace"


def _encode(execution: Execution) -> bytes:
    buffer = io.BytesIO()
    frames = FrameWriter(buffer)
    for trace in execution.traces:
        frames.write(encode(trace))
    rest = {"outputs": [asdict(o) for o in execution.outputs], "printed": execution.printed}
    frames.write(json.dumps(rest).encode())
    frames.finish()
    return buffer.getvalue()


def _decode(content: bytes) -> Execution:
    *traces, last = read_frames(io.BytesIO(content))
    rest = json.loads(last)
    outputs = tuple(OutputCheck(**o) for o in rest["outputs"])
    return Execution(tuple(map(decode, traces)), outputs, rest["printed"])
