"""Tables in a narrow terminal: every number whole, every line within the width."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstim.show.tables import fitted, print_table, shortened

names = st.text("abcdefgh_", min_size=1, max_size=60)
numbers = st.integers(0, 10**9).map(lambda n: f"{n:,}")
heads = st.lists(names.map(lambda text: text[:14].replace("_", " ") or "x"), min_size=1, max_size=12, unique=True)


@st.composite
def tables(draw):
    columns = ["name", *draw(heads)]
    count = draw(st.integers(0, 5))
    return columns, [[draw(names), *(draw(numbers) for _ in columns[1:])] for _ in range(count)]


@given(tables(), st.integers(40, 120))
def test_all_cells_are_there_and_no_line_is_wider(table, width):
    columns, rows = table
    parts = fitted(columns, rows, 1, width)
    assert [h.replace("\n", " ").split() for part in parts for h in part[0][1:]] == [h.split() for h in columns[1:]]
    for k, row in enumerate(rows):
        assert [cell for part in parts for cell in part[1][k][1:]] == row[1:]
    for part_heads, part_rows in parts:
        widths = [max(len(line) for cell in cells for line in (cell.split("\n") or [""])) for cells in zip(part_heads, *part_rows, strict=True)]  # fmt: skip  # noqa: E501
        assert sum(widths) + 3 * (len(widths) - 1) + 2 <= width or len(widths) == 2


@given(st.text(max_size=50), st.integers(3, 60))
def test_a_shortened_name_keeps_its_ends(name, width):
    found = shortened(name, width)
    assert len(found) <= max(width, 1) and (found == name or (found[0] == name[0] and found[-1] == name[-1]))


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_what_is_printed_fits_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    rows = [("a_kernel_with_a_very_long_mangled_name_of_seventy_characters_or_more_in_all", *(123_456_789,) * 8)] * 2
    print_table("T", ("kernel", *(f"figure {k}" for k in range(8))), rows)
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert out.getvalue().count("123,456,789") == 16
