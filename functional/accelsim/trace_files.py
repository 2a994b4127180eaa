"""The files of an Accel-Sim trace directory: the list of kernels, each kernel's header, and the addresses of accesses.

`kernelslist.g`: one line each, `MemcpyHtoD,0x<address>,<bytes>` or the name of a file, which starts with `kernel` or
is a `.traceg`; other lines are ignored. `kernel-N.traceg` (or `kernel-N-ctx_0x....traceg`, `.xz` or `.gz`): lines
`-key = value` up to the first line that starts with `#`, then the thread blocks.

Addresses are written in one of three modes. Mode 0: one hexadecimal address an active lane. Mode 1: `0xbase stride`,
active lanes are one run. Mode 2: `0xbase`, then the decimal difference from the previous active lane, for each active
lane but the first. (Accel-Sim's reader takes one number more in mode 2 and thereby swallows the immediate that the
writer puts behind the addresses.)"""

import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from functional.arrays import Int64
from functional.errors import InputError, refuse
from functional.files import read_text
from functional.launches.launch import Dim3
from functional.programs.registers import MOST_REGISTERS

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
        lines = [line.strip() for line in read_text(path).split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    named = [line for line in lines if line.startswith("kernel") or (".traceg" in line and not line.startswith("#"))]
    files = [path.parent / line for line in named]
    refuse(not files, f"{path}: names no kernels")
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
    refuse(len(found) > 1, f"{target}: several lists of kernels ({', '.join(f.name for f in found)}); name one of them")
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
        opener: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
        with opener(path, "rt", encoding="ascii") as file:
            yield file
    except (lzma.LZMAError, zlib.error, EOFError, UnicodeDecodeError) as error:
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
            refuse((key := match["key"]) in found, f"{path}: the header has '-{key} = ...' twice")
            found[key] = match["value"].strip()
    try:
        header = Header(
            name=found["kernel name"], grid=_dim(found["grid dim"]), block=_dim(found["block dim"]),
            shared_bytes=int(found["shmem"]), registers=int(found["nregs"]),
            binary_version=int(found["binary version"]), shared_base=int(found.get("shmem base_addr", "0"), 16),
            local_base=int(found.get("local mem base_addr", "0"), 16),
            tracer_version=int(found["accelsim tracer version"]), line_numbers=found.get("enable lineinfo", "0") != "0",
        )  # fmt: skip
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


LIST, STRIDE, DELTAS = "0", "1", "2"
MOST = 1 << 57  # widest virtual address of a GPU, in bytes; sums of 32 such still fit in 64 bits
_LANES = 32
_PATTERNS = 1 << 14  # kept: the differences of one warp are often those of the next

Offsets = Int64[np.ndarray, "32"]


def parse_addresses(text: str, active: int) -> tuple[int, Offsets]:
    """Address of the first active lane, and what lies between it and those of the following `active` lanes. Raises
    InputError if there are too few or one is out of range."""
    try:
        mode, first, rest = (*text.split(None, 2), "")[:3]
        base = int(first, 16) if active else 0
        if mode == STRIDE:
            offsets = _strided(rest.split(None, 1)[0])
        elif mode == DELTAS:
            offsets = _summed(rest, active)
        elif mode == LIST:
            addresses = [int(a, 16) for a in text.split()[1 : 1 + active]]
            if len(addresses) < active:
                raise ValueError
            offsets = _checked(np.array([a - addresses[0] for a in addresses] + [0] * (_LANES - active)))
        else:
            raise InputError(f"address mode {mode[:20]} is unknown")
    except (IndexError, ValueError, OverflowError):
        raise InputError(f"malformed addresses for {active} active lanes: {text.strip()[:60]}") from None
    if not -MOST < base < MOST:
        raise InputError(f"address {base:#x} is out of range")
    return base, offsets


@lru_cache(_PATTERNS)
def _strided(stride: str) -> Offsets:
    return _checked(np.arange(_LANES) * int(stride))


@lru_cache(_PATTERNS)
def _summed(rest: str, active: int) -> Offsets:
    differences = [int(d) for d in rest.split()[: max(0, active - 1)]]
    if len(differences) < active - 1:
        raise ValueError
    return _checked(np.cumsum([0, *differences, *[0] * (_LANES - 1 - len(differences))]))


def _checked(offsets: np.ndarray) -> Offsets:
    """Raises ValueError (or OverflowError) if a distance is out of range."""
    if offsets.dtype != np.int64 or np.abs(offsets).max() >= MOST:
        raise ValueError
    return offsets


def format_addresses(addresses: list[int], lanes: list[int]) -> str:
    """Mode and addresses of the active `lanes`, as NVBit's tracer compresses them."""
    if not addresses:
        return "1 0x0 0"
    deltas = [b - a for a, b in pairwise(addresses)]
    one_run = lanes[-1] - lanes[0] + 1 == len(lanes)
    if deltas and one_run and len(set(deltas)) == 1:
        return f"1 {addresses[0]:#x} {deltas[0]}"
    return " ".join(["2", f"{addresses[0]:#x}", *map(str, deltas)])
