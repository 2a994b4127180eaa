"""Report pages at 1280 and 400 px, without a browser: what is written fits where it is drawn, and numbers are numbers
for people. Widths of text are reckoned from the letters; a browser's own fonts differ by a few per cent."""

from __future__ import annotations

import json
import re

import pytest
from test_report import files as files
from test_report import sweep

from abstim.show.report.chart import HEIGHT_PX
from abstim.show.report.page import Source, charts_of, read_source, render, section_of

LETTER_PX, TICK_LETTER_PX = 7.0, 6.2  # of Bokeh's 13 px legends and labels, and of its 11 px ticks
WIDTHS = {1280: 1168, 400: 368}  # page -> chart: 75 rem at most, 1 rem left and right
ADVICE = {
    "kind": "advice", "target": "transpose", "gpu": "gtx480", "memory_model": "L2 and DRAM", "cycles": 123456,
    "findings": [{"kind": "uncoalesced access", "text": "PTX line 7 asks for 32.0 sectors", "cycles": 61728,
                  "gain": 0.5}],
}  # fmt: skip


@pytest.fixture(scope="module")
def sections(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("more")
    (folder / "advice.json").write_text(json.dumps(ADVICE))
    sweep(60).to_csv(folder / "sweep.csv", index=False)
    return [section_of(read_source(path)) for path in (*files, folder / "advice.json", folder / "sweep.csv")]


@pytest.mark.parametrize("page_px", WIDTHS)
def test_legends_and_labels_fit(sections, page_px):
    width = WIDTHS[page_px]
    for chart in charts_of(sections):
        for legend in chart.figure.legend:
            if not legend.visible:
                continue
            labels = [str(getattr(item.label, "value", item.label)) for item in legend.items]
            columns = legend.ncols if isinstance(legend.ncols, int) else len(labels)
            row_px = columns * (30 + LETTER_PX * max(map(len, labels)))
            assert row_px <= width, (chart.title, labels, columns, row_px)
            rows = -(-len(labels) // columns)
            assert rows * 25 < HEIGHT_PX / 2, (chart.title, rows)
        for axis in (*chart.figure.yaxis, *chart.figure.xaxis):
            along = HEIGHT_PX if axis in chart.figure.yaxis else width - 60
            assert len(axis.axis_label or "") * LETTER_PX <= along, (chart.title, axis.axis_label)


@pytest.mark.parametrize("page_px", WIDTHS)
def test_names_of_bars_do_not_overlap(sections, page_px):
    from bokeh.models import FactorRange

    for chart in charts_of(sections):
        across = chart.figure.x_range
        if not isinstance(across, FactorRange):
            continue
        axis = chart.figure.xaxis[0]
        hidden = axis.major_label_text_font_size == "0px"
        turned = axis.major_label_orientation not in ("horizontal", 0)
        a_name = 11 if turned else max(TICK_LETTER_PX * len(str(name)) for name in across.factors) + 6
        assert hidden or a_name * len(across.factors) <= WIDTHS[page_px] - 80, (chart.title, list(across.factors))


def test_axes_write_numbers_as_people_do(sections):
    from bokeh.models import BasicTickFormatter, LinearAxis

    axes = [(chart.title, axis) for chart in charts_of(sections) for axis in chart.figure.select(LinearAxis)]
    assert axes and not [title for title, axis in axes if isinstance(axis.formatter, BasicTickFormatter)]


def test_what_is_written_has_no_number_for_machines(sections):
    """No exponents, and no more digits than anybody reads, in facts, sentences and tables."""
    html = re.sub(r"<(script|style)\b.*?</\1>", " ", render(sections, "layout"), flags=re.S)
    text = re.sub(r"<[^>]*>", " ", html)
    assert not re.findall(r"\b\d[\d.]*e[+-]?\d+\b", text)
    assert not re.findall(r"\d\.\d{7,}", text)
    assert not re.findall(r"(?<![\d,.])\d{6,}(?![\d,.])", text)  # thousands are separated
    assert "nan" not in text.lower().split() and "None" not in text.split()


def test_every_run_says_what_limits_it_and_what_its_colours_mean(sections):
    runs = [section for section in sections if any(chart.title.startswith("Kernel time") for chart in section.charts)]
    assert runs
    for section in runs:
        assert dict(section.facts)["Limited by"] not in ("", "not said")
        legend = section.charts[0].figure.legend[0]
        assert {item.label.value for item in legend.items} >= {"issued", "memory", "unit busy"}


def test_what_matters_is_said_of_parquet_and_csv_as_of_json(sections, tmp_path):
    table = sweep(60)
    found = {}
    for name, write in (("a.parquet", table.to_parquet), ("a.csv", table.to_csv)):
        write(tmp_path / name)
        section = section_of(read_source(tmp_path / name))
        charts = {chart.title: chart for chart in charts_of([section])}
        found[name] = [row for title, chart in charts.items() if "matter" in title.lower() for row in chart.table.rows]
    assert found["a.parquet"] == found["a.csv"] and len(found["a.csv"]) == 5
    swings = {row[0]: row for row in found["a.csv"]}
    assert set(swings) >= {"sm_count", "schedulers_per_sm", "scheduler"}
    direct = section_of(Source("explore", "a", table))
    assert len(list(charts_of([direct]))) == len(list(charts_of([section])))
