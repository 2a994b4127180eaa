"""What every method returns: a total, how sure it is of it, and what it cost.

Intervals of methods whose own say too much or too little come from how far off the methods were on programs that are
hard to sample (`bounds.csv`, made anew by `tests/bench_sampling.py`): split conformal prediction (Vovk, Gammerman and
Shafer, Algorithmic Learning in a Random World, 2005)."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

from sampling.statistics import CONFIDENCE, t_quantile

# exact: everything was simulated; sampled: the interval follows from the sample's own spread;
# model: it rests on an assumption of the method (named in its class), because one sample has no spread.
Basis = Literal["exact", "sampled", "model"]
_WEAKER: tuple[Basis, ...] = ("exact", "sampled", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of the program and how its cycles were found."""

    name: str  # a launch, a region, a range of thread blocks
    how: str  # "detailed", "warp", "basic block", "kernel", "region", "projection", ...
    instructions: float  # warp instructions, estimated where they were not executed
    cycles: float
    units: int = 1  # how many launches, or other pieces, it is made of


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimated total with its 95 % interval `[low, high]`, in the unit of the statistic (cycles by default).

    `detailed_fraction`: share of the warp instructions that was simulated in detail; `functional_fraction`: share that
    was executed at all, detailed ones included. Both are 1 where a method does not pay. `ideal`: all was simulated to
    choose the sample, so nothing was saved; `detailed_fraction` is that of a method that would know what to choose.
    `counters`: any other statistics of the whole; empty where the method projects none. `unit_cycles`: of each launch
    (or other unit) in order, their sum is the total; empty for a single launch."""

    method: str
    total: float
    low: float
    high: float
    basis: Basis
    detailed_fraction: float
    functional_fraction: float = 1.0
    parts: tuple[Part, ...] = ()
    confidence: float = CONFIDENCE
    ideal: bool = False
    counters: Mapping[str, float] = field(default_factory=dict)
    unit_cycles: tuple[float, ...] = ()

    @property
    def standard_error(self) -> float:
        """That of a normal distribution with this interval."""
        return (self.high - self.low) / (2.0 * t_quantile(math.inf, self.confidence))

    @property
    def relative_half_width(self) -> float:
        """Half the interval over the total; 0 for a total of zero."""
        return (self.high - self.low) / (2.0 * self.total) if self.total else 0.0

    @property
    def bounded(self) -> bool:
        """Whether there is an interval; where nothing is known of the error it ends nowhere."""
        return math.isfinite(self.high)

    def covers(self, true_total: float) -> bool:
        """Whether the interval holds a total (to rounding)."""
        slack = 1e-9 * max(abs(true_total), 1.0)
        return self.low - slack <= true_total <= self.high + slack

    def relative_error(self, true_total: float) -> float:
        """|estimate - true| / true."""
        return abs(self.total - true_total) / true_total if true_total else 0.0


def around(
    method: str, total: float, error: float, degrees: float = math.inf, bias: float = 0.0, **fields: object
) -> Estimate:
    """An estimate with the symmetric interval `total` +- (t x `error` + `bias`); never below zero."""
    total, half = float(total), (float(t_quantile(degrees) * error) if error else 0.0) + float(bias)
    known: dict[str, object] = {"basis": "sampled" if half else "exact"} | fields
    return Estimate(method=method, total=total, low=max(total - half, 0.0), high=total + half, **known)  # type: ignore[arg-type]


def from_a_part(
    method: str, total: float, half: float, confidence: float, basis: Basis, work: tuple[float, float],
    seen: tuple[str, float], left: tuple[str, str],
) -> Estimate:  # fmt: skip
    """Of a launch some of which was simulated. `half` of the interval, relative; `work`: warp instructions, and what
    share of them was simulated; `seen`: what was, and its cycles; `left`: the rest, and how its cycles were found."""
    instructions, done = work
    parts = (
        Part(name=seen[0], how="detailed", cycles=seen[1], instructions=done * instructions),
        Part(name=left[0], how=left[1], cycles=total - seen[1], instructions=(1.0 - done) * instructions),
    )
    return around(
        method, total, half * total / t_quantile(math.inf), basis=basis, detailed_fraction=done, parts=parts,
        confidence=confidence,
    )  # fmt: skip


def exact(
    method: str, total: float, parts: tuple[Part, ...] = (), counters: Mapping[str, float] | None = None
) -> Estimate:
    """Everything was simulated: the total is the answer and the method did not pay."""
    return around(method, total, 0.0, detailed_fraction=1.0, parts=parts, counters=counters or {})


def combine(
    method: str, estimates: Sequence[Estimate], instructions: Sequence[float], sources: Sequence[object] | None = None
) -> Estimate:
    """The sum of estimates, a launch each. `sources`: launches predicted from the same one share their error. Errors of
    one source add up; those of different sources are independent and add in quadrature. A method's own assumption is
    one source: it may be wrong the same way every time."""
    groups: dict[object, float] = {}
    for place, estimate in enumerate(estimates):
        source = place if sources is None else sources[place]
        source = "assumption" if estimate.basis == "model" else source
        groups[source] = groups.get(source, 0.0) + estimate.standard_error
    weight = sum(instructions) or 1.0
    pairs = list(zip(estimates, instructions, strict=True))
    return around(
        method,
        sum(estimate.total for estimate in estimates),
        math.sqrt(sum(error**2 for error in groups.values())),
        basis=weakest(*(estimate.basis for estimate in estimates)),
        detailed_fraction=sum(e.detailed_fraction * n for e, n in pairs) / weight,
        functional_fraction=sum(e.functional_fraction * n for e, n in pairs) / weight,
        parts=tuple(part for estimate in estimates for part in estimate.parts),
        unit_cycles=tuple(estimate.total for estimate in estimates),
        counters=weighted_counters(estimates, [1.0] * len(estimates)),
    )


def weighted_counters(estimates: Sequence[object], weights: Sequence[float]) -> dict[str, float]:
    """Sums of the statistics that each of them has; none if there is anything but estimates."""
    known = [estimate.counters for estimate in estimates if isinstance(estimate, Estimate)]
    if len(known) < len(estimates) or not known:
        return {}
    names = [name for name in known[0] if all(name in counters for counters in known)]
    return {name: sum(w * c[name] for w, c in zip(weights, known, strict=True)) for name in names}


def weakest(*bases: Basis) -> Basis:
    """What rests on all of these; exact if there are none."""
    return max(bases, key=_WEAKER.index, default="exact")


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
