"""Where each function of a PTX text begins and ends, and how many instructions it has: found without parsing it.

A large file holds thousands of kernels, of which one is launched. What is irregular in any way is not indexed, and then
has to be parsed as a whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
_NEVER_FALLS_THROUGH = frozenset({"ret", "exit", "trap", "bra", "brx"})


@dataclass(frozen=True)
class FunctionPlace:
    """A function with a body: `start` and `stop` of its text, the braces included; `body`: where the braces begin.

    `line`: where `start` lies; `pc_base`: instructions of the functions before it. `static`: does the body declare
    variables that live as long as the module?
    """

    name: str
    is_entry: bool
    start: int
    body: int
    stop: int
    line: int
    pc_base: int
    static: bool


@dataclass(frozen=True)
class Index:
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
    sign = _sign(text, at)
    if sign is None:
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
    """How many instructions a body has, with the `ret` at its end that goes without saying; None if that depends on
    where branches lead."""
    *statements, rest = _SKIPPED.sub("", body).split(";")
    if _LABEL_BEHIND.search(rest):
        return None
    count, last = 0, ("", "")
    for statement in statements:
        match = _STATEMENT.match(statement)
        if match is not None and match[2]:
            count, last = count + 1, (match[1], match[2])
    return count + (last[0] is not None or last[1] not in _NEVER_FALLS_THROUGH)
