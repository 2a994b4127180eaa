"""What kept results depend on: the sources of the code that made them, found by its imports, and its libraries."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_NATIVE = re.compile(r"\bNative\(\s*\"([\w.]+)\"")  # a module that is imported when its machine code is made
PACKAGES = ("functional", "precharacterize", "abstim", "sampling", "configs")
LIBRARIES = ("jax", "lark", "llvmlite", "msgspec", "numba", "numpy", "scipy", "zstandard")  # whose versions matter
# Behind a new line, as text that a search finds faster than the start of a line
_IMPORT = re.compile(r"\n[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)|import[ \t]+([\w.]+))")
_FILE_NAME = re.compile(r'"([\w-]+\.\w+)"')


@cache
def sources_digest(*modules: str) -> str:
    """Of the source of some modules and of all of this project's that they import, directly or not, lazily or not.

    The versions of the libraries that these import are part of it, and so are files beside a module whose names its
    source holds as strings. Modules are named by their dots; a package stands for its `__init__`. Raises
    ModuleNotFoundError for one that is not there.
    """
    found: dict[str, _Module] = {}
    left = [name for module in modules for name in _with_parents(module)]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = _module(name)
            left += found[name].imports
    digest = hashlib.sha256()
    for name in sorted(found):
        for file, content in found[name].files.items():
            digest.update(f"{name}\0{file}\0{len(content)}\0".encode() + content)
    for library in sorted(set().union(*(module.libraries for module in found.values()))):
        digest.update(f"{library}\0{_version(library)}\0".encode())
    return digest.hexdigest()


class _Module(NamedTuple):
    files: dict[str, bytes]
    imports: list[str]
    libraries: set[str]


@cache
def _module(name: str) -> _Module:
    """A module's own part of a digest."""
    path = _source(name)
    text = path.read_text()
    beside = [file for file in map(path.with_name, _FILE_NAME.findall(text)) if file.is_file()]
    files = {file.name: file.read_bytes() for file in (path, *sorted(beside))}
    imports = _IMPORT.findall("\n" + text)
    tops = {(base or plain).partition(".")[0] for base, _, plain in imports}
    natives = [name for module in _NATIVE.findall(text) for name in _with_parents(module)]
    return _Module(files, _project_modules(imports) + natives, tops & set(LIBRARIES))


_version = cache(version)


def _project_modules(imports: list[tuple[str, str, str]]) -> list[str]:
    """This project's modules that imports name, with the packages they are in."""
    found = []
    for base, names, plain in imports:
        top = (base or plain).partition(".")[0]
        if top in PACKAGES:
            parts = re.findall(r"(\w+)(?:\s+as\s+\w+)?\s*,?", re.sub(r"#[^\n]*", "", names).strip("()"))
            found += [base or plain, *(f"{base}.{part}" for part in parts if base and _is_module(f"{base}.{part}"))]
    return [name for module in dict.fromkeys(found) for name in _with_parents(module)]


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


@cache
def _is_module(name: str) -> bool:
    package, _, last = name.rpartition(".")
    source = _source(package)
    folder = source.parent
    return source.name == "__init__.py" and (
        (folder / f"{last}.py").is_file() or (folder / last / "__init__.py").is_file()
    )


@cache
def _source(name: str) -> Path:
    """A module's file; found without importing it."""
    top, *inner = name.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no source of {name}")
    if not inner:
        return Path(spec.origin)
    path = Path(spec.origin).parent.joinpath(*inner)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        raise ModuleNotFoundError(f"no source of {name}")
    return file
