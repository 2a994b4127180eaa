"""The report on sampling: real results of the library, so that what it writes and what is drawn cannot drift apart."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from bench_sampling import bench_samples
from browser import Browser
from report_page import BLANK, DRAWN, NEEDS_BROWSER, Outline
from sampling_bench_page import sample_bench_section

from abstim.gpu.config import load_gpu
from abstim.session.session import open_session
from abstim.show.report import sampling as cold_start_page
from abstim.show.report.page import KINDS, Source, charts_of, read_source, section_of, write_report
from abstim.study.cold_start import cold_start
from abstim.study.sample.sampler import compare, sample
from functional.errors import InputError

REAL = load_gpu("gtx480")
METHODS = ["photon", "stem", "sieve", "first"]


@pytest.fixture(scope="module")
def results():
    """What the commands print as JSON, by name."""
    return {
        "inside": sample("relu_16x", REAL, "photon"),
        "many": sample("gaussian_elimination", REAL, "photon"),
        "comparison": compare("gaussian_elimination", REAL, METHODS),
        "cold": cold_start(open_session("pathfinder"), REAL),
    }


@pytest.fixture(scope="module")
def files(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name, found in results.items():
        (folder / f"{name}.json").write_text(json.dumps(found.to_json()))
    return {name: folder / f"{name}.json" for name in results}


def charts(files, name):
    return {chart.title: chart for chart in section_of(read_source(files[name])).charts}


def test_every_result_says_its_kind(results, files):
    kinds = {name: read_source(path).kind for name, path in files.items()}
    assert kinds == {"inside": "sample", "many": "sample", "comparison": "sample-comparison", "cold": "coldstart"}
    assert {each.to_json()["kind"] for each in results["comparison"].results} == {"sample"}
    assert set(kinds.values()) < set(KINDS)


@pytest.fixture(scope="module")
def html(files, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(list(files.values()), path)
    return path


def test_page_is_whole_and_every_chart_has_its_text(files, html):
    page = Outline(html.read_text())
    found = list(charts_of([section_of(read_source(path)) for path in files.values()]))
    assert page.tables == len(found) == 2 + 2 + 3 + 3
    for chart in found:
        assert chart.summary.endswith(".") and chart.table.rows
        assert all(len(row) == len(chart.table.columns) for row in chart.table.rows), chart.title
    assert len(set(page.ids)) == len(page.ids) and set(page.references) <= set(page.ids)
    assert all((a.startswith("#") and a[1:] in page.ids) or a == "data:," for a in page.addresses)


@pytest.mark.parametrize("kind", ["sample", "sample-comparison", "coldstart"])
def test_a_result_that_is_not_whole_is_refused(kind):
    with pytest.raises(InputError, match=f"not a whole result of kind '{kind}'"):
        section_of(Source(kind, "x", {"kind": kind}))


@pytest.mark.parametrize("name", ["inside", "many"])
def test_parts_hold_all_cycles(results, files, name):
    estimate = results[name].estimate
    chart = charts(files, name)["How its parts were found"]
    bars = [data for r in chart.figure.renderers for data in [r.data_source.data]]
    assert sum(sum(data["cycles"]) for data in bars) == pytest.approx(estimate.total)
    detailed = sum(part.cycles for part in estimate.parts if part.how == "detailed")
    assert sum(bars[0]["cycles"]) == pytest.approx(detailed)  # the legend says "in detail"
    assert sum(row[3] for row in chart.table.rows) == pytest.approx(estimate.total)
    if name == "many":
        assert len(estimate.parts) == 190 and len(chart.table.rows) == 13
        assert sum(row[1] for row in chart.table.rows) == 190


def test_a_stratum_of_which_every_launch_was_simulated_is_in_detail(results):
    (stem,) = [result for result in results["comparison"].results if result.method == "stem"]
    whole = [part for part in stem.estimate.parts if part.how.startswith("2 of 2 ")]
    chart = section_of(Source("sample", "x", stem.to_json())).charts[0]
    cycles = [sum(renderer.data_source.data["cycles"]) for renderer in chart.figure.renderers]
    assert whole and cycles[0] == pytest.approx(sum(part.cycles for part in whole))
    assert sum(cycles) == pytest.approx(stem.estimate.total)
    assert [item.label.value for item in chart.figure.legend.items] == ["in detail", "projected", "either"]


def test_history_of_a_launch_holds_what_was_simulated(results, files):
    """Its last point is where detailed simulation ended; up to there it counts every warp instruction issued."""
    detailed, _ = results["inside"].estimate.parts
    chart = charts(files, "inside")["Steadiness of what was simulated"]
    (line,) = [r.data_source.data for r in chart.figure.renderers if type(r.glyph).__name__ == "Step"]
    cycles, rates = np.array(line["x"]), np.array(line["y"])
    assert cycles[-1] == detailed.cycles
    assert (rates[1:] * np.diff(cycles)).sum() == pytest.approx(detailed.instructions, rel=0.05)
    (end,) = [span for span in chart.figure.center if type(span).__name__ == "Span"]
    assert end.location == detailed.cycles and f"{detailed.cycles:,.0f}" in chart.summary


def test_of_many_stepped_launches_the_longest_are_drawn(results, files):
    stability = results["many"].stability
    assert list(stability) == sorted(stability, key=lambda name: int(name.split()[0]))  # whatever thread was first
    chart = charts(files, "many")["Steadiness of what was simulated"]
    drawn = {row[0] for row in chart.table.rows}
    ends = {name: history[-1][0] for name, history in stability.items()}
    assert len(drawn) == 6 and min(ends[n] for n in drawn) >= max(ends[n] for n in ends if n not in drawn)
    assert f"of {len(stability)}." in chart.summary


def named(chart, name, kind="Scatter"):
    return [r for r in chart.figure.renderers if r.name == name and type(r.glyph).__name__ == kind]


def test_errors_are_drawn_where_they_are(results, files):
    rows = {row.method: row for row in results["comparison"].rows()[1:]}
    assert rows["first"].error == 0 and not rows["sieve"].covered  # what the drawing must cope with
    chart = charts(files, "comparison")["Error against speed-up"]
    keys = {"the timing stage": "timing_speed_up", "the whole way": "speed_up",
            "instructions in detail": "instruction_speed_up"}  # fmt: skip
    assert [option.value for option in chart.options] == list(keys)
    for name, key in keys.items():
        (points,) = named(chart, name)
        (text,) = named(chart, name, "Text")
        data = points.data_source.data
        assert points.visible == text.visible == (name == "the timing stage")
        assert data["label"] == list(rows) and data["x"] == [getattr(row, key) for row in rows.values()]
        assert data["y"] == [max(100 * row.error, 0.01) for row in rows.values()]
        triangles = [marker == "inverted_triangle" for marker in data["marker"]]
        assert triangles == [row.error <= 1e-4 for row in rows.values()]
        assert [fill > 0 for fill in data["fill"]] == [row.covered for row in rows.values()]


def test_intervals_hold_the_truth_where_the_library_says_so(results, files):
    found = results["comparison"]
    chart = charts(files, "comparison")["Intervals around the true cycles"]
    data = chart.figure.renderers[0].data_source.data
    bounded = [row for row in found.rows()[1:] if row.half_width is not None]
    assert data["name"] == [row.method for row in bounded] != METHODS
    inside = [low <= 1 + 1e-9 and high >= 1 - 1e-9 for low, high in zip(data["low"], data["high"], strict=True)]
    assert inside == [row.covered for row in bounded]
    totals = {result.method: result.estimate.total / found.true_cycles for result in found.results}
    assert data["total"] == [totals[row.method] for row in bounded]
    assert f"hold the true {found.true_cycles:,} cycles" in chart.summary and "no bound" in chart.summary


def test_seconds_by_stage_add_up(results, files):
    found = results["comparison"]
    data = charts(files, "comparison")["Where the time of each method goes"].figure.renderers[0].data_source.data
    assert data["category"] == ["full", *METHODS]
    seconds = [sum(data[stage][k] for stage in ("execute", "time", "analyse")) for k in range(5)]
    assert seconds == pytest.approx([found.full.total_seconds, *(each.total_seconds for each in found.results)])


def test_ideal_methods_are_named_and_never_the_best(results):
    data = results["comparison"].to_json()
    for row, found in zip(data["rows"][1:], data["results"], strict=True):
        found["estimate"]["ideal"] = row["method"] == "stem"
    section = section_of(Source("sample-comparison", "x", data))
    assert section.notes == ["Ideal, choosing what to simulate took the full simulation: stem."]
    assert "photon is closest" in section.charts[0].summary  # stem was


def test_a_speed_up_without_end_is_not_drawn(results):
    data = results["comparison"].to_json()
    data["rows"][1]["timing_speed_up"] = math.inf  # a stage that took no time
    chart = section_of(Source("sample-comparison", "x", data)).charts[0]
    assert named(chart, "the timing stage")[0].data_source.data["label"] == METHODS[1:]
    assert chart.table.rows[0][-3] == "-"


def test_bench_draws_every_target_and_method():
    found = bench_samples(["pathfinder", "nn_euclid", "nonsense"], ["pks", "ideal-first"], REAL)
    section = sample_bench_section(found.to_json())
    drawn_charts = {chart.title: chart for chart in section.charts}
    assert len(section.notes) == 1 and section.notes[0].startswith("nonsense is left out: ")
    chart = drawn_charts["Error of every target"]
    drawn = {}
    for renderer in chart.figure.renderers:
        data = renderer.data_source.data
        drawn |= dict(zip(data["label"], data["percent"], strict=True))
    assert drawn == {f"{row.method}, {each.full.target}": 100 * row.error for each, row in found.rows()}
    for title in ("Share simulated in detail", "Speed-up of every target"):
        keys = {(row[0], row[1]) for row in drawn_charts[title].table.rows}
        assert keys == {(each.full.target, row.method) for each, row in found.rows()}
    summaries = drawn_charts["Methods over all targets"].table.rows
    assert [row[3] for row in summaries] == [f"{each.mean_error:.2%}" for each in found.summaries()]


def test_a_bench_of_nothing_is_a_section_without_charts():
    data = bench_samples(["nonsense"], ["pks"], REAL).to_json() | {"interrupted": True}
    section = sample_bench_section(data)
    assert not section.charts and section.notes[0] == "Interrupted: targets are missing."


def test_cold_start_shows_each_launch_and_policy(results, files):
    found = results["cold"]
    drawn = charts(files, "cold")
    heat = drawn["Accuracy of each launch by warm-up"].figure.renderers[0].data_source.data
    cells = dict(zip(zip(heat["policy"], heat["launch"], strict=True), heat["accuracy"], strict=True))
    assert len(cells) == 3 * len(found.policies)
    assert all(cells[p.name, str(k)] == pytest.approx(100 * p.accuracy[k]) for p in found.policies for k in range(3))
    worst, mean = (drawn["Share warmed against accuracy"].figure.renderers[k].data_source.data for k in (0, 1))
    assert worst["y"] == [pytest.approx(100 * p.accuracy.min()) for p in found.policies]
    assert mean["y"] == [
        pytest.approx(100 * np.average(p.accuracy, weights=found.instructions)) for p in found.policies
    ]
    assert worst["x"] == mean["x"] == [100 * p.warmed_share for p in found.policies]
    rows = drawn["What flushing affects"].table.rows
    assert [row[1] for row in rows] == [f"{share:.1%}" for share in found.affected.values()]


def test_of_many_launches_those_with_the_most_instructions_are_drawn(results, monkeypatch):
    monkeypatch.setattr(cold_start_page, "SHOWN_LAUNCHES", 1)
    found = dataclasses.replace(results["cold"], instructions=np.array([1.0, 5.0, 2.0]))
    section = section_of(Source("coldstart", "x", found.to_json()))
    assert [row[0] for row in section.charts[0].table.rows] == ["1"]
    assert section.notes == ["Charts by launch show the 1 of 3 launches with the most instructions."]


@pytest.fixture(scope="module")
def page(html):
    with Browser(html.parent / "profile") as browser:
        browser.open(html)
        browser.wait_for(DRAWN)
        yield browser


FIGURE = "Bokeh.documents[0].roots().find((f) => f.renderers.some((r) => r.glyph.type === 'Text' && r.name))"


@NEEDS_BROWSER
def test_browser_draws_every_chart_and_asks_for_nothing(page):
    assert page.evaluate("document.querySelectorAll('.chart').length") == 14
    assert page.evaluate(BLANK) == [] and page.log == []
    assert [url for url in page.requests if not url.startswith(("data:", "file:", "blob:"))] == []


@NEEDS_BROWSER
def test_names_of_points_are_legible_in_both_schemes(page):
    ink = f"{FIGURE}.renderers.filter((r) => r.glyph.type === 'Text').map((r) => r.glyph.text_color.value)"
    for scheme, color in (("light", "#1a1a1a"), ("dark", "#ececec")):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        assert set(page.wait_for(f"{ink}.every((c) => c === '{color}') && {ink}")) == {color}


@NEEDS_BROWSER
def test_the_choice_of_a_speed_up_changes_points_and_names(page):
    place = f"document.querySelectorAll('.chart')[Bokeh.documents[0].roots().indexOf({FIGURE})].id"
    select = f"document.querySelector(`select[data-chart=${{{place}}}]`)"
    page.evaluate(f"{select}.value = 'the whole way', {select}.dispatchEvent(new Event('change'))")
    shown = page.evaluate(f"{FIGURE}.renderers.filter((r) => r.visible).map((r) => [r.name, r.glyph.type])")
    assert sorted(shown) == [["the whole way", "Scatter"], ["the whole way", "Text"]]
    assert page.evaluate(f"{FIGURE}.below[0].axis_label") == "speed-up of the whole way"
    assert page.log == []
