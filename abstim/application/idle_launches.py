"""Launches that would change nothing: the same as one that, on memory as it is now, left it as it was.

Programs that take times launch a kernel again and again on the same data. What a kernel does depends on its launch and
on memory alone: if a launch has once left memory as it found it, then on that memory it need not be executed again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import UInt8

    from functional.launches.launch import Launch
    from functional.launches.memory import Memory, Region

MOST_BYTES = 1 << 28  # of memory that is copied and compared
_BYTES_AN_INSTRUCTION = 16  # to compare so many takes about as long as to execute a thread instruction
_MOST_CHANGES = 2  # a launch that changed something so often is no longer watched


@dataclass(frozen=True)
class Snapshot:
    """Global memory at a moment."""

    regions: tuple[Region, ...]
    contents: tuple[UInt8[np.ndarray, " byte"], ...]

    @classmethod
    def of(cls, memory: Memory) -> Snapshot:
        """A copy."""
        regions = tuple(memory.regions)
        return cls(regions, tuple(memory.bytes_of(region).copy() for region in regions))

    def equals(self, memory: Memory) -> bool:
        """Is memory as it was then?"""
        if self.regions != tuple(memory.regions):
            return False
        pairs = zip(self.regions, self.contents, strict=True)
        return all(np.array_equal(memory.bytes_of(region), then) for region, then in pairs)


@dataclass
class _Kind:
    """Launches of one kernel with the same parameters, constants and shape."""

    instructions: int = 0  # thread instructions that one takes
    changes: int = 0


@dataclass
class IdleLaunches:
    """What is known of the launches so far."""

    _kinds: dict[Hashable, _Kind] = field(default_factory=dict)
    _state: Snapshot | None = None
    _idle: dict[Hashable, str] = field(default_factory=dict)  # on memory as in `_state` -> likeness to be timed by

    def likeness(self, launch: Launch, memory: Memory) -> str | None:
        """If a launch would change nothing, what `ended` was told of the one like it; else None."""
        key = _key(launch, memory)
        if key not in self._idle or self._state is None or not self._state.equals(memory):
            return None
        return self._idle[key]

    def before(self, launch: Launch, memory: Memory) -> Snapshot | None:
        """Memory before a launch that is executed, if that is worth while; `ended` is told of it."""
        kind = self._kinds.get(_key(launch, memory))
        size_bytes = sum(region.bytes for region in memory.regions)
        if kind is None or kind.changes >= _MOST_CHANGES or size_bytes > MOST_BYTES:
            return None
        if size_bytes > _BYTES_AN_INSTRUCTION * kind.instructions:
            return None
        return self._state if self._state is not None and self._state.equals(memory) else Snapshot.of(memory)

    def ended(
        self, launch: Launch, memory: Memory, before: Snapshot | None, instructions: int, likeness: str = ""
    ) -> None:
        """A launch was executed. `likeness`: what it is timed by, "" if it is not."""
        key = _key(launch, memory)
        kind = self._kinds.setdefault(key, _Kind())
        kind.instructions = instructions
        if before is None or memory.printed.calls:
            return
        if not before.equals(memory):
            kind.changes += 1
            return
        if before is not self._state:
            self._state, self._idle = before, {}
        self._idle[key] = likeness


def _key(launch: Launch, memory: Memory) -> Hashable:
    program = launch.program
    shape = (launch.grid, launch.block, launch.cluster, launch.dynamic_shared_bytes, launch.grid_workspace)
    how = (shape, launch.parameters)
    return program.digest, program.name, how, memory.const_arena.tobytes()
