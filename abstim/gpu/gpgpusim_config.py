"""The syntax of GPGPU-Sim and Accel-Sim configurations: options, cache strings, DRAM timings, lists of numbers.

An option is `-name value`; `#` begins a comment; a value in quotation marks may go over several lines. Names are kept
without the leading `-` and `gpgpu_`: `-gpgpu_n_mem 16` is option `n_mem`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from functional.errors import InputError, refuse
from functional.files import read_text

_TOKEN = re.compile(r'"(?P<quoted>[^"]*)"|#[^\n]*|(?P<open>")|(?P<word>[^\s"#]+)')
_OPTION = re.compile(r"-[A-Za-z_]")
# Fields of `-gpgpu_dram_timing_opt` in the order in which they may be written without names.
TIMING_FIELDS = ("nbk", "CCD", "RRD", "RCD", "RAS", "RP", "RC", "CL", "WL", "CDLR", "WR", "nbkgrp", "CCDL", "RTPL")
_CACHE = re.compile(
    r"(?:(?P<type>[NS]):)?(?P<sets>\d+):(?P<line_bytes>\d+):(?P<ways>\d+),"
    r"(?P<replacement>\w):(?P<write>\w):(?P<allocate>\w):(?P<write_allocate>\w)(?::(?P<index>\w))?,"
    r"(?P<mshr_type>\w):(?P<mshrs>\d+):(?P<merges>\d+),(?P<miss_queue>\d+)(?::(?P<fifo>\d+))?(?:,(?P<port_bytes>\d+))?"
)


@dataclass(frozen=True)
class Option:
    """One option as written: `where` is `file:line`."""

    name: str
    value: str
    where: str

    def fail(self, expected: str) -> InputError:
        """The error of a value that is not what the option takes."""
        return InputError(f"{self.where}: {self.name} {self.value}: expected {expected}")

    def number(self) -> float:
        """The value as a number. Raises InputError."""
        return self.numbers(",", (1,))[0]

    def whole(self) -> int:
        """The value as a whole number. Raises InputError."""
        number = self.number()
        if number != int(number):
            raise self.fail("a whole number")
        return int(number)

    def numbers(self, separator: str, counts: tuple[int, ...]) -> list[float]:
        """The value as a list of one of these lengths. Raises InputError."""
        parts = self.value.split(separator)
        try:
            found = [float(part) for part in parts]
        except ValueError:
            found = []
        if len(found) not in counts or not all(map(isfinite, found)):
            wanted = " or ".join(map(str, counts))
            raise self.fail(f"{wanted} number{'s' if counts != (1,) else ''}, separated by {separator!r}")
        return found


def read_options(path: Path) -> dict[str, Option]:
    """Every option of a file; the last one of a name counts. Raises InputError for a file that is no configuration."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError(f"{path}: {reason}") from None
    said: list[tuple[str, str, list[str]]] = []  # name, where, words behind it
    for line, word, quoted in _words(path, text):
        if _OPTION.match(word) and not quoted:
            said.append((word[1:].removeprefix("gpgpu_"), f"{path}:{line}", []))
        elif said:
            said[-1][2].append(word)
        else:
            raise InputError(f"{path}:{line}: expected an option such as -gpgpu_n_clusters, found {word[:40]!r}")
    for name, where, words in said:
        if len(words) != 1:
            count = f"{len(words)} values: {' '.join(words)[:60]}" if words else "no value"
            raise InputError(f"{where}: option {name} has {count}")
    refuse(not said, f"{path}: no options in this file")
    return {name: Option(name, words[0], where) for name, where, words in said}


def _words(path: Path, text: str) -> Iterator[tuple[int, str, bool]]:
    """(line, word, in quotation marks?) of everything but comments."""
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        refuse(match["open"], f"{path}:{line}: a quotation mark that is never closed")
        if match["quoted"] is not None:
            yield line, "".join(match["quoted"].split()), True
        elif match["word"]:
            yield line, match["word"], False


_NUMBERS = ("sets", "line_bytes", "ways", "mshrs", "merges", "miss_queue")


def cache_of(option: Option) -> dict[str, Any] | None:
    """Parts of the cache an option describes, by name: _NUMBERS, `sectored`, letters as written; None for `none`.

    Version 3 of GPGPU-Sim has neither type nor port, and its oldest strings no index. Raises InputError for anything
    else."""
    if option.value == "none":
        return None
    match = _CACHE.fullmatch(option.value)
    if match is None:
        raise option.fail("a cache such as S:64:128:16,L:B:m:L:P,A:192:4,32:0,32, or none")
    parts = {name: int(text) if name in _NUMBERS else text or "L" for name, text in match.groupdict().items()}
    return parts | {"sectored": match["type"] == "S"}


def timing_of(option: Option) -> dict[str, float]:
    """DRAM timings by name, in DRAM cycles; written by name or by position. Raises InputError."""
    parts = [part for part in option.value.split(":") if part]
    if "=" not in option.value:
        parts = [f"{name}={value}" for name, value in zip(TIMING_FIELDS, parts, strict=False)]
    try:
        pairs = [part.split("=") for part in parts]
        timing = {name: float(value) for name, value in pairs}
    except ValueError:
        timing = {}
    if not timing or not all(map(isfinite, timing.values())):
        raise option.fail("DRAM timings such as nbk=16:CCD=2:RRD=6, or the same without names")
    return timing
