"""A module whose functions are parsed when they are asked for, and kept on disk: for programs that hold thousands."""

from __future__ import annotations

import hashlib
import io
import pickle
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from inspect import isclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from functional.errors import InputError
from functional.keep.kept import Kept, key
from functional.ptx import ir, ptx_index
from functional.ptx.ir import Kernel, Module
from functional.ptx.parser import parse_bytes, parse_with, text_of
from functional.ptx.ptx_index import FunctionPlace, Index, index

if TYPE_CHECKING:
    from functional.ptx._syntax import RawModule

WORTH_KEEPING_BYTES = 1 << 11  # of PTX: to load the parser alone takes longer than to read what was kept
_KEPT_BYTES = 1 << 28


def open_module(source: str | Path) -> Module:
    """A PTX file, of which a function is parsed when it is used. Raises PtxError for what it can tell at once, and
    InputError if the file cannot be read; a function that does not parse raises PtxError when it is used."""
    try:
        data = Path(source).read_bytes().removeprefix(BOM_UTF8)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{source}: cannot read the PTX file: {reason}") from None
    return open_bytes(data, str(source))


def open_bytes(data: bytes, path: str) -> Module:
    """The same of PTX text given as bytes; `path` is only its name in messages."""
    digest = hashlib.sha256(data).hexdigest()
    outline = _outline(data, path, digest)
    if outline is None:
        return parse_bytes(data, path)
    module = replace(outline.module, path=path)
    return replace(module, kernels=LazyKernels(data, module, outline))


@dataclass(frozen=True)
class Outline:
    """What is outside of functions, and where these are. `module` holds those that declare static variables."""

    module: Module
    aliases: dict[str, str]
    declared: frozenset[str]  # functions and kernels, with a body or without
    index: Index


@dataclass
class LazyKernels(Mapping[str, Kernel]):
    """Functions by name, in file order."""

    data: bytes
    module: Module
    outline: Outline
    _places: dict[str, FunctionPlace] = field(init=False)
    _known: dict[str, Kernel] = field(init=False)

    def __post_init__(self) -> None:
        self._places = {place.name: place for place in self.outline.index.functions}
        self._known = dict(self.module.kernels)

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of those that can be launched."""
        return tuple(name for name, place in self._places.items() if place.is_entry)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Kernel:
        if name not in self._known:
            make = partial(self._parsed, self._places[name])
            self._known[name] = _kept(f"{self.module.digest}:{name}", len(self.data), make)
        return self._known[name]

    def _parsed(self, place: FunctionPlace) -> Kernel:
        from functional.ptx._lower import lower_function

        text, bases = text_of(self.data, self.module.path), _bases(self.outline.index)
        head = text[: self.outline.index.head]
        lines = place.line - 1 - head.count("\n")
        piece = head + "\n" * lines + text[place.start : place.stop]

        def lower(tree: RawModule) -> Kernel:
            return lower_function(tree, self.module, self.outline.aliases, self.outline.declared, bases[place.name])

        return parse_with(piece, self.module.path, lower)


def _outline(data: bytes, path: str, digest: str) -> Outline | None:
    return _kept(digest, len(data), lambda: _made_outline(data, path, digest))


def _made_outline(data: bytes, path: str, digest: str) -> Outline | None:
    from functional.ptx._lower import aliases_of, functions_of, lower

    text = text_of(data, path)
    found = index(text)
    if found is None:
        return None

    def lowered(tree: RawModule) -> Outline:
        bases = _bases(found)
        return Outline(lower(tree, path, digest, bases), aliases_of(tree), functions_of(tree) | bases.keys(), found)

    return parse_with(_without_bodies(text, found), path, lowered)


def _bases(found: Index) -> dict[str, int]:
    return {place.name: place.pc_base for place in found.functions}


def _without_bodies(text: str, found: Index) -> str:
    """A text of as many lines in which functions are declared only, and kernels left out: but for those with static
    variables, which are variables of the module."""
    parts, at = [], 0
    for place in found.functions:
        if place.static:
            continue
        parts += [text[at : place.start if place.is_entry else place.body], "" if place.is_entry else ";"]
        parts += ["\n" * text.count("\n", place.start if place.is_entry else place.body, place.stop)]
        at = place.stop
    return "".join([*parts, text[at:]])


_RECORDS = {
    (own.__module__, own.__name__)
    for own in (*vars(ir).values(), *vars(ptx_index).values(), Outline)
    if isclass(own) and is_dataclass(own)
} | {("builtins", "frozenset")}


class _Unpickler(pickle.Unpickler):
    """Makes records of instructions and places, and calls nothing else, whatever a file says."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for any other class or function."""
        if (module, name) not in _RECORDS:
            raise pickle.UnpicklingError(f"{module}.{name} is no record of a parsed program")
        return super().find_class(module, name)


def _records(content: bytes) -> Any:
    return _Unpickler(io.BytesIO(content)).load()


def _kept(name: str, size_bytes: int, make: Any) -> Any:
    """What is kept of a text under a name, if it is large enough, else what `make` makes."""
    if size_bytes < WORTH_KEEPING_BYTES:
        return make()
    kept, file = Kept("parsed"), key((__name__,), name)
    found = kept.load(file, _records)
    if found is None:
        found = make()
        kept.save(file, pickle.dumps(found, pickle.HIGHEST_PROTOCOL), _KEPT_BYTES)
    return found
