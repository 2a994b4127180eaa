"""Syntax errors in plain words: what was expected, and what was found."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from lark import Lark, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

# Terminals of grammar.lark; those not listed are punctuation and directives, printed as they are written
_WORDS = {
    "NAME": "a name", "INT": "an integer", "FLOAT": "a floating-point number", "STRING": "a string",
    "OPCODE": "an instruction", "LABEL": "a label", "GUARD": "a guard such as @%p1", "TYPE": "a type such as .b32",
    "SPACE": "a state space such as .shared", "PARAMETER_SPACE": "'.param'", "VECTOR": "'.v2' or '.v4'",
    "LINKAGE": "'.visible', '.extern' or '.weak'", "PERFORMANCE": "a directive such as .maxntid",
    "DOTTED": "an attribute", "OPERATOR": "an operator", "UNARY": "a sign", "OFFSET_SIGN": "an offset",
}  # fmt: skip
# Places of the grammar where many terminals are possible, by terminals that only occur together there
_PLACES = (
    ({"NAME", "INT", "FLOAT", "LSQB"}, "an operand"),
    ({"OPCODE", "RBRACE"}, "an instruction, a declaration or '}'"),
    ({"LINKAGE", "SPACE"}, "a function or a variable"),
    ({"SEMICOLON", "COMMA"}, "',' or ';' after the operands"),
)  # fmt: skip


def expected_found(error: UnexpectedInput, text: str, grammar: Lark) -> tuple[int, str]:
    """The line of a syntax error, and "expected ..., found ..."."""
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
    found = re.compile(r"\s*([\w.$%]+|\S)").match(text, position)
    if found is None:
        return "the end of the file"
    word = found[1]
    return f"'{word[:40]}...'" if len(word) > 40 else f"'{word}'" if word.isprintable() else repr(word)
