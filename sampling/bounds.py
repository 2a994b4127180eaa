"""Intervals of methods whose own say too much or too little, from how far off the methods were on programs that are
hard to sample: split conformal prediction (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005).

`bounds.csv` is made anew by `tests/bench_sampling.py`."""

import csv
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from sampling.estimate import Basis, Estimate

FILE = Path(__file__).with_name("bounds.csv")
WIDEST = 1.0  # an interval of more than the estimate itself on either side says nothing
OWN = ("auto", "ideal-random", "ideal-systematic", "ideal-simpoint")  # methods whose own interval holds on them


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
    """The estimate with the interval learnt for its method and basis; of OWN with its own. Where nothing was learnt of
    the method, on a basis that was never met, and without a bound it goes from 0 to infinity."""
    if estimate.basis == "exact" or method in OWN:
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
