"""Registers a thread of a kernel, and where the number comes from."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from functional.programs.liveness import estimate_registers
from functional.programs.program import Program

MOST_REGISTERS = 255  # a thread
_PTXAS_SECONDS = 20


@dataclass(frozen=True)
class Registers:
    """`count` 32-bit registers a thread; `source`: "resources.json", "ptxas", "trace header" or "liveness estimate"."""

    count: int
    source: str


def registers_per_thread(program: Program, target: str, known: Mapping[str, int]) -> Registers:
    """Registers a thread of a kernel.

    From `known` (kernel name -> registers) if it is there, else from `ptxas -v` for `target` ("sm_75") if ptxas
    is on the PATH and takes the file, else from liveness.
    """
    if program.name in known:
        return Registers(known[program.name], "resources.json")
    compiled = _ptxas(program.path, target, program.digest).get(program.name)
    if compiled is not None:
        return Registers(compiled, "ptxas")
    return Registers(estimate_registers(program), "liveness estimate")


@cache
def _ptxas(path: str, target: str, digest: str) -> dict[str, int]:
    """Registers of every kernel of a file as ptxas reports them; empty without ptxas. `digest` only keys the cache."""
    ptxas = shutil.which("ptxas")
    if ptxas is None or not Path(path).is_file():
        return {}
    absolute = str(Path(path).resolve())  # no file name can pass for an option
    command = [ptxas, "-v", f"-arch={target}", "-o", "/dev/null", absolute]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PTXAS_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_ptxas(done.stderr + done.stdout) if done.returncode == 0 else {}


def parse_ptxas(report: str) -> dict[str, int]:
    """Kernel -> registers a thread, from the messages of `ptxas -v`."""
    found: dict[str, int] = {}
    entry = ""
    for line in report.splitlines():
        if name := re.search(r"Compiling entry function '([^']+)'", line):
            entry = name[1]
        elif (used := re.search(r"Used (\d+) registers", line)) and entry:
            found[entry] = int(used[1])
    return found
