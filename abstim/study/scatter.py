"""Predicted values against measured ones, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from functional.errors import InputError


def scatter(points: Mapping[str, Sequence[tuple[float, float]]], path: Path, measured: str, predicted: str) -> None:
    """Points (measured, predicted) by group, a colour a group, on logarithmic axes with these names; the file's suffix
    says what it becomes. Raises InputError for a file that cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # text as text and nothing random or dated: the same points give the same small file
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "abstim"})
    figure, axes = pyplot.subplots(figsize=(6.5, 6))
    for name, group in points.items():
        across, up = zip(*group, strict=True)
        axes.scatter(across, up, s=14, alpha=0.7, label=name)
    values = [value for group in points.values() for point in group for value in point]
    ends = [min(values, default=1) / 1.5, max(values, default=10) * 1.5]
    axes.plot(ends, ends, color="black", linewidth=0.8, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=measured, ylabel=predicted)
    axes.legend()
    axes.set_aspect("equal")
    try:
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot write the plot: {error}") from None
    finally:
        pyplot.close(figure)
