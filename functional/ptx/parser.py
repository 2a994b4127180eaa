"""PTX text to ir.Module. The grammar is in grammar.lark; what the names mean is settled in _lower.py."""

from __future__ import annotations

import hashlib
from codecs import BOM_UTF8
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from functional.errors import InputError, PtxError
from functional.keep.kept import Kept, key

if TYPE_CHECKING:
    from lark import Lark

    from functional.ptx._syntax import RawModule
    from functional.ptx.ir import Module

Result = TypeVar("Result")


def parse(source: str | Path) -> Module:
    """Parse a PTX file, or PTX text (a string of several lines).

    Raises PtxError (file, line, what was expected) for anything that is not PTX as nvcc writes it, and InputError
    if the file cannot be read.
    """
    if isinstance(source, str) and ("\n" in source or ".version" in source):
        return parse_bytes(source.encode("utf-8", "surrogateescape"), "<text>")
    try:
        data = Path(source).read_bytes().removeprefix(BOM_UTF8)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{source}: cannot read the PTX file: {reason}") from None
    return parse_bytes(data, str(source))


def parse_bytes(data: bytes, path: str) -> Module:
    """Parse PTX text given as bytes; `path` is only its name in messages. Raises PtxError."""
    from functional.ptx._lower import lower

    digest = hashlib.sha256(data).hexdigest()
    return parse_with(text_of(data, path), path, lambda tree: lower(tree, path, digest))


def text_of(data: bytes, path: str) -> str:
    """The text of a PTX file. Raises PtxError for bytes that are none."""
    try:
        return data.decode("utf-8").rstrip("\0")  # hosts hand over C strings
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PtxError(path, line, f"byte 0x{data[error.start]:02x} is not text; is this a PTX file?") from None


def parse_with(text: str, path: str, lower: Callable[[RawModule], Result]) -> Result:
    """What `lower` makes of the syntax tree of a text. Raises PtxError, also for what `lower` finds wrong."""
    from lark import UnexpectedInput

    from functional.ptx._messages import expected_found
    from functional.ptx._syntax import BadLiteral

    try:
        return lower(_lark().parse(text))  # type: ignore[arg-type]
    except UnexpectedInput as error:
        line, message = expected_found(error, text, _lark())
    except BadLiteral as error:
        line, message = error.line, str(error)
    raise PtxError(path, line, message)


@cache
def _lark() -> Lark:
    """The parser of grammar.lark. Building its tables takes 0.2 s, so they are kept on disk."""
    from lark import Lark

    from functional.ptx._tree import TreeBuilder

    name = key((__name__,))  # with the grammar: its file's name stands in this source
    tables = Kept("grammar").load(name, msgspec.msgpack.Decoder(strict=False).decode)
    if tables is None:
        tables = _tables()
        Kept("grammar").save(name, msgspec.msgpack.encode(tables))
    return Lark._load_from_dict(tables["data"], tables["memo"], transformer=TreeBuilder())


def _tables() -> dict[str, Any]:
    """What lark makes of the grammar, as plain data: the form in which its stand-alone parsers hold it."""
    from lark import Lark
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    grammar = Path(__file__).with_name("grammar.lark").read_text()
    data, memo = Lark(grammar, parser="lalr", lexer="contextual").memo_serialize([TerminalDef, Rule])
    for part in memo.values():
        if width := part.get("pattern", {}).get("_width"):  # 2 ** 64: as wide as you like
            part["pattern"]["_width"] = [min(bound, 1 << 62) for bound in width]
    data["options"] = {name: data["options"][name] for name in ("parser", "lexer", "start", "maybe_placeholders")}
    return {"data": data, "memo": memo}
