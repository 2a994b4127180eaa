"""The profile of a program: what is known of its launches (or of any other units) before a method selects some."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sampling.arrays import Float64, Int64


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
