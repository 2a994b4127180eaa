"""Two-level profiling: detail for the first launches, a classifier for the rest. PKA, section 3.1, Figure 3."""

from __future__ import annotations

import csv
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sampling.errors import SamplingError
from sampling.pka.pks import Pks
from sampling.profile import Profile
from sampling.selection import Selection

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

CLASSIFIERS = ("sgd", "gaussian_nb", "mlp")
NAME_COLUMNS = 32  # a kernel's name is hashed into that many indicator columns
_GRID = ("GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ")


@dataclass(frozen=True, eq=False)
class LightProfile:
    """What a profiler gives at almost no cost, one row a launch in order."""

    names: list[str]
    dimensions: Float64[np.ndarray, "launch d"]  # grid, block, and whatever else is known (tensor shapes)
    nanoseconds: Float64[np.ndarray, " launch"] | None = None

    def columns(self) -> Float64[np.ndarray, "launch column"]:
        """Name indicators and logarithms of the dimensions."""
        slots = np.array([zlib.crc32(name.encode()) % NAME_COLUMNS for name in self.names])
        return np.hstack([np.eye(NAME_COLUMNS)[slots], np.log1p(self.dimensions)])


@dataclass(frozen=True)
class TwoLevel:
    """Groups from PKS on the first j launches; every later launch joins the group a classifier gives it.

    `classifier`: stochastic gradient descent, Gaussian naive Bayes or multi-layer perceptron, or "best": the one that
    labels a held-out quarter of the detailed launches best.
    """

    pks: Pks = field(default_factory=Pks)
    classifier: str = "best"
    seed: int = 0
    name = "PKS, two-level"

    def select(self, detailed: Profile, light: LightProfile, instructions: Float64[np.ndarray, " launch"]) -> Selection:
        """`detailed` holds the first launches of `light`; `instructions` (of all, may be approximate) weigh them."""
        first = self.pks.select(detailed)
        strata = np.concatenate([first.strata, self.classify(light, first.strata)])
        return Selection(
            method=self.name,
            units=first.units,
            strata=strata,
            size=np.ones(len(strata)),
            instructions=np.asarray(instructions, float),
            spread=first.spread,
            bias=first.bias,
        )

    def classify(self, light: LightProfile, groups: Int64[np.ndarray, " detailed"]) -> Int64[np.ndarray, " rest"]:
        """The groups of the launches after the detailed ones."""
        if len(groups) > len(light.names):
            raise SamplingError(
                f"two-level profiling: {len(groups)} detailed launches, but only {len(light.names)} in all"
            )
        columns, count = light.columns(), len(groups)
        if count == len(columns):
            return np.empty(0, np.int64)
        if len(np.unique(groups)) == 1 or bool((columns[:count] == columns[0]).all()):  # nothing to tell them by
            return np.full(len(columns) - count, np.bincount(groups).argmax())
        mean, deviation = columns[:count].mean(0), columns[:count].std(0)
        columns = (columns - mean) / np.where(deviation == 0, 1, deviation)
        model = _model(self._chosen(columns[:count], groups), self.seed).fit(columns[:count], groups)
        return np.asarray(model.predict(columns[count:]), np.int64)

    def _chosen(self, columns: np.ndarray, groups: np.ndarray) -> str:
        if self.classifier != "best":
            return self.classifier
        order = np.random.default_rng(self.seed).permutation(len(groups))
        held, kept = np.split(order, [max(1, len(order) // 4)])
        if len(np.unique(groups[kept])) < 2 or bool((columns[kept] == columns[kept][0]).all()):
            return CLASSIFIERS[0]
        scores = [
            np.mean(_model(name, self.seed).fit(columns[kept], groups[kept]).predict(columns[held]) == groups[held])
            for name in CLASSIFIERS
        ]
        return CLASSIFIERS[int(np.argmax(scores))]


def _model(name: str, seed: int) -> Any:
    if name == "sgd":
        from sklearn.linear_model import SGDClassifier

        return SGDClassifier(random_state=seed)
    if name == "gaussian_nb":
        from sklearn.naive_bayes import GaussianNB

        return GaussianNB(var_smoothing=1e-3)  # indicator columns have no variance within a group
    if name == "mlp":
        from sklearn.neural_network import MLPClassifier

        return MLPClassifier((32,), solver="lbfgs", max_iter=2000, random_state=seed)
    raise SamplingError(f"no classifier {name!r}; there are {', '.join(CLASSIFIERS)} and best")


def _tensors(rows: list[dict[str, str]]) -> Float64[np.ndarray, "launch d"]:
    """Numbers of every column whose name begins with "Tensor", such as `[8, 64, 112, 112]`; missing ones are 0."""
    columns = [name for name in rows[0] if name.lower().startswith("tensor")]
    found = [[[float(n) for n in re.findall(r"[\d.]+", row[name] or "")] for row in rows] for name in columns]
    widths = [max(map(len, column)) for column in found]
    padded = [
        [sizes + [0.0] * (width - len(sizes)) for sizes in column] for column, width in zip(found, widths, strict=True)
    ]
    return np.hstack([np.zeros((len(rows), 0)), *(np.array(column).reshape(len(rows), -1) for column in padded)])


def read_nsight_systems(path: Path) -> LightProfile:
    """Kernels of `nsys stats --report cuda_gpu_trace --format csv`; copies, which have no grid, are left out.

    Columns that begin with "Tensor", which a framework's annotations may add, are dimensions too."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SamplingError(f"{path}: cannot be read ({error})") from None
    start = next((n for n, line in enumerate(lines) if "GrdX" in line and "Name" in line), None)
    rows = [] if start is None else [row for row in csv.DictReader(lines[start:]) if row["GrdX"]]
    if not rows:
        raise SamplingError(f"{path}: no kernels; make it with `nsys stats --report cuda_gpu_trace --format csv`")
    time = next((name for name in rows[0] if name.startswith("Duration")), None)
    try:
        dimensions = np.array([[float(row[side]) for side in _GRID] for row in rows])
        dimensions = np.hstack([dimensions, _tensors(rows)])
        spent = None if time is None else np.array([float(row[time].replace(",", "")) for row in rows])
    except (KeyError, ValueError) as error:
        raise SamplingError(f"{path}: a kernel's row has no usable {error}") from None
    return LightProfile([row["Name"] for row in rows], dimensions, spent)
