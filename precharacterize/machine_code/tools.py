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
    release = re.search(r"release [\d.]+, (V[\d.]+)", run([ptxas, "--version"]) or "")
    return Tools(ptxas, nvdisasm, release[1] if release else "of unknown version")


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
