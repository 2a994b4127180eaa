"""Sampling methods beside the full simulation, over a set of targets: `abstim bench --stage sample`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from abstim.progress import Progress, silent
from abstim.study.bench.rate import describe_machine, geomean
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu
    from abstim.study.sample.sample_result import Comparison, Row
    from sampling.estimate import Basis

GROUP, METHODS = "16x", ("photon", "tbpoint")
LEAST_ERROR = 1e-4  # what an error counts at least in a geometric mean, which a single 0 would make 0
SILENT = 0.1
WHOLE = 0.999  # a method that simulates more than this in detail has sampled nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One method over all targets. Errors, fractions and shares are of 1; `None`: it sampled nothing anywhere.

    `sampled` targets are those of which it left something out. `speed_up` is a geometric mean, which hides single
    targets: the worst error and the least speed-up stand beside.
    """

    method: str
    targets: int
    sampled: int
    mean_error: float
    geomean_error: float
    worst_error: float
    worst_target: str  # whose error that is
    detailed_fraction: float
    covered: float | None  # of those with a bound
    covered_of_sampled: float | None
    speed_up: float | None
    least_speed_up: float
    best_speed_up: float


@dataclass(frozen=True, kw_only=True)
class SampleBench:
    """What was measured: a comparison a target, whole ones only. `interrupted`: targets are missing; so are the
    `failed` ones, each with what was wrong."""

    gpu: str
    memory_model: str = ""
    comparisons: list[Comparison] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    machine: dict[str, Any] = field(default_factory=describe_machine)

    def rows(self) -> list[tuple[Comparison, Row]]:
        """One a target and method; not the full simulation, which is what they are compared with."""
        return [(found, row) for found in self.comparisons for row in found.rows()[1:]]

    def summaries(self) -> list[Summary]:
        """One a method."""
        rows = [row for _, row in self.rows()]
        methods = dict.fromkeys(row.method for row in rows)
        return [summary(method, [row for row in rows if row.method == method]) for method in methods]

    def reliability(self) -> list[Reliability]:
        """One a method and basis."""
        return reliability([row for _, row in self.rows()])

    def overall(self) -> Summary | None:
        """Of all methods together."""
        rows = [row for _, row in self.rows()]
        return summary("all", rows) if rows else None

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        overall = self.overall()
        return {
            "kind": "bench-sample",
            "machine": self.machine,
            "gpu": self.gpu,
            "memory_model": self.memory_model,
            "interrupted": self.interrupted,
            "failed": self.failed,
            "rows": [
                {"target": found.full.target, "true_cycles": found.true_cycles, "launches": len(found.cycles),
                 "full_seconds": found.full.total_seconds} | asdict(row)
                for found, row in self.rows()
            ],
            "methods": [asdict(each) for each in self.summaries()],
            "reliability": [asdict(each) for each in self.reliability()],
            "overall": None if overall is None else asdict(overall),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How far intervals of one method that rest on one basis are to be trusted: of rows that left something out.

    `unbounded` rows have none. `silent`: off by more than SILENT with an interval that excludes the truth. Widths and
    errors are medians.
    """

    method: str
    basis: Basis
    rows: int
    unbounded: int
    covered: float | None
    half_width: float | None
    error: float
    silent: int


def reliability(rows: Sequence[Row]) -> list[Reliability]:
    """One a method and basis, in the order of first appearance."""
    keys = dict.fromkeys((row.method, row.basis) for row in rows if row.detailed_fraction < WHOLE)
    return [
        _reliability(*key, [r for r in rows if (r.method, r.basis) == key and r.detailed_fraction < WHOLE])
        for key in keys
    ]


def _reliability(method: str, basis: Basis, rows: Sequence[Row]) -> Reliability:
    widths = [row.half_width for row in rows if row.half_width is not None]
    return Reliability(
        method=method,
        basis=basis,
        rows=len(rows),
        unbounded=len(rows) - len(widths),
        covered=share_covered(rows),
        half_width=median(widths) if widths else None,
        error=median(row.error for row in rows),
        silent=sum(row.error > SILENT and not row.covered and row.half_width is not None for row in rows),
    )


def share_covered(rows: Sequence[Row]) -> float | None:
    """Of the rows with a bound; None if there are none."""
    with_bound = [row for row in rows if row.half_width is not None]
    return fmean(row.covered for row in with_bound) if with_bound else None


def summary(method: str, rows: Sequence[Row]) -> Summary:
    """Means over rows, at least one."""
    errors, speeds = [row.error for row in rows], [row.speed_up for row in rows]
    sampled = [row for row in rows if row.detailed_fraction < WHOLE]
    return Summary(
        method=method,
        targets=len(rows),
        sampled=len(sampled),
        mean_error=fmean(errors),
        geomean_error=geomean([max(error, LEAST_ERROR) for error in errors]) or 0.0,
        worst_error=max(errors),
        worst_target=max(rows, key=lambda row: row.error).target,
        detailed_fraction=fmean(row.detailed_fraction for row in rows),
        covered=share_covered(rows),
        covered_of_sampled=share_covered(sampled),
        speed_up=geomean(speeds),
        least_speed_up=min(speeds),
        best_speed_up=max(speeds),
    )


def expanded(names: Sequence[str]) -> list[str]:
    """Methods by name; `all` stands for those that save something, `ideal` for those that need the full simulation."""
    from abstim.study.sample import METHODS
    from abstim.study.sample.ideal import IDEAL

    sets = {"all": [name for name in METHODS if name not in ("full", *IDEAL)], "ideal": list(IDEAL)}
    return list(dict.fromkeys(each for name in names for each in sets.get(name, [name])))


def bench_samples(
    targets: Sequence[str], methods: Sequence[str] = METHODS, gpu: str | Gpu = "gtx480",
    overrides: Sequence[str] = (), progress: Progress = silent,
) -> SampleBench:  # fmt: skip
    """Every method (`expanded`) on every target, beside the full simulation; an interrupt ends it with what was done.

    Raises InputError for a method's name; a target that `compare` raises it for is left out (`failed`).
    """
    from abstim.gpu.config import gpu_of
    from abstim.study.sample import compare
    from abstim.study.sample.methods import method_named

    point, interrupted = gpu_of(gpu, overrides), False
    chosen = [method_named(name).name for name in expanded(methods)]
    found: list[Comparison] = []
    failed: dict[str, str] = {}
    try:
        for place, target in enumerate(targets):
            progress(f"bench {target}", place, len(targets))
            try:
                found.append(compare(target, point, chosen))
            except InputError as error:
                failed[target] = str(error)
    except KeyboardInterrupt:
        interrupted = True
    return SampleBench(
        gpu=point.name, memory_model=point.memory_model, comparisons=found, failed=failed, interrupted=interrupted
    )
