"""Faster, slower, or the same within noise: two benchmark results of abstim, stage by stage.

The figure of a round is the mean log time over the benchmarks both results have, less that of the round's yardstick: a
machine that is slower today is no slower abstim. Rounds of one result are its sample; the interval is Welch's for the
difference of two means. The yardstick follows the machine only in part, so nothing is told where it moved by more than
`MOST_DRIFT` between the results, nor a change below `LEAST_CHANGE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from abstim.models import DETAILED
from abstim.study.baseline import read_result
from abstim.study.bench.rate import STAGES, mad
from functional.errors import InputError

CONFIDENCE = 0.95
LEAST_CHANGE = 0.03
MOST_DRIFT = 0.10
LEAST_ROUNDS = 3  # fewer say nothing about noise
TOO_FEW, UNSTEADY = "untold: fewer than 3 rounds", "untold: the machine was not as fast"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One stage. `speed`: how many times as fast the new result is, `low` to `high` at 95 % confidence."""

    stage: str
    benchmarks: int
    old_rounds: int
    new_rounds: int
    old_mad: float  # median absolute deviation of the rounds, as a fraction of the time
    new_mad: float
    speed: float
    low: float | None
    high: float | None
    verdict: str  # faster, slower, same within noise, or why it is untold

    def to_json(self) -> dict[str, Any]:
        """As what `json.dumps` takes."""
        return asdict(self)


def read_old(path: Path, model: str) -> dict[str, Any]:
    """An earlier `abstim bench --json`. Raises InputError if it is none, or of another model."""
    data = read_result(path)
    if not isinstance(data, dict) or data.get("kind") != "bench":
        raise InputError(f"{path}: not a result of `abstim bench --json`")
    if (before := data.get("model", DETAILED)) != model:
        raise InputError(f"{path}: measured the {before} model; compare it with --model {before}")
    return data


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What besides abstim changed between two results: a comparison then says less."""
    pairs = [(key, old["machine"].get(key), value) for key, value in new["machine"].items() if key != "abstim"]
    pairs += [(key, old[key], new[key]) for key in ("gpu", "memory_model", "points")]
    return [f"{key} was {before}, is {after}" for key, before, after in pairs if before != after]


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Verdict]:
    """A verdict a stage, from two `BenchResult.to_json`. Raises InputError if they share no benchmark and stage."""
    drift = log(median(old["yardstick_seconds"]) / median(new["yardstick_seconds"]))
    found, steady = [], abs(drift) < log(1 + MOST_DRIFT)
    for stage in STAGES:
        shared = [
            name for name, stages in new["benchmarks"].items()
            if stage in stages and stage in old["benchmarks"].get(name, {})
        ]  # fmt: skip
        if shared:
            before, after = _rounds(old, stage, shared), _rounds(new, stage, shared)
            found.append(_verdict(stage, len(shared), before, after, steady))
    if not found:
        raise InputError("the two results have no benchmark and stage in common")
    return found


def _rounds(result: Mapping[str, Any], stage: str, names: Sequence[str]) -> list[float]:
    """Of every round the mean log time, in yardsticks."""
    columns = [result["benchmarks"][name][stage]["round_seconds"] for name in names]
    rounds = zip(*columns, strict=True)
    return [fmean(map(log, row)) - log(unit) for row, unit in zip(rounds, result["yardstick_seconds"], strict=True)]


def _verdict(stage: str, benchmarks: int, old: Sequence[float], new: Sequence[float], steady: bool) -> Verdict:
    speed, ends, verdict = fmean(old) - fmean(new), None, TOO_FEW
    if min(len(old), len(new)) >= LEAST_ROUNDS:
        ends = _interval(old, new)
        clear = ends[0] > 0 or ends[1] < 0
        told = (
            ("faster" if speed > 0 else "slower")
            if clear and abs(speed) > log(1 + LEAST_CHANGE)
            else "same within noise"
        )
        verdict = told if steady else UNSTEADY
    low, high = (exp(ends[0]), exp(ends[1])) if ends else (None, None)
    return Verdict(stage, benchmarks, len(old), len(new), mad(old), mad(new), exp(speed), low, high, verdict)


def _interval(old: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """Of mean(old) - mean(new). Without any spread there is nothing to doubt."""
    from scipy.stats import ttest_ind

    if max(*old, *new) == min(*old, *new) or (len(set(old)) == 1 and len(set(new)) == 1):
        return (fmean(old) - fmean(new),) * 2
    interval = ttest_ind(old, new, equal_var=False).confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high)
