"""Tables in a narrow terminal: every number whole, every line within the width."""

from __future__ import annotations

import io
import sys

import pytest
from call_command import call
from hypothesis import given
from hypothesis import strategies as st

from abstim.show.tables import print_table, shortened, told_apart


def printed(monkeypatch, heads, rows, width=80, **options) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    print_table("T", heads, rows, **options)
    return out.getvalue().splitlines()


names = st.text("abcdefgh_", min_size=1, max_size=60)
numbers = st.integers(0, 10**9).map(lambda n: f"{n:,}")
heads = st.lists(
    names.map(lambda text: " ".join(text[:14].split("_")).strip() or "x"), min_size=1, max_size=12, unique=True
)


@st.composite
def tables(draw):
    columns = ["name", *draw(heads)]
    count = draw(st.integers(0, 5))
    return columns, [[draw(names), *(draw(numbers) for _ in columns[1:])] for _ in range(count)]


@given(tables(), st.integers(40, 120))
def test_all_cells_are_there_and_no_line_is_wider(table, width):
    heads, rows = table
    with pytest.MonkeyPatch.context() as patch:
        found = printed(patch, heads, rows, width)
    words = " ".join(found).split()
    assert all(words.count(cell) >= sum(row[1:].count(cell) for row in rows) for row in rows for cell in row[1:])
    assert all(set(head.split()) <= set(words) for head in heads[1:])
    assert max(map(len, found)) <= width


@given(st.text("ab é_<", max_size=50), st.integers(3, 60))
def test_a_shortened_name_keeps_its_ends(name, width):
    found = shortened(name, width)
    assert len(found) <= max(width, 1) and (found == name or (found[0] == name[0] and found[-1] == name[-1]))


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_what_is_printed_fits_the_terminal(width, monkeypatch):
    rows = [("a_kernel_with_a_very_long_mangled_name_of_seventy_characters_or_more_in_all", *(123_456_789,) * 8)] * 2
    found = printed(monkeypatch, ("kernel", *(f"figure {k}" for k in range(8))), rows, width)
    assert max(map(len, found)) <= width
    assert " ".join(found).count("123,456,789") == 16


def test_a_little_too_wide_a_table_stays_one(monkeypatch):
    heads = ("launch", "grid", "block", "cycles", "time", "IPC", "occupancy", "blocks an SM")
    found = printed(
        monkeypatch, heads, [("0 nn_euclid", "120x1x1", "256x1x1", 3326, "2.36 us", 221.6, "25%", "2 (grid)")]
    )
    assert sum("nn_euclid" in line for line in found) == 1 and max(map(len, found)) <= 80


def test_a_name_of_thousands_of_characters_takes_few_lines_and_is_told_from_the_others(monkeypatch):
    """The name of a CUTLASS kernel filled sixty lines of its column."""
    parts = "cutlass::arch::Sm80, cutlass::gemm::GemmShape<128, 128, 32>, " * 30
    kernels = [
        f"void cutlass::Kernel<cutlass::gemm::kernel::Gemm<{parts}{end}>>" for end in ("float", "double", "half")
    ]
    heads = ("kernel", "launches", "cycles", "time", "shortest", "longest", "IPC")
    found = printed(monkeypatch, heads, [(k, 1, 123456, "2.36 us", "2.36 us", "2.36 us", 221.6) for k in kernels])
    assert len(found) < 30
    assert all(any(end in line for line in found) for end in ("float", "double", "half"))
    alike = printed(monkeypatch, heads, [(f"{k} {'x' * 99}{n}", 1, 1, "", "", "", 1.0) for n, k in enumerate(kernels)])
    assert len(alike) < 30


def test_names_that_would_look_alike_are_told_apart():
    before, behind = (
        "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16_128x128_",
        ">::run(Params const&, int, int)",
    )
    kernels = [f"{before}{layout}{behind}" for layout in ("32x4_nn_align8", "32x4_tn_align8", "32x4_nn_align8" * 9)]
    short = told_apart([*kernels, *kernels, "relu"])
    assert len({*short.values()}) == 4 and short["relu"] == "relu"
    assert "nn_align8" in short[kernels[0]] and "tn_align8" in short[kernels[1]]
    assert all(len(name) <= 60 for name in short.values())


def test_a_long_sentence_alone_is_cut_once_and_never_in_a_column_that_is_whole(monkeypatch):
    """`abstim gpus gtx480` had the source of a value twice, but for its last letter."""
    rows = [("key", "one word after another, and so on, until there are sixty of letters, or more"), ("other", "none")]
    found = " ".join(" ".join(printed(monkeypatch, ("key", "source"), rows, left=2)).split())
    assert "until there" not in found and found.count("one word") == 1 and "whole in --json" in found
    found = " ".join(" ".join(printed(monkeypatch, ("key", "source"), rows, left=2, whole=(1,))).split())
    assert rows[0][1] in found and "--json" not in found


@pytest.mark.parametrize("width", [80, 100])
def test_names_to_be_typed_are_whole(width, monkeypatch):
    from functional import suite

    monkeypatch.setenv("COLUMNS", str(width))
    shown = call("suite").out
    assert all(name in shown for name in suite.names())


HEADS = {
    "hot": ("where", "code", "share", "issues", "waits for", "L1D misses", "L2 sectors", "sectors a request", "passes"),
    "errors": ("variant", "memory", "group", "worst", "benchmarks", "mean", "median", "max", "correlation"),
    "speed": ("benchmark", "stage", "first", "median", "processor", "thread", "warp", "stepped thr.", "stepped warp"),
    "methods": ("method", "cycles", "error", "in interval", "detailed", "executed", "took", "faster", "timing"),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_widest_tables_of_the_commands_fall_into_two_at_most(name, monkeypatch):
    heads = HEADS[name]
    cells = ["streamcluster_compute_cost", "L2 and DRAM", "micro", *("123,456,789",) * (len(heads) - 3)]
    assert sum("───" in line for line in printed(monkeypatch, heads, [cells], left=2)) <= 2
