"""Methods side by side as a picture: error against speed-up."""

from __future__ import annotations

from pathlib import Path

from abstim.study.sample.sample_result import Comparison
from functional.errors import InputError

_FORMATS = (".svg", ".png", ".pdf")


def check(path: Path) -> None:
    """Raises InputError for a name that cannot be drawn to."""
    if path.suffix not in _FORMATS:
        raise InputError(f"{path}: choose a name that ends in {', '.join(_FORMATS)}")


def draw(found: Comparison, path: Path) -> None:
    """One point a method; the lower and the further right, the better. Raises InputError if it cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    rows = [row for row in found.rows() if row.method != "full"]
    for row in rows:
        axes.scatter(row.timing_speed_up, 100 * row.error, s=30)
        axes.annotate(row.method, (row.timing_speed_up, 100 * row.error), xytext=(4, 4), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xlabel("speed-up of the timing stage")
    axes.set_ylabel("error of the cycles (%)")
    axes.set_title(f"{found.full.target} on {found.full.gpu}")
    axes.grid(alpha=0.3)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
        figure.savefig(temporary)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
