"""PTX text -> machine code of its kernels: made once by ptxas and nvdisasm (on the PATH or pip's), and kept on disk."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path

import msgspec

from functional.keep.kept import Kept, key

NO_SCOREBOARD = 7


class MachineInstruction(msgspec.Struct, frozen=True, array_like=True):
    """An instruction of 128 bits (Volta and later).

    `stall` cycles until the warp may issue its next one, `write_scoreboard` released when the result is there and
    `read_scoreboard` when the operands have been read (NO_SCOREBOARD: neither), `wait_mask` the scoreboards that must
    be free before it issues (Jia et al., "Dissecting the NVIDIA Volta GPU architecture", 2018, section 2.1).
    `line` is the PTX line it was made from, 0 if unknown; `label` the one in front of it, "" if there is none."""

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
        return self.operands.partition("`(")[2].partition(")")[0]


def control_fields(high_word: int) -> tuple[int, int, int, int]:
    """(stall, write scoreboard, read scoreboard, wait mask) of the upper 64 bits of an encoding."""
    return high_word >> 41 & 15, high_word >> 46 & 7, high_word >> 49 & 7, high_word >> 52 & 63


_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+),")
_LINE = re.compile(r'\s*//## File "\.nv_debug_ptx_txt[^"]*", line (\d+)')
_LABEL = re.compile(r"([.$\w]+):\s*$")
_CODE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?\w+\s+)?(\S+?)(?:\s+(.*?))?\s*;\s*/\* 0x([0-9a-f]{16}) \*/")
_SECOND_WORD = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/\s*$")


def functions_of(listing: str) -> dict[str, list[MachineInstruction]]:
    """Instructions of every function, by its name in the PTX. Lines that hold no code are passed over."""
    return {name: list(_instructions(lines)) for name, lines in _sections(listing)}


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
            if (word := _SECOND_WORD.match(following)) is None:
                continue
            address, guard, opcode, operands, _ = code.groups(default="")
            fields = control_fields(int(word[1], 16))
            yield MachineInstruction(int(address, 16), label, guard.strip(), opcode, operands, line, *fields)
            label = ""


MODULES = ("precharacterize.machine_code.assemble",)
_SECONDS = 60  # for one run of a tool


@dataclass(frozen=True, slots=True)
class Tools:
    """Paths of the two programs, and what the assembler says its version is."""

    ptxas: str
    nvdisasm: str
    version: str


@cache
def toolkits() -> tuple[Tools, ...]:
    """Both tools, from the PATH as far as they are there; behind them those among pip's packages, if others, which may
    know what the first refuse. Empty if a tool is missing."""
    found = [[tool(name), tool(name, "")] for name in ("ptxas", "nvdisasm")]
    pairs = dict.fromkeys(zip(*found, strict=True))
    return tuple(Tools(one, other, _version(Path(one).resolve())) for one, other in pairs if one and other)


def _version(ptxas: Path) -> str:
    """What an assembler says its version is; kept as long as its file is the same, for asking takes a process."""
    file = ptxas.stat()
    name = key(MODULES, ptxas, file.st_size, file.st_mtime_ns)
    said = Kept("machine_code").load_or_make(name, lambda: (run([str(ptxas), "--version"]) or "").encode())
    release = re.search(r"release [\d.]+, (V[\d.]+)", said.decode())
    return release[1] if release else "of unknown version"


def run(command: list[str]) -> str | None:
    """What a tool prints; None if it fails, or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def tool(name: str, path: str | None = None) -> str | None:
    """The path of one of CUDA's programs: on the PATH (or another `path`), or among pip's packages."""
    return shutil.which(name, path=path) or next((str(path) for path in _from_pip(name) if path.is_file()), None)


def _from_pip(name: str) -> Iterator[Path]:
    """Where NVIDIA's wheels put their programs: nvidia/cu13/bin, nvidia/cuda_nvcc/bin and so on."""
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield from sorted(Path(folder).glob(f"*/bin/{name}"), reverse=True)


NO_FUNCTIONS = msgspec.msgpack.encode({})
OLDEST = 75  # the assemblers that know today's GPUs know nothing older


@dataclass(frozen=True)
class Assembly:
    """Machine code of a PTX file for one architecture, by function, and what made it; or why there is none."""

    made_by: str  # "ptxas V13.0.88 for sm_86", or the reason
    encoded: bytes = NO_FUNCTIONS

    @cached_property
    def functions(self) -> dict[str, list[MachineInstruction]]:
        """By name; read when they are asked for, which they are only until timed code is made of them."""
        return msgspec.msgpack.decode(self.encoded, type=dict[str, list[MachineInstruction]])


def assemble(text: bytes | None, digest: str, architecture: str) -> Assembly:
    """Machine code of PTX (None: it is not at hand), which `digest` names, for "sm_86" or so."""
    if not toolkits():
        lacking = " and no ".join(name for name in ("ptxas", "nvdisasm") if tool(name) is None)
        return Assembly(f"no {lacking} at hand; pip install 'abstim[sass]'")
    if text is None:
        return Assembly("its PTX is not at hand")
    target = assembled_for(text, architecture)
    for each in toolkits():
        name = key(MODULES, digest, target, each.version)
        encoded = Kept("machine_code").load_or_make(name, partial(_functions, text, target, each))
        if encoded != NO_FUNCTIONS:
            return Assembly(f"ptxas {each.version} for {target}", encoded)
    return Assembly(f"ptxas {toolkits()[0].version} for {target} refused the PTX")


def assembled_for(text: bytes, architecture: str) -> str:
    """The architecture; where the PTX asks for a later one, or the assembler has forgotten it, the next it knows."""
    wanted = re.search(rb"^\s*\.target\s+sm_(\d+)(\w?)", text, re.MULTILINE)
    own = int(wanted[1]) if wanted else 0
    number = max(OLDEST, own, int(architecture.removeprefix("sm_")))
    return f"sm_{number}" + (wanted[2].decode() if wanted and number == own else "")


def _functions(text: bytes, target: str, tools: Tools) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_bytes(text)
        made = run([tools.ptxas, f"-arch={target}", "-lineinfo", str(source), "-o", str(binary)])
        listing = None if made is None else run([tools.nvdisasm, "-gp", "-c", "-hex", str(binary)])
    return msgspec.msgpack.encode({} if listing is None else functions_of(listing))
