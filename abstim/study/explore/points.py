"""Design points as columns: keys that can be varied, `--vary KEY=VALUES` as an axis, and the points of a space.

    8,16,32        a list                       gto,lrr        words
    8:144:8        from 8 to 144, every 8th     512:8192:log2  from 512 to 8192, doubling
    0.5:2.0:7#     seven numbers, evenly spaced from 0.5 to 2.0

A list may hold ranges: `1,8:64:8`. Both ends belong to a range if its steps meet the last one. A derived key sets one
key of the GPU so that a figure people think in comes out: KiB of L2, GB/s of DRAM. What the GPU can be is coarser than
that (whole sets, service times in 1/64 cycle): the nearest that can be is taken, and the column shows it. A wish off
by more than `TOLERANCE` is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from decimal import Decimal, InvalidOperation
from math import prod
from typing import Any, NamedTuple

import numpy as np

from abstim.engine.rules import UNITS_A_CYCLE
from abstim.gpu.config import Gpu, changed, domains, full_key, nearest, parse_value
from abstim.gpu.spec import FROM_TIME, Domain, Params, check, in_cycles
from abstim.study.explore.expressions import Expression
from functional.arrays import Bool, Int64
from functional.errors import InputError
from functional.traces.trace import LINE_BYTES, SECTOR_BYTES

TOLERANCE = 0.05
POSITIVE = Domain(float, "a number above 0", lambda v: 0 < v < 1e15)
Columns = Mapping[str, np.ndarray]  # key -> values, one a point


class Derived(NamedTuple):
    """`key` = `base` x scale, or scale / `base` if `inverse`, which is then a service time."""

    base: str
    scale: Callable[[Columns], Any]
    inverse: bool = False

    @property
    def step(self) -> float:
        """In which `base` is held."""
        return 1 / UNITS_A_CYCLE if self.inverse else 1.0


def _lines_kib(*counts: str, line: str = "") -> Callable[[Columns], Any]:
    """KiB of as many cache lines as the product of the columns."""
    return lambda c: np.prod([c[name] for name in counts], axis=0) * (c[line] if line else LINE_BYTES) / 1024


def _sectors_gbps(*counts: str) -> Callable[[Columns], Any]:
    """10^9 B/s of a sector a cycle for each of as many units as the product of the columns."""
    return lambda c: np.prod([c[name] for name in counts], axis=0) * SECTOR_BYTES * c["core_clock_hz"] / 1e9


# In the order in which they are worked out: a later one may need what an earlier one has set.
DERIVED: dict[str, Derived] = {
    "core_clock_mhz": Derived("core_clock_hz", lambda c: 1e-6),
    "shared_kib": Derived("shared_bytes_per_sm", lambda c: 1 / 1024),
    "registers_kib": Derived("registers_per_sm", lambda c: 4 / 1024),
    "l1d_kib": Derived("l1d_ways", _lines_kib("l1d_sets")),
    "l1i_kib": Derived("l1i_ways", _lines_kib("l1i_sets", line="l1i_line_bytes")),
    "const_kib": Derived("const_ways", _lines_kib("const_sets", line="const_line_bytes")),
    "l2_kib": Derived("l2_sets", _lines_kib("dram_channels", "l2_slices_per_channel", "l2_ways")),
    "l2_gbps": Derived("l2_sector_cycles", _sectors_gbps("dram_channels", "l2_slices_per_channel"), True),
    "dram_gbps": Derived("dram_sector_cycles", _sectors_gbps("dram_channels"), True),
}


def key_of(key: str) -> str:
    """The full name of a key that can be varied. Raises InputError, with the nearest one, if there is none."""
    if key in DERIVED:
        return key
    try:
        return full_key(key)
    except InputError:
        raise InputError(f"unknown key {key!r}{nearest(key, [*DERIVED, *domains()])}") from None


def value_of(key: str, columns: Columns) -> np.ndarray:
    """A derived key's values, from the keys it depends on."""
    derived = DERIVED[key]
    scale, base = derived.scale(columns), np.asarray(columns[derived.base], float)
    with np.errstate(divide="ignore"):
        return scale / base if derived.inverse else scale * base


def nearest_values(key: str, wanted: np.ndarray, columns: Columns) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """What comes nearest to the `wanted` values of a derived key.

    Returns the values of its base, what the key then is, and why a wish cannot be had ("" where it can)."""
    derived = DERIVED[key]
    domain = domains()[derived.base]
    scale = np.broadcast_to(derived.scale(columns), wanted.shape)
    steps = np.rint((scale / wanted if derived.inverse else wanted / scale) / derived.step)
    raw = np.maximum(steps, 1) * derived.step
    given = scale / raw if derived.inverse else scale * raw
    base = raw.astype(np.int64) if domain.type is int else raw
    accepted = dict(zip(found := np.unique(base).tolist(), map(domain.accepts, found), strict=True))
    far = np.abs(given / wanted - 1) > TOLERANCE
    why = [""] * len(base)
    for k, value in enumerate(base.tolist()):
        if not accepted[value]:
            why[k] = f"{key} = {wanted[k]:g} needs {derived.base} = {value:g}, which is not {domain.text}"
        elif far[k]:
            why[k] = f"{key} = {wanted[k]:g} cannot be had; the nearest is {given[k]:g} ({derived.base} = {value:g})"
    return base, given, why


MOST_VALUES = 1_000_000  # of one axis


@dataclass(frozen=True)
class Axis:
    """A key of the GPU, or one derived from such keys (`keys.DERIVED`), and its values in the order given."""

    key: str
    values: tuple[Any, ...]


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """Every `--vary`. Raises InputError if one cannot be read, or two vary one key."""
    axes = [parse_axis(text) for text in texts]
    if not axes:
        raise InputError("nothing to explore; add --vary KEY=VALUES, as in --vary sm_count=8:64:8")
    keys = [axis.key for axis in axes]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise InputError(f"--vary {twice}: given twice; put all its values into one")
    return axes


def parse_axis(text: str) -> Axis:
    """One `KEY=VALUES`. Raises InputError for an unknown key, a value it does not accept, or no readable range."""
    where = f"--vary {text}"
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key or not values:
        raise InputError(f"{where}: write it as key=values, as in sm_count=8:64:8 or scheduler=gto,lrr")
    try:
        key = key_of(key)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    found = [value for part in values.split(",") for value in expand(part.strip(), where)]
    domain = POSITIVE if key in DERIVED else domains()[key]
    checked = [check(key, domain, _fit(value, domain.type), where) for value in found]
    if twice := next((value for value in checked if checked.count(value) > 1), None) if len(checked) < 1000 else None:
        raise InputError(f"{where}: {twice!r} is in it twice")
    return Axis(key, tuple(checked))


def _fit(value: Any, kind: type) -> Any:
    """Whole numbers of a key that takes fractions as fractions: one type a column."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)
    return int(value) if kind is int and isinstance(value, float) and value.is_integer() else value


def expand(part: str, where: str) -> list[Any]:
    """The values of a single value or range. Raises InputError, which begins with `where`, for what is neither."""
    pieces = [piece.strip() for piece in part.split(":")]
    if len(pieces) == 1:
        if not part:
            raise InputError(f"{where}: a value is missing between the commas")
        return [parse_value(part)]
    if len(pieces) != 3:
        raise InputError(f"{where}: a range is first:last:step, first:last:log2 or first:last:count#, not {part}")
    try:
        first, last = Decimal(pieces[0]), Decimal(pieces[1])
        found = _range(first, last, pieces[2])
    except (InvalidOperation, ValueError, ZeroDivisionError):
        raise InputError(f"{where}: {part} is no range of numbers") from None
    if not found:
        raise InputError(f"{where}: {part} is empty or has more than {MOST_VALUES:,} values")
    return [int(value) if value == value.to_integral_value() else float(value) for value in found]


def _range(first: Decimal, last: Decimal, step: str) -> list[Decimal]:
    """Exact decimals, so that 0.1:0.3:0.1 ends in 0.3. Empty if there are none, or too many."""
    if not (first.is_finite() and last.is_finite()):
        raise ValueError
    if step == "log2":
        found = [first] if 0 < first <= last else []
        while found and found[-1] * 2 <= last:
            found.append(found[-1] * 2)
        return found
    if step.endswith("#"):
        count = int(step[:-1])
        if not 2 <= count <= MOST_VALUES:
            return []
        return [first + (last - first) * k / (count - 1) for k in range(count)]
    width = Decimal(step)
    count = int((last - first) / width) + 1 if width > 0 and last >= first else 0
    return [first + width * k for k in range(count)] if count <= MOST_VALUES else []


MOST_COMBINATIONS = 10**18
REFUSE_NOTHING = ("scheduler", "l1d_replacement", "l1d_mshrs", "l1d_mshr_merges", "l2_mshrs", "l2_mshr_merges")
_DECIDE_NOTHING = {*REFUSE_NOTHING, *(f.name for f in fields(Params))}  # whatever they are at, a GPU can be
_TIMES_OF_CLASSES = ("latency_cycles.", "initiation_cycles.")
MOST_TRIED = 64  # values of an axis, when another is asked about


@dataclass(frozen=True)
class Space:
    """Everything that may be asked for: a GPU, the axes around it, and expressions with names.

    Raises InputError if two axes set one key of the GPU, or a name is taken."""

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

    def refuse_idle(self) -> None:
        """Raises InputError for an axis along which nothing changes, whatever the others are at."""
        keys = [DERIVED[axis.key].base if axis.key in DERIVED else axis.key for axis in self.axes]
        for axis, key in zip(self.axes, keys, strict=True):
            beside = [a for a in self.axes if a.key not in DERIVED and a != axis]
            others = [(a.key, value) for a in beside for value in a.values[:MOST_TRIED]]
            tried = [self.gpu]
            for other, value in others:
                with suppress(InputError):
                    tried.append(changed(self.gpu, {other: value}, self.gpu.name))
            if all(gpu.why_idle(key) for gpu in tried):
                also = f" (it sets {key})" if key != axis.key else ""
                raise InputError(f"--vary {axis.key}: no effect on {self.gpu.name}{also}: {self.gpu.why_idle(key)}")

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
            known = _Lookup(self, columns, len(positions))
            wanted = columns[key]
            columns[DERIVED[key].base], given, why = nearest_values(key, wanted, known)
            columns[key] = np.where(np.array(why) == "", given, wanted)
            reasons = np.where(reasons == "", why, reasons)
        return Points(self, positions, columns, reasons)


class _Lookup(Mapping[str, np.ndarray]):
    """Names of expressions: columns, defined names, derived keys, keys of the GPU that are not varied."""

    def __init__(self, space: Space, columns: Mapping[str, np.ndarray], count: int) -> None:
        self.space, self.columns, self.count = space, columns, count
        self._under_way: list[str] = []

    def __getitem__(self, name: str) -> np.ndarray:
        """Raises InputError for an unknown name, and for definitions that go round in a circle."""
        if name in self.columns:
            return self.columns[name]
        if name in FROM_TIME and self.space.gpu.settings[FROM_TIME[name]].value:
            return in_cycles(name, self[FROM_TIME[name]], self["core_clock_hz"], self["dram_channels"])
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

    `reasons` says why a point cannot be ("" if it can)."""

    space: Space
    positions: Int64[np.ndarray, " point"]
    columns: dict[str, np.ndarray]
    reasons: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)

    def values(self, name: str) -> np.ndarray:
        """A key's or defined name's values. Raises InputError for an unknown name."""
        return _Lookup(self.space, self.columns, len(self))[name]

    def evaluate(self, expression: Expression, more: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """An expression's values, one a point."""
        lookup = _Lookup(self.space, {**self.columns, **(more or {})}, len(self))
        return np.broadcast_to(expression(lookup.__getitem__), (len(self),))

    def where(self, chosen: Bool[np.ndarray, " point"] | Int64[np.ndarray, " chosen"]) -> Points:
        """Some of the points."""
        columns = {key: values[chosen] for key, values in self.columns.items()}
        return Points(self.space, self.positions[chosen], columns, self.reasons[chosen])

    def after_first(self) -> Points:
        """Behind the GPU that is varied, as one point more (at no position of the grid)."""
        base = _Lookup(self.space, {}, 1)
        columns = {key: np.concatenate([base[key], values]) for key, values in self.columns.items()}
        positions, reasons = np.concatenate([[-1], self.positions]), np.concatenate([[""], self.reasons])
        return Points(self.space, positions, columns, reasons)

    @property
    def keys_of_gpu(self) -> dict[str, np.ndarray]:
        """The columns that `--set` has, without those derived from them."""
        return {key: values for key, values in self.columns.items() if key not in DERIVED}

    def of_alike(self, keys: Sequence[str], of: Callable[[int], Any]) -> np.ndarray:
        """What `of` says of the first of those points that are equal in some keys, for each of them."""
        own = [values for key, values in self.keys_of_gpu.items() if key in keys]
        places = [np.zeros(len(self), np.int64), *(np.unique(values, return_inverse=True)[1] for values in own)]
        _, first, at = np.unique(np.stack(places), axis=1, return_index=True, return_inverse=True)
        return np.array([of(k) for k in first.tolist()], object)[at.reshape(-1)]

    @property
    def deciding(self) -> list[str]:
        """Keys but latencies, other such times, and policies: they decide whether a point can be, and run a kernel."""
        own = self.keys_of_gpu
        return [key for key in own if key not in _DECIDE_NOTHING and not key.startswith(_TIMES_OF_CLASSES)]

    def gpu(self, k: int) -> Gpu:
        """Point `k` as a GPU. Raises InputError if its values contradict each other."""
        if self.positions[k] < 0:
            return self.space.gpu
        label = ", ".join(f"{axis.key}={self.columns[axis.key][k]}" for axis in self.space.axes)
        settings = {key: values[k].item() for key, values in self.keys_of_gpu.items()}
        return changed(self.space.gpu, settings, f"{self.space.gpu.name} {label}")
