"""The files of an Accel-Sim trace directory: the list of kernels, and each kernel's header.

`kernelslist.g`: one line each, `MemcpyHtoD,0x<address>,<bytes>` or the name of a file beside it, which starts with
`kernel`; other lines are ignored. `kernel-N.traceg` (or `kernel-N-ctx_0x....traceg`, `.xz` if compressed): lines
`-key = value` up to the first line that starts with `#`, then the thread blocks.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from functional.errors import InputError
from functional.launches.launch import Dim3
from functional.programs.resources import MOST_REGISTERS

LIST_NAME = "kernelslist.g"
TRACER_VERSIONS = range(1, 8)  # below 3, each line begins with the block's coordinates and the warp
_KEY = re.compile(r"-(?P<key>[^=]+?)\s*=\s*(?P<value>.*)")
_DIM = re.compile(r"\((\d+),(\d+),(\d+)\)")


@dataclass(frozen=True)
class Header:
    """What a trace says of its launch. Base addresses are generic ones; 0: unknown."""

    name: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    registers: int
    binary_version: int  # 70: compute capability 7.0
    shared_base: int = 0
    local_base: int = 0
    tracer_version: int = 5
    line_numbers: bool = False  # of the source, in front of each instruction

    @property
    def skipped_fields(self) -> int:
        """Fields in front of the program counter of an instruction."""
        return (4 if self.tracer_version < 3 else 0) + self.line_numbers

    @property
    def instruction_bytes(self) -> int:
        """Distance of two program counters: 16 from Volta on; before that 8, with a control word in between."""
        return 16 if self.binary_version >= 70 else 8


def kernel_files(target: Path) -> list[Path]:
    """The kernels of a trace directory, or of its list, in launch order. Raises InputError if there are none."""
    path = list_of(target)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    files = [path.parent / line.strip() for line in lines if line.startswith("kernel")]
    if not files:
        raise InputError(f"{path}: names no kernels")
    if missing := [file for file in files if not file.is_file()]:
        raise InputError(f"{path}: names {missing[0].name}, which is not there")
    return files


def list_of(target: Path) -> Path:
    """The list of kernels of a directory: `kernelslist.g`, or the only `kernelslist*.g` there is."""
    if not target.is_dir():
        return target
    found = sorted(target.glob("kernelslist*.g"))
    if target / LIST_NAME in found or not found:
        return target / LIST_NAME
    if len(found) > 1:
        raise InputError(f"{target}: several lists of kernels ({', '.join(f.name for f in found)}); name one of them")
    return found[0]


def is_trace(target: str) -> bool:
    """Does a target name a trace: a list of kernels, or a directory with one?"""
    path = Path(target)
    if path.is_dir():
        return any(path.glob("kernelslist*.g"))
    return path.name.startswith("kernelslist") and path.name.endswith(".g")


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """A trace as lines of text, decompressed while it is read. Raises InputError for a damaged file."""
    try:
        with lzma.open(path, "rt", encoding="ascii") if path.suffix == ".xz" else path.open(encoding="ascii") as file:
            yield file
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: damaged: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def read_header(path: Path, file: IO[str]) -> Header:
    """The header; `file` then stands behind it. Raises InputError for a missing or malformed line."""
    found: dict[str, str] = {}
    for line in file:
        if line.startswith("#"):
            break
        if match := _KEY.match(line):
            found[match["key"]] = match["value"].strip()
    try:
        header = Header(
            name=found["kernel name"],
            grid=_dim(found["grid dim"]),
            block=_dim(found["block dim"]),
            shared_bytes=int(found["shmem"]),
            registers=int(found["nregs"]),
            binary_version=int(found["binary version"]),
            shared_base=int(found.get("shmem base_addr", "0"), 16),
            local_base=int(found.get("local mem base_addr", "0"), 16),
            tracer_version=int(found["accelsim tracer version"]),
            line_numbers=found.get("enable lineinfo", "0") != "0",
        )
    except KeyError as error:
        raise InputError(f"{path}: the header has no line '-{error.args[0]} = ...'") from None
    except ValueError as error:
        raise InputError(f"{path}: malformed header: {error}") from None
    if not (0 < header.registers <= MOST_REGISTERS and header.shared_bytes >= 0):
        raise InputError(f"{path}: malformed header: nregs = {header.registers}, shmem = {header.shared_bytes}")
    if header.tracer_version not in TRACER_VERSIONS:
        raise InputError(f"{path}: tracer version {header.tracer_version} is unknown; 1 to 7 can be read")
    return header


def _dim(text: str) -> Dim3:
    match = _DIM.fullmatch(text)
    if match is None or 0 in map(int, match.groups()):
        raise ValueError(f"{text!r} is not (x,y,z)")
    return Dim3(*map(int, match.groups()))
