"""abstim beside the reference simulator: error and speed-up of every benchmark, as in GATSim's Figures 4 to 6."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from abstim.progress import Progress
from abstim.study.bench.rate import STAGES, Against, Rate
from abstim.study.bench.stages import time_stage
from abstim.study.validate import Measured, known_variants, read_reference, select
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.session.session import Session

SECONDS_COLUMN = "reference_cpu_s"
VARIANTS = ("GTX480_a", "GTX480_b", "GTX480_c", "GTX480_d")  # of Figures 4 and 6: perfect and real memory


@dataclass(frozen=True)
class Reference:
    """Measured cycles, and the reference's processor time by (benchmark, variant), summed over the launches."""

    measured: list[Measured]
    seconds: dict[tuple[str, str], float]


def read(path: Path, variants: Sequence[str], benchmarks: Sequence[str]) -> Reference:
    """The rows of a table that are to be compared. Raises InputError as `read_reference` does, and without seconds."""
    chosen, _ = select(read_reference(path), variants or VARIANTS, (), ())
    chosen = [entry for entry in chosen if entry.benchmark in benchmarks]
    if not chosen:
        raise InputError(f"{path}: has none of the benchmarks to be measured")
    seconds: dict[tuple[str, str], float] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row.get("flush") in (None, "", "all"):
                key = (row["benchmark"], row["variant"])
                seconds[key] = seconds.get(key, 0.0) + _seconds(path, row)
    return Reference(chosen, seconds)


def _seconds(path: Path, row: dict[str, Any]) -> float:
    try:
        return float(row[SECONDS_COLUMN])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path}: needs a number in the column {SECONDS_COLUMN} of every row") from None


def against(
    reference: Reference,
    sessions: Mapping[str, Session],
    rates: Mapping[str, Mapping[str, Rate]],
    rounds: int,
    progress: Progress,
) -> Iterator[Against]:
    """Every benchmark on every variant. Raises InputError for a stage not measured, or a launch not in the table."""
    gpus = known_variants()
    for number, entry in enumerate(reference.measured):
        progress(f"bench {entry.benchmark} on {entry.variant}", number, len(reference.measured))
        session, stages = sessions[entry.benchmark], rates[entry.benchmark]
        if missing := [stage for stage in STAGES if stage not in stages]:
            raise InputError(f"a comparison with the reference needs every stage; not measured: {', '.join(missing)}")
        if sorted(entry.cycles) != list(range(len(session.case.launches))):
            raise InputError(f"the table does not have every launch of {entry.benchmark} on {entry.variant}")
        timed = [time_stage(session, [gpus[entry.variant]]) for _ in range(rounds)]
        rate, results = timed[0]
        seconds = stages["execute"].seconds + median(each.seconds for each, _ in timed)
        yield Against(
            entry.benchmark,
            entry.group,
            entry.variant,
            predicted_cycles=sum(launch[0].cycles for launch in results),
            measured_cycles=sum(entry.cycles.values()),
            thread_instructions=rate.thread_instructions,
            seconds=seconds,
            all_seconds=seconds + stages["parse"].seconds + stages["characterize"].seconds,
            reference_seconds=reference.seconds[entry.benchmark, entry.variant],
        )
