"""The source that a PTX text was made of: names of C++ functions, lines of CUDA, and the text itself, if unchanged."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from functional.errors import ExecutionError
from functional.files import read_bytes

if TYPE_CHECKING:
    from functional.programs.program import Program


_CAST = re.compile(r"\((?:unsigned )?(?:int|long long|long|short|char)\)(?=-?\d)")  # of a template's number: (int)4


@lru_cache(maxsize=1024)
def shown_name(kernel: str) -> str:
    """`fwt<float>` of `_Z3fwtIfEvPT_i`; a name that is not mangled, or that nobody can read, as it is."""
    if not kernel.startswith("_Z"):
        return kernel
    import itanium_demangler

    try:
        found = itanium_demangler.parse(kernel)
    except (ValueError, NotImplementedError, RecursionError, IndexError, KeyError, AttributeError):
        return kernel
    if found is None:
        return kernel
    return _CAST.sub("", str(found.name if found.kind == "func" else found))


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


def unchanged(path: str, digest: str) -> bytes | None:
    """The PTX of a program or module, if it is still where it was read, and as it was."""
    from hashlib import sha256

    try:
        data = read_bytes(path).removeprefix(BOM_UTF8)
    except (OSError, ValueError):
        return None
    return data if sha256(data).hexdigest() == digest else None


def for_assembler(path: str, digest: str) -> bytes | None:
    """The same as ptxas takes it, which refuses what is not ASCII even in comments."""
    text = unchanged(path, digest)
    return text if text is None else text.decode("utf-8", "replace").encode("ascii", "replace")


_STATEMENT_END = re.compile(rb'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|;(?=[^\n]*\S)', re.DOTALL)


def one_a_line(text: bytes) -> bytes:
    """PTX text in which every statement begins a line."""
    return _STATEMENT_END.sub(lambda found: found[0] + b"\n" * (found[0] == b";"), text)


def ptx_text(program: Program) -> str:
    """The PTX, if it is still where it was read, and as it was; else nothing."""
    return (unchanged(program.path, program.digest) or b"").decode("utf-8", "replace")


@contextmanager
def naming_source(program: Program) -> Iterator[None]:
    """A fault of a kernel, which names the line of the PTX, names that of the CUDA source too, where the PTX says it.

    The executor cannot: it may run in a process that reads no files."""
    try:
        yield
    except ExecutionError as error:
        found = re.search(re.escape(program.path) + r":(\d+)(?=: )", str(error))
        source = source_lines(ptx_text(program)).get(int(found[1])) if found else None
        if found and source:
            at = found.end()
            error.args = (f"{str(error)[:at]} ({source.file}:{source.line}){str(error)[at:]}",)
        raise
