"""Warp scheduling policies: the order in which a scheduler goes through its warp slots in a turn (rule 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precharacterize.classify import Kind

if TYPE_CHECKING:
    from oracle.resident import Warp
    from oracle.sm import Sm


class Policy:
    """The order of one scheduler. `slots` are its warp slots, `last` is the one it issued last."""

    def __init__(self, slots: list[int], active: int) -> None:
        self.slots, self.last = slots, -1
        self.active, self.pending = slots[:active], slots[active:]

    def order(self, sm: Sm, time: int) -> list[int]:
        """Warp slots in the order of this turn."""
        raise NotImplementedError

    def has_a_turn(self, sm: Sm, time: int) -> bool:
        """Is there a warp that the turn would come to?"""
        return any(sm.warps[slot].can_be_visited(time) for slot in self.slots if slot in sm.warps)

    def issued(self, slot: int) -> None:
        """An instruction of `slot` has issued."""
        self.last = slot


class Oldest(Policy):
    """Launch order."""

    def order(self, sm: Sm, time: int) -> list[int]:
        return sorted((w for w in self.slots if w in sm.warps), key=lambda w: sm.warps[w].launch_order)


class Gto(Oldest):
    """The slot issued last, then launch order."""

    def order(self, sm: Sm, time: int) -> list[int]:
        return sorted(super().order(sm, time), key=lambda w: w != self.last)


class Lrr(Policy):
    """Slot order, cyclic, beginning after the slot issued last."""

    def order(self, sm: Sm, time: int) -> list[int]:
        start = self.slots.index(self.last) + 1 if self.last >= 0 else 0
        return self.slots[start:] + self.slots[:start]


class TwoLevel(Policy):
    """An active queue, and a pending one whose head takes the place of an active slot that waits for something long."""

    def has_a_turn(self, sm: Sm, time: int) -> bool:
        return True

    def order(self, sm: Sm, time: int) -> list[int]:
        demoted = [w for w in self.active if w not in sm.warps or self._leaves(sm.warps[w], time)]
        self.active = [w for w in self.active if w not in demoted]
        self.pending += demoted
        self.active += self.pending[: len(demoted)]
        self.pending = self.pending[len(demoted) :]
        return list(self.active)

    def issued(self, slot: int) -> None:
        super().issued(slot)
        behind = self.active.index(slot) + 1
        self.active = self.active[behind:] + self.active[:behind]

    def _leaves(self, warp: Warp, time: int) -> bool:
        if not warp.running or warp.at_barrier or warp.not_before > time:
            return True
        if not warp.buffered or warp.front_end > time:  # nothing to look at
            return False
        return any(self._waits_for(warp, register, time) for register in warp.program.long_waits(warp.in_buffer()))

    def _waits_for(self, warp: Warp, register: int, time: int) -> bool:
        writer = warp.written_by.get(register)
        if writer == Kind.PARAM_LOAD:
            return warp.registers[register] > time
        return writer in (Kind.GLOBAL_LOAD, Kind.GLOBAL_ATOMIC, Kind.TEXTURE_LOAD, Kind.L2_LOAD)


POLICIES = {"gto": Gto, "lrr": Lrr, "oldest": Oldest, "two_level": TwoLevel}
