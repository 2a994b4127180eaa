"""Functions of the device run time, as one thread calls them: `vprintf`, `__assertfail`, `malloc` and `free`, those
that launch kernels, and the one that sets what a graph's conditional node decides by.

A format is C's; nvcc packs the arguments behind each other in local memory, each aligned to its size. What is printed
goes to `Memory.printed`, by thread block and warp, and of a warp in the order of execution. A launch is written down
and executed by the host when the grid that asked for it has ended: no kernel can wait for one that it launched. The
heap is first fit in a region of global memory that outlives the launch. All that is known of it lies in the region
itself, so that it goes where memory goes: two words (bytes handed out from the start, blocks that were given back),
then blocks, each behind a header of two words (its bytes, is it taken?)."""

import re
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from functional.errors import InputError, refuse
from functional.execution.device_launches import DeviceLaunches
from functional.isa.memory import WINDOWS
from functional.isa.operation import refuse_if
from functional.isa.slots import Slots
from functional.launches.memory import GLOBAL_BASE, HEAP, Memory, Region, function_address
from functional.programs.link import LAUNCH_FUNCTIONS, SET_CONDITIONAL
from functional.ptx.ir import CLUSTER_SHARED, Instruction, Symbol
from functional.steps.machine import Frame, Step
from functional.steps.memory_ops import SPACES

_UNIT_BYTES = 16  # of sizes and headers; what malloc aligns to
_USED, _FREE = 0, 1  # words of the head


class Heap:
    """The heap of a memory."""

    def __init__(self, memory: Memory) -> None:
        self.region: Region = memory.opened(HEAP)
        self.words = memory.bytes_of(self.region).view(np.uint64)

    def allocate(self, size_bytes: int) -> int:
        """The address of so many bytes, 0 if there are not as many."""
        wanted = max(_UNIT_BYTES, -(-size_bytes // _UNIT_BYTES) * _UNIT_BYTES)
        free = (at for at in self._blocks() if not self.words[at // 8 + 1] and int(self.words[at // 8]) >= wanted)
        if at := next(free, 0) if self.words[_FREE] else 0:
            self.words[_FREE] -= np.uint64(1)
        else:
            at = _UNIT_BYTES + int(self.words[_USED])
            refuse(at % _UNIT_BYTES, "the heap of malloc is damaged: the kernel wrote over its head")
            if size_bytes > self.region.bytes or at + _UNIT_BYTES + wanted > self.region.bytes:
                return 0
            self.words[_USED] += np.uint64(_UNIT_BYTES + wanted)
            self.words[at // 8] = wanted
        self.words[at // 8 + 1] = 1
        return self.region.address + at + _UNIT_BYTES

    def release(self, address: int) -> bool:
        """Give a block back; False if none that is taken begins there."""
        header = address - self.region.address - _UNIT_BYTES
        for at in self._blocks():
            if at == header and self.words[at // 8 + 1]:
                self.words[at // 8 + 1] = 0
                self.words[_FREE] += np.uint64(1)
                return True
        return False

    def _blocks(self) -> Iterator[int]:
        """Raises InputError where the kernel has written over what the heap knows of itself."""
        at, stop = _UNIT_BYTES, _UNIT_BYTES + int(self.words[_USED])
        while at < stop <= self.region.bytes:
            size = int(self.words[at // 8])
            if size % _UNIT_BYTES or not _UNIT_BYTES <= size <= stop - at - _UNIT_BYTES:
                break
            yield at
            at += _UNIT_BYTES + size
        refuse(at != stop, "the heap of malloc is damaged: the kernel wrote over the header of a block")


LONGEST = 1 << 16  # bytes of a string


class Thread:
    """Memory as one thread sees it."""

    def __init__(self, frame: Frame, inst: Instruction, row: int, lane: int) -> None:
        self.machine, self.inst, self.row, self.lane = frame.machine, inst, row, lane
        self.slots = frame.machine.code.slots
        machine = self.machine
        self.local = (row * 32 + lane) * machine.local_stride
        self.call = self.local + self.slots.local_bytes + int(machine.stack.level[row]) * self.slots.frame_bytes

    def parameter(self, place: int, size: int = 8) -> int:
        """A `.param` variable of so many bytes, as an unsigned number."""
        return int.from_bytes(self.parameter_value(place, size), "little")

    def parameter_value(self, place: int, size: int) -> bytes:
        """A `.param` variable of so many bytes."""
        at = self.call + place
        return self.machine.local.data[at : at + size].tobytes()

    def set_parameter(self, place: int, value: bytes) -> None:
        """Write a `.param` variable."""
        at = self.call + place
        self.machine.local.data[at : at + len(value)] = np.frombuffer(value, np.uint8)

    def bytes_at(self, address: int, size: int) -> bytes:
        """`size` bytes, or fewer at the end of the memory, at a generic address."""
        data, at, limit = self._place(address)
        return data[at : at + min(size, limit)].tobytes()

    def write(self, address: int, value: bytes) -> None:
        """Write to a generic address."""
        data, at, limit = self._place(address)
        if len(value) > limit:
            raise self._bad(address + limit)
        data[at : at + len(value)] = np.frombuffer(value, np.uint8)

    def _place(self, address: int) -> tuple[np.ndarray, int, int]:
        """Of a generic address: bytes, which of them it is, and how many lie from there to the end of its memory."""
        machine = self.machine
        block = machine.block_of_row[self.row]
        for name, (first, last) in WINDOWS.items():
            own = int(machine.clusters.first_address[block]) if name == "shared" else 0
            start, stop = first + own, last + own
            if start <= address < stop and name != CLUSTER_SHARED:
                at, limit = address - start, SPACES[name].limit(machine)
                if at >= limit:
                    raise self._bad(address)
                moved = at + (self.local if name == "local" else 0)
                if name == "shared":
                    moved += int(block) * machine.shared_stride
                return SPACES[name].storage(machine).data, moved, limit - at
        starts, ends = machine.memory.ranges()
        region = int(np.searchsorted(starts, address, side="right")) - 1
        if region < 0 or address >= int(ends[region]):
            raise self._bad(address)
        return machine.globals.data, address - GLOBAL_BASE, int(ends[region]) - address

    def _bad(self, address: int) -> Exception:
        return self.machine.fault(self.inst, f"{address:#x} is not in any memory", self.row, self.lane)

    def string(self, address: int) -> str:
        """The text that begins at a generic address."""
        return self.bytes_at(address, LONGEST).partition(b"\0")[0].decode("utf-8", "replace")


_PREFIX = re.compile("^(__cuda_syscall_cnpv2|__cudaCDP2|cuda)")
_STREAM = 1 << 32  # the handle of every stream that kernels make: what they launch is executed in order anyway
_EXTENTS_BYTES = 12  # of a grid or thread block


def _described_buffer(thread: Thread, places: Sequence[int]) -> int:
    kernel, shared = thread.parameter(places[0]), thread.parameter(places[3], 4)
    grid, block = (thread.parameter_value(place, _EXTENTS_BYTES) for place in places[1:3])
    launches = DeviceLaunches(thread.machine.memory)
    address = launches.buffer(_parameter_bytes(thread, kernel))
    launches.describe(address, kernel, grid, block, shared)
    return address


def _parameter_bytes(thread: Thread, kernel: int) -> int:
    sizes = {function_address(name): size for name, size in thread.machine.code.program.launchable.items()}
    if kernel not in sizes:
        raise _fault(thread, f"{kernel:#x} is not the address of a kernel")
    return sizes[kernel]


def _describe_and_launch(thread: Thread, places: Sequence[int]) -> int:
    kernel, buffer = (thread.parameter(place) for place in places[:2])
    grid, block = (thread.parameter_value(place, _EXTENTS_BYTES) for place in places[2:4])
    launches, wanted = DeviceLaunches(thread.machine.memory), _parameter_bytes(thread, kernel)
    if not buffer:
        buffer = launches.buffer(0)  # of a kernel without parameters
    if launches.parameter_bytes(buffer) < wanted:
        raise _fault(thread, f"a launch of a kernel with {wanted} bytes of parameters, of which fewer were asked for")
    launches.describe(buffer, kernel, grid, block, thread.parameter(places[4], 4))
    return _submit(thread, buffer, thread.parameter(places[5]))


def _submit(thread: Thread, buffer: int, stream: int) -> int:
    if not DeviceLaunches(thread.machine.memory).submit(buffer, stream):
        raise _fault(thread, f"a launch from {buffer:#x}, where no parameters were asked for")
    return 0


def _set_error(thread: Thread, places: Sequence[int]) -> int:
    if error := thread.parameter(places[0], 4):
        raise _fault(thread, f"a call of CUDA's device run time failed with error {error}")
    return 0


def _fault(thread: Thread, message: str) -> Exception:
    return thread.machine.fault(thread.inst, message, thread.row, thread.lane)


def _new_stream(thread: Thread, places: Sequence[int]) -> int:
    thread.write(thread.parameter(places[0]), _STREAM.to_bytes(8, "little"))
    return 0


def _fail(thread: Thread, places: Sequence[int]) -> int:
    text, file, line, function = map(thread.parameter, places[:4])
    message = f"assertion '{thread.string(text)}' failed at {thread.string(file)}:{line & 0xFFFFFFFF}"
    raise _fault(thread, f"{message}, {thread.string(function)}")


def _print(thread: Thread, places: Sequence[int]) -> int:
    text, count = _format(thread, thread.string(thread.parameter(places[0])), thread.parameter(places[1]))
    thread.machine.printed.append((thread.row, text))
    return count


def _set_conditional(thread: Thread, places: Sequence[int]) -> int:
    thread.write(thread.parameter(places[0]), thread.parameter_value(places[1], 4))
    return 0


def _use_heap(thread: Thread, places: Sequence[int]) -> int:
    """`malloc` of so many bytes, or `free` of an address (0: nothing)."""
    heap, allocates, argument = Heap(thread.machine.memory), thread.inst.callee == "malloc", thread.parameter(places[0])
    try:
        found = heap.allocate(argument) if allocates else not argument or heap.release(argument)
    except InputError as error:
        raise _fault(thread, str(error)) from None
    if not allocates and not found:
        raise _fault(thread, f"free of {argument:#x}, which malloc did not give, or was freed already")
    return int(found)


_CALLS: dict[str, Callable[[Thread, Sequence[int]], int]] = {
    "GetParameterBuffer": lambda t, places: DeviceLaunches(t.machine.memory).buffer(t.parameter(places[1])),
    "GetParameterBufferV2": _described_buffer,
    "LaunchDevice": _describe_and_launch,
    **dict.fromkeys(("LaunchDeviceV2", "LaunchDeviceV2_ptsz"), lambda t, places: _submit(t, *map(t.parameter, places))),
    **dict.fromkeys(("StreamCreate", "StreamCreateWithFlags"), _new_stream),
    **dict.fromkeys(("StreamDestroy", "GetLastError", "PeekAtLastError"), lambda t, places: 0),
    **{"SetLastError": _set_error, "vprintf": _print, "__assertfail": _fail, "malloc": _use_heap, "free": _use_heap},
    _PREFIX.sub("", SET_CONDITIONAL): _set_conditional,
}
_FIELD = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|j|t|L)?([diouxXcsfFeEgGaAp%])", re.ASCII)
_PARAMETERS = {"vprintf": 2, "__assertfail": 5, "malloc": 1, "free": 1, SET_CONDITIONAL: 2, **LAUNCH_FUNCTIONS}


def builtin_step(slots: Slots, inst: Instruction) -> Step:
    """What a call does. Raises Unsupported for other parameters than the run time's."""
    names = [s.name for s in inst.sources if isinstance(s, Symbol)]
    refuse_if(len(names) != _PARAMETERS[inst.callee or ""] or any(n not in slots.call_parameters for n in names))
    places, name = [slots.call_parameters[name] for name in names], _PREFIX.sub("", inst.callee or "")
    result = next((slots.call_parameters[d.name] for d in inst.destinations if isinstance(d, Symbol)), None)
    size = 8 if name.startswith(("GetParameterBuffer", "malloc")) else 4

    def run(frame: Frame) -> None:
        for row, lane in np.argwhere(frame.lanes()):
            thread = Thread(frame, inst, int(frame.index[row]), int(lane))
            found = _CALLS[name](thread, places)
            if result is not None:
                thread.set_parameter(result, found.to_bytes(size, "little"))

    return run


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
        width, precision = (str(*struct.unpack("<i", take(4))) if part == "*" else part for part in (width, precision))
        if any(len(part or "") > 6 or abs(int(part or 0)) > LONGEST for part in (width, precision)):
            raise thread.machine.fault(thread.inst, f"printf: a field of '{match[0][:24]}'", thread.row, thread.lane)
        if precision is not None and precision[0] == "-":  # as in C: none
            precision = None
        spec = "%" + flags + (width or "") + ("" if precision is None else "." + precision)
        return _field(thread, take, spec, length, kind)

    return _FIELD.sub(show, text), count


def hexadecimal(number: float, kind: str) -> str:
    """As C's `%a` and `%A` without width or precision, which writes no zeros behind the last digit."""
    digits, separator, exponent = number.hex().partition("p")
    text = digits.rstrip("0").rstrip(".") + separator + exponent if separator else digits
    return text.upper() if kind == "A" else text


def _field(thread: Thread, take: Callable[[int], bytes], spec: str, length: str | None, kind: str) -> str:
    if kind in "fFeEgGaA":
        number = struct.unpack("<d", take(8))[0]
        return hexadecimal(number, kind) if kind in "aA" else (spec + kind) % number
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
