"""The target that a name stands for: a suite benchmark, a launches.json, a trace store, a directory of SASS traces, or
one launch of a .ptx or .cu file."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from abstim.gpu.config import config_dir, nearest, read_toml
from functional.errors import InputError, note, refuse
from functional.keep.folder import cache_dir, write_atomic
from functional.ptx.ir import Module
from precharacterize.classify import latency_class

if TYPE_CHECKING:
    from abstim.targets.loading import LoadedModule
    from functional.accelsim import Opcodes
    from functional.launches.case import Case
    from functional.programs.program import Program
    from functional.ptx.ir import Instruction

Target: TypeAlias = "str | Case | Callable[[], Case]"


@cache
def sass_table() -> tuple[Path, dict[str, Any]]:
    """Where the table of opcodes that comes with abstim is, and what it holds."""
    path = config_dir() / "opcodes" / "sass.toml"
    return path, read_toml(path)


@cache
def opcodes() -> Opcodes:
    """The table for reading. Raises InputError for a group that lacks a part and for an opcode named twice."""
    from functional.accelsim import Opcodes

    (path, table), found = sass_table(), dict[str, str]()
    for number, group in enumerate(table.get("group", [])):
        if set(group) != {"operation", "source", "opcodes"}:
            raise InputError(f"{path}: group {number} needs operation, source and opcodes")
        for opcode in group["opcodes"]:
            refuse(opcode in found, f"{path}: {opcode} is there twice")
            found[opcode] = group["operation"]
    return Opcodes(found, str(path))


def trace_case(target: str) -> Case:
    """An Accel-Sim trace directory, or its list of kernels, as a case whose launches need not be executed."""
    from functional.accelsim import read
    from functional.launches.case import Case
    from functional.launches.memory import Memory

    launches, traces, registers = zip(*read(Path(target), opcodes()), strict=True)
    module, name = Module(target, "", "", "sass", 64, (), {}), Path(target).name or target
    resources = {launch.program.name: count for launch, count in zip(launches, registers, strict=True)}
    return Case(name, module, Memory(), launches, resources=resources, traces=traces)


def sass_opcode(instruction: Instruction, in_entry: bool) -> str:
    """The SASS opcode that stands for a PTX instruction in a trace, without the width of a memory access."""
    names = sass_table()[1]["write"]
    if instruction.is_memory:
        return names.get(f"{instruction.opcode}.{instruction.space}", names["other"])
    if instruction.opcode == "ret" and not in_entry:
        return "RET"
    if instruction.opcode in ("bar", "barrier"):
        return names[next((f"bar.{m}" for m in ("warp", "arrive") if m in instruction.modifiers), "bar")]
    kind = latency_class(instruction)
    return names[kind] if kind != "other" else names.get(instruction.opcode, names["other"])


OPTIONS = ("-ptx", "-lineinfo", "-arch=sm_75")  # with the source's lines in the PTX


def ptx_of(source: str, defined: Mapping[str, Any] = MappingProxyType({})) -> Path:
    """The path of the PTX, which is kept, compiled with macros `defined`. Raises InputError without a compiler, with
    what to type where there is one, and with the compiler's first error for a source that it refuses."""
    refuse(not Path(source).is_file(), f"{source}: no such file")
    from precharacterize.machine_code.assemble import tool

    compiler = tool("nvcc")
    if compiler is None:
        made = Path(source).with_suffix(".ptx").name
        typed = f"`nvcc {' '.join(OPTIONS)} {Path(source).name} -o {made}`"
        raise InputError(f"{source}: there is no nvcc here to compile it; where there is, type {typed} and give {made}")
    with TemporaryDirectory() as folder:
        ptx = Path(folder) / f"{Path(source).stem}.ptx"
        macros = [f"-D{name}={value}" for name, value in defined.items()]
        command = [compiler, *OPTIONS, *macros, source, "-o", str(ptx)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if re.search("error|fatal", line, re.IGNORECASE)]
            raise InputError(f"{source}: nvcc refuses it: {' '.join(errors[:1] or lines[:2])}")
        content = ptx.read_bytes()
    kept = cache_dir("ptx") / sha256(content).hexdigest()[:32] / ptx.name
    write_atomic(kept, lambda file: file.write(content))
    refuse(not kept.is_file(), f"{source}: its PTX cannot be written to {kept.parent}")
    return kept


SOURCES = (".ptx", ".cu")  # of kernels, which say nothing of how they are launched


def open_target(target: Target) -> Case:
    """A Case as it is (or made by a function), a benchmark or workload by name, a launches.json, store or trace."""
    if not isinstance(target, str):
        from functional.launches.case import Case

        case = target() if callable(target) else target
        if not isinstance(case, Case):
            given = f"{type(case).__name__}: {case!r:.60}"
            raise InputError(f"a target is a name, a path, or what `kernel.launch(...)` gives, not {given}")
        return case
    refuse(not target, "the target is empty; name a benchmark (`abstim suite`), a file or a folder")
    if target.endswith(".json"):
        from functional.launches.launches_json import load_case

        return load_case(target)
    if _is_source(target):
        raise InputError(f"{target}: a kernel's source needs a grid, a block and arguments; see `abstim run --help`")
    from functional import suite
    from functional.suite import workloads
    from functional.traces.store import open_store

    if Path(target).exists():  # only for what is there: importing it takes a while
        from functional.accelsim import is_trace

        if is_trace(target):
            return trace_case(target)
    if Path(target).is_dir() and not suite.is_name(target):
        return open_store(target)
    if workloads.is_name(target):
        return workloads.case(target)
    if not suite.is_name(target):
        near = nearest(target, suite.names() + workloads.names()) or "; `abstim suite` lists the benchmarks"
        raise InputError(f"{target!r} is no suite benchmark, launches.json, .ptx file or trace directory{near}")
    return suite.case(target)


def names_in(group: str) -> tuple[str, ...]:
    """Targets of a group of the suite (`all`: the whole suite) or of the workloads. Raises InputError if unknown."""
    from functional import suite
    from functional.suite import workloads

    if group in workloads.GROUPS:
        return workloads.names(group)
    if group not in (*suite.GROUPS, "all"):
        raise InputError(f"no group {group!r}; there are {', '.join((*suite.GROUPS, 'all', *workloads.GROUPS))}")
    return suite.names(None if group == "all" else group)


def _is_source(target: str) -> bool:
    return target.lower().endswith(SOURCES)


def resolve(
    target: str, *, kernel: str, grid: str, block: str, arguments: Sequence[str], dynamic_shared_bytes: int = 0,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Case:  # fmt: skip
    """A target as the command line gives it: the launch options belong to a .ptx or .cu file and to nothing else, the
    sizes to the workloads that have them."""
    if sizes:
        from functional.suite import workloads

        return workloads.sized(target, sizes)
    shape = {"--grid": grid, "--block": block}
    if _is_source(target):
        if missing := [option for option, value in shape.items() if not value]:
            refuse(not Path(target).exists(), f"{target}: no such file")
            example = "as in --grid 64 --block 256, and an --arg for each argument of the kernel"
            raise InputError(f"{target}: a {Path(target).suffix} target also needs {' and '.join(missing)}, {example}")
        extents = []
        for option, text in shape.items():
            parts = re.split(r"\s*[x,\s]\s*", text.strip().lower())
            if not 1 <= len(parts) <= 3 or not all(re.fullmatch(r"-?[0-9]+", part) for part in parts):
                raise InputError(f"{option} {text}: write one to three whole numbers, as in 64, 64x64 or 8x8x8")
            extents.append([int(part) for part in parts])
        return ptx_case(target, kernel, extents[0], extents[1], arguments, dynamic_shared_bytes)
    options = {"--kernel": kernel, **shape, "--arg": arguments, "--dynamic-shared": dynamic_shared_bytes}
    if used := [option for option, value in options.items() if value]:
        raise InputError(f"{', '.join(used)}: only for a .ptx or .cu target, which {target!r} is not")
    return open_target(target)


def ptx_case(
    path: str, kernel: str, grid: Sequence[int], block: Sequence[int], arguments: Sequence[str],
    dynamic_bytes: int = 0, defined: Mapping[str, Any] = MappingProxyType({}),
) -> Case:  # fmt: skip
    """One launch of an entry of a PTX file or a CUDA source (`kernel` may be "" if it has only one).

    `arguments` are texts, see `loading.parse_argument`; `defined`: macros of a CUDA source. A resources.json beside the
    file gives the registers a thread."""
    from functional.launches.launches_json import read_resources

    loaded = _loaded(path, defined).kernel(kernel or None)
    case = loaded.launch(grid, block, loaded.parse_arguments(arguments), dynamic_bytes)
    beside = Path(path).with_name("resources.json")
    case.resources = read_resources(beside)
    if case.resources and case.launches[0].program.name not in case.resources:
        note(f"abstim: {beside} says nothing of kernel '{case.launches[0].program.name}'; another source is taken")
    return case


def programs_of(target: str) -> list[Program]:
    """Every kernel a target launches, or every entry of a .ptx or .cu file."""
    if _is_source(target):
        module = _loaded(target)
        return [module.kernel(name).program for name in module.kernels]
    return list({launch.program.name: launch.program for launch in open_target(target).launches}.values())


def _loaded(path: str, defined: Mapping[str, Any] = MappingProxyType({})) -> LoadedModule:
    from abstim.targets.loading import load

    return load(path) if path.lower().endswith(".ptx") else replace(load(str(ptx_of(path, defined))), source=path)
