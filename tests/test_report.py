"""The report: right about its numbers, whole without a network, drawn by a real browser, usable without a mouse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from browser import Browser
from report_page import BLANK, DRAWN, NEEDS_BROWSER, Outline

from abstim.gpu.config import load_gpu
from abstim.models import run_many
from abstim.session.result import SLOT_REASONS
from abstim.show.report import page as page_module
from abstim.show.report.chart import Section
from abstim.show.report.page import Source, charts_of, read_source, render, section_of, write_report
from abstim.show.report.sweep import pareto_front, sweep_section
from abstim.study.bench import Against, BenchResult, Rate
from abstim.study.sample.sampler import sample
from abstim.study.validate import Comparison, Validation
from functional.errors import InputError


def sweep(points):
    """A sweep with known answers: time falls with SMs, one policy is slower."""
    rng = np.random.default_rng(1)
    table = pandas.DataFrame({
        "target": "hotspot",
        "sm_count": rng.integers(8, 145, points),
        "schedulers_per_sm": rng.choice([1, 2, 4], points),
        "scheduler": rng.choice(["gto", "lrr"], points),
        "l1d_sets": rng.choice([16, 32, 64], points),
        "latency_cycles.int_add": rng.integers(2, 12, points),
    })  # fmt: skip
    table["cycles"] = (1e6 / table["sm_count"] / table["schedulers_per_sm"] ** 0.5).round().astype(int)
    table["cycles"] += 500 * (table["scheduler"] == "lrr")
    return table.assign(seconds=table["cycles"] / 7e8, ipc=rng.random(points))


def write(path, value):
    path.write_text(json.dumps(value))
    return path


def with_windows(run):
    """As a run with an issue log has them."""
    for launch in run["launches"]:
        count = -(-launch["cycles"] // 100)
        launch["windows"] = {
            "window_cycles": 100,
            "warp_instructions": [50] * count,
            "resident_warp_cycles": [900] * count,
        }
    return run


def bench_result():
    counts = (10**7, 10**6, 10**7, 10**6)
    rates = {
        n: {s: Rate((0.1, 0.2, 0.3), (0.1, 0.2, 0.3), 1.0, *counts) for s in ("execute", "time")} for n in ("x", "y")
    }
    rows = [Against(n, "g", "GTX480_a", 990, 1000, 10**7, 0.4, 0.5, 100.0, -0.01, 250.0, 25.0) for n in ("x", "y")]
    return BenchResult("gtx480", 1, rates, rows, [0.01]).to_json()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One file of every kind but those of `test_report_sampling`."""
    folder = tmp_path_factory.mktemp("results")
    gpus = [load_gpu("gtx480"), load_gpu("gtx480_1sched")]
    runs = [result.to_json() for result in run_many("nn_euclid", gpus)]
    validation = Validation([Comparison("x", "g", v, 1, p, 100) for v, p in (("A", 110), ("B", 95))], ["z: why"])
    sweep(60).to_parquet(folder / "sweep.parquet")
    return [
        write(folder / "run.json", with_windows(runs[0])),
        write(folder / "runs.json", {"kind": "runs", "runs": runs}),
        write(folder / "validate.json", validation.to_json()),
        write(folder / "bench.json", bench_result()),
        write(folder / "sample.json", sample("nn_euclid", gpus[0]).to_json()),
        folder / "sweep.parquet",
    ]


def test_page_is_whole_and_well_formed(files, tmp_path):
    write_report(files, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text()
    page = Outline(html)
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in zip(page.headings, page.headings[1:], strict=False))
    assert len(set(page.ids)) == len(page.ids) and set(page.references) <= set(page.ids)
    assert all((a.startswith("#") and a[1:] in page.ids) or a == "data:," for a in page.addresses)
    charts = list(charts_of([section_of(read_source(path)) for path in files]))
    assert page.tables == len(charts) and all(c.summary and c.table.rows for c in charts)
    titles = {chart.title for chart in charts}
    assert titles >= {"Kernel time, and where the issue slots went", "IPC over time", "Hit rates", "Roofline",
                      "Balance of the SMs", "Pareto front", "Heat map", "Parallel coordinates",
                      "How its parts were found", "Predicted against measured cycles"}  # fmt: skip


@pytest.mark.parametrize("model", ["occupancy", "analytic"])
def test_models_that_know_no_issue_slots_are_shown(model, tmp_path):
    runs = [result.to_json() for result in run_many("nn_euclid", [load_gpu("gtx480"), load_gpu("a100")], model=model)]
    file = write(tmp_path / "runs.json", {"kind": "runs", "runs": runs})
    section = section_of(read_source(file))
    assert [part.charts[0].title for part in section.parts] == ["Kernel time", "Kernel time"]
    assert all(chart.table.rows for chart in charts_of([section]))
    write_report([file], tmp_path / "report.html")


def test_names_cannot_break_out_of_the_page():
    rows = Validation([Comparison("</script><b>", "<i>", "A", 1, 2, 1)]).to_json()["benchmarks"]
    data = {"benchmarks": rows, "summaries": [], "skipped": ["<script>alert(1)</script>"]}
    html = render([section_of(Source("validate", "</title>", data))], "t")
    assert "</script><b>" not in html and "<script>alert" not in html and html.count("</title>") == 1


def test_time_is_split_as_the_slots_are(files):
    run = json.loads(files[0].read_text())
    (chart,) = [c for c in section_of(read_source(files[0])).charts if c.title.startswith("Kernel time")]
    data = chart.figure.renderers[0].data_source.data
    parts = np.array([data[reason.replace("_", " ")] for reason in SLOT_REASONS])
    assert parts.sum(0) == pytest.approx([launch["cycles"] for launch in run["launches"]])
    (launch,) = run["launches"]
    share = launch["issue_slots"]["issued"] / sum(launch["issue_slots"].values())
    assert chart.summary.startswith(f"{share:.0%} of the schedulers' cycles issued")


def test_roofline_is_below_its_roofs_and_counts_bytes(files):
    run = json.loads(files[0].read_text())
    (chart,) = [c for c in section_of(read_source(files[0])).charts if c.title == "Roofline"]
    (launch,) = run["launches"]
    rows = {row[1]: row for row in chart.table.rows}
    moved = launch["memory"]["dram_read_bytes"] + launch["memory"]["dram_write_bytes"]
    work = launch["work"]["fp32"] or launch["warp_instructions"]
    assert rows["DRAM"][2] == pytest.approx(work / moved)
    if launch["work"]["fp32"]:
        assert [*chart.table.columns[2:4]] == ["FLOP a byte", "FP32 TFLOP/s"]
        assert rows["DRAM"][3] == pytest.approx(launch["rates"]["fp32_flops"] / 1e12)
    assert all(0 < float(row[4].rstrip("%")) <= 100 for row in rows.values())


def test_a_kernel_without_floats_has_a_roofline_of_instructions():
    from abstim.models import run
    from abstim.show.report.launches import roofline_chart

    found = run("transpose", "gtx480").to_json()
    chart = roofline_chart(found["gpu_values"], found["launches"])
    assert chart is not None and chart.table.columns[3] == "G warp instructions/s"


def test_contents_name_the_parts_and_the_page_its_day(files, tmp_path):
    """The contents named results alone; the theme button did nothing on a page without a chart, and never changed its
    name; a page did not say when it was written."""
    sections = [Section("all GPUs", parts=[Section("one of them"), Section("another")])]
    page = render(sections, "t")
    contents = page[page.index("<nav") : page.index("</nav>")]
    assert all(name in contents for name in ("all GPUs", "one of them", "another")) and 'href="#part0-1"' in contents
    assert re.search(r"Written 20\d\d-\d\d-\d\d .* by abstim", page)
    script = page[page.index("function label()") :]
    assert script.index('button.addEventListener("click"') < script.index("async function draw()")


def test_labels_of_parallel_coordinates_stand_upright_where_they_would_touch():
    table = sweep(40)
    (chart,) = [c for c in charts_of([sweep_section("s", table)]) if c.title == "Parallel coordinates"]
    assert chart.figure.xaxis[0].major_label_orientation == "vertical"
    assert " 1 points" not in chart.summary


def test_pareto_front_is_what_brute_force_finds():
    table = sweep(200)
    front = pareto_front(table, "sm_count")
    points = table[["sm_count", "seconds"]].to_numpy()
    best = {tuple(p) for p in points if not ((points <= p).all(1) & (points < p).any(1)).any()}
    assert {tuple(points[row]) for row in front} == best and len(front) == len(best)


def test_heat_map_holds_the_least_time_of_every_pair():
    table = sweep(200)
    (heat,) = [c for c in charts_of([sweep_section("s", table)]) if c.title == "Heat map"]
    (renderer,) = [r for r in heat.figure.renderers if r.name == "schedulers_per_sm × scheduler"]
    data = renderer.data_source.data
    expected = table.groupby(["schedulers_per_sm", "scheduler"])["seconds"].min()
    assert len(data["x"]) == len(expected)
    for x, y, time in zip(data["x"], data["y"], data["time_us"], strict=True):
        assert time == pytest.approx(1e6 * expected[int(x), y])


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("x.json", "{", "not JSON"),
        ("x.json", '{"cycles": 5}', "its \"kind\" is None"),
        ("x.json", '{"kind": []}', 'its "kind" is '),
        ("x.json", '{"kind": "validate", "benchmarks": [], "summaries": [], "skipped": 1}', "not a whole result"),
        ("x.json", '{"kind": "run"}', "not a whole result of kind 'run': 'totals'"),
        ("x.json", '{"kind": "explore", "rows": []}', "no column cycles"),
        ("x.json", '[{"target": "x"}]', "no column cycles, seconds"),
        ("x.csv", "a,b\n1,2\n", "no column cycles, seconds"),
        ("x.csv", "target,cycles,seconds\n", "no design point"),
        ("x.csv", "", "not a CSV file"),
        ("x.parquet", "PAR1", "not a Parquet file"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_result_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=re.escape(message)):
        write_report([tmp_path / name], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_sweep_may_be_parquet_csv_or_json(tmp_path):
    table = sweep(20)
    table.to_parquet(tmp_path / "a.parquet")
    table.to_csv(tmp_path / "b.csv", index=False)
    write(tmp_path / "c.json", {"kind": "explore", "rows": table.to_dict("records")})
    write(tmp_path / "d.json", table.to_dict("records"))
    for path in tmp_path.iterdir():
        source = read_source(path)
        assert source.kind == "explore"
        pandas.testing.assert_frame_equal(source.data, table)


def test_the_table_of_an_exploration_is_understood(tmp_path):
    """Derived keys stand for keys of the GPU, defined names are costs, times of several targets are means."""
    table = sweep(30).drop(columns=["target", "ipc"])
    cycles, seconds = table.pop("cycles"), table.pop("seconds")
    table.insert(0, "point", range(30))
    table["l1d_kib"] = table["l1d_sets"] / 2
    table = table.assign(area=table["sm_count"] * 7.5, cycles_x=cycles, cycles=cycles, seconds=seconds, error="")
    sensitivity = [{"key": "sm_count", "elasticity": -1.0, "swing": 9.5, "best": 144}]
    rows = table.to_dict("records")
    path = write(tmp_path / "explore.json", {"kind": "explore", "rows": rows, "sensitivity": sensitivity})
    section = section_of(read_source(path))
    charts = {chart.title: chart for chart in charts_of([section])}
    assert section.notes == ["Times are geometric means over x."]
    assert [option.value for option in charts["Pareto front"].options][:2] == ["area", "sm_count"]
    assert "l1d_kib" in charts["Parallel coordinates"].table.columns
    assert "l1d_sets" not in charts["Parallel coordinates"].table.columns
    assert charts["What matters"].table.rows == [["sm_count", "9.500x", "-1.000 %", "144"]]


def test_points_without_a_time_are_left_out_and_said(tmp_path):
    table = sweep(20).astype({"seconds": object})
    table.loc[3, "seconds"], table.loc[4, "seconds"] = float("nan"), "failed"
    table.to_csv(tmp_path / "sweep.csv", index=False)
    section = section_of(read_source(tmp_path / "sweep.csv"))
    assert section.notes == ["2 points without a time are left out."] and section.parts[0].facts[0] == ("Points", "18")


def test_a_large_sweep_is_thinned_but_keeps_its_fronts():
    table = sweep(9000)
    section = sweep_section("s", table)
    assert section.parts[0].notes[1] == "Charts draw 4,096 of 9,000 points: all on a front, evenly chosen others."
    (pareto,) = [c for c in charts_of([section]) if c.title == "Pareto front"]
    drawn = pareto.figure.renderers[1].data_source.data
    best = table[table["sm_count"] == 144]["seconds"].min() * 1e6
    assert len(drawn["time_us"]) < 4500 and min(drawn["time_us"]) == pytest.approx(best)


def test_missing_files_and_folders_are_said(tmp_path, files):
    with pytest.raises(InputError, match=r"missing\.json: No such file"):
        write_report([tmp_path / "missing.json"], tmp_path / "report.html")
    with pytest.raises(InputError, match="cannot be written: there is no folder"):
        write_report(files[:1], tmp_path / "nowhere" / "report.html")


FIGURE = "Bokeh.documents[0].roots().find((f) => f.renderers.some((r) => r.name === 'sm_count'))"


@pytest.fixture(scope="module")
def page(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    write_report(files, folder / "report.html")
    with Browser(folder / "profile") as browser:
        browser.open(folder / "report.html")
        browser.wait_for(DRAWN)
        yield browser


@NEEDS_BROWSER
def test_browser_draws_every_chart_and_asks_for_nothing(page):
    assert page.evaluate("document.querySelectorAll('.chart').length") > 15
    assert page.evaluate(BLANK) == []
    assert [url for url in page.requests if not url.startswith(("data:", "file:"))] == []
    assert len([url for url in page.requests if url.startswith("file:")]) == 1
    assert page.log == []


@NEEDS_BROWSER
def test_whatever_can_be_focused_has_a_name(page):
    def value(node, key):
        return node.get(key, {}).get("value", "")

    nodes = [node for node in page.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    focusable = [n for n in nodes if any(p["name"] == "focusable" and p["value"]["value"] for p in n["properties"])]
    assert [n for n in focusable if not value(n, "name")] == []
    roles = [value(node, "role") for node in nodes]
    assert all(roles.count(role) == 1 for role in ("banner", "navigation", "main"))
    named = [n for n in nodes if value(n, "role") == "group" and value(n, "name") and value(n, "description")]
    assert len(named) == page.evaluate("document.querySelectorAll('.chart').length")


def test_text_stands_out_in_both_schemes():
    def luminance(color):
        parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    css = (Path(page_module.__file__).parent / "page.css").read_text()
    schemes = re.findall(r"--paper: (#\w+); --ink: (#\w+); --soft: (#\w+); --line: #\w+; --link: (#\w+)", css)
    assert len(schemes) == 3  # light, dark by choice, dark by the system
    for paper, *texts in schemes:
        for text in texts:
            low, high = sorted((luminance(paper), luminance(text)))
            assert (high + 0.05) / (low + 0.05) >= 4.5  # WCAG 2.2, level AA


@NEEDS_BROWSER
def test_keyboard_moves_zooms_and_resets_a_chart(page):
    extent = f"(() => {{ const r = {FIGURE}.x_range; return [r.start, r.end]; }})()"
    page.evaluate(f"document.querySelectorAll('.chart')[Bokeh.documents[0].roots().indexOf({FIGURE})].focus()")
    low, high = page.evaluate(extent)
    page.key("ArrowRight")
    moved = page.evaluate(extent)
    assert moved == pytest.approx([low + (high - low) / 5, high + (high - low) / 5])
    page.key("+")
    zoomed = page.evaluate(extent)
    assert zoomed[1] - zoomed[0] == pytest.approx(0.8 * (high - low))
    page.key("0")
    assert page.evaluate(extent) == pytest.approx([low, high])


@NEEDS_BROWSER
def test_a_choice_changes_what_is_shown(page):
    place = f"document.querySelectorAll('.chart')[Bokeh.documents[0].roots().indexOf({FIGURE})].id"
    select = f"document.querySelector(`select[data-chart=${{{place}}}]`)"
    page.evaluate(f"{select}.value = 'schedulers_per_sm', {select}.dispatchEvent(new Event('change'))")
    shown = page.evaluate(f"{FIGURE}.renderers.filter((r) => r.visible).map((r) => r.name)")
    assert set(shown) == {"schedulers_per_sm"}
    assert page.evaluate(f"{FIGURE}.below[0].axis_label") == "schedulers_per_sm"


@NEEDS_BROWSER
def test_pointing_at_a_bar_says_its_numbers(page):
    page.evaluate("document.getElementById('chart0').scrollIntoView({block: 'center'})")
    box = page.evaluate(
        "(({x, y, width, height}) => [x, y, width, height])(document.getElementById('chart0').getBoundingClientRect())"
    )
    x, y, width, height = box
    for step in range(2):  # the second move is inside the chart
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width / 2 + step, y=y + height / 2)
    text = """(() => {
      const look = (root) => [...root.querySelectorAll('*')].flatMap((element) => [
        ...(element.classList.contains('bk-Tooltip') && element.shadowRoot ? [element.shadowRoot.textContent] : []),
        ...(element.shadowRoot ? look(element.shadowRoot) : []),
      ]);
      return look(document).join(' ');
    })()"""
    assert "nn_euclid" in page.wait_for(text) and page.log == []


@NEEDS_BROWSER
def test_points_selected_in_one_chart_are_selected_in_all(page):
    source = (
        f"{FIGURE}.renderers.find((r) => r.data_source.data.xs || r.data_source.columns().includes('xs')).data_source"
    )
    charts = f"Bokeh.documents[0].roots().filter((f) => f.renderers.some((r) => r.data_source === {source})).length"
    assert page.evaluate(charts) == 2  # the Pareto front and the parallel coordinates


@NEEDS_BROWSER
def test_light_and_dark_follow_the_system_and_the_button(page):
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "Bokeh.documents[0].roots()[0].below[0].axis_label_text_color"
    looks = {"light": ("rgb(255, 255, 255)", "#1a1a1a"), "dark": ("rgb(22, 22, 22)", "#ececec")}

    def turns(scheme):
        page.wait_for(f"{paper} === '{looks[scheme][0]}' && {ink} === '{looks[scheme][1]}'")

    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        turns(scheme)
    page.evaluate("document.getElementById('scheme').click()")
    turns("light")
    assert page.evaluate("document.getElementById('scheme').ariaPressed") == "false"
    page.evaluate("document.getElementById('scheme').click()")
    turns("dark")
    assert page.log == []


@NEEDS_BROWSER
def test_a_sweep_of_1024_points_is_small_and_soon_drawn(tmp_path):
    sweep(1024).to_parquet(tmp_path / "sweep.parquet")
    write_report([tmp_path / "sweep.parquet"], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 2e6
    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "report.html")
        drawn_ms = int(browser.wait_for(DRAWN))
        assert browser.evaluate(BLANK) == [] and browser.log == []
    assert drawn_ms < 10_000  # about 900 on a machine of its own; this one may be busy
