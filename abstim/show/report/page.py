"""`abstim report`: result files in, recognised by what they hold and never by their name; one HTML page out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abstim import __version__
from abstim.extras import need
from abstim.progress import Progress, silent
from abstim.show.report.chart import Chart, Section
from abstim.show.tables import quantity
from abstim.study.baseline import read_result
from functional.errors import InputError, refuse
from functional.keep.folder import check_output, write_output

if TYPE_CHECKING:
    import pandas

KINDS = {  # the key "kind" of a result -> module and function here, of what a file holds
    "run": "launches.run_section",
    "runs": "launches.comparison_section",
    "validate": "accuracy.validation_section",
    "bench": "accuracy.bench_section",
    "explore": "sweep.sweep_section",
    "sample": "sampling.sampling_section",
    "sample-comparison": "sampling.comparison_of_methods_section",
    "coldstart": "sampling.coldstart_section",
    "advice": "launches.advice_section",
}
_NAMED = ("validate", "explore")  # whose sections bear the file's name


@dataclass(frozen=True)
class Source:
    """One file: `data` is the JSON object, or a table for a sweep."""

    kind: str
    name: str
    data: Any


def read_source(path: Path) -> Source:
    """A result file. Raises InputError if it cannot be read or is none that abstim writes."""
    form = {".parquet": "Parquet", ".csv": "CSV"}.get(path.suffix)
    if form:
        return _read_table(path, form)
    data = read_result(path)
    if isinstance(data, list):
        return _sweep(path, data)
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f'{path}: not a result of abstim: its "kind" is {kind!r}, none of {", ".join(KINDS)}')
    if kind != "explore":
        return Source(kind, path.stem, data)
    found = _sweep(path, data.get("rows", []))
    found.data.attrs.update({name: data[name] for name in ("sensitivity", "note") if name in data})
    return found


def _read_table(path: Path, form: str) -> Source:
    import pandas

    try:
        return _sweep(path, pandas.read_csv(path) if form == "CSV" else pandas.read_parquet(path))
    except ValueError as error:  # errors of pandas' parser and of pyarrow are ValueErrors
        raise InputError(f"{path}: not a {form} file: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _sweep(path: Path, rows: list[dict[str, Any]] | pandas.DataFrame) -> Source:
    """A table of design points. Raises InputError without the columns every sweep has, or without any point."""
    import pandas

    try:
        table = pandas.DataFrame(rows)
    except (ValueError, AttributeError):
        raise InputError(f"{path}: not a list of design points") from None
    missing = [column for column in ("cycles", "seconds") if column not in table.columns]
    for column in {"cycles", "seconds"} - {*missing}:
        table[column] = pandas.to_numeric(table[column], errors="coerce")  # what is no number is no result
    if missing or table.empty:
        lack = f"no column {', '.join(missing)}" if missing else "no design point"
        raise InputError(f"{path}: {lack}; the result of a sweep has what was varied, cycles and seconds")
    return Source("explore", path.stem, table)


_HERE = Path(__file__).parent


def write_report(results: list[Path], output: Path, title: str = "abstim report", progress: Progress = silent) -> None:
    """Write one HTML file that shows result files. Raises InputError for a file that is none."""
    refuse(not results, "a report needs at least one result file; write one with --json")
    if output.resolve() in [path.resolve() for path in results]:
        raise InputError(f"-o {output}: it is one of the results; choose another name")
    check_page(output)
    sections = []
    for number, path in enumerate(results):
        progress(f"report {path.name}", number, len(results))
        sections.append(section_of(read_source(path)))
    write_output(output, render(sections, title).encode())


def check_page(output: Path) -> None:
    """Raises InputError for a page that could not be drawn, or written: asked before the work that it is to show."""
    check_output(output, ".html", ".htm")
    need("bokeh")


def write_sweep(columns: Mapping[str, Any], about: Mapping[str, Any], name: str, output: Path) -> None:
    """One page of a sweep that has just ended: its columns, and `about` it what its JSON says besides."""
    import pandas

    table = pandas.DataFrame(dict(columns))
    table.attrs.update(about)
    write_output(output, render([section_of(Source("explore", name, table))], f"abstim explore {name}").encode())


def section_of(source: Source) -> Section:
    """The section of one file. Raises InputError if a key is missing that its kind always has."""
    module, _, name = KINDS[source.kind].partition(".")
    make = getattr(import_module(f"abstim.show.report.{module}"), name)
    try:
        data = source.data["runs"] if source.kind == "runs" else source.data
        found: Section = make(source.name, data) if source.kind in _NAMED else make(data)
        return found.noted(getattr(source.data, "attrs", source.data).get("note"))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{source.name}: not a whole result of kind {source.kind!r}: {error}") from None


def charts_of(sections: Sequence[Section]) -> Iterator[Chart]:
    """Every chart, in the order of the page."""
    for section in sections:
        yield from section.charts
        yield from charts_of(section.parts)


def render(sections: Sequence[Section], title: str) -> str:
    """The page's HTML: Bokeh's code, the charts as JSON, style and script are all inside."""
    from bokeh.document import Document
    from bokeh.resources import INLINE
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    charts, document = list(charts_of(sections)), Document()
    with document.models.freeze():  # else each root looks through all models again
        for chart in charts:
            document.add_root(chart.figure)
    numbers = {id(chart): k for k, chart in enumerate(charts)}
    roots = {c.figure.id: f"chart{k}" for k, c in enumerate(charts)}
    data = {"document": document.to_json(deferred=False), "roots": roots}
    blocks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, **blocks)
    environment.filters["quantity"] = quantity
    return environment.get_template("page.html").render(
        title=title,
        written=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %z} by abstim {__version__}",
        sections=sections,
        number=lambda chart: numbers[id(chart)],
        style=(_HERE / "page.css").read_text(),
        script=(_HERE / "page.js").read_text(),
        bokeh="\n".join(INLINE.js_raw[:1]),
        # "</script>" in a name would end the element that holds the data
        data=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    )
