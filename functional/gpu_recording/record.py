"""Traces of a case from a device that runs it natively."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.errors import InputError
from functional.gpu_recording.device import Device
from functional.gpu_recording.instrument import ENTRY_BYTES, TABLE, WINDOWS, WORD_BYTES, constants_of, instrument
from functional.gpu_recording.replay import replay
from functional.isa.memory import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from functional.launches.case import Case
from functional.launches.launch import Dim3, Launch, Pointer
from functional.launches.memory import CONST_WINDOW
from functional.traces.trace import Trace


def record(case: Case, device: Device, progress: Callable[[str, int, int], object] = lambda *_: None) -> list[Trace]:
    """Run every launch of a case twice on a device, first to count and then to record, and give their traces.

    Raises InputError or PtxError for what cannot be instrumented, for a device that fails, and for a kernel whose
    control flow differs from one run to the next (a race).
    """
    programs = {launch.program.name: launch.program for launch in case.launches}
    device.load(instrument(case.module, programs.values()))
    session = _Session(case, device)
    traces = []
    for number, launch in enumerate(case.launches):
        progress(f"record {case.name}", number, len(case.launches))
        traces.append(session.launch(launch))
    return traces


class _Session:
    """The memory of a case on a device."""

    def __init__(self, case: Case, device: Device) -> None:
        self.device, self.memory = device, case.memory
        self.buffers = {name: device.allocate(max(1, region.bytes)) for name, region in self.memory.buffers.items()}
        self.places = {name: (self.buffers[name], region) for name, region in self.memory.buffers.items()}
        for address, region in self.places.values():
            device.write(address, self.memory.bytes_of(region))
        variables = self.memory.global_variables
        self.places |= {f"variable {name}": (device.variable(name), region) for name, region in variables.items()}
        self.windows = self._windows(case)
        self._order()

    def _windows(self, case: Case) -> np.ndarray:
        """Generic addresses of shared, local and constant memory, then the address of each constant variable."""
        count = 3 + len(constants_of(case.module))
        self.constants = [self.memory.const_variables[name] for name in constants_of(case.module)]
        at = self.device.allocate(count * WORD_BYTES)
        self._point_table_to(at)
        self.device.launch(WINDOWS, Dim3(1), Dim3(1), b"", 0)
        windows = self.device.read(at, count * WORD_BYTES).view(np.int64)
        self.device.free(at)
        return windows

    def _point_table_to(self, address: int) -> None:
        self.device.write(self.device.variable(TABLE), np.array([address], np.int64).view(np.uint8))

    def _order(self) -> None:
        """Where regions start on the device, ascending, how long they are, and where they are in our memory."""
        rows = sorted((address, region.bytes, region.address) for address, region in self.places.values())
        self.starts, self.sizes, self.ours = np.array(rows, np.int64).reshape(-1, 3).T

    def launch(self, launch: Launch) -> Trace:
        threads = launch.thread_blocks * launch.threads_per_block
        table = self.device.allocate(threads * ENTRY_BYTES)
        self._point_table_to(table)
        before = {name: self.device.read(address, region.bytes) for name, (address, region) in self.places.items()}
        lengths = self._run(launch, table, np.zeros((threads, 2), np.int64))
        for name, (address, _) in self.places.items():
            self.device.write(address, before[name])
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        stream = self.device.allocate(max(WORD_BYTES, int(starts[-1])))
        ends = self._run(launch, table, stream + np.stack([starts[:-1], starts[1:]], axis=1))
        if (ends != stream + starts[1:]).any():
            raise InputError(f"kernel '{launch.program.name}' does not do the same every time; it cannot be recorded")
        words = self.device.read(stream, int(starts[-1])).view(np.uint64)
        self.device.free(stream)
        self.device.free(table)
        return replay(launch, self.memory, words, starts // WORD_BYTES, self._translate)

    def _run(self, launch: Launch, table: int, entries: np.ndarray) -> np.ndarray:
        """Run a launch with these table entries; yields where each thread stopped writing."""
        self.device.write(table, np.ascontiguousarray(entries).view(np.uint8).reshape(-1))
        parameters = self._parameters(launch)
        self.device.launch(launch.program.name, launch.grid, launch.block, parameters, launch.dynamic_shared_bytes)
        return self.device.read(table, entries.size * WORD_BYTES).view(np.int64).reshape(-1, 2)[:, 0]

    def _parameters(self, launch: Launch) -> bytes:
        """The parameter block with the device's addresses of buffers."""
        block = bytearray(launch.parameters)
        for parameter, argument in zip(launch.program.parameters, launch.arguments, strict=True):
            if isinstance(argument, Pointer):
                address = self.buffers[argument.buffer] + argument.offset
                block[parameter.offset : parameter.offset + 8] = address.to_bytes(8, "little")
        return bytes(block)

    def _translate(self, space: str, addresses: np.ndarray) -> np.ndarray:
        """Device addresses as those of our own memory; what belongs to no region stays (lanes that are not active)."""
        found = addresses.astype(np.int64)
        if space == "const":
            for device, region in zip(self.windows[3:].tolist(), self.constants, strict=True):
                inside = (found >= device) & (found < device + region.bytes)
                found = np.where(inside, found - device + region.address, found)
            return found
        if space not in ("global", "generic"):
            return found
        moved = self._global(found)
        if space == "generic":
            for base, ours in zip(self.windows[:3].tolist(), (SHARED_WINDOW, LOCAL_WINDOW, CONST_WINDOW), strict=True):
                inside = (found >= base) & (found < base + WINDOW_BYTES)
                moved = np.where(inside, found - base + ours, moved)
        return moved

    def _global(self, addresses: np.ndarray) -> np.ndarray:
        if not len(self.starts):
            return addresses
        at = np.maximum(np.searchsorted(self.starts, addresses, side="right") - 1, 0)
        inside = (addresses >= self.starts[at]) & (addresses < self.starts[at] + self.sizes[at])
        return np.where(inside, addresses - self.starts[at] + self.ours[at], addresses)
