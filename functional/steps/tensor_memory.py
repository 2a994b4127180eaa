"""Tensor memory: 128 lanes by 512 columns of 32 bits a thread block, in columns that a warp asks for and gives back.

An address holds a lane in its upper and a column in its lower half. Each thread block has all 512 columns here; that
those of one SM share them is a matter of occupancy. The two thread blocks of a pair allocate and free together, the
same columns of both: neither waits for the other, but a launch in which they do not do the same is an error. Source:
PTX ISA, "Tensor Memory", "Issue Granularity"."""

import numpy as np

from functional.errors import refuse
from functional.isa.tcgen05_form import COLUMNS, TENSOR_LANES
from functional.ptx.ir import Instruction

_LEAST_COLUMNS = 32  # of an allocation, which is a power of two


class TensorMemory:
    """Of the thread blocks of a chunk, by their place in it."""

    def __init__(self, blocks: int) -> None:
        self.words = np.zeros((blocks, TENSOR_LANES, COLUMNS), np.uint32)
        self.written = np.zeros((blocks, TENSOR_LANES, COLUMNS), bool)
        self.taken = np.zeros((blocks, COLUMNS), bool)
        self.closed = np.zeros(blocks, bool)  # has said that it will not allocate again
        self.calls: dict[int, list[tuple[str, int, int]]] = {}  # of thread blocks of pairs: agree
        self.last: Instruction | None = None  # the latest allocation

    def allocate(self, block: int, columns: int) -> int:
        """The first of so many free columns. Raises ValueError if they cannot be had."""
        if not _LEAST_COLUMNS <= columns <= COLUMNS or columns & (columns - 1):
            raise ValueError(f"{columns} columns: an allocation is of 32, 64, 128, 256 or 512")
        refuse(self.closed[block], "the thread block has given up its permit to allocate", ValueError)
        free = ~self.taken[block]
        first = next((c for c in range(0, COLUMNS - columns + 1, 32) if free[c : c + columns].all()), None)
        if first is None:
            raise ValueError(f"{columns} columns are not free: {int(free.sum())} of {COLUMNS} are")
        self.taken[block, first : first + columns] = True
        return first

    def free(self, block: int, address: int, columns: int) -> None:
        """Give columns back. Raises ValueError if they are not allocated."""
        first = address & 0xFFFF
        own = self.taken[block, first : first + columns]
        if address >> 16 or not columns or len(own) != columns or not own.all():
            raise ValueError(f"{columns} columns from address {address:#x} on are not allocated")
        self.taken[block, first : first + columns] = False
        self.written[block, :, first : first + columns] = False

    def agree(self, block: int, peer: int, call: tuple[str, int, int]) -> None:
        """A thread block of a pair allocates or frees, (which, address, columns); its peer does the same, before or
        after it. Raises ValueError if it does not."""
        own, other = self.calls.setdefault(block, []), self.calls.setdefault(peer, [])
        own.append(call)
        if len(other) >= len(own) and other[len(own) - 1] != call:
            (what, at, columns), (its, where, many) = call, other[len(own) - 1]
            raise ValueError(
                f"the thread blocks of a pair do not do the same: {what} {columns} columns from {at:#x} on here, "
                f"{its} {many} from {where:#x} on there"
            )

    def check(self, block: int, lanes: np.ndarray, columns: np.ndarray) -> None:
        """Raise ValueError unless an access to these lanes and columns is to allocated memory."""
        if int(lanes.max()) >= TENSOR_LANES or int(columns.max()) >= COLUMNS:
            raise ValueError(
                f"lane {lanes.max()}, column {columns.max()}: tensor memory has {TENSOR_LANES} by {COLUMNS}"
            )
        if not self.taken[block, columns].all():
            missing = int(columns[~self.taken[block, columns]].min())
            raise ValueError(f"column {missing} of tensor memory is not allocated")
