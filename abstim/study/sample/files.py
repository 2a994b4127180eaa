"""Files of other tools: profiles and times are read, selections of launches are written."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from abstim.gpu.config import Gpu
from abstim.progress import Progress
from abstim.study.sample.methods import Known, method_named
from abstim.study.sample.profiling import profile_of
from abstim.study.sample.sample_result import plain_estimate
from abstim.study.sample.sampler import opened
from abstim.targets.resolve import open_target, sass_opcode
from functional.arrays import Float64
from functional.errors import InputError, refuse
from functional.files import table_rows
from functional.programs.dependence import signatures
from sampling import Estimate, Profile, SamplingError, Selection, selection_files
from sampling.estimate import bounded
from sampling.nsight import read_nsight_compute, read_nsight_systems, read_nsight_times


def known_from(profile: Path | None, light: Path | None) -> Known | None:
    """What the files say; None without any. A light profile alone is one of names, shapes and times. Both, of equally
    many launches: the times are those of the light one, which a profiler slows less. Raises InputError for a file that
    is not what it should be."""
    try:
        detailed = None if profile is None else read_nsight_compute(profile)
        every = None if light is None else read_nsight_systems(light)
    except SamplingError as error:
        raise InputError(str(error)) from None
    if profile is None and light is None:
        return None
    if detailed is None and every is not None:  # threads stand for instructions, which nobody counted
        blocks, threads = every.dimensions[:, :3].prod(1), every.dimensions[:, 3:].prod(1)
        light_alone = Profile(
            instructions=np.maximum(blocks * threads / 32, 1.0),
            kernels=np.unique(every.names, return_inverse=True)[1].reshape(-1),
            thread_blocks=blocks.astype(np.int64),
            threads_per_block=threads.astype(np.int64),
            cycles=every.nanoseconds,
        )
        return Known(light_alone, measured=True)
    assert detailed is not None
    if every is not None and len(every.names) == len(detailed):
        return Known(replace(detailed, cycles=every.nanoseconds), measured=True)
    return Known(detailed, every, measured=detailed.cycles is not None)


def write_selection(
    target: str, gpu: Callable[[], Gpu], method: str, known: Known | None, folder: Path | None, progress: Progress,
    traces: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Files in `folder`: selection.json, selection.csv, launches.simpoints and .weights; of a kernelslist.g the reduced
    list, of other targets Nsight Compute's kernel ids and, with `traces`, Accel-Sim's traces of what was selected.
    Without a profile the target is executed on `gpu` for one. Returns what was written. Raises InputError."""
    chosen = method_named(method)
    if folder is None:
        raise InputError("--select-only needs a folder: -o DIR")
    if chosen.select is None:
        raise InputError(f"{method} does not select launches beforehand; choose another method")
    is_list = target.endswith(".g")
    refuse(is_list and traces, f"{target}: its traces are there already; leave out --traces")
    if known is None and is_list:
        raise InputError(f"{target}: a list of traces has no profile; give one with --profile or --light-profile")
    if known is None:
        known = Known(profile_of(opened(open_target(target), gpu(), online=False, progress=progress)))
    try:
        selection = chosen.select(known)
        files = [selection_files.write_csv(selection, folder), *selection_files.write_simpoints(selection, folder)]
        if is_list:
            files.append(selection_files.write_kernelslist(selection, Path(target), folder))
        else:
            files += _of_launches(target, selection, folder, traces, progress)
        files.append(selection_files.write_json(selection, chosen.name, target, folder))
    except SamplingError as error:
        raise InputError(f"{method}: {error}") from None
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror}") from None
    return {
        "method": method, "launches": len(selection.strata), "selected": len(selection.units),
        "detailed_fraction": selection.detailed_fraction, "files": [str(file) for file in files],
    }  # fmt: skip


def _of_launches(target: str, selection: Selection, folder: Path, traces: bool, progress: Progress) -> list[Path]:
    from functional.accelsim import write

    case = open_target(target)
    if len(case.launches) != len(selection.strata):
        raise InputError(f"the profile has {len(selection.strata)} launches, {case.name} has {len(case.launches)}")
    files = [selection_files.write_kernel_ids(selection, [launch.program.name for launch in case.launches], folder)]
    if traces:
        chosen = frozenset(selection.units.tolist())
        alone = signatures(case) is not None
        files += write(case, folder / "traces", sass_opcode, chosen=chosen, alone=alone, progress=progress)
    return files


UNITS = ("cycles", "nanoseconds", "microseconds", "seconds")  # columns that times may stand in


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedElsewhere:
    """A program's time from those of its chosen launches, in the `unit` in which these were given."""

    target: str
    method: str
    unit: str
    launches: int
    selected: int
    estimate: Estimate

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        return asdict(self) | {"kind": "sample-from-times", "estimate": plain_estimate(self.estimate)}


def estimate_from(selection: str, times: Path) -> TimedElsewhere:
    """`selection`: the selection.json of `write_selection`, or its folder; `times`: a CSV with a column `launch` and
    one of UNITS, or the output of `ncu --csv`, in the order of the launches. Raises InputError for files that are not
    what they should be, or of other launches than were selected."""
    path = Path(selection)
    try:
        chosen, method, target = selection_files.read_json(path / "selection.json" if path.is_dir() else path)
        unit, found = _times(times, chosen)
        estimate = chosen.estimate(found.tolist())
    except SamplingError as error:
        raise InputError(str(error)) from None
    return TimedElsewhere(
        target=target, method=method, unit=unit, launches=len(chosen.strata), selected=len(chosen.units),
        estimate=bounded(estimate, method),
    )  # fmt: skip


def _times(path: Path, selection: Selection) -> tuple[str, Float64[np.ndarray, " sample"]]:
    rows = [row for _, row in table_rows(path)]
    if not rows or "launch" not in rows[0]:
        unit, found = read_nsight_times(path)
    else:
        unit = next((unit for unit in UNITS if unit in rows[0]), "")
        found = _times_of(path, rows, unit, selection)
    if len(found) != len(selection.units):
        raise InputError(f"{path}: {len(found)} times for {len(selection.units)} selected launches")
    refuse(not (np.isfinite(found) & (found > 0)).all(), f"{path}: a time is not a positive number")
    return unit, found


def _times_of(path: Path, rows: list[dict[str, str]], unit: str, chosen: Selection) -> Float64[np.ndarray, " sample"]:
    """In the order of the selection; a launch may be there several times, and counts with its mean."""
    refuse(not unit, f"{path}: no column of times; name one {', '.join(UNITS)}")
    try:
        launches, times = np.array([int(row["launch"]) for row in rows]), np.array([float(row[unit]) for row in rows])
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    if missing := sorted(set(chosen.units.tolist()) - set(launches.tolist())):
        raise InputError(f"{path}: no time of launch {missing[0]}, which was selected ({len(missing)} are missing)")
    return np.array([times[launches == unit].mean() for unit in chosen.units])
