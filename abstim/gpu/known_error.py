"""What is known of a model's error on a GPU, from `configs/known_errors.csv`: every result says it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REFERENCE = "GPGPU-Sim 4.2, which itself is off by 13 % (SASS) to 34 % (PTX) on a V100"
HARDWARE = "hardware"
BY_MODEL = {"detailed": "", "occupancy": "by occupancy vector ", "analytic": "by the formula "}


@dataclass(frozen=True, slots=True)
class KnownError:
    """Mean and worst absolute error, in percent, of the times of some kernels. `what`: to be known about them."""

    gpu: str
    model: str
    against: str  # "reference" or "hardware"
    what: str
    kernels: int
    mean_percent: float
    worst_percent: float | None  # None: not noted

    def __str__(self) -> str:
        about = ", ".join(part for part in (f"{self.kernels} kernels", self.what) if part)
        worst = "" if self.worst_percent is None else f", {self.worst_percent:g} % worst"
        return f"{self.mean_percent:g} % mean{worst} ({about})"


@cache
def known_errors() -> tuple[KnownError, ...]:
    """The table."""
    import configs

    with (Path(next(iter(configs.__path__))) / "known_errors.csv").open(newline="", encoding="utf-8") as file:
        return tuple(
            KnownError(
                r["gpu"],
                r["model"],
                r["against"],
                r["what"],
                int(r["kernels"]),
                float(r["mean_percent"]),
                float(r["worst_percent"]) if r["worst_percent"] else None,
            )
            for r in csv.DictReader(file)
        )


def known_error(gpu: str, model: str = "detailed", timed_code: str = "ptx") -> str:
    """One sentence on a GPU of `configs/`, or on any other (nothing). `timed_code`: of hardware or of the reference."""
    return "; ".join(_parts(gpu, model, timed_code))


def _parts(gpu: str, model: str, timed_code: str) -> Iterator[str]:
    found = [e for e in known_errors() if e.gpu == gpu and e.model == model]
    against = {name: ", ".join(str(e) for e in found if e.against == name) for name in ("reference", HARDWARE)}
    by = f" {BY_MODEL[model].strip()}" if BY_MODEL[model] else ""
    if against["reference"]:
        yield f"{BY_MODEL[model]}{against['reference']} against {REFERENCE}"
    if against[HARDWARE]:
        yield f"{HARDWARE}: {BY_MODEL[model]}{against[HARDWARE]}"
    elif against["reference"]:
        yield f"{HARDWARE}: not compared"
    elif timed_code == "machine":
        yield f"{HARDWARE}: no time of a kernel was compared on this GPU{by}"
        if model == "detailed":
            yield "its latencies and bandwidths beside measured ones: abstim calibrate"
