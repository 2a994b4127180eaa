"""`--vary KEY=VALUES` as an axis: a key and the values it takes.

    8,16,32        a list                       gto,lrr        words
    8:144:8        from 8 to 144, every 8th     512:8192:log2  from 512 to 8192, doubling
    0.5:2.0:7#     seven numbers, evenly spaced from 0.5 to 2.0

A list may hold ranges: `1,8:64:8`. Both ends belong to a range if its steps meet the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from abstim.gpu.config import parse_value
from abstim.gpu.spec import check
from abstim.study.explore.keys import domain_of, key_of
from functional.errors import InputError

MOST_VALUES = 1_000_000  # of one axis


@dataclass(frozen=True)
class Axis:
    """A key of the GPU, or one derived from such keys (`keys.DERIVED`), and its values in the order given."""

    key: str
    values: tuple[Any, ...]


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """Every `--vary`. Raises InputError if one cannot be read, or two vary one key."""
    axes = [parse_axis(text) for text in texts]
    if not axes:
        raise InputError("nothing to explore; add --vary KEY=VALUES, as in --vary sm_count=8:64:8")
    keys = [axis.key for axis in axes]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise InputError(f"--vary {twice}: given twice; put all its values into one")
    return axes


def parse_axis(text: str) -> Axis:
    """One `KEY=VALUES`. Raises InputError for an unknown key, a value it does not accept, or no readable range."""
    where = f"--vary {text}"
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key or not values:
        raise InputError(f"{where}: write it as key=values, as in sm_count=8:64:8 or scheduler=gto,lrr")
    try:
        key = key_of(key)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    found = [value for part in values.split(",") for value in _expand(part.strip(), where)]
    domain = domain_of(key)
    checked = [check(key, domain, _fit(value, domain.type), where) for value in found]
    if twice := next((value for value in checked if checked.count(value) > 1), None) if len(checked) < 1000 else None:
        raise InputError(f"{where}: {twice!r} is in it twice")
    return Axis(key, tuple(checked))


def _fit(value: Any, kind: type) -> Any:
    """Whole numbers of a key that takes fractions as fractions: one type a column."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)
    return int(value) if kind is int and isinstance(value, float) and value.is_integer() else value


def _expand(part: str, where: str) -> list[Any]:
    """The values of a single value or range."""
    pieces = [piece.strip() for piece in part.split(":")]
    if len(pieces) == 1:
        if not part:
            raise InputError(f"{where}: a value is missing between the commas")
        return [parse_value(part)]
    if len(pieces) != 3:
        raise InputError(f"{where}: a range is first:last:step, first:last:log2 or first:last:count#, not {part}")
    try:
        first, last = Decimal(pieces[0]), Decimal(pieces[1])
        found = _range(first, last, pieces[2])
    except (InvalidOperation, ValueError, ZeroDivisionError):
        raise InputError(f"{where}: {part} is no range of numbers") from None
    if not found:
        raise InputError(f"{where}: {part} is empty or has more than {MOST_VALUES:,} values")
    return [int(value) if value == value.to_integral_value() else float(value) for value in found]


def _range(first: Decimal, last: Decimal, step: str) -> list[Decimal]:
    """Exact decimals, so that 0.1:0.3:0.1 ends in 0.3. Empty if there are none, or too many."""
    if not (first.is_finite() and last.is_finite()):
        raise ValueError
    if step == "log2":
        found = [first] if 0 < first <= last else []
        while found and found[-1] * 2 <= last:
            found.append(found[-1] * 2)
        return found
    if step.endswith("#"):
        count = int(step[:-1])
        if not 2 <= count <= MOST_VALUES:
            return []
        return [first + (last - first) * k / (count - 1) for k in range(count)]
    width = Decimal(step)
    count = int((last - first) / width) + 1 if width > 0 and last >= first else 0
    return [first + width * k for k in range(count)] if count <= MOST_VALUES else []
