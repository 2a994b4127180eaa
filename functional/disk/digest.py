"""What kept results depend on: the sources of the code that made them, found by its imports."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_NATIVE = re.compile(r"\bNative\(\s*\"([\w.]+)\"")  # a module that is imported when its machine code is made
PACKAGES = ("functional", "precharacterize", "abstim", "sampling", "configs")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)|import[ \t]+([\w.]+))", re.MULTILINE
)


@cache
def sources_digest(*modules: str) -> str:
    """Of the source of some modules and of all of this project's that they import, directly or not, lazily or not.

    Modules are named by their dots; a package stands for its `__init__`. Raises ModuleNotFoundError for one that is
    not there.
    """
    paths: dict[str, Path] = {}
    left = list(modules)
    while left:
        name = left.pop()
        if name not in paths:
            paths[name] = _source(name)
            left += imported(paths[name].read_text())
    digest = hashlib.sha256()
    for name in sorted(paths):
        digest.update(f"{name}\0".encode() + paths[name].read_bytes() + b"\0")
    return digest.hexdigest()


def imported(source: str) -> list[str]:
    """This project's modules that a source names in an import, with the packages they are in."""
    found = []
    for base, names, plain in _IMPORT.findall(source):
        top = (base or plain).partition(".")[0]
        if top in PACKAGES:
            parts = re.findall(r"(\w+)(?:\s+as\s+\w+)?\s*,?", re.sub(r"#[^\n]*", "", names).strip("()"))
            found += [base or plain, *(f"{base}.{part}" for part in parts if base and _is_module(f"{base}.{part}"))]
    found += _NATIVE.findall(source)
    return [name for module in found for name in _with_parents(module)]


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
    path = Path(spec.origin).parent.joinpath(*inner) if inner else Path(spec.origin)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        raise ModuleNotFoundError(f"no source of {name}")
    return file
