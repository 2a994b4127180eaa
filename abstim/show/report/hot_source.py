"""Sources with a bar a line: where `abstim run --hot` found the time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from abstim.session.hot_spots import source_text
from abstim.show.report.chart import Listing, SourceRow

Spot = dict[str, Any]  # `HotSpot.to_json`
AROUND = 3  # lines shown before and after one that took time


def hot_listings(spots: Sequence[Spot]) -> list[Listing]:
    """One a source file, and one a kernel of the PTX; none without spots."""
    total = max(1, sum(spot["cycles"] for spot in spots))
    files = dict.fromkeys(spot["source"]["file"] for spot in spots if spot["source"])
    kernels = dict.fromkeys(spot["kernel"] for spot in spots)
    return [
        *(_of_source(file, [s for s in spots if s["source"] and s["source"]["file"] == file], total) for file in files),
        *(_of_kernel(kernel, [s for s in spots if s["kernel"] == kernel], total) for kernel in kernels),
    ]


def _of_source(file: str, spots: Sequence[Spot], total: int) -> Listing:
    text = source_text(file)
    by_line: dict[int, list[Spot]] = {}
    for spot in spots:
        by_line.setdefault(spot["source"]["line"], []).append(spot)
    near = sorted({k for line in by_line for k in range(line - AROUND, line + AROUND + 1) if 0 < k <= len(text)})
    rows = [_row(k, text[k - 1], by_line.get(k, []), total) for k in near or sorted(by_line)] if text else [
        _row(k, "(the source is not here)", by_line[k], total) for k in sorted(by_line)
    ]  # fmt: skip
    return Listing(Path(file).name, _summary(rows), rows)


def _of_kernel(kernel: str, spots: Sequence[Spot], total: int) -> Listing:
    rows = [_row(spot["line"], spot["text"], [spot], total) for spot in spots]
    return Listing(f"PTX of {kernel}", _summary(rows), rows)


def _row(line: int, text: str, spots: Sequence[Spot], total: int) -> SourceRow:
    share = sum(spot["cycles"] for spot in spots) / total
    return SourceRow(line, share if share >= 0.0005 else 0.0, _why(spots), text)


def _why(spots: Sequence[Spot]) -> str:
    stalls: dict[str, int] = {}
    for spot in spots:
        for name, cycles in spot["stalls"].items():
            stalls[name] = stalls.get(name, 0) + cycles
    worst = max(stalls, key=stalls.__getitem__, default="")
    return worst.replace("_", " ") if worst and stalls[worst] else ""


def _summary(rows: Sequence[SourceRow]) -> str:
    best = max(rows, key=lambda row: row.share)
    return f"Share of the warps' cycles; most at line {best.line} with {best.share:.1%}."
