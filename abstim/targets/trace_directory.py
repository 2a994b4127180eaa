"""SASS traces as targets, and the table of SASS opcodes in both directions (`configs/opcodes/sass.toml`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abstim.gpu.config import config_dir, read_toml
from functional.errors import InputError

if TYPE_CHECKING:
    from functional.accelsim import Opcodes
    from functional.launches.case import Case
    from functional.ptx.ir import Instruction


def table_path() -> Path:
    """The table of opcodes that comes with abstim."""
    return config_dir() / "opcodes" / "sass.toml"


@cache
def _table(path: Path) -> dict[str, Any]:
    return read_toml(path)


@cache
def opcodes(path: Path | None = None) -> Opcodes:
    """The table for reading. Raises InputError for a group that lacks a part and for an opcode named twice."""
    from functional.accelsim import Opcodes

    path = path or table_path()
    found: dict[str, str] = {}
    for number, group in enumerate(_table(path).get("group", [])):
        if set(group) != {"operation", "source", "opcodes"}:
            raise InputError(f"{path}: group {number} needs operation, source and opcodes")
        for opcode in group["opcodes"]:
            if opcode in found:
                raise InputError(f"{path}: {opcode} is there twice")
            found[opcode] = group["operation"]
    return Opcodes(found, str(path))


def trace_case(target: str) -> Case:
    """An Accel-Sim trace directory, or its list of kernels, as a case whose launches need not be executed."""
    from functional.accelsim import read
    from functional.launches.case import Case
    from functional.launches.memory import Memory
    from functional.ptx.ir import Module

    found = list(read(Path(target), opcodes()))
    module = Module(target, "", "", "sass", 64, (), {})
    return Case(
        name=Path(target).name or target,
        module=module,
        memory=Memory(),
        launches=tuple(launch for launch, _, _ in found),
        resources={launch.program.name: registers for launch, _, registers in found},
        traces=tuple(trace for _, trace, _ in found),
    )


def sass_opcode(instruction: Instruction, in_entry: bool) -> str:
    """The SASS opcode that stands for a PTX instruction in a trace, without the width of a memory access."""
    from precharacterize.classify import latency_class

    names = _table(table_path())["write"]
    if instruction.is_memory:
        return names.get(f"{instruction.opcode}.{instruction.space}", names["other"])
    if instruction.opcode == "ret" and not in_entry:
        return "RET"
    if instruction.opcode in ("bar", "barrier"):
        return names[next((f"bar.{m}" for m in ("warp", "arrive") if m in instruction.modifiers), "bar")]
    kind = latency_class(instruction)
    return names[kind] if kind != "other" else names.get(instruction.opcode, names["other"])
