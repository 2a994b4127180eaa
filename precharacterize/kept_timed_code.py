"""Timed code of a program on a pipeline: made once, kept on disk, reused for every design point with that pipeline."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from functional.keep.kept import Kept, decode_arrays, encode_arrays, key
from functional.programs.program import Program
from precharacterize.machine_code.assemble import Assembly, assemble
from precharacterize.table import LatencyTable, PipelineParameters
from precharacterize.timed_code import TimedCode

MODULES = (
    "precharacterize.kept_timed_code",
    "precharacterize.build_timed",
    "functional.ptx.parser",
    "functional.programs.link",
)


def timed_code_of(program: Program, pipeline: PipelineParameters, architecture: str) -> TimedCode:
    """What is timed of a program on a GPU that runs machine code ("sm_86"): from the cache folder if it is there.

    Without an assembler, and where it refuses the PTX, that is PTX with loads hoisted; `description` says which.
    """
    assembly = assembly_of(program, architecture)
    kept = Kept("timed_code")
    name = key(MODULES, program.digest, program.name, str(program.constants), pipeline.key, assembly.made_by)
    found = kept.load(name, decode)
    if found is None:
        from precharacterize.build_timed import build_timed_code

        found = build_timed_code(program, pipeline, assembly)
        kept.save(name, encode(found))
    return found


def assembly_of(program: Program, architecture: str) -> Assembly:
    """A program's machine code, whose PTX instructions are known by their lines."""
    lines = [i.line for i in program.instructions]
    if len(set(lines)) < len(lines):
        return Assembly("the PTX has several instructions in a line")
    return assemble(program.path, program.digest, architecture)


def encode(code: TimedCode) -> bytes:
    """As a file holds it."""
    arrays = {f.name: np.asarray(getattr(code, f.name)) for f in fields(code) if f.name != "table"}
    return encode_arrays({"table": np.frombuffer(code.table.encode(), np.uint8), **arrays})


def decode(content: bytes) -> TimedCode:
    """What `encode` gave. Raises ValueError or KeyError for anything else."""
    arrays = decode_arrays(content)
    values: dict[str, Any] = {f.name: arrays[f.name] for f in fields(TimedCode)}
    values |= {"table": LatencyTable.decode(values["table"].tobytes()), "description": str(values["description"])}
    return TimedCode(**values)
