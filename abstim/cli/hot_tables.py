"""What `abstim run --hot` prints: the lines of the source, and of the PTX, at which warps spend most."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from abstim.session.hot_spots import HotSpot

MOST_LINES = 12
CODE = 22  # characters of a line of code
HEADS = (
    "where",
    "code",
    "share",
    "issues",
    "waits for",
    "L1D misses",
    "L2 sectors",
    "sectors a request",
    "bank passes",
)


def print_hot(spots: Sequence[HotSpot]) -> None:
    """By CUDA line, if the PTX names them, and by PTX line."""
    from abstim.session.hot_spots import by_source_line
    from abstim.show.tables import print_table

    total = max(1, sum(spot.cycles for spot in spots))
    lines = sorted(by_source_line(spots), key=lambda line: -line.cycles)[:MOST_LINES]
    if lines:
        rows = [_row(f"{Path(x.file).name}:{x.line}", x.text.strip(), x.spots, total) for x in lines]
        print_table("Hot lines of the source (share of the warps' cycles)", HEADS, rows, left=2)
    hottest = sorted(spots, key=lambda spot: -spot.cycles)[:MOST_LINES]
    rows = [_row(f"PTX {x.line}", x.text, [x], total) for x in hottest if x.cycles]
    print_table("Hot instructions", HEADS, rows, left=2)
    if not lines:
        print("The PTX names no source lines; compile with -lineinfo to see them")


def _row(where: str, code: str, spots: Sequence[HotSpot], total: int) -> tuple:
    cycles = sum(spot.cycles for spot in spots)
    requests, passes = sum(spot.requests for spot in spots), sum(spot.shared_requests for spot in spots)
    sectors, banks = sum(spot.sectors for spot in spots), sum(spot.bank_passes for spot in spots)
    return (
        where, _short(code), f"{cycles / total:.1%}",
        sum(spot.issues for spot in spots), max(spots, key=lambda spot: spot.cycles).worst or "-",
        sum(spot.l1d_misses for spot in spots), sum(spot.l2_sectors for spot in spots),
        sectors / requests if requests else None, banks / passes if passes else None,
    )  # fmt: skip


def _short(code: str) -> str:
    line = " ".join(code.split())
    return line if len(line) <= CODE else f"{line[: CODE - 1]}…"
