"""What is known of a program's launches (or of any other units) before some are selected, which ones to simulate, and
what their cycles say of the whole: a stratified ratio estimator for every method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.estimate import Basis, Estimate, Part, around, exact, weakest, weighted_counters
from sampling.statistics import batch_means, pooled_error


class SamplingError(ValueError):
    """A profile, a selection or a parameter that no method can work with. `str()` of it is the line a user sees."""


def text_of(path: Path) -> str:
    """What a file holds. Raises SamplingError for one that cannot be read, or that may have no end, such as a pipe."""
    if path.exists() and not path.is_file():
        raise SamplingError(f"{path}: no regular file")
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise SamplingError(f"{path}: cannot be read ({why}); name what a profiler or `--select-only` wrote") from None


@dataclass(frozen=True, eq=False, kw_only=True)
class Profile:
    """One row a unit, in chronological order. A unit is a launch, or an interval of one. Fields a method does not need
    may be left out; it raises SamplingError if one it needs is missing. `kernels` names what the unit runs (equal
    numbers, equal code). `cycles`: on some machine, in any unit of time."""

    instructions: Float64[np.ndarray, " unit"]  # warp instructions
    kernels: Int64[np.ndarray, " unit"] | None = None
    thread_instructions: Float64[np.ndarray, " unit"] | None = None
    memory_requests: Float64[np.ndarray, " unit"] | None = None
    thread_blocks: Int64[np.ndarray, " unit"] | None = None
    threads_per_block: Int64[np.ndarray, " unit"] | None = None
    block_size_variation: Float64[np.ndarray, " unit"] | None = None  # CoV of thread instructions over thread blocks
    features: Float64[np.ndarray, "unit feature"] | None = None  # PKA's twelve
    basic_blocks: Float64[np.ndarray, "unit basic_block"] | None = None  # executions
    cycles: Float64[np.ndarray, " unit"] | None = None

    def __post_init__(self) -> None:
        for name, column in vars(self).items():
            if column is not None and len(column) != len(self.instructions):
                raise SamplingError(f"profile: {name} has {len(column)} rows, instructions {len(self.instructions)}")
        if len(self.instructions) == 0:
            raise SamplingError("profile: no launches; there is nothing to sample")
        if not (np.isfinite(self.instructions).all() and (np.asarray(self.instructions) > 0).all()):
            raise SamplingError("profile: every launch needs a positive number of warp instructions")

    def __len__(self) -> int:
        return len(self.instructions)

    def first(self, count: int) -> Profile:
        """The profile of the first units alone."""
        columns: dict[str, Any] = {name: c if c is None else c[:count] for name, c in vars(self).items()}
        return Profile(**columns)

    def need(self, column: str, method: str) -> np.ndarray:
        """A column. Raises SamplingError where the profile has none."""
        if (found := getattr(self, column)) is None:
            raise SamplingError(f"{method} needs the profile's {column}; this profile has none")
        return np.asarray(found)


Labels = Int64[np.ndarray, " unit"]
PerUnit = Float64[np.ndarray, " unit"]
PerStratum = Float64[np.ndarray, " stratum"]
PerSample = Float64[np.ndarray, " sample"]

# Relative error of one unit's cycles, where nothing says how far units of its stratum differ in what no feature shows.
MODEL_ERROR = 0.05
FEW = 10  # samples of a stratum


@dataclass(frozen=True, eq=False, kw_only=True)
class Selection:
    """Units to simulate. Cycles of a stratum are its `size` times the sample's cycles a `size`.

    `size` is 1 a unit where a method scales by number of units (PKS, STEM), instructions where it scales by CPI
    (Sieve, TBPoint, SimPoint, random). `spread`: relative deviation of cycles a size in each stratum that the method
    assumes, used where a stratum has a single sample, and as the least where it has few; None: MODEL_ERROR.
    `in_a_row`: the units are the first ones, whose cycles an instruction are correlated."""

    method: str
    units: Int64[np.ndarray, " sample"]  # ascending
    strata: Labels  # 0 .. number of strata - 1
    size: PerUnit
    instructions: PerUnit
    spread: PerStratum | None = None
    bias: float = 0.0  # relative error of the whole that the method itself admits; widens the interval
    unit: str = "launches"  # what is selected, for people
    in_a_row: bool = False

    def __post_init__(self) -> None:
        if not np.array_equal(np.unique(self.strata[self.units]), np.arange(self.strata.max() + 1)):
            raise SamplingError(f"{self.method}: a stratum has no unit to simulate")

    @property
    def detailed_fraction(self) -> float:
        """Share of the instructions in the selected units."""
        return _share(self.instructions[self.units].sum(), self.instructions.sum())

    @property
    def multipliers(self) -> PerSample:
        """What each selected unit's cycles are multiplied with; the sum is the estimate."""
        whole = np.bincount(self.strata, self.size)
        mine = self.strata[self.units]
        return whole[mine] / np.bincount(mine, self.size[self.units])[mine]

    def estimate(self, measured: Sequence[float] | Sequence[Estimate]) -> Estimate:
        """The program's cycles from those of the selected units, each a number or itself an estimate."""
        if len(measured) != len(self.units):
            raise SamplingError(f"{self.method}: {len(measured)} results for {len(self.units)} selected launches")
        given = [m if isinstance(m, Estimate) else exact("", float(m)) for m in measured]
        rows = [(m.total, m.detailed_fraction, m.functional_fraction, m.standard_error) for m in given]
        cycles, detailed, executed, inner = (np.array(column) for column in zip(*rows, strict=True))
        variances, degrees, basis = self._variances(cycles)
        total = float(np.dot(self.multipliers, cycles))
        own = float(np.sum((self.multipliers * inner) ** 2))
        error, freedom = pooled_error(np.append(variances, own), np.append(degrees, math.inf))
        sampled, mine = self.instructions[self.units], self.strata[self.units]
        # a unit's share of its stratum goes by its size; a selected one's is what it took only if it is alone
        ratio = np.bincount(mine, cycles) / np.bincount(mine, self.size[self.units])
        found = around(
            self.method,
            total,
            error,
            freedom,
            0.0 if basis == "exact" else self.bias * total,
            basis=weakest(basis, *(each.basis for each in given)),
            detailed_fraction=_share(np.dot(sampled, detailed), self.instructions.sum()),
            functional_fraction=_share(np.dot(sampled, executed), self.instructions.sum()),
            parts=self._parts(cycles),
            unit_cycles=tuple((self.size * ratio[self.strata]).tolist()),
            counters=weighted_counters(measured, self.multipliers.tolist()),
        )
        if not self.in_a_row:
            return found
        # with the error of a mean over correlated values, if that is larger; nothing is known of later ones
        unseen = 1.0 - self.detailed_fraction
        mean, off, neighbours = batch_means(cycles / sampled)
        relative = off / mean * math.sqrt(max(unseen, 0.0)) if mean else 0.0
        off = max(found.total * relative, found.standard_error)
        wide = around("", found.total, off, neighbours, detailed_fraction=found.detailed_fraction)
        return replace(found, low=wide.low, high=wide.high, basis="model" if unseen > 0 else "exact", counters={})

    def _parts(self, cycles: PerSample) -> tuple[Part, ...]:
        instructions = np.bincount(self.strata, self.instructions)
        scaled = np.bincount(self.strata[self.units], self.multipliers * cycles)
        members = np.bincount(self.strata)
        chosen = np.bincount(self.strata[self.units])
        rows = zip(chosen.tolist(), members.tolist(), instructions.tolist(), scaled.tolist(), strict=True)
        return tuple(
            Part(name=f"stratum {h}", how=f"{m:,} of {n:,} {self.unit}", instructions=i, cycles=c)
            for h, (m, n, i, c) in enumerate(rows)
        )

    def _variances(self, cycles: PerSample) -> tuple[np.ndarray, np.ndarray, Basis]:
        """Variance of every stratum's total, its degrees of freedom, and what they rest on.

        A unit's relative variance is `spread` squared where a stratum has one sample, its own sample's otherwise: the
        separate ratio estimator (Cochran, Sampling Techniques, section 6.10), residuals divided by 1 - leverage as a
        jackknife would, because a few large launches decide a ratio. Below FEW samples a stratum may look calm by luck:
        it takes the variance of all such strata together if that is larger, or `spread` squared."""
        mine, size = self.strata[self.units], self.size[self.units]
        members, chosen = np.bincount(self.strata), np.bincount(mine)
        whole, sampled = np.bincount(self.strata, self.size), np.bincount(mine, size)
        ratio = np.bincount(mine, cycles) / sampled
        unseen, several, free = 1.0 - chosen / members, chosen > 1, chosen - 1.0
        leverage = np.minimum(size / sampled[mine], 1.0 - 1e-9)
        residual = (cycles - ratio[mine] * size) / (1.0 - leverage)
        relative = free * np.bincount(mine, residual**2) / np.maximum(ratio * sampled, 1e-300) ** 2
        few = np.where(several & (chosen < FEW) & (unseen > 0), free, 0.0)
        pooled = float(np.dot(few, relative)) / max(few.sum(), 1.0)
        calm = (few > 0) & (relative < pooled)
        relative = np.where(several, np.where(calm, pooled, relative), self._spread**2)
        degrees = np.where(several, np.where(calm, few.sum(), free), math.inf)
        if self.spread is not None:
            known = (few > 0) & (self._spread**2 > relative)
            relative, degrees = np.where(known, self._spread**2, relative), np.where(known, math.inf, degrees)
        if bool((unseen == 0).all()):
            basis: Basis = "exact"
        else:
            basis = "sampled" if bool((several | (unseen == 0)).all()) else "model"
        return unseen / chosen * (whole * ratio) ** 2 * relative, degrees, basis

    @property
    def _spread(self) -> PerStratum:
        strata = int(self.strata.max()) + 1
        return np.full(strata, MODEL_ERROR) if self.spread is None else np.asarray(self.spread, float)


def _share(part: float, whole: float) -> float:
    """Part of a whole; 1 in spite of rounding."""
    return min(round(float(part / whole), 12), 1.0)


def first_of_each(strata: Labels, *by: PerUnit) -> Int64[np.ndarray, " stratum"]:
    """In every stratum the unit with the least of `by`, of which the last counts most; of equals the first."""
    order = np.lexsort((*by, strata))
    return np.sort(order[np.unique(strata[order], return_index=True)[1]])


def by_instructions(
    method: str, profile: Profile, strata: Labels, units: Int64[np.ndarray, " sample"], spread: PerStratum | None = None
) -> Selection:
    """A selection in which cycles go by instructions. `spread`: assumed where the profile has no cycles to tell it."""
    size = np.asarray(profile.instructions, float)
    if spread is not None and profile.cycles is not None:
        spread = profiled_spread(np.asarray(profile.cycles, float), size, strata)
    return Selection(method=method, units=units, strata=strata, size=size, instructions=size, spread=spread)


def assumed_spread(size: PerUnit, strata: Labels) -> PerStratum:
    """Relative deviation of cycles a size where no profile tells: MODEL_ERROR, and half of how far sizes differ. For
    all that is known, half of a launch's time may not grow with its size."""
    members = np.bincount(strata)
    mean = np.bincount(strata, size) / members
    variation = np.sqrt(np.bincount(strata, (size / mean[strata] - 1.0) ** 2) / members)
    return np.hypot(MODEL_ERROR, 0.5 * variation)


def profiled_spread(cycles: PerUnit, size: PerUnit, strata: Labels) -> PerStratum:
    """Relative deviation of cycles a size in every stratum of a profile: that of launches or of work, the larger one. A
    representative is a launch, whatever its size, but speaks for the work of its stratum."""
    whole, members = np.bincount(strata, size), np.bincount(strata)
    ratio = np.bincount(strata, cycles) / whole
    residual = (cycles / size - ratio[strata]) ** 2
    by_work, by_launch = np.bincount(strata, size * residual) / whole, np.bincount(strata, residual) / members
    return np.sqrt(np.maximum(by_work, by_launch)) / np.maximum(ratio, 1e-300)
