"""How a program is made to find our runtime in place of CUDA's: in its environment, without a change to its file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from abstim.application.elf_file import ElfFile
from abstim.application.shim_library import (
    DRIVER,
    RUNTIMES,
    driver_folder,
    library_folder,
    nvrtc_library,
    runtime_calls,
)
from functional.errors import InputError

# Environment variables: numbers of open files
SOCKET, MEMORY = "ABSTIM_APP_SOCKET", "ABSTIM_APP_MEMORY"
FUNCTIONS = "ABSTIM_APP_FUNCTIONS"  # an environment variable: a file that says where a static runtime's functions are


def runtime_environment(program: Path, scratch: Path) -> dict[str, str]:
    """Variables to start a program with. Files that they name lie in `scratch`.

    A program linked with the shared runtime finds ours first. In one that holds the runtime itself, its functions are
    found by the symbol table. Raises InputError for one that was stripped of it, or needs libraries that are not there.
    """
    file = ElfFile(program.read_bytes())
    environment = _environment(file, scratch)
    if any(name.startswith("libnvrtc.so") for name in file.needed()):
        environment |= _preload(nvrtc_library(), environment)
    if file.needed() and (absent := _absent_libraries(program, os.environ | environment)):
        what = "; ".join(f"{name}{_where_from(name)}" for name in absent)
        raise InputError(f"{program.name} needs libraries that are not on this machine: {what}")
    return environment


def _environment(file: ElfFile, scratch: Path) -> dict[str, str]:
    static = _static_functions(file)
    if not static:
        folder = library_folder(set(RUNTIMES))
        linked = next((name for name in file.needed() if name in RUNTIMES), max(RUNTIMES, key=RUNTIMES.__getitem__))
        return _search_path(driver_folder(linked), folder)
    name = _version(set(static))
    folder = library_folder({name})
    places = scratch / "functions"
    places.write_text("".join(f"{function} {address:x}\n" for function, address in static.items()))
    return _preload(folder / name, {}) | {FUNCTIONS: str(places)} | _search_path(driver_folder(name))


def _absent_libraries(program: Path, environment: dict[str, str]) -> list[str]:
    """What the dynamic linker, asked to list and not to run, does not find."""
    listed = subprocess.run(
        [str(program)], env=environment | {"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True, check=False
    )
    lines = (line.partition("=>") for line in listed.stdout.splitlines())
    return [name.strip() for name, _, where in lines if where.strip() == "not found"]


def _where_from(library: str) -> str:
    """What has a library of CUDA's, which abstim has nothing in place of."""
    if library.startswith("libnvrtc"):
        return " (NVRTC compiles without a GPU: install CUDA's toolkit, or `pip install nvidia-cuda-nvrtc`)"
    known = ("libcublas", "libcufft", "libcurand", "libcusparse", "libcusolver", "libcudnn", "libnccl", "libnpp")
    return " (a library of CUDA's; its kernels are machine code)" if library.startswith(known) else ""


def _static_functions(file: ElfFile) -> dict[str, int]:
    """The runtime's functions that a program holds itself. Raises InputError if they cannot be found."""
    held = any(section.name == ".nv_fatbin" for section in file.sections)
    if not held or any(name.startswith("libcudart.so") for name in file.needed()):
        return {}
    known = runtime_calls()
    found = {name: address for name, address in file.functions() if name in known}
    if "__cudaRegisterFatBinary" not in found and DRIVER in file.needed():
        return {}  # linked by nvcc, but by the driver API alone
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


def _search_path(*folders: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": ":".join(filter(None, (*map(str, folders), os.environ.get("LD_LIBRARY_PATH"))))}


def _preload(library: Path, environment: dict[str, str]) -> dict[str, str]:
    """With what is loaded first already."""
    before = environment.get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))
    return {"LD_PRELOAD": ":".join(filter(None, (str(library), before)))}
