"""Functions of the device run time: `vprintf`, `__assertfail`, `malloc` and `free`, those that launch kernels, and the
one that sets what a graph's conditional node decides by: its handle is the address of 32 bits.

A format is C's; nvcc packs the arguments behind each other in local memory, each aligned to its size. What is printed
goes to `Memory.printed`, by thread block and warp, and of a warp in the order of execution.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np

from functional.isa.operation import Unsupported
from functional.numpy_executor.builtin_thread import LONGEST, Thread
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.heap import Heap
from functional.numpy_executor.launch_functions import launch_function
from functional.numpy_executor.slots import Slots
from functional.programs.callgraph import HEAP_FUNCTIONS, LAUNCH_FUNCTIONS, SET_CONDITIONAL
from functional.ptx.ir import Instruction, Symbol

_FIELD = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|j|t|L)?([diouxXcsfFeEgGaAp%])")
_PARAMETERS = {"vprintf": 2, "__assertfail": 5, "malloc": 1, "free": 1, SET_CONDITIONAL: 2, **LAUNCH_FUNCTIONS}


def builtin_step(slots: Slots, inst: Instruction) -> Callable[[Frame, np.ndarray], None]:
    """`run(frame, lanes)` of a call. Raises Unsupported for other parameters than the run time's."""
    names = [s.name for s in inst.sources if isinstance(s, Symbol)]
    if len(names) != _PARAMETERS[inst.callee or ""] or any(n not in slots.call_parameters for n in names):
        raise Unsupported
    result = next((d.name for d in inst.destinations if isinstance(d, Symbol)), None)
    places = [slots.call_parameters[name] for name in names]
    into = None if result is None else slots.call_parameters[result]

    def run(frame: Frame, lanes: np.ndarray) -> None:
        for row, lane in zip(*np.nonzero((lanes[:, None] >> np.arange(32, dtype=np.uint32)) & 1), strict=True):
            thread = Thread(frame, inst, int(frame.index[row]), int(lane))
            given = [thread.parameter(place) for place in places]
            if inst.callee in LAUNCH_FUNCTIONS:
                launch_function(thread, places, into)
                continue
            if inst.callee in HEAP_FUNCTIONS:
                _heap_function(thread, given[0], into)
                continue
            if inst.callee == SET_CONDITIONAL:
                thread.write(given[0], thread.parameter_value(places[1], 4))
                continue
            if inst.callee == "__assertfail":
                text, file, line, function = (*map(thread.string, given[:2]), given[2] & 0xFFFFFFFF, given[3])
                message = f"assertion '{text}' failed at {file}:{line}, {thread.string(function)}"
                raise frame.machine.fault(inst, message, thread.row, thread.lane)
            text, count = _format(thread, thread.string(given[0]), given[1])
            frame.machine.prints(thread.row, text)
            if into is not None:
                thread.set_parameter(into, count.to_bytes(4, "little"))

    return run


def _heap_function(thread: Thread, argument: int, into: int | None) -> None:
    """`malloc` of so many bytes, or `free` of an address (0: nothing)."""
    heap = Heap(thread.machine.memory)
    if thread.inst.callee == "malloc":
        address = heap.allocate(argument)
        if into is not None:
            thread.set_parameter(into, address.to_bytes(8, "little"))
    elif argument and not heap.release(argument):
        message = f"free of {argument:#x}, which malloc did not give, or was freed already"
        raise thread.machine.fault(thread.inst, message, thread.row, thread.lane)


def _format(thread: Thread, text: str, arguments: int) -> tuple[str, int]:
    """(what printf shows, number of arguments)."""
    at, count = arguments, 0

    def take(size: int) -> bytes:
        nonlocal at, count
        at, count = -(-at // size) * size, count + 1
        data = thread.bytes_at(at, size)
        at += size
        return data.ljust(size, b"\0")

    def show(match: re.Match) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        width, precision = (
            str(struct.unpack("<i", take(4))[0]) if part == "*" else part for part in (width, precision)
        )
        if any(len(part or "") > 6 or abs(int(part or 0)) > LONGEST for part in (width, precision)):
            raise thread.machine.fault(thread.inst, f"printf: a field of '{match[0][:24]}'", thread.row, thread.lane)
        spec = "%" + flags + (width or "") + ("" if precision is None else "." + precision)
        return _field(thread, take, spec, length, kind)

    return _FIELD.sub(show, text), count


def _field(thread: Thread, take: Callable[[int], bytes], spec: str, length: str | None, kind: str) -> str:
    """One conversion."""
    if kind in "fFeEgGaA":
        number = struct.unpack("<d", take(8))[0]
        return number.hex() if kind in "aA" else (spec + kind) % number
    if kind == "s":
        return (spec + "s") % thread.string(int.from_bytes(take(8), "little"))
    if kind == "p":
        return f"0x{int.from_bytes(take(8), 'little'):x}"
    if kind == "c":
        return (spec + "c") % chr(take(4)[0])
    size = 8 if length in ("l", "ll", "z", "j", "t") else 4
    shown = {"hh": 1, "h": 2}.get(length or "", size)
    value = int.from_bytes(take(size)[:shown], "little", signed=kind in "di")
    return (spec + {"u": "d", "i": "d"}.get(kind, kind)) % value
