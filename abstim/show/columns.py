"""How a table fits a width without losing a digit: heads wrap, names are shortened, columns go to a second table."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

GAP = 3  # between two columns
LEAST_NAME = 12  # characters that a name is shortened to, at most so far

Cells = Sequence[Sequence[str]]


def fitted(heads: Sequence[str], rows: Cells, left: int, width: int) -> list[tuple[list[str], list[list[str]]]]:
    """Tables of at most `width` columns that together hold all cells; the first `left` columns, names, stand in each.

    Cells of the others, numbers, are as they were; a head may have line breaks.
    """
    wide = [max([len(row[k]) for row in rows] + [0]) for k in range(len(heads))]
    if needed([max(len(head), w) for head, w in zip(heads, wide, strict=True)]) <= width:
        return [(list(heads), [list(row) for row in rows])]
    wide = [max(1, w, *map(len, head.split())) for head, w in zip(heads, wide, strict=True)]
    names = _name_widths(wide, left, width)
    widths = [*names, *wide[left:]]
    return [_table(heads, rows, [*range(left), *group], widths) for group in _groups(wide, names, width)]


def shortened(name: str, width: int) -> str:
    """A name of at most `width` characters: beginning and end, which tell most, stay."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


def needed(widths: Sequence[int]) -> int:
    """Columns of the terminal that a table of such columns takes."""
    return sum(widths) + GAP * (len(widths) - 1) + 2


def _name_widths(wide: Sequence[int], left: int, width: int) -> list[int]:
    """What names get: all if the numbers leave it, else an even share, and never less than LEAST_NAME."""
    room = width - needed([0] * left + list(wide[left:]))
    found = list(wide[:left])
    if sum(found) > room:
        share = max(LEAST_NAME, room // max(1, left))
        found = [min(w, share) for w in found]
    return found


def _groups(wide: Sequence[int], names: Sequence[int], width: int) -> list[list[int]]:
    """Columns of numbers, as many together as fit beside the names."""
    groups: list[list[int]] = [[]]
    for k in range(len(names), len(wide)):
        if groups[-1] and needed([*names, *(wide[j] for j in (*groups[-1], k))]) > width:
            groups.append([])
        groups[-1].append(k)
    return groups


def _table(
    heads: Sequence[str], rows: Cells, columns: Sequence[int], widths: Sequence[int]
) -> tuple[list[str], list[list[str]]]:
    wrapped = ["\n".join(wrap(heads[k], widths[k], break_long_words=False)) for k in columns]
    return wrapped, [[_cell(row[k], widths[k]) for k in columns] for row in rows]


def _cell(text: str, width: int) -> str:
    """Several words can wrap; one is shortened."""
    return text if " " in text else shortened(text, width)
