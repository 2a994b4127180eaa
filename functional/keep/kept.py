"""Results of slow stages as files: one a result, named by a digest of all that it depends on, and with a checksum."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from functional.errors import note
from functional.keep.folder import cache_dir, evict, mark_used, strangers, write_atomic

_NATIVE = re.compile(r"\b(?:Native|Staged)\(\s*\"([\w.]+)\"")  # a module that is imported when its machine code is made
PACKAGES = ("functional", "precharacterize", "abstim", "sampling", "configs")
LIBRARIES = ("jax", "lark", "llvmlite", "msgspec", "numpy", "scipy", "zstandard")  # whose versions matter
# Behind a new line, as text that a search finds faster than the start of a line
_IMPORT = re.compile(r"\n[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)|import[ \t]+([\w.]+))")
_FILE_NAME = re.compile(r'"([\w-]+\.\w+)"')


@cache
def sources_digest(*modules: str) -> str:
    """Of the source of some modules and of all of this project's that they import, directly or not, lazily or not.

    The versions of the libraries that these import are part of it, and so are files beside a module whose names its
    source holds as strings. Modules are named by their dots; a package stands for its `__init__`. Raises
    ModuleNotFoundError for one that is not there."""
    found: dict[str, _Module] = {}
    before = len(_memory().modules) + len(_memory().libraries)
    left = [name for module in modules for name in _with_parents(module)]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = _module(name)
            left += found[name].imports
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0{found[name].digest}\0".encode())
    for library in sorted(set().union(*(module.libraries for module in found.values()))):
        digest.update(f"{library}\0{_version(library)}\0".encode())
    if len(_memory().modules) + len(_memory().libraries) > before:
        _remember()
    return digest.hexdigest()


class _Module(NamedTuple):
    """A module's own part of a digest, as long as its files are as they are stamped."""

    stamps: list[tuple[str, int, int, int]]  # path, when its content and its entry changed last, its size
    digest: str
    imports: list[str]
    libraries: list[str]


@cache
def _module(name: str) -> _Module:
    path = _source(name)
    held = _memory().modules.get(name)
    if held and held.stamps[0][0] == str(path) and all(_stamp(file) == tuple(own) for file, *own in held.stamps):
        return held
    text = path.read_text()
    beside = [file for file in map(path.with_name, _FILE_NAME.findall(text)) if file.is_file()]
    files = [path, *sorted(beside)]
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name}\0{len(content)}\0".encode() + content)
    imports = _IMPORT.findall("\n" + text)
    tops = {(base or plain).partition(".")[0] for base, _, plain in imports}
    natives = [name for module in _NATIVE.findall(text) for name in _with_parents(module)]
    stamps = [(str(file), *_stamp(str(file))) for file in files]
    found = _Module(stamps, digest.hexdigest(), _project_modules(imports) + natives, sorted(tops & set(LIBRARIES)))
    _memory().modules[name] = found
    return found


def _stamp(file: str) -> tuple[int, int, int]:
    found = os.stat(file)
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size


class _Memory(NamedTuple):
    """What earlier processes found, as long as nothing has come or gone in any of these folders."""

    folders: dict[str, int]  # when each changed last
    modules: dict[str, _Module]
    libraries: dict[str, str]  # their versions


def _memory_name() -> str:
    return hashlib.sha256("\0".join([__file__, *_libraries()]).encode()).hexdigest()


def _libraries() -> list[str]:
    return [folder for folder in sys.path if folder.endswith("-packages") and os.path.isdir(folder)]


@cache
def _memory() -> _Memory:
    """It is added to, and kept by `_remember`."""
    held = Kept("sources").load(_memory_name(), lambda data: msgspec.msgpack.decode(data, type=_Memory))
    with suppress(OSError):
        if held and all(os.stat(folder).st_mtime_ns == time for folder, time in held.folders.items()):
            return held
    return _Memory({}, {}, {})


def _remember() -> None:
    tops = {os.path.dirname(_source(name)) for name in PACKAGES}
    folders = [f for top in tops for f, _, _ in os.walk(top) if not f.endswith("__pycache__")]
    times = {folder: os.stat(folder).st_mtime_ns for folder in (*folders, *_libraries())}
    Kept("sources").save(_memory_name(), msgspec.msgpack.encode(_memory()._replace(folders=times)))


def _version(library: str) -> str:
    found = _memory().libraries
    if library not in found:
        from importlib.metadata import version

        found[library] = version(library)
    return found[library]


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
    try:
        return bool(_source(name))
    except ModuleNotFoundError:
        return False


@cache
def _source(name: str) -> Path:
    """A module's file; found without importing it."""
    top, *inner = name.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no source of {name}")
    if not inner:
        return Path(spec.origin)
    path = os.path.join(os.path.dirname(spec.origin), *inner)
    for file in (f"{path}/__init__.py", f"{path}.py"):  # a folder may be left that holds bytecode alone
        if os.path.isfile(file):
            return Path(file)
    raise ModuleNotFoundError(f"no source of {name}")


_Coded = dict[str, tuple[str, tuple[int, ...], bytes]]


def encode_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Their types, shapes and elements. No array holds objects."""
    return msgspec.msgpack.encode({name: (a.dtype.str, a.shape, a.tobytes()) for name, a in arrays.items()})


def decode_arrays(content: bytes) -> dict[str, np.ndarray]:
    """What `encode_arrays` gave. Raises ValueError for anything else."""
    try:
        coded = msgspec.msgpack.decode(content, type=_Coded)
        return {name: np.ndarray(shape, _plain(kind), data).copy() for name, (kind, shape, data) in coded.items()}
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"no arrays: {error}") from error


def _plain(kind: str) -> np.dtype:
    found = np.dtype(kind)
    if found.hasobject:
        raise ValueError("an array of objects")
    return found


Result = TypeVar("Result")
KEPT_BYTES = 1 << 28  # cap on the results of one kind, unless it has another
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_UNSEEN: dict[Path, int] = {}  # bytes that came into a folder since it was last looked through, by this process


def key(modules: tuple[str, ...], *parts: Any) -> str:
    """A name for what the code of some modules makes of some inputs.

    It changes with the source of the modules and of all that they import, with the versions of their libraries
    (`sources_digest`), and with any part: bytes and arrays by their contents, anything else by its text."""
    digest = hashlib.sha256(sources_digest(*modules).encode())
    for part in parts:
        data: Any = part if isinstance(part, (bytes, bytearray, np.ndarray)) else str(part).encode()
        digest.update(f"{memoryview(data).nbytes}:".encode())
        digest.update(data)
    return digest.hexdigest()


class Kept:
    """The results of one kind ("traces", "tables", ...), in a folder of their own below the cache folder.

    A file that is damaged is made again, and one that cannot be written is done without; either is said on stderr."""

    def __init__(self, kind: str) -> None:
        """The folder is that of the moment: the environment may change."""
        self.folder, self._all = cache_dir(kind), cache_dir(kind.partition("/")[0])

    def path(self, name: str) -> Path:
        """The file of a result."""
        return self.folder / name

    def load(self, name: str, decode: Callable[[bytes], Result]) -> Result | None:
        """What is kept under a name, None if there is nothing; a damaged file is deleted."""
        path = self.path(name)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if who := strangers(path):
            note(f"cache: {who}; {name} is made again")
            return None
        try:
            checksum, data = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
            if hashlib.sha256(data).digest() != checksum:
                raise ValueError("its checksum differs")
            found = decode(data)
        except Exception as error:  # whatever is wrong with the file, it can be made again
            note(f"cache: {path} is damaged ({error}); it is made again")
            self.forget(name)
            return None
        mark_used(path)
        return found

    def save(self, name: str, content: bytes, cap_bytes: int = KEPT_BYTES) -> None:
        """Keep a result, and throw away those longest unused if the kind's folder is a 64th over its cap."""
        path = self.path(name)
        if len(content) + _CHECKSUM_BYTES > cap_bytes:
            return
        write_atomic(path, lambda file: file.writelines((hashlib.sha256(content).digest(), content)))
        _UNSEEN[self._all] = _UNSEEN.get(self._all, cap_bytes) + len(content)
        if _UNSEEN[self._all] > cap_bytes >> 6:
            evict(self._all, cap_bytes)
            _UNSEEN[self._all] = 0

    def load_or_make(
        self,
        name: str,
        make: Callable[[], Result],
        decode: Callable[[bytes], Result] = bytes,  # type: ignore[assignment]
        encode: Callable[[Result], bytes] = bytes,  # type: ignore[assignment]
        cap_bytes: int = KEPT_BYTES,
    ) -> Result:
        """What is kept under a name; made, and kept, if it is not there. `decode` undoes `encode`."""
        found = self.load(name, decode)
        if found is None:
            found = make()
            self.save(name, encode(found), cap_bytes)
        return found

    def forget(self, name: str) -> None:
        """Delete a result, if it is there and can be."""
        try:
            self.path(name).unlink(missing_ok=True)
        except OSError as error:
            note(f"cache: cannot delete {self.path(name)}: {error.strerror}")

    def names(self) -> Iterator[str]:
        """Of all results that are there."""
        return (path.name for path in self.folder.glob("*") if not path.name.endswith(".tmp"))
