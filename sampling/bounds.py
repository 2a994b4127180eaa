"""Intervals of methods whose own say too much or too little, from how far off the methods were on programs that are
hard to sample: split conformal prediction (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005).

`bounds.csv` is made anew by `abstim bench --stage sample --group hard --method all --json > rows.json`, for each
GPU and seed to learn from, and `python -m sampling.bounds rows.json ...`. With `--split` before the files nothing is
written: what would have been learnt from half of the programs is held against the other half.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from sampling.estimate import Basis, Estimate
from sampling.statistics import CONFIDENCE

FILE = Path(__file__).with_name("bounds.csv")
WIDEST = 1.0  # an interval of more than the estimate itself on either side says nothing


@dataclass(frozen=True, slots=True)
class Bound:
    """Half an interval: `value` of the estimate ("constant") or of the method's own half ("times"). An infinite value:
    no bound. Learnt from so many `rows`."""

    method: str
    basis: Basis
    how: Literal["constant", "times"]
    value: float
    rows: int

    def relative_half_width(self, own: float) -> float:
        """Of an estimate whose method states its `own`; infinite where nothing is to be said."""
        half = self.value if self.how == "constant" else self.value * own
        return half if half <= WIDEST else math.inf


def bounded(estimate: Estimate, method: str) -> Estimate:
    """The estimate with the interval learnt for its method and basis; its own if nothing was learnt of the method.
    Without a bound, and on a basis that was never met, it goes from 0 to infinity."""
    if estimate.basis == "exact" or all(method != known for known, _ in _learnt()):
        return estimate
    bound = _learnt().get((method, estimate.basis))
    half = bound.relative_half_width(estimate.relative_half_width) if bound else math.inf
    if not math.isfinite(half):
        return replace(estimate, low=0.0, high=math.inf)
    return replace(estimate, low=max(estimate.total * (1.0 - half), 0.0), high=estimate.total * (1.0 + half))


@cache
def _learnt() -> dict[tuple[str, str], Bound]:
    with FILE.open(newline="") as file:
        rows = [(r["method"], r["basis"], r["how"], float(r["value"]), int(r["rows"])) for r in csv.DictReader(file)]
    return {(row[0], row[1]): Bound(*row) for row in rows}  # type: ignore[arg-type]


def learn(method: str, basis: Basis, errors: Sequence[float], own: Sequence[float]) -> Bound:
    """From how far off the truth was of estimates, as a share of these, and half of their methods' intervals.

    Of n rows the one that is the ceil((n + 1) x 0.95)-th in order is within the bound with the confidence asked for,
    whatever their distribution. Of the two ways to state it the one with the narrower intervals is taken.
    """
    constant = _quantile(errors)
    ratios = [error / half if half else (math.inf if error else 0.0) for error, half in zip(errors, own, strict=True)]
    times = _quantile(ratios)
    if times * sum(own) / max(len(own), 1) < constant:
        return Bound(method, basis, "times", times, len(errors))
    return Bound(method, basis, "constant", constant, len(errors))


def _quantile(values: Sequence[float]) -> float:
    place = math.ceil((len(values) + 1) * CONFIDENCE)
    return sorted(values)[place - 1] if place <= len(values) else math.inf


def learn_all(rows: Iterable[dict[str, Any]]) -> list[Bound]:
    """A bound a method and basis, from rows of `abstim bench --stage sample --json` that left something out."""
    groups: defaultdict[tuple[str, Basis], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["basis"] != "exact" and row["method"] != "auto":  # auto stands by its own interval
            off = abs(row["true_cycles"] / row["cycles"] - 1.0)
            groups[row["method"], row["basis"]].append((off, row["own_half_width"]))
    return [learn(*key, *map(list, zip(*pairs, strict=True))) for key, pairs in sorted(groups.items())]  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Split:
    """A method on a basis, its bound learnt from one half of the programs and looked at on the other, both ways.

    `own`: share of rows that its own interval holds; `learnt`: of those with a bound, the share that this holds, None
    if there are none; `factor`: by what its own interval would have to grow for 95 %.
    """

    method: str
    basis: Basis
    rows: int
    own: float
    learnt: float | None
    factor: float


def split(rows: Iterable[dict[str, Any]]) -> list[Split]:
    """Of rows of `abstim bench --stage sample --json` that left something out, auto's too. Halves are of programs,
    in turn by name: seeds and GPUs of one program stay together."""
    groups: defaultdict[tuple[str, Basis], list[tuple[str, float, float]]] = defaultdict(list)
    for row in rows:
        if row["basis"] != "exact":
            off = abs(row["true_cycles"] / row["cycles"] - 1.0)
            groups[row["method"], row["basis"]].append((row["target"].partition(":")[0], off, row["own_half_width"]))
    return [_split(*key, found) for key, found in sorted(groups.items())]


def _split(method: str, basis: Basis, rows: Sequence[tuple[str, float, float]]) -> Split:
    places = {name: place for place, name in enumerate(sorted({name for name, _, _ in rows}))}
    halves = [[row for row in rows if places[row[0]] % 2 == half] for half in (0, 1)]
    inside: list[bool] = []
    for learning, testing in (halves, halves[::-1]):
        bound = learn(method, basis, [off for _, off, _ in learning], [own for _, _, own in learning])
        widths = [bound.relative_half_width(own) for _, _, own in testing]
        inside += [off <= width for (_, off, _), width in zip(testing, widths, strict=True) if math.isfinite(width)]
    ratios = [off / own if own else math.inf for _, off, own in rows]
    held = sum(ratio <= 1.0 for ratio in ratios) / len(rows)
    return Split(method, basis, len(rows), held, sum(inside) / len(inside) if inside else None, _quantile(ratios))


def _main(paths: Sequence[str]) -> None:
    checking = paths[:1] == ["--split"]
    rows = [row for path in paths[checking:] for row in json.loads(Path(path).read_text())["rows"]]
    if checking:
        for found in split(rows):
            learnt = "no bound" if found.learnt is None else f"{found.learnt:.1%}"
            print(
                f"{found.method} {found.basis}: {found.rows} rows, own interval {found.own:.1%}, learnt from the ",
                end="",
            )
            print(f"other half {learnt}, own would have to be {found.factor:.3g} times as wide")
        return
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("method", "basis", "how", "value", "rows"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(bound) | {"value": f"{bound.value:.4g}"} for bound in learn_all(rows))


if __name__ == "__main__":
    _main(sys.argv[1:])
