"""The assembler and the disassembler, wherever they are: on the PATH, or from pip (`abstim[sass]`)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from functional.keep.kept import Kept, key

MODULES = ("precharacterize.machine_code.tools",)
_SECONDS = 60  # for one run of a tool


@dataclass(frozen=True, slots=True)
class Tools:
    """Paths of the two programs, and what the assembler says its version is."""

    ptxas: str
    nvdisasm: str
    version: str


@cache
def find_tools() -> Tools | None:
    """Both tools, or None if either is missing."""
    ptxas, nvdisasm = _find("ptxas"), _find("nvdisasm")
    if ptxas is None or nvdisasm is None:
        return None
    return Tools(ptxas, nvdisasm, _version(Path(ptxas).resolve()))


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


def _find(name: str) -> str | None:
    return shutil.which(name) or next((str(path) for path in _from_pip(name) if path.is_file()), None)


def _from_pip(name: str) -> Iterator[Path]:
    """Where NVIDIA's wheels put their programs: nvidia/cu13/bin, nvidia/cuda_nvcc/bin and so on."""
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield from sorted(Path(folder).glob(f"*/bin/{name}"), reverse=True)
