"""PTX text to ir.Module: as a whole, or, for programs of thousands of functions, each when it is asked for, and kept on
disk. The grammar is in grammar.lark; what the names mean is settled in _lower.py.

Where each function begins and ends, and how many instructions it has, is found without parsing it. A text that is
irregular in any way is not indexed, and is parsed as a whole."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from inspect import isclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from functional.errors import InputError, PtxError
from functional.files import read_bytes
from functional.keep.kept import Kept, key
from functional.ptx import ir
from functional.ptx.ir import Kernel, Module

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


_COMMENTS = r"//[^\n]*|/\*[\s\S]*?\*/"
# .version, .target and .address_size, which no semicolon ends
_HEAD = re.compile(
    rf"(?:\s|{_COMMENTS})*\.version\s+\S+(?:\s|{_COMMENTS})+\.target\s+\w+(?:\s*,\s*\w+)*"
    rf"(?:(?:\s|{_COMMENTS})+\.address_size\s+\d+)?"
)
_SIGN = re.compile(rf'{_COMMENTS}|"[^"\n]*"|[{{;]')
_BRACE = re.compile(rf'{_COMMENTS}|"[^"\n]*"|[{{}}]')
_FUNCTION = re.compile(r"\.(entry|func)\b(?:\s*\.attribute\s*\([^)]*\))*\s*(?:\([^)]*\)\s*)?([A-Za-z_$%][\w$]*)")
_SKIPPED = re.compile(rf'{_COMMENTS}|"[^"\n]*"|\.(?:loc|file)[ \t][^\n]*')
_LIST_END = re.compile(r"\s*;")  # behind the values of a variable
_STATIC = re.compile(r"\.(?:global|const)\s+\.")
# What is written with more instructions than stand there
_REGISTER_PARAMETER = re.compile(r"[(,]\s*\.reg\b")
# What may stand in front of an instruction, and the instruction's guard and opcode
_STATEMENT = re.compile(r"(?:[\s{}]|[A-Za-z_$%][\w$]*\s*:(?!:))*(@\s*!?\s*[\w$%]+\s*)?([a-z]\w*)?")
_LABEL_BEHIND = re.compile(r"[\w$]\s*:(?!:)")


class FunctionPlace(Struct, frozen=True):
    """A function with a body: `start` and `stop` of its text, the braces included; `body`: where the braces begin.

    `line`: where `start` lies; `pc_base`: instructions of the functions before it. `static`: does the body declare
    variables that live as long as the module?"""

    name: str
    is_entry: bool
    start: int
    body: int
    stop: int
    line: int
    pc_base: int
    static: bool


class Index(Struct, frozen=True):
    """`head`: the directives that a text begins with, up to there."""

    head: int
    functions: tuple[FunctionPlace, ...]


def index(text: str) -> Index | None:
    """The functions of a PTX text in their order; None for a text that is not regular."""
    head = _HEAD.match(text)
    if head is None or _REGISTER_PARAMETER.search(text):
        return None
    at, line, pc_base, found = head.end(), 1 + text.count("\n", 0, head.end()), 0, list[FunctionPlace]()
    while (sign := _sign(text, at)) is not None:
        stop = sign + 1
        if text[sign] == "{":
            stop = _closing(text, sign)
            declared = list(_FUNCTION.finditer(_SKIPPED.sub("", text[at:sign])))
            if len(declared) > 1:  # a prototype that no semicolon ends
                return None
            function = declared[0] if declared else None
            count = None if function is None or not stop else _instructions(text[sign + 1 : stop - 1])
            if not stop or (function is not None and count is None):
                return None
            if function is not None:
                static = bool(_STATIC.search(text, sign, stop))
                is_entry = function[1] == "entry"
                found.append(FunctionPlace(function[2], is_entry, at, sign, stop, line, pc_base, static))
                pc_base += count or 0
        line += text.count("\n", at, stop)
        at = stop
    names = {function.name for function in found}
    return Index(head.end(), tuple(found)) if len(names) == len(found) else None


def next_item(text: str, at: int) -> tuple[int, int] | None:
    """Of the next declaration at the top of a text: where its braces begin (0: it has none), and where it ends. None if
    there is no more."""
    if (sign := _sign(text, at)) is None:
        return None
    if text[sign] == ";":
        return 0, sign + 1
    stop = _closing(text, sign)
    behind = _LIST_END.match(text, stop) if stop else None
    return sign, behind.end() if behind else stop or len(text)


def _sign(text: str, at: int) -> int | None:
    """The next brace or semicolon."""
    return next((m.start() for m in _SIGN.finditer(text, at) if m[0] in "{;"), None)


def _closing(text: str, at: int) -> int:
    """Behind the brace that closes the one at `at`; 0 if there is none."""
    depth = 0
    for match in _BRACE.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.end()
    return 0


def _instructions(body: str) -> int | None:
    """How many instructions a body has, with the `ret` at its end that goes without saying; None if branches decide."""
    *statements, rest = _SKIPPED.sub("", body).split(";")
    if _LABEL_BEHIND.search(rest):
        return None
    count, last = 0, ("", "")
    for statement in statements:
        match = _STATEMENT.match(statement)
        if match is not None and match[2]:
            count, last = count + 1, (match[1], match[2])
    return count + (last[0] is not None or last[1] not in ir.NEVER_FALLS_THROUGH)


_KEPT_BYTES = 1 << 28


def open_module(source: str | Path) -> Module:
    """A PTX file, of which a function is parsed when it is used. Raises PtxError for what it can tell at once, and
    InputError if the file cannot be read; a function that does not parse raises PtxError when it is used."""
    return open_bytes(file_bytes(source), str(source))


def open_bytes(data: bytes, path: str) -> Module:
    """The same of PTX text given as bytes; `path` is only its name in messages."""
    digest = hashlib.sha256(data).hexdigest()
    if (outline := _kept(digest, lambda: _outline(data, path, digest))) is None:
        return parse_bytes(data, path)
    module = replace(outline.module, path=path)
    return replace(module, kernels=LazyKernels(data, module, outline))


class Outline(Struct, frozen=True):
    """What is outside of functions, and where these are. `module` holds those that declare static variables."""

    module: Module
    aliases: dict[str, str]
    declared: frozenset[str]  # functions and kernels, with a body or without
    index: Index


class LazyKernels(Mapping[str, Kernel]):
    """Functions by name, in file order."""

    def __init__(self, data: bytes, module: Module, outline: Outline) -> None:
        self.data, self.module, self.outline = data, module, outline
        self._places = {place.name: place for place in outline.index.functions}
        self._known = dict(module.kernels)

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
            self._known[name] = _kept(f"{self.module.digest}:{name}", partial(self._parsed, self._places[name]))
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
    from functional.ptx._lower import aliases_of, functions_of, lower

    text = text_of(data, path)
    if (found := index(text)) is None:
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
    for own in (*vars(ir).values(), FunctionPlace, Index, Outline)
    if isclass(own) and issubclass(own, Struct) and own is not Struct
} | {("builtins", "frozenset")}


class _Unpickler(pickle.Unpickler):
    """Makes records of instructions and places, and calls nothing else, whatever a file says."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _RECORDS:
            raise pickle.UnpicklingError(f"{module}.{name} is no record of a parsed program")
        return super().find_class(module, name)


def _kept(name: str, make: Any) -> Any:
    """What is kept of a text under a name, else what `make` makes: to load the parser alone takes longer."""
    encode = partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)
    decode = lambda content: _Unpickler(io.BytesIO(content)).load()  # noqa: E731
    return Kept("parsed").load_or_make(key((__name__,), name), make, decode, encode, _KEPT_BYTES)
