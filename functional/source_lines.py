"""Which line of the CUDA source each line of a PTX text was made of: its `.loc` directives (`nvcc -lineinfo`)."""

from __future__ import annotations

import re
from typing import NamedTuple

_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*inlined_at\s+(\d+)\s+(\d+))?")


class SourceLine(NamedTuple):
    """A line of a source file, counted from 1."""

    file: str
    line: int


def source_lines(ptx: str) -> dict[int, SourceLine]:
    """PTX line -> source line, of the lines that have one. Code that was inlined counts where it was called from."""
    text = ptx.splitlines()
    files = {found[1]: found[2] for line in text if (found := _FILE.match(line))}
    lines: dict[int, SourceLine] = {}
    now: SourceLine | None = None
    for number, line in enumerate(text, 1):
        if found := _LOC.match(line):
            file, at = (found[3], found[4]) if found[3] else (found[1], found[2])
            now = SourceLine(files.get(file, "?"), int(at)) if int(at) else None
        elif line.startswith("}"):  # the next function says its own
            now = None
        elif now is not None:
            lines[number] = now
    return lines
