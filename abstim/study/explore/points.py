"""Design points as columns: a million of them are a few arrays, a `Gpu` is made only of those that the engine times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from abstim.gpu.config import Gpu, changed, domains, nearest
from abstim.study.explore.expressions import Expression
from abstim.study.explore.keys import DERIVED, nearest_values, value_of
from abstim.study.explore.ranges import Axis
from functional.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64

MOST_COMBINATIONS = 10**18


@dataclass(frozen=True)
class Space:
    """Everything that may be asked for: a GPU, the axes around it, and expressions with names.

    Raises InputError if two axes set one key of the GPU, or a name is taken.
    """

    gpu: Gpu
    axes: Sequence[Axis]
    defines: Mapping[str, Expression] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owner: dict[str, str] = {}
        for axis in self.axes:
            base = DERIVED[axis.key].base if axis.key in DERIVED else axis.key
            if base in owner:
                raise InputError(f"--vary {axis.key} and --vary {owner[base]} both set {base}")
            owner[base] = axis.key
        for name in self.defines:
            if name in DERIVED or name in domains() or not name.isidentifier():
                raise InputError(f"--define {name}: is a key of the GPU, or no name")
        if self.size > MOST_COMBINATIONS:
            raise InputError(f"{self.size:.1e} combinations of the varied values; {MOST_COMBINATIONS:.0e} is the most")

    @property
    def size(self) -> int:
        """Combinations of all axes' values."""
        return prod(len(axis.values) for axis in self.axes)

    def at(self, positions: Int64[np.ndarray, " point"]) -> Points:
        """The points at positions of the grid (the last axis runs fastest)."""
        columns: dict[str, np.ndarray] = {}
        rest = positions
        for axis in reversed(self.axes):
            rest, number = np.divmod(rest, len(axis.values))
            columns[axis.key] = np.asarray(axis.values)[number]
        columns = {axis.key: columns[axis.key] for axis in self.axes}
        reasons = np.full(len(positions), "", object)
        for key in (key for key in DERIVED if key in columns):
            known = self._lookup(columns, len(positions))
            wanted = columns[key]
            columns[DERIVED[key].base], given, why = nearest_values(key, wanted, known)
            columns[key] = np.where(np.array(why) == "", given, wanted)
            reasons = np.where(reasons == "", why, reasons)
        return Points(self, positions, columns, reasons)

    def _lookup(self, columns: Mapping[str, np.ndarray], count: int) -> _Lookup:
        return _Lookup(self, columns, count)


class _Lookup(Mapping[str, np.ndarray]):
    """Names of expressions: columns, defined names, derived keys, keys of the GPU that are not varied."""

    def __init__(self, space: Space, columns: Mapping[str, np.ndarray], count: int) -> None:
        self.space, self.columns, self.count = space, columns, count
        self._under_way: list[str] = []

    def __getitem__(self, name: str) -> np.ndarray:
        """Raises InputError for an unknown name, and for definitions that go round in a circle."""
        if name in self.columns:
            return self.columns[name]
        if name in self.space.gpu.settings:
            return np.full(self.count, self.space.gpu.settings[name].value)
        if name in ("true", "false"):
            return np.full(self.count, name == "true")
        if name in DERIVED:
            return value_of(name, self)
        return self._defined(name)

    def _defined(self, name: str) -> np.ndarray:
        if name not in self.space.defines:
            raise InputError(f"unknown name {name!r}{nearest(name, self)}")
        if name in self._under_way:
            raise InputError(f"--define {name} leads back to itself")
        self._under_way.append(name)
        try:
            return np.broadcast_to(self.space.defines[name](self.__getitem__), (self.count,))
        finally:
            self._under_way.pop()

    def __iter__(self):
        return iter({**self.columns, **self.space.defines, **DERIVED, **self.space.gpu.settings})

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True)
class Points:
    """Points of a space. `columns` has a value a point for every axis, and for every key a derived axis sets.

    `reasons` says why a point cannot be ("" if it can).
    """

    space: Space
    positions: Int64[np.ndarray, " point"]
    columns: dict[str, np.ndarray]
    reasons: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)

    def values(self, name: str, more: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """A key's or defined name's values, `more` columns included. Raises InputError for an unknown name."""
        return self.space._lookup({**self.columns, **(more or {})}, len(self))[name]

    def evaluate(self, expression: Expression, more: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """An expression's values, one a point."""
        lookup = self.space._lookup({**self.columns, **(more or {})}, len(self))
        return np.broadcast_to(expression(lookup.__getitem__), (len(self),))

    def where(self, chosen: Bool[np.ndarray, " point"] | Int64[np.ndarray, " chosen"]) -> Points:
        """Some of the points."""
        columns = {key: values[chosen] for key, values in self.columns.items()}
        return Points(self.space, self.positions[chosen], columns, self.reasons[chosen])

    def after_first(self) -> Points:
        """Behind the GPU that is varied, as one point more (at no position of the grid)."""
        base = self.space._lookup({}, 1)
        columns = {key: np.concatenate([base[key], values]) for key, values in self.columns.items()}
        positions, reasons = np.concatenate([[-1], self.positions]), np.concatenate([[""], self.reasons])
        return Points(self.space, positions, columns, reasons)

    def settings(self, k: int) -> dict[str, Any]:
        """Point `k` as keys of the GPU and plain values."""
        return {key: values[k].item() for key, values in self.columns.items() if key not in DERIVED}

    def gpu(self, k: int) -> Gpu:
        """Point `k` as a GPU. Raises InputError if its values contradict each other."""
        label = ", ".join(f"{axis.key}={self.columns[axis.key][k]}" for axis in self.space.axes)
        return changed(self.space.gpu, self.settings(k), f"{self.space.gpu.name} {label}")
