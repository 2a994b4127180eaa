"""One machine instruction as the disassembler prints it, with what its encoding says to the issue stage."""

from __future__ import annotations

import msgspec

NO_SCOREBOARD = 7


class MachineInstruction(msgspec.Struct, frozen=True, array_like=True):
    """An instruction of 128 bits (Volta and later).

    `stall` cycles until the warp may issue its next one, `write_scoreboard` released when the result is there and
    `read_scoreboard` when the operands have been read (NO_SCOREBOARD: neither), `wait_mask` the scoreboards that must
    be free before it issues (Jia et al., "Dissecting the NVIDIA Volta GPU architecture", 2018, section 2.1).
    `line` is the PTX line it was made from, 0 if unknown; `label` the one in front of it, "" if there is none.
    """

    address: int
    label: str
    guard: str  # "@P0", "@!UP1", ""
    opcode: str  # "LDG.E.64"
    operands: str
    line: int
    stall: int
    write_scoreboard: int
    read_scoreboard: int
    wait_mask: int

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """What follows the opcode's name."""
        return tuple(self.opcode.split(".")[1:])

    @property
    def target(self) -> str:
        """The label a branch or call names, "" if it names none."""
        inside = self.operands.partition("`(")[2]
        return inside.partition(")")[0]


def control_fields(high_word: int) -> tuple[int, int, int, int]:
    """(stall, write scoreboard, read scoreboard, wait mask) of the upper 64 bits of an encoding."""
    return high_word >> 41 & 15, high_word >> 46 & 7, high_word >> 49 & 7, high_word >> 52 & 63
