"""The results of sampling as plain data, whose `to_json` is the contract of `--json`, and a comparison as a picture."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from abstim.brief import Brief, grouped
from functional.keep.folder import check_output, write_output
from sampling import Estimate
from sampling.estimate import Basis

_POINTS = 200  # of a launch's history that are worth a line in a file


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShare:
    """What all launches of one kernel contribute. `share`: of the program's cycles, of 1."""

    kernel: str
    launches: int
    cycles: float
    share: float


def by_kernel(kernels: Sequence[str], cycles: Sequence[float]) -> tuple[KernelShare, ...]:
    """Contributions of kernels, most cycles first, from those of launches; none where cycles are not by launch."""
    if len(kernels) != len(cycles):
        return ()
    whole, rows = sum(cycles), list[KernelShare]()
    for kernel, own in grouped(zip(kernels, cycles, strict=True), lambda pair: pair[0]).items():
        took = sum(each for _, each in own)
        rows.append(KernelShare(kernel=kernel, launches=len(own), cycles=took, share=took / whole if whole else 0.0))
    return tuple(sorted(rows, key=lambda row: -row.cycles))


@dataclass(frozen=True, kw_only=True, repr=False)
class SampleResult(Brief):
    """One method on one target and GPU.

    `seconds` are wall-clock: execute (functionally), time (in detail), analyse (the method itself). `stability`: of
    each launch that was stepped, in their order, (cycle, warp instructions a cycle since the step before). `memory`:
    hit rates, traffic and use (`limits.memory_use`) projected to the whole; empty where only cycles are projected."""

    target: str
    gpu: str
    method: str
    model: str  # one of abstim.models.MODELS
    known_error: str  # what has been measured of its error on the GPU; the interval is of sampling alone
    estimate: Estimate
    seconds: dict[str, float]
    memory_model: str = ""
    stability: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    earlier_seconds: float = 0.0  # those of `seconds` that what was kept of earlier runs had taken
    own_half_width: float = 0.0  # of the interval that the method itself states, of the estimate (`sampling.estimate`)
    kernels: tuple[KernelShare, ...] = ()  # most cycles first
    assumes: str = ""  # the method, of what it left out
    notes: tuple[str, ...] = ()  # what may be wrong with it

    @property
    def total_seconds(self) -> float:
        """All stages."""
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        return {"kind": "sample"} | vars(self) | {
            "estimate": plain_estimate(self.estimate),
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "notes": list(self.notes),
            "stability": {launch: thinned(history) for launch, history in self.stability.items()},
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method against the full simulation. Speed-ups: of the whole way, of the timing stage alone, in instructions.
    `half_width` of the interval, `own_half_width` of the one that the method itself states; of the estimate. Without a
    bound there is no half_width, and nothing is `covered`."""

    target: str
    method: str
    cycles: float
    error: float
    covered: bool
    basis: Basis
    half_width: float | None
    own_half_width: float
    detailed_fraction: float
    functional_fraction: float
    seconds: float
    speed_up: float
    timing_speed_up: float
    instruction_speed_up: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Brief):
    """Methods on one target and GPU; `cycles` are the true ones, a launch each."""

    full: SampleResult
    results: list[SampleResult]
    cycles: list[int]

    @property
    def true_cycles(self) -> int:
        """Of all launches."""
        return sum(self.cycles)

    def rows(self) -> list[Row]:
        """One a method, the full simulation first."""
        return [self._row(result) for result in (self.full, *self.results)]

    def _row(self, result: SampleResult) -> Row:
        estimate = result.estimate
        names = ("basis", "detailed_fraction", "functional_fraction")
        said: dict[str, Any] = {name: getattr(estimate, name) for name in names}
        return Row(
            target=result.target,
            method=result.method,
            cycles=estimate.total,
            error=estimate.relative_error(self.true_cycles),
            covered=estimate.bounded and estimate.covers(self.true_cycles),
            half_width=estimate.relative_half_width if estimate.bounded else None,
            own_half_width=result.own_half_width,
            seconds=result.total_seconds,
            speed_up=_ratio(self.full.total_seconds, result.total_seconds),
            timing_speed_up=_ratio(self.full.seconds["time"], result.seconds["time"]),
            instruction_speed_up=_ratio(1.0, estimate.detailed_fraction),
            **said,
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        return {
            "kind": "sample-comparison",
            "target": self.full.target,
            "gpu": self.full.gpu,
            "memory_model": self.full.memory_model,
            "true_cycles": self.true_cycles,
            "cycles": self.cycles,
            "rows": [asdict(row) for row in self.rows()],
            "full": self.full.to_json(),
            "results": [result.to_json() | {"true_cycles": self.true_cycles} for result in self.results],
        }


def plain_estimate(estimate: Estimate) -> dict[str, Any]:
    """As JSON has it: where it is not `bounded`, `low` and `high` are null."""
    found = {name: value for name, value in asdict(estimate).items() if name != "unit_cycles"}
    found["bounded"] = estimate.bounded
    return found if estimate.bounded else found | {"low": None, "high": None}


def thinned(history: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most _POINTS of them, evenly spaced, the last one included: it says where detailed simulation ended."""
    step = -(-len(history) // _POINTS) or 1
    return list(history[::-1][::step][::-1])


def _ratio(whole: float, part: float) -> float:
    return whole / part if part else float("inf")


PICTURES = (".svg", ".png", ".pdf")


def draw(found: Comparison, path: Path) -> None:
    """One point a method; the lower and the further right, the better. Raises InputError if it cannot be written."""
    check_output(path, *PICTURES)
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
    drawn = BytesIO()
    figure.savefig(drawn, format=path.suffix[1:])
    write_output(path, drawn.getvalue())


MOST_WAYS = 12  # that are told apart
OTHER_WAYS = "other ways"  # how many, before it: what the rest is called


@dataclass(frozen=True, slots=True)
class Way:
    """All parts found one way: how many, their warp instructions, their cycles."""

    how: str
    parts: int
    instructions: float
    cycles: float


def by_way(parts: Iterable[tuple[str, int, float, float]], most: int = MOST_WAYS) -> list[Way]:
    """Ways of parts, each (how, units, instructions, cycles), most cycles first: `most`, then all others as one."""
    groups = grouped(parts, lambda part: part[0])
    ways = [Way(how, *(sum(p[k] for p in own) for k in (1, 2, 3))) for how, own in groups.items()]  # type: ignore[misc]
    found = sorted(ways, key=lambda way: -way.cycles)
    left = found[most:]
    if len(left) < 2:  # a row for the rest would save none
        return found
    together = (sum(getattr(way, name) for way in left) for name in ("parts", "instructions", "cycles"))
    return [*found[:most], Way(f"{len(left)} {OTHER_WAYS}", *together)]
