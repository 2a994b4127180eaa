"""Executions on disk: the traces of every launch of a target and the verdict on its outputs, one file a target.

A file is a SHA-256 of the rest, then an .npz in which the launches' streams lie end to end. The folder is capped; the
file longest unused goes first.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from abstim.cache import cache_dir, evict, mark_used, note, trace_cache_bytes, write_atomic
from abstim.result import OutputCheck
from functional.case import Case
from functional.trace import Trace

_STREAMS = tuple(f.name for f in fields(Trace) if f.name != "warps_per_block")


@dataclass(frozen=True)
class Execution:
    """What a target did: one trace a launch, and its output buffers compared with what they should hold."""

    traces: tuple[Trace, ...]
    outputs: tuple[OutputCheck, ...]


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
    traces = execution.traces
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(t, name) for t in traces] or [np.zeros(0, np.int64)]) for name in _STREAMS
    }
    arrays["sizes"] = np.array([[len(getattr(t, name)) for name in _STREAMS] for t in traces], np.int64)
    arrays["warps_per_block"] = np.array([t.warps_per_block for t in traces], np.int64)
    arrays["outputs"] = np.frombuffer(json.dumps([asdict(o) for o in execution.outputs]).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    payload = buffer.getvalue()
    return hashlib.sha256(payload).digest() + payload


def _decode(content: bytes) -> Execution:
    payload = memoryview(content)[32:]
    if hashlib.sha256(payload).digest() != content[:32]:
        raise ValueError("checksum differs")
    with np.load(io.BytesIO(payload), allow_pickle=False) as data:
        arrays = {name: data[name] for name in data.files}
    ends = arrays["sizes"].cumsum(0)
    traces = [
        Trace(
            warps_per_block=int(warps),
            **{name: arrays[name][end - size : end] for name, size, end in zip(_STREAMS, row, last, strict=True)},
        )
        for warps, row, last in zip(arrays["warps_per_block"], arrays["sizes"], ends, strict=True)
    ]
    outputs = json.loads(arrays["outputs"].tobytes())
    return Execution(tuple(traces), tuple(OutputCheck(**o) for o in outputs))
