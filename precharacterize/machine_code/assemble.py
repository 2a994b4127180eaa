"""PTX text -> machine code of its kernels, made once by the assembler and kept on disk."""

from __future__ import annotations

import hashlib
import re
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from functional.keep.kept import Kept, key
from precharacterize.machine_code.instruction import MachineInstruction
from precharacterize.machine_code.tools import Tools, find_tools, run

MODULES = ("precharacterize.machine_code.assemble",)
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


def assemble(path: str, digest: str, architecture: str) -> Assembly:
    """Machine code of the PTX file at `path`, whose text has the SHA-256 `digest`, for "sm_86" or so."""
    tools = find_tools()
    if tools is None:
        return Assembly("no ptxas and nvdisasm at hand; pip install 'abstim[sass]'")
    text = _text(path, digest)
    if text is None:
        return Assembly("the PTX file is no longer there")
    target = assembled_for(text, architecture)
    kept, name = Kept("machine_code"), key(MODULES, digest, target, tools.version)
    encoded = kept.load_or_make(name, lambda: _functions(text, target, tools))
    made_by = f"ptxas {tools.version} for {target}"
    return Assembly(made_by if encoded != NO_FUNCTIONS else f"{made_by} refused the PTX", encoded)


def assembled_for(text: bytes, architecture: str) -> str:
    """The architecture; where the PTX asks for a later one, or the assembler has forgotten it, the next it knows."""
    wanted = re.search(rb"^\s*\.target\s+sm_(\d+)(\w?)", text, re.MULTILINE)
    own = int(wanted[1]) if wanted else 0
    number = max(OLDEST, own, int(architecture.removeprefix("sm_")))
    return f"sm_{number}" + (wanted[2].decode() if wanted and number == own else "")


def _text(path: str, digest: str) -> bytes | None:
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError):
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None


def _functions(text: bytes, target: str, tools: Tools) -> bytes:
    """Encoded functions; none if a tool refuses."""
    from precharacterize.machine_code.listing import functions_of

    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_bytes(text)
        made = run([tools.ptxas, f"-arch={target}", "-lineinfo", str(source), "-o", str(binary)])
        listing = None if made is None else run([tools.nvdisasm, "-gp", "-c", "-hex", str(binary)])
    return msgspec.msgpack.encode({} if listing is None else functions_of(listing))
