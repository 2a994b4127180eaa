"""Sampling of targets that are executed launch by launch: whole launches are chosen, from profiles of a few thread
blocks (`abstim.launch_sampling`), and nothing else is executed where traces provably depend on shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

from abstim.config import Gpu
from abstim.launch_sampling import METHODS, LaunchProfile, profile
from abstim.launch_sampling import sample as sample_launches
from abstim.progress import Progress, silent
from abstim.sampled.result import Comparison, SampleResult
from abstim.simulate import run
from functional.case import Case
from functional.errors import InputError
from sampling import Full

DEFAULT = "stem"


def sample_streamed(case: Case, gpu: Gpu, method: str, progress: Progress = silent) -> SampleResult:
    """One method on a program of many launches. Raises InputError for a method that looks inside launches."""
    _check(case, [method])
    return _by(case, gpu, method, profile(case, gpu, progress), progress)


def compare_streamed(case: Case, gpu: Gpu, methods: Sequence[str], progress: Progress = silent) -> Comparison:
    """Methods beside the full simulation; without names all those that choose whole launches."""
    names = list(methods) or list(METHODS)
    _check(case, names)
    whole = run(case, gpu, progress=progress)
    known = profile(case, gpu, progress)
    cycles = [launch.cycles for launch in whole.launches]
    full = SampleResult(
        target=case.name, gpu=gpu.name, method="full",
        estimate=Full().select(known.profile).estimate([float(c) for c in cycles]), seconds=_stages(whole.wall_seconds),
    )  # fmt: skip
    found = [_by(case, gpu, name, known, progress) for name in names]
    return Comparison(full=full, results=found, cycles=cycles)


def _check(case: Case, names: Sequence[str]) -> None:
    for name in names:
        if name not in METHODS:
            raise InputError(
                f"{case.name} is executed launch by launch: {name!r} does not choose whole launches; "
                f"there are {', '.join(METHODS)}"
            )


def _by(case: Case, gpu: Gpu, name: str, known: LaunchProfile, progress: Progress) -> SampleResult:
    found = sample_launches(case, gpu, known, METHODS[name](), progress)
    seconds = {"execute": known.seconds, "time": found.detail_seconds, "analyse": 0.0}
    return SampleResult(target=case.name, gpu=gpu.name, method=name, estimate=found.estimate, seconds=seconds)


def _stages(seconds: dict[str, float]) -> dict[str, float]:
    return {"execute": seconds.get("execute", 0.0), "time": seconds.get("time", 0.0), "analyse": 0.0}
