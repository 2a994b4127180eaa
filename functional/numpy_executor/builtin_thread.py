"""A thread that calls a function of the device run time: its arguments, and memory as it sees it."""

from __future__ import annotations

import numpy as np

from functional.isa.windows import WINDOWS
from functional.launches.memory import GLOBAL_BASE
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.spaces import SPACES
from functional.ptx.ir import CLUSTER_SHARED, Instruction

LONGEST = 1 << 16  # bytes of a string


class Thread:
    """Memory as one thread sees it."""

    def __init__(self, frame: Frame, inst: Instruction, row: int, lane: int) -> None:
        self.machine, self.inst, self.row, self.lane = frame.machine, inst, row, lane
        self.slots = frame.machine.code.slots
        machine = self.machine
        self.local = (row * 32 + lane) * machine.local_stride
        level = int(machine.stack.level[row])
        self.call = self.local + self.slots.local_bytes + level * self.slots.frame_bytes

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
