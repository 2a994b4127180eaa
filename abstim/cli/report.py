"""`abstim report`: results as one HTML page."""

from pathlib import Path

from abstim.cli.options import Json, expanded
from abstim.show.tables import print_json, progress


@expanded
def report(
    *, results: list[Path], output: Path = Path("report.html"), title: str = "abstim report", as_json: Json = False
) -> None:
    """Draw results as one HTML page that works offline, by keyboard, with a screen reader, light and dark.

    RESULT...  What `--json` of run, validate, bench, sample, coldstart or advise printed, or the table of a sweep
        (JSON, CSV or Parquet).
    -o, --output FILE  The page.
    --title  Its heading.

    Example: `abstim run hotspot --json > hotspot.json && abstim report hotspot.json -o hotspot.html`"""
    from abstim.show.report.page import write_report

    with progress(quiet=as_json) as shown:
        write_report(results, output, title, shown)
    if as_json:
        print_json({"kind": "report", "output": str(output), "bytes": output.stat().st_size})
    else:
        print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
