"""Kernels that launch kernels: the calls by which they do (CUDA's dynamic parallelism).

A launch is written down and executed by the host when the grid that asked for it has ended: no kernel can wait for one
that it launched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from functional.execution.device_launches import DeviceLaunches
from functional.launches.memory import function_address
from functional.numpy_executor.builtin_thread import Thread

_PREFIX = re.compile("^(__cuda_syscall_cnpv2|__cudaCDP2|cuda)")
_STREAM = 1 << 32  # the handle of every stream that kernels make: what they launch is executed in order anyway
_EXTENTS_BYTES = 12  # of a grid or thread block


def launch_function(thread: Thread, places: Sequence[int], into: int | None) -> None:
    """One call of one thread: `places` of its arguments, and of its result, among the call's `.param` variables."""
    name = _PREFIX.sub("", thread.inst.callee or "")
    found = _CALLS[name](thread, places)
    if into is not None:
        thread.set_parameter(into, found.to_bytes(8 if name.startswith("GetParameterBuffer") else 4, "little"))


def _described_buffer(thread: Thread, places: Sequence[int]) -> int:
    kernel, shared = thread.parameter(places[0]), thread.parameter(places[3], 4)
    grid, block = (thread.parameter_value(place, _EXTENTS_BYTES) for place in places[1:3])
    launches = DeviceLaunches(thread.machine.memory)
    address = launches.buffer(_parameter_bytes(thread, kernel))
    launches.describe(address, kernel, grid, block, shared)
    return address


def _buffer(thread: Thread, places: Sequence[int]) -> int:
    return DeviceLaunches(thread.machine.memory).buffer(thread.parameter(places[1]))


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


def _launch(thread: Thread, places: Sequence[int]) -> int:
    return _submit(thread, *(thread.parameter(place) for place in places))


def _submit(thread: Thread, buffer: int, stream: int) -> int:
    if not DeviceLaunches(thread.machine.memory).submit(buffer, stream):
        raise _fault(thread, f"a launch from {buffer:#x}, where no parameters were asked for")
    return 0


def _new_stream(thread: Thread, places: Sequence[int]) -> int:
    address = thread.parameter(places[0])
    thread.write(address, _STREAM.to_bytes(8, "little"))
    return 0


def _set_error(thread: Thread, places: Sequence[int]) -> int:
    if error := thread.parameter(places[0], 4):
        raise _fault(thread, f"a call of CUDA's device run time failed with error {error}")
    return 0


def _nothing(thread: Thread, places: Sequence[int]) -> int:
    return 0


def _fault(thread: Thread, message: str) -> Exception:
    return thread.machine.fault(thread.inst, message, thread.row, thread.lane)


_CALLS: dict[str, Callable[[Thread, Sequence[int]], int]] = {
    "GetParameterBuffer": _buffer, "LaunchDevice": _describe_and_launch,
    "GetParameterBufferV2": _described_buffer, "LaunchDeviceV2": _launch, "LaunchDeviceV2_ptsz": _launch,
    "StreamCreate": _new_stream, "StreamCreateWithFlags": _new_stream, "StreamDestroy": _nothing,
    "GetLastError": _nothing, "PeekAtLastError": _nothing, "SetLastError": _set_error,
}  # fmt: skip
