"""PTX text to ir.Module. The grammar is in grammar.lark; what the names mean is settled in _lower.py."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from functional.errors import InputError, PtxError

if TYPE_CHECKING:
    from lark import Lark

    from functional.ir import Module


def parse(source: str | Path) -> Module:
    """Parse a PTX file, or PTX text (a string of several lines).

    Raises PtxError (file, line, what was expected) for anything that is not PTX as nvcc writes it, and InputError
    if the file cannot be read.
    """
    if isinstance(source, str) and ("\n" in source or ".version" in source):
        return parse_bytes(source.encode("utf-8", "surrogateescape"), "<text>")
    try:
        data = Path(source).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{source}: cannot read the PTX file: {reason}") from None
    return parse_bytes(data, str(source))


def parse_bytes(data: bytes, path: str) -> Module:
    """Parse PTX text given as bytes; `path` is only its name in messages. Raises PtxError."""
    from lark import UnexpectedInput

    from functional._lower import lower
    from functional._messages import expected_found
    from functional._syntax import BadLiteral

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PtxError(path, line, f"byte 0x{data[error.start]:02x} is not text; is this a PTX file?") from None
    try:
        tree = _lark().parse(text)
        return lower(tree, path, hashlib.sha256(data).hexdigest())  # type: ignore[arg-type]
    except UnexpectedInput as error:
        line, message = expected_found(error, text, _lark())
    except BadLiteral as error:
        line, message = error.line, str(error)
    raise PtxError(path, line, message)


@cache
def _lark() -> Lark:
    """The parser of grammar.lark. Building its tables takes 0.2 s, so lark keeps them in the cache folder."""
    from lark import Lark

    from functional._tree import TreeBuilder

    grammar = Path(__file__).with_name("grammar.lark").read_text()
    return Lark(grammar, parser="lalr", lexer="contextual", transformer=TreeBuilder(), cache=_table_file() or False)


def _table_file() -> str | None:
    """Where the tables are kept (lark rebuilds them if they are stale or damaged), None if nowhere."""
    own = os.environ.get("ABSTIM_CACHE")
    try:
        base = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "abstim"
        (base / "grammar").mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no such folder can be made, or there is no home
        return None
    return str(base / "grammar" / "ptx.lark")
