"""The shared libraries that stand in place of CUDA's, made of the C sources beside this file and kept, and the
environment in which a program finds them without a change to its file."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from abstim.application.call_server import header
from abstim.application.loaded_modules import ElfFile
from functional.errors import InputError
from functional.files import read_bytes
from functional.keep.folder import cache_dir, make_folder, strangers

SOURCES = Path(__file__).parent / "shim"
NVRTC = Path(__file__).parent / "nvrtc" / "machine_code.c"
# File name of CUDA's runtime -> its major version, which decides how some structures are laid out
RUNTIMES = {"libcudart.so.11.0": 11, "libcudart.so.12": 12, "libcudart.so.13": 13}
DRIVER = "libcuda.so.1"
_OPTIONS = ("-shared", "-fPIC", "-O1", "-std=gnu11", "-fvisibility=hidden")
_LINKED = ("-Wl,-Bsymbolic", "-Wl,-z,defs", "-pthread", "-ldl")


def compiler() -> tuple[str, ...]:
    """The C compiler: `cc`, else that of the package ziglang. Raises InputError without either."""
    if found := shutil.which("cc"):
        return (found,)
    if find_spec("ziglang") is not None:
        return (sys.executable, "-P", "-m", "ziglang", "cc")
    raise InputError("running a program needs a C compiler: install one as `cc`, or `pip install abstim[app]`")


def calls_of(api: str) -> frozenset[str]:
    """Names of all functions of CUDA's `runtime`, or of the `driver` API, of every version known here."""
    return frozenset((SOURCES / f"{api}_calls.txt").read_text().split())


ALL_CALLS = calls_of("runtime") | calls_of("driver")
# Ends of names: the same calls as programs compiled with --default-stream per-thread make them
_PER_THREAD = ("_ptsz", "_ptds")


def library_folder(wanted: set[str]) -> Path:
    """A folder with the libraries of these names, compiled if they are not there. Raises InputError if they cannot."""
    sources = sorted(SOURCES.glob("*.c"))
    text = "\n".join(path.read_text() for path in sources)
    calls = re.findall(r" (\w+)\(|CALL\((\w+),", text.replace("**", " ").replace("*", " ").replace("_ASYNC(", "("))
    defined = {plain or in_macro for plain, in_macro in calls}
    pairs = {name: name[: -len(end)] for name in ALL_CALLS for end in _PER_THREAD if name.endswith(end)}
    per_thread = {name: plain for name, plain in sorted(pairs.items()) if plain in defined and name not in defined}
    aliases = tuple(f"-Wl,--defsym={name}={plain}" for name, plain in per_thread.items())
    missing = sorted(ALL_CALLS - defined - per_thread.keys())  # each says so
    stubs = [f'PUBLIC Error {name}(void) {{ return missing("{name}"); }}' for name in missing]
    others = "\n".join(['#include "shim.h"', *stubs, ""])
    headers = "\n".join(path.read_text() for path in sorted(SOURCES.glob("*.h")))
    folder = _folder_of(text, headers, others, header(), repr(compiler()), repr((*_OPTIONS, *_LINKED, *aliases)))
    for name in sorted(wanted & set(RUNTIMES)):
        made = {"protocol.h": header(), "missing.c": others, "version.map": f"{name} {{ global: *; }};\n"}
        options = [*aliases, *_OPTIONS, *_LINKED, f"-DRUNTIME={RUNTIMES[name]}", "-I.", f"-I{SOURCES}"]
        options += [f"-Wl,-soname,{name}", "-Wl,--version-script=version.map"]
        _compiled(folder / name, [*options, *map(str, sources), "missing.c"], made)
    return folder


def driver_folder(runtime: str) -> Path:
    """A folder with `libcuda.so.1`. It has both APIs: a program that uses both has one device. Raises InputError."""
    shared = library_folder({runtime})
    folder = shared / str(RUNTIMES[runtime])
    needs = ("-Wl,--no-as-needed", str(shared / runtime), f"-Wl,-soname,{DRIVER}", "-Wl,-rpath,$ORIGIN/..")
    _compiled(folder / DRIVER, ["-shared", "-fPIC", "nothing.c", *needs], {"nothing.c": ""})
    return folder


def nvrtc_library() -> Path:
    """The library that programs linked with NVRTC load before it. It has no versions of names: what has none stands in
    place of any version's. Raises InputError."""
    arguments = ["-shared", "-fPIC", "-O2", str(NVRTC), "-ldl"]
    library = _folder_of(NVRTC.read_text(), *compiler(), *arguments) / "libnvrtc_ptx.so"
    _compiled(library, arguments, {})
    return library


def _folder_of(*parts: str) -> Path:
    return cache_dir("shim") / hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _compiled(library: Path, arguments: Sequence[str], files: Mapping[str, str]) -> None:
    """Make a library, unless it is there and nobody else may have written it. `arguments`: the compiler's, in a folder
    with these `files`. Raises InputError if it cannot be made."""
    if library.is_file() and not strangers(library):
        return
    make_folder(library.parent)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / library.name
        for name, text in files.items():
            (Path(scratch) / name).write_text(text)
        command = [*compiler(), *arguments, "-o", library.name]
        done = subprocess.run(command, capture_output=True, text=True, cwd=scratch)
        if done.returncode:
            lines = (line for line in done.stderr.splitlines() if "error" in line or "failed" in line)
            first = next(lines, done.stderr[:200])
            raise InputError(f"the C compiler {command[0]} cannot make {library.name}: {first}")
        made.replace(library)


# Environment variables: numbers of open files, and of the process of abstim
SOCKET, MEMORY, PARENT = "ABSTIM_APP_SOCKET", "ABSTIM_APP_MEMORY", "ABSTIM_APP_PARENT"
FUNCTIONS = "ABSTIM_APP_FUNCTIONS"  # an environment variable: a file that says where a static runtime's functions are


def runtime_environment(program: Path, scratch: Path) -> dict[str, str]:
    """Variables to start a program with. Files that they name lie in `scratch`. A program linked with the shared
    runtime finds ours first. In one that holds the runtime itself, its functions are found by the symbol table. Raises
    InputError for one that was stripped of it, or needs libraries that are not there."""
    file = ElfFile(read_bytes(program))
    environment = _environment(file, scratch)
    if any(name.startswith("libnvrtc.so") for name in file.needed()):
        environment |= _preload(nvrtc_library(), environment)
    if file.needed():  # the dynamic linker, asked to list and not to run, says what it does not find
        listing = os.environ | environment | {"LD_TRACE_LOADED_OBJECTS": "1"}
        listed = subprocess.run([str(program)], env=listing, capture_output=True, text=True, check=False)
        lines = [line.partition("=>") for line in listed.stdout.splitlines()]
        absent = [name.strip() for name, _, where in lines if where.strip() == "not found"]
        if absent:
            what = "; ".join(f"{name}{_where_from(name)}" for name in absent)
            raise InputError(f"{program.name} needs libraries that are not on this machine: {what}")
    return environment


def _environment(file: ElfFile, scratch: Path) -> dict[str, str]:
    static = _static_functions(file)
    if not static:
        folder = library_folder(set(RUNTIMES))
        linked = next((name for name in file.needed() if name in RUNTIMES), max(RUNTIMES, key=RUNTIMES.__getitem__))
        return _search_path(driver_folder(linked), folder)
    later, earlier = "cudaGetDeviceProperties_v2" in static, "cudaBindTexture" in static  # some came and went
    name = "libcudart.so.12" if later else "libcudart.so.11.0" if earlier else "libcudart.so.13"
    folder = library_folder({name})
    places = scratch / "functions"
    places.write_text("".join(f"{function} {address:x}\n" for function, address in static.items()))
    return _preload(folder / name, {}) | {FUNCTIONS: str(places)} | _search_path(driver_folder(name))


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
    known = calls_of("runtime")
    found = {name: address for name, address in file.functions() if name in known}
    if "__cudaRegisterFatBinary" not in found and DRIVER in file.needed():
        return {}  # linked by nvcc, but by the driver API alone
    if "__cudaRegisterFatBinary" not in found:
        what_to_do = "build it with `nvcc -cudart shared`, or do not strip it"
        raise InputError(f"the program holds CUDA's runtime, but no symbol table to find it by: {what_to_do}")
    return found


def _search_path(*folders: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": ":".join(filter(None, (*map(str, folders), os.environ.get("LD_LIBRARY_PATH"))))}


def _preload(library: Path, environment: dict[str, str]) -> dict[str, str]:
    before = environment.get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))
    return {"LD_PRELOAD": ":".join(filter(None, (str(library), before)))}
