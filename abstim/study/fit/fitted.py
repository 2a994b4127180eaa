"""The outcome of a fit, how well it knows each parameter, and the description of a GPU that it writes."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import stdtrit  # scipy.stats would take a second and a half to import

from abstim.brief import Told
from abstim.gpu.config import Setting, description
from functional.arrays import Bool, Float64
from functional.keep.folder import check_output, write_output

CONFIDENCE = 0.95
NEGLIGIBLE = 0.01  # error in log cycles that a doubled parameter must at least make somewhere, to count as seen
PART = 0.3  # weight in a direction from which a parameter counts as part of it
UNSEEN = 0.51  # part of a parameter in directions without effect from which it is not fitted at all


@dataclass(frozen=True)
class Knowledge:
    """`low`, `high`: confidence interval of each parameter, infinite where the data says nothing; `correlation` of the
    estimates. `unidentified`: combinations of parameters that change no cycles, or too few to tell: names and weights
    in logarithms (0.7 a, -0.7 b: a and b up and down by the same factor). `unseen`: parameters that lie mostly in
    combinations that change no cycles."""

    low: Float64[np.ndarray, " name"]
    high: Float64[np.ndarray, " name"]
    correlation: Float64[np.ndarray, "name name"]
    singular_values: Float64[np.ndarray, " name"]
    directions: Float64[np.ndarray, "name name"]  # right singular vectors, a row each
    unseen: Bool[np.ndarray, " name"]
    unidentified: list[dict[str, float]] = field(default_factory=list)


def knowledge(
    names: tuple[str, ...], values: Float64[np.ndarray, " name"], errors: Float64[np.ndarray, " launch"],
    jacobian: Float64[np.ndarray, "launch name"], kernels: int,
) -> Knowledge:  # fmt: skip
    """From weighted errors in log cycles and their derivatives by the logarithms of the parameters.

    A kernel counts as one observation however many launches it has. An interval is that of the linearised problem,
    symmetric in logarithms, Student's t; infinite where there is no kernel more than combinations to fit, which then
    leave no error that would say how far off they are. A direction is unidentified if moving along it by a factor of
    two changes no kernel's cycles by more than about NEGLIGIBLE, or if its own standard error is beyond a factor of
    two."""
    # fewer launches than parameters leave some unseen
    _, singular, directions = np.linalg.svd(jacobian, full_matrices=len(jacobian) < len(names))
    singular = np.pad(singular, (0, len(names) - len(singular)))
    visible = singular * np.log(2) > NEGLIGIBLE
    freedom = kernels - int(visible.sum())
    deviation = float(np.sqrt((errors**2).sum() / max(1, freedom)))
    seen = visible & (deviation < singular * np.log(2))
    inverse = np.where(seen, 1 / np.where(seen, singular, 1) ** 2, 0)
    covariance = directions.T @ (inverse[:, None] * directions) * deviation**2
    unseen = (directions[~visible] ** 2).sum(0) > UNSEEN
    blind = (directions[~seen] ** 2).sum(0) > PART**2
    spread = np.sqrt(np.diag(covariance))
    width = np.where(blind | (freedom < 1), np.inf, stdtrit(max(1, freedom), (1 + CONFIDENCE) / 2) * spread)
    with np.errstate(over="ignore"):
        low, high = (values * np.exp(sign * width) for sign in (-1, 1))
    scale = np.where(spread > 0, spread, 1)
    correlation = covariance / np.outer(scale, scale)
    np.fill_diagonal(correlation, 1.0)
    unidentified = [
        {names[k]: round(float(d[k]), 3) for k in np.argsort(-abs(d)) if abs(d[k]) > PART} for d in directions[~seen]
    ]
    return Knowledge(low, high, correlation, singular, directions, unseen, unidentified)


@dataclass(frozen=True, slots=True)
class FittedParameter:
    """One parameter; `low` to `high` is the 95 % confidence interval of what was `fitted`, None where the data does not
    bound it. `value`: that, or the start where this was kept.

    `prior`: by what factor the start was taken to be right at most, before any data; None: by any. `identified`: the
    data tells this parameter from the others. `at_bound`: it stopped where it was told to."""

    name: str
    start: float
    prior: float | None
    fitted: float
    value: float
    low: float | None
    high: float | None
    identified: bool
    at_bound: bool


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Absolute errors of benchmarks' cycles, as fractions, on the GPU with some values of the parameters."""

    part: str  # "fitted" or "held out"
    values: str  # "start", "file" (the GPU's description, without overrides) or "fit"
    benchmarks: int
    mean_error: float
    median_error: float
    max_error: float
    worst: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fit(Told):
    """The outcome of a fit. `kept_start`: its values are the start's, since those that were fitted are no better on
    what was held out. `unidentified` lists combinations of parameters the data cannot tell (weights in logarithms);
    `correlation` is in the order of `parameters`."""

    kind = "fit"
    gpu: str
    variants: list[str]
    reference: str
    kept_start: bool
    parameters: list[FittedParameter]
    errors: list[ErrorSummary]
    correlation: list[list[float]]
    singular_values: list[float]
    unidentified: list[dict[str, float]]
    fitted_benchmarks: list[str]
    held_out_benchmarks: list[str]
    split: float
    seed: int
    wall_seconds: float

    @property
    def verdict(self) -> str:
        """What the benchmarks that were held out say of the fitted values."""
        if not self.held_out_benchmarks:
            return "Nothing was held out: nothing says how good these values are elsewhere."
        said = {e.values: f"{e.mean_error:.2%} ({e.median_error:.2%})" for e in self.errors if e.part == "held out"}
        count = f"{len(self.held_out_benchmarks)} held-out benchmark{'s' * (len(self.held_out_benchmarks) > 1)}"
        became = f"mean (median) error of {count} {said['start']} with the start, {said['fit']} fitted"
        return f"The start is kept: {became}." if self.kept_start else f"Fitted: {became}."

    @property
    def values(self) -> dict[str, float]:
        """Value by name."""
        return {p.name: p.value for p in self.parameters}

    def to_toml(self) -> str:
        """A GPU description with the GPU that was fitted as its base; every value says where it is from."""
        base = str(Path(self.gpu).resolve()) if self.gpu.endswith(".toml") else self.gpu
        how = f"abstim fit to {self.reference} --split {self.split:g} --seed {self.seed}"
        how += f", variants {', '.join(self.variants)}, {len(self.fitted_benchmarks)} benchmarks fitted. {self.verdict}"
        done = "not changed by a fit" if self.kept_start else "fitted"
        values = {p.name: int(p.value) if p.value == int(p.value) else p.value for p in self.parameters}
        settings = {p.name: Setting(values[p.name], self._source(p)) for p in self.parameters}
        return description(base, f"{Path(self.gpu).stem}, {done} to {self.reference}", {"fit": how}, settings)

    def _source(self, parameter: FittedParameter) -> str:
        found = interval(parameter)
        if self.kept_start:
            found = f"kept: {parameter.fitted:g} ({found}) is no better on what was held out"
        return f"fit from {parameter.start:g}, {found}"

    def save(self, path: Path) -> None:
        """Write the description. Raises InputError if that cannot be done."""
        check_output(path, ".toml")
        write_output(path, self.to_toml().encode())


def interval(parameter: FittedParameter) -> str:
    """The confidence interval of what was fitted, in words."""
    if not parameter.identified:
        return "not identified by the data"
    if parameter.low is None or parameter.high is None:
        return "not bounded by so few kernels"
    bound = ", at its bound" if parameter.at_bound else ""
    return f"95 % interval {parameter.low:.4g} to {parameter.high:.4g}{bound}"


def finite(value: float) -> float | None:
    """None for what JSON cannot hold."""
    return float(value) if math.isfinite(value) else None
