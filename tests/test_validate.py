"""Errors against a table of measured cycles, and the benchmark's own bookkeeping."""

from __future__ import annotations

from pathlib import Path

import pytest

from abstim.gpu.config import load_gpu
from abstim.study.bench import BenchResult, Rate, design_points
from abstim.study.validate import Comparison, Validation, known_variants, plot, read_reference, select, validate
from functional.errors import InputError

CYCLES = Path(__file__).parent / "data" / "cycles.csv"
HEAD = "benchmark,launch,variant,cycles\n"


def table(tmp_path, text):
    path = tmp_path / "cycles.csv"
    path.write_text(text)
    return path


def test_reference_is_read_by_column_name(tmp_path):
    text = "cycles,flush,variant,benchmark,launch\n10,all,A,x,0\n20,all,A,x,1\n99,none,A,x,0\n7,all,B,x,0\n"
    first, second = read_reference(table(tmp_path, text))
    assert (first.benchmark, first.variant, first.group, first.cycles) == ("x", "A", "all", {0: 10, 1: 20})
    assert second.cycles == {0: 7}


@pytest.mark.parametrize(
    "text, message",
    [
        ("benchmark,variant\nx,A\n", "no column launch, cycles"),
        ("", "no column"),
        (HEAD + "x,0,A,ten\n", r"cycles.csv:2: cycles = 'ten' is not a whole number"),
        (HEAD + "x,0,A,0\n", "cycles = '0'"),
        (HEAD + "x,-1,A,5\n", "launch = '-1'"),
        (HEAD + "x,0,A\n", "cycles = ''"),
        (HEAD + "x,0,A,5\nx,0,A,6\n", "launch 0 twice"),
        (HEAD + "x,0,A,3,000\n", "cycles.csv:2: more fields than the 4 columns"),
        (HEAD.strip() + ",cycles\nx,0,A,5,6\n", "two columns cycles"),
        (HEAD.strip() + ",flush\nx,0,A,5,All\n", "flush = 'All' is not one of all, none"),
        (HEAD.strip() + ",l2_misses\nx,0,A,5,-6\n", "l2_misses = '-6' is not a whole number"),
        (HEAD.strip() + ",l2_misses\nx,0,A,5,6\nx,1,A,5,\n", "csv:3: l2_misses of some launches of x on A alone"),
    ],
)
def test_bad_table_is_one_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_reference(table(tmp_path, text))


def test_selection_of_the_shipped_table():
    everything = read_reference(CYCLES)
    chosen, skipped = select(everything, (), (), ())
    assert {e.variant for e in chosen} <= set(known_variants()) and not skipped
    kept = read_reference(CYCLES, "none")
    assert {e.variant for e in kept} == {"GTX480_d"} and len(kept) == 15
    for asked in (["GTX480_a"], ["table1"], ()), map(iter, (["GTX480_a"], ["table1"], ())):
        chosen, skipped = select(everything, *asked)
        assert len(chosen) == 15 and not skipped
    assert len(validate(c for c in chosen if c.benchmark == "nn_euclid").comparisons) == 1
    with pytest.raises(InputError, match=r"no variant 'GTX480_e'; did you mean GTX480_"):
        select(everything, ["GTX480_e"], (), ())
    with pytest.raises(InputError, match=r"no benchmark 'hotspit'; did you mean hotspot"):
        select(everything, (), (), ["hotspit"])


def test_summary_of_known_errors():
    comparisons = [
        Comparison("x", "g", "A", 1, 110, 100),
        Comparison("y", "g", "A", 2, 990, 1000),
        Comparison("z", "h", "A", 1, 10_000, 10_000),
    ]
    g, h, everything = Validation(comparisons).summaries()
    assert (g.benchmarks, g.worst) == (2, "x")
    assert (g.mean_error, g.median_error, g.max_error) == pytest.approx((0.055, 0.055, 0.10))
    assert (h.mean_error, h.correlation) == (0, None)
    assert everything.group == "all" and everything.correlation == pytest.approx(1, abs=1e-3)


def test_plot_is_written_or_refused(tmp_path):
    validation = Validation([Comparison("x", "g", "A", 1, 110, 100), Comparison("x", "g", "B", 1, 90, 100)])
    plot(validation, tmp_path / "scatter.svg")
    assert (tmp_path / "scatter.svg").read_text().startswith("<?xml")
    with pytest.raises(InputError, match="cannot write the plot"):
        plot(validation, tmp_path / "scatter.nonsense")


def test_design_points_are_different_and_begin_with_the_gpu():
    gpu = load_gpu("gtx480_perfect")
    for count in (1, 64, 1024):
        points = design_points(gpu, count)
        assert points[0] == gpu and len(set(points)) == len(points) == count
        assert {p.pipeline.key for p in points} == {gpu.pipeline.key}


def test_rates_keep_stepped_and_represented_apart():
    counts = (320_000_000, 10_000_000, 32_000_000, 10**6)
    fast, slow = Rate((1.0,), (1.5,), 2.0, *counts), Rate((4.0, 3.0, 9.0), (7.0, 6.0, 8.0), 5.0, *counts)
    result = BenchResult("gtx480", 1, {"x": {"time": fast}, "y": {"time": slow}}).to_json()
    assert result["benchmarks"]["x"]["time"]["thread_mips"] == pytest.approx(320)
    assert result["geomean"]["time"]["thread_mips"] == pytest.approx(160)
    assert result["geomean"]["time"]["stepped_warp_mips"] == pytest.approx(0.5)
    assert result["benchmarks"]["x"]["time"]["stepped_thread_mips"] == pytest.approx(32)
    assert result["benchmarks"]["y"]["time"]["mad_seconds"] == 1


def test_variants_that_a_model_cannot_time_are_skipped_and_named(monkeypatch):
    table = [entry for entry in read_reference(CYCLES) if entry.benchmark == "relu"]
    variants = known_variants() | {"GTX480_a_lrr": load_gpu("gtx480", ["l2_queue=9"])}
    monkeypatch.setattr("abstim.study.validate.known_variants", lambda: variants)
    found = validate([e for e in table if e.variant in ("GTX480_a", "GTX480_a_lrr")], model="analytic")
    assert [c.variant for c in found.comparisons] == ["GTX480_a"]
    assert len(found.skipped) == 1 and found.skipped[0].startswith("variant GTX480_a_lrr: --set l2_queue")
    with pytest.raises(InputError, match="the analytic model does not look at it"):
        validate([e for e in table if e.variant == "GTX480_a_lrr"], model="analytic")
