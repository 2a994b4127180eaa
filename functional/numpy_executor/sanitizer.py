"""What a kernel does that no GPU promises, seen while it runs: shared and local memory that is read though nothing has
written it, and thread blocks that race (`block_races`). The first such access ends the launch.

A byte counts as read when it is loaded, whatever becomes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional.launches.launch import Launch
from functional.launches.memory import GLOBAL_BASE, Memory
from functional.numpy_executor.block_races import BlockRaces
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.spaces import Lanes
from functional.ptx.ir import Instruction

if TYPE_CHECKING:
    from jaxtyping import Int64

    from functional.numpy_executor.chunk_state import Machine

_OWN = ("shared", "local")  # spaces that begin undefined; parameters of calls are none of them
_STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"})


class Accesses(NamedTuple):
    """The accesses of one instruction to one space: where each begins in its storage, by which warp of the chunk."""

    starts: Int64[np.ndarray, " access"]
    rows: Int64[np.ndarray, " access"]
    lanes: Int64[np.ndarray, " access"]
    size_bytes: int
    indices: tuple[np.ndarray, np.ndarray]  # in arrays [row, lane]

    @classmethod
    def of(cls, frame: Frame, part: Lanes, offsets: np.ndarray, size_bytes: int, each: bool = False) -> Accesses:
        """Of the active lanes. `offsets`: bytes [row, lane], or what spreads to that; `each`: lanes that name the same
        bytes count one by one."""
        shape = (frame.count, max(offsets.shape[1], 32 if each or part.active is not None else 1))
        active = np.ones(shape, bool) if part.active is None else part.active
        rows, lanes = np.nonzero(active)
        starts = np.broadcast_to(offsets, shape)[active].astype(np.int64)
        return cls(starts, frame.index[rows], lanes, size_bytes, (rows, lanes))

    @property
    def bytes(self) -> Int64[np.ndarray, "access byte"]:
        """Every byte."""
        return self.starts[:, None] + np.arange(self.size_bytes)


class Sanitizer:
    """Watches one launch. Each method raises ExecutionError at the first access that no GPU promises anything of."""

    def __init__(self, launch: Launch, memory: Memory) -> None:
        self._races = BlockRaces(launch, memory)
        self._written: dict[str, np.ndarray] = {}

    def begin(self, machine: Machine) -> None:
        """Other thread blocks: their shared and local memory holds nothing."""
        self._written = {"shared": np.zeros(len(machine.shared.data), bool), "local": np.zeros(0, bool)}
        if machine.code.slots.local_bytes:
            self._written["local"] = np.zeros(len(machine.local.data), bool)

    def loads(self, frame: Frame, inst: Instruction, part: Lanes, offsets: np.ndarray, size_bytes: int) -> None:
        """`ld` and all that reads alone."""
        accesses = Accesses.of(frame, part, offsets, size_bytes)
        if part.space.name == "global":
            blocks = _blocks(frame, accesses)
            self._tell(frame, inst, accesses, self._races.loads(accesses.starts, size_bytes, blocks, _strong(inst)))
        elif self._known(part):
            self._check(frame, inst, part, accesses)

    def stores(
        self, frame: Frame, inst: Instruction, part: Lanes, offsets: np.ndarray, size_bytes: int,
        values: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """`st` and all that writes alone, before it does. `values`: what, bytes [row, lane, byte], if that is known."""
        accesses = Accesses.of(frame, part, offsets, size_bytes, each=values is not None)
        if part.space.name == "global":
            if values is not None:
                values = values[accesses.indices]
            blocks = _blocks(frame, accesses)
            found = self._races.stores(accesses.starts, size_bytes, blocks, _strong(inst), values)
            self._tell(frame, inst, accesses, found)
        elif self._known(part):
            self._written[part.space.name][accesses.bytes] = True

    def updates(self, frame: Frame, inst: Instruction, part: Lanes, offsets: np.ndarray, size_bytes: int) -> None:
        """`atom`, `red`."""
        accesses = Accesses.of(frame, part, offsets, size_bytes)
        if part.space.name == "global":
            found = self._races.updates(
                accesses.starts,
                size_bytes,
                _blocks(frame, accesses),
                "cta" not in inst.modifiers,
                inst.opcode == "atom",
            )
            self._tell(frame, inst, accesses, found)
        elif self._known(part):
            self._check(frame, inst, part, accesses)

    def box(
        self, frame: Frame, inst: Instruction, place: tuple[int, int], space: str, starts: np.ndarray, size_bytes: int,
        writes: bool,
    ) -> None:  # fmt: skip
        """What one lane, `place` (row, lane), reads or writes at many offsets [element] of a storage."""
        row, lane = (np.full(len(starts), n) for n in place)
        accesses = Accesses(starts, frame.index[row], lane, size_bytes, (row, lane))
        if space == "global":
            blocks = _blocks(frame, accesses)
            look = self._races.stores if writes else self._races.loads
            more = (None,) if writes else ()
            self._tell(frame, inst, accesses, look(starts, size_bytes, blocks, False, *more))
        elif writes:
            self._written[space][accesses.bytes] = True
        else:
            self._refuse_unwritten(frame, inst, space, accesses)

    def _known(self, part: Lanes) -> bool:
        return part.space.name in _OWN

    def _check(self, frame: Frame, inst: Instruction, part: Lanes, accesses: Accesses) -> None:
        self._refuse_unwritten(frame, inst, part.space.name, accesses)

    def _refuse_unwritten(self, frame: Frame, inst: Instruction, name: str, accesses: Accesses) -> None:
        unwritten = ~self._written[name][accesses.bytes].all(axis=1)
        if unwritten.any():
            first = int(unwritten.argmax())
            message = f"{accesses.size_bytes} bytes of {name} memory are read, and nothing has written all of them"
            raise frame.machine.fault(inst, message, int(accesses.rows[first]), int(accesses.lanes[first]))

    def _tell(self, frame: Frame, inst: Instruction, accesses: Accesses, found: tuple[int, int] | None) -> None:
        """Raise for a race that was found: which access, and which thread block (-1: several)."""
        if found is None:
            return
        first, other = found
        machine = frame.machine
        where = machine.memory.describe(int(accesses.starts[first]) + GLOBAL_BASE)
        who = "others" if other < 0 else f"block {machine.block_coordinates(other)}"
        message = f"thread blocks race: {where}, is accessed by {who}, too, in no order that a GPU promises"
        raise machine.fault(inst, message, int(accesses.rows[first]), int(accesses.lanes[first]))


def _strong(inst: Instruction) -> bool:
    return not _STRONG.isdisjoint(inst.modifiers) and "cta" not in inst.modifiers


def _blocks(frame: Frame, accesses: Accesses) -> np.ndarray:
    machine = frame.machine
    return machine.thread_blocks[machine.block_of_row[accesses.rows]]
