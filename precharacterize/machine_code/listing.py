"""What nvdisasm prints (`-gp -c -hex`), read into instructions by function."""

from __future__ import annotations

import re
from collections.abc import Iterator

from precharacterize.machine_code.instruction import MachineInstruction, control_fields

_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+),")
_LINE = re.compile(r'\s*//## File "\.nv_debug_ptx_txt[^"]*", line (\d+)')
_LABEL = re.compile(r"([.$\w]+):\s*$")
_CODE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?\w+\s+)?(\S+?)(?:\s+(.*?))?\s*;\s*/\* 0x([0-9a-f]{16}) \*/")
_SECOND_WORD = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/\s*$")


def functions_of(listing: str) -> dict[str, list[MachineInstruction]]:
    """Instructions of every function, by its name in the PTX. Lines that hold no code are passed over."""
    found: dict[str, list[MachineInstruction]] = {}
    for name, lines in _sections(listing):
        found[name] = list(_instructions(lines))
    return found


def _sections(listing: str) -> Iterator[tuple[str, list[str]]]:
    name = ""
    lines: list[str] = []
    for text in listing.splitlines():
        if start := _SECTION.match(text):
            if name:
                yield name, lines
            name, lines = start[1], []
        elif text.strip():
            lines.append(text)
    if name:
        yield name, lines


def _instructions(lines: list[str]) -> Iterator[MachineInstruction]:
    label, line = "", 0
    for text, following in zip(lines, [*lines[1:], ""], strict=True):
        if source := _LINE.match(text):
            line = int(source[1])
        elif named := _LABEL.match(text):
            label = named[1]
        elif code := _CODE.match(text):
            word = _SECOND_WORD.match(following)
            if word is None:
                continue
            address, guard, opcode, operands, _ = code.groups()
            fields = control_fields(int(word[1], 16))
            yield MachineInstruction(
                int(address, 16), label, (guard or "").strip(), opcode, operands or "", line, *fields
            )
            label = ""
