"""What an isolated process tells the one that started it: traces, what was printed, how it ended.

Nothing here is taken for true: lengths have a limit, kinds are a list, and a trace is held against its launch before
anybody uses it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import IO, Annotated

import msgspec
import numpy as np

from functional.errors import ExecutionError, InputError
from functional.execution.computer import memory_bytes
from functional.terminal import plain
from functional.traces.trace import Trace

DTYPES = {
    "thread_blocks": np.int64, "blocks": np.uint16, "masks": np.uint32, "records": np.uint32, "conflicts": np.uint8,
    "block_offsets": np.int64, "record_offsets": np.int64, "conflict_offsets": np.int64,
    "warp_instructions": np.int64, "thread_instructions": np.int64,
}  # fmt: skip
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
_MOST_HEAD_BYTES = 1 << 24  # texts included
_ERRORS: dict[str, type[Exception]] = {
    "InputError": InputError,
    "ExecutionError": ExecutionError,
    "MemoryError": MemoryError,
}


class TraceFollows(msgspec.Struct, tag="trace"):
    """The arrays of a trace follow, in the order of DTYPES: so many elements each."""

    warps_per_block: Count
    lengths: tuple[Count, Count, Count, Count, Count, Count, Count, Count, Count, Count]


class Done(msgspec.Struct, tag="done"):
    """The end. `printed`: calls of `printf`; `dropped`: calls and bytes without room; `notes`: lines to the user."""

    printed: list[str]
    dropped: tuple[Count, Count]
    notes: list[str]


class Failed(msgspec.Struct, tag="failed"):
    """The end, by an error: of which kind, and what it says."""

    kind: str
    message: str
    notes: list[str]

    def error(self) -> Exception:
        """To be raised again, as one line."""
        message = plain(" ".join(self.message.split()))
        if self.kind in _ERRORS:
            return _ERRORS[self.kind](message)
        return RuntimeError(f"{plain(self.kind)}: {message}")


Message = TraceFollows | Done | Failed
_decoder = msgspec.msgpack.Decoder(Message)


def failure(error: BaseException, notes: list[str]) -> Failed:
    """What is told of an error: the first of its kinds that the other side knows."""
    names = [kind.__name__ for kind in type(error).__mro__]
    kind = next((name for name in names if name in _ERRORS), names[0])
    return Failed(kind, str(error), notes)


def send(file: IO[bytes], message: Message) -> None:
    """Write a message."""
    head = msgspec.msgpack.encode(message)
    file.write(len(head).to_bytes(4, "little") + head)


def send_trace(file: IO[bytes], trace: Trace) -> None:
    """Write a trace."""
    arrays = [np.ascontiguousarray(getattr(trace, name), dtype) for name, dtype in DTYPES.items()]
    send(file, TraceFollows(trace.warps_per_block, tuple(map(len, arrays))))  # type: ignore[arg-type]
    for array in arrays:
        file.write(array.data.cast("B"))


def receive(file: IO[bytes]) -> Trace | Done | Failed:
    """The next message, or the trace that it announces. Raises EOFError where the other side has ended, and ValueError
    for what is no message."""
    length = int.from_bytes(exactly(file, 4), "little")
    if length > _MOST_HEAD_BYTES:
        raise ValueError(f"a message of {length} bytes")
    try:
        message = _decoder.decode(exactly(file, length))
    except msgspec.MsgspecError:  # whose text may hold anything
        raise ValueError("a message of another form") from None
    return _trace(file, message) if isinstance(message, TraceFollows) else message


def _trace(file: IO[bytes], head: TraceFollows) -> Trace:
    sizes = zip(DTYPES.values(), head.lengths, strict=True)
    if sum(np.dtype(dtype).itemsize * length for dtype, length in sizes) > memory_bytes():
        raise ValueError("a trace larger than memory")
    arrays = {}
    for (name, dtype), length in zip(DTYPES.items(), head.lengths, strict=True):
        arrays[name] = np.empty(length, dtype)
        _fill(file, arrays[name].data.cast("B"))
    assert {*arrays, "warps_per_block"} == {field.name for field in fields(Trace)}
    return Trace(warps_per_block=head.warps_per_block, **arrays)


def exactly(file: IO[bytes], count: int) -> bytearray:
    """So many bytes. Raises EOFError where there are fewer."""
    found = bytearray(count)
    _fill(file, memoryview(found))
    return found


def _fill(file: IO[bytes], into: memoryview) -> None:
    while len(into):
        count = file.readinto(into)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        into = into[count:]
