"""PTX text to ir.Module. The grammar is in grammar.lark; what the names mean is settled in _lower.py."""

from __future__ import annotations

import hashlib
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from functional.errors import InputError, PtxError
from functional.files import read_bytes
from functional.keep.kept import Kept, key

if TYPE_CHECKING:
    from lark import Lark, UnexpectedInput

    from functional.ptx._syntax import RawModule
    from functional.ptx.ir import Module


# Terminals of grammar.lark; those not listed are punctuation and directives, printed as they are written
_WORDS = {"NAME": "a name", "INT": "an integer", "FLOAT": "a floating-point number", "STRING": "a string"}
_WORDS |= {"OPCODE": "an instruction", "LABEL": "a label", "GUARD": "a guard such as @%p1", "VECTOR": "'.v2' or '.v4'"}
_WORDS |= {"TYPE": "a type such as .b32", "SPACE": "a state space such as .shared", "PARAMETER_SPACE": "'.param'"}
_WORDS |= {"LINKAGE": "'.visible', '.extern' or '.weak'", "PERFORMANCE": "a directive such as .maxntid"}
_WORDS |= {"DOTTED": "an attribute", "OPERATOR": "an operator", "UNARY": "a sign", "OFFSET_SIGN": "an offset"}
# Places of the grammar where many terminals are possible, by terminals that only occur together there
_PLACES = (
    ({"NAME", "INT", "FLOAT", "LSQB"}, "an operand"),
    ({"OPCODE", "RBRACE"}, "an instruction, a declaration or '}'"),
    ({"LINKAGE", "SPACE"}, "a function or a variable"),
    ({"SEMICOLON", "COMMA"}, "',' or ';' after the operands"),
)


def expected_found(error: UnexpectedInput, text: str, grammar: Lark) -> tuple[int, str]:
    """The line of a syntax error, and "expected ..., found ..."."""
    from lark import UnexpectedCharacters, UnexpectedToken

    terminals: Any
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        line, position, terminals = error.token.line or 1, error.token.start_pos or 0, error.accepts or error.expected
    elif isinstance(error, UnexpectedCharacters):
        line, position, terminals = error.line, error.pos_in_stream or 0, error.allowed or ()
    else:
        line, position = text.rstrip().count("\n") + 1, len(text)
        terminals = getattr(error, "accepts", None) or getattr(error, "expected", ())
    if text.startswith("/*", position):
        return line, "this comment is never closed"
    if text.startswith('"', position):
        return line, "this string is not closed on its line"
    return line, f"expected {_expected(terminals, grammar)}, found {_word_at(text, position)}"


def _expected(terminals: Iterable[str], grammar: Lark) -> str:
    names = set(terminals) - {"IGNORED", "$END"}
    for place, words in _PLACES:
        if place <= names:
            return words
    fixed = {t.name: f"'{t.pattern.value}'" for t in grammar.terminals}
    shown = sorted({_WORDS.get(name) or fixed.get(name, name.lower()) for name in names})
    if shown == ["'.version'"]:
        return "'.version' at the start of a PTX file"
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown) or "the end of the file"


def _word_at(text: str, position: int) -> str:
    """The word or sign at a position, as the user sees it."""
    if (found := re.compile(r"\s*([\w.$%]+|\S)").match(text, position)) is None:
        return "the end of the file"
    word = found[1]
    return f"'{word[:40]}...'" if len(word) > 40 else f"'{word}'" if word.isprintable() else repr(word)


Result = TypeVar("Result")


def parse(source: str | Path) -> Module:
    """Parse a PTX file, or PTX text (a string of several lines).

    Raises PtxError (file, line, what was expected) for anything that is not PTX as nvcc writes it, and InputError
    if the file cannot be read."""
    if isinstance(source, str) and ("\n" in source or ".version" in source):
        return parse_bytes(source.encode("utf-8", "surrogateescape"), "<text>")
    return parse_bytes(file_bytes(source), str(source))


def file_bytes(source: str | Path) -> bytes:
    """The text of a PTX file. Raises InputError if it cannot be read."""
    try:
        return read_bytes(source).removeprefix(BOM_UTF8)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{source}: cannot read the PTX file: {reason}") from None


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

    from functional.ptx._syntax import TreeBuilder

    name = key((__name__,))  # with the grammar: its file's name stands in this source
    decode = msgspec.msgpack.Decoder(strict=False).decode
    tables = Kept("grammar").load_or_make(name, _tables, decode, msgspec.msgpack.encode)
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
