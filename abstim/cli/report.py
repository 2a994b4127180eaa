"""`abstim report`: results as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abstim.cli.options import Json
from abstim.show.tables import print_json, progress


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT...",
            help="What `--json` of run, validate, bench, sample or coldstart printed, or the table of a sweep.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its heading.")] = "abstim report",
    as_json: Json = False,
) -> None:
    """Draw results as one HTML page that works offline, by keyboard, with a screen reader, light and dark.

    Files are recognised by what they hold: JSON of `abstim run`, `validate`, `bench`, `sample` (one method, or several
    with `--compare`), `coldstart` and `advise`; JSON, CSV or Parquet of `abstim explore`.

    Example: `abstim run hotspot --json > hotspot.json && abstim report hotspot.json -o hotspot.html`
    """
    from abstim.show.report import write_report

    with progress(quiet=as_json) as shown:
        write_report(results, output, title, shown)
    if as_json:
        print_json({"kind": "report", "output": str(output), "bytes": output.stat().st_size})
    else:
        print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
