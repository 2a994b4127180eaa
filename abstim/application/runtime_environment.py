"""How a program is made to find our runtime in place of CUDA's: in its environment, without a change to its file."""

from __future__ import annotations

import os
from pathlib import Path

from abstim.application.elf_file import ElfFile
from abstim.application.shim_library import RUNTIMES, library_folder, runtime_calls
from functional.errors import InputError

FUNCTIONS = "ABSTIM_APP_FUNCTIONS"  # an environment variable: a file that says where a static runtime's functions are


def runtime_environment(program: Path, scratch: Path) -> dict[str, str]:
    """Variables to start a program with. Files that they name lie in `scratch`.

    A program linked with the shared runtime finds ours first. In one that holds the runtime itself, its functions are
    found by the symbol table. Raises InputError for one that was stripped of it.
    """
    file = ElfFile(program.read_bytes())
    static = _static_functions(file)
    if not static:
        folder = library_folder(set(RUNTIMES))
        return {"LD_LIBRARY_PATH": _before("LD_LIBRARY_PATH", str(folder), ":")}
    name = _version(set(static))
    folder = library_folder({name})
    places = scratch / "functions"
    places.write_text("".join(f"{function} {address:x}\n" for function, address in static.items()))
    return {"LD_PRELOAD": _before("LD_PRELOAD", str(folder / name), ":"), FUNCTIONS: str(places)}


def _static_functions(file: ElfFile) -> dict[str, int]:
    """The runtime's functions that a program holds itself. Raises InputError if they cannot be found."""
    held = any(section.name == ".nv_fatbin" for section in file.sections)
    if not held or any(name.startswith("libcudart.so") for name in file.needed()):
        return {}
    known = runtime_calls()
    found = {name: address for name, address in file.functions() if name in known}
    if "__cudaRegisterFatBinary" not in found:
        raise InputError(
            "the program holds CUDA's runtime, but no symbol table to find it by: build it with `nvcc -cudart shared`, "
            "or do not strip it"
        )
    return found


def _version(functions: set[str]) -> str:
    """The runtime that has these functions: some came and went."""
    if "cudaGetDeviceProperties_v2" in functions:
        return "libcudart.so.12"
    return "libcudart.so.11.0" if "cudaBindTexture" in functions else "libcudart.so.13"


def _before(variable: str, value: str, separator: str) -> str:
    return separator.join(filter(None, (value, os.environ.get(variable, ""))))
