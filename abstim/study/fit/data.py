"""What is fitted: what was measured, and the kernels that predict it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from abstim.brief import grouped
from abstim.gpu.config import Gpu, config_dir, load_gpu, read_toml
from abstim.gradient.timed_kernel import TimedKernel, kernel_of
from abstim.progress import Progress, in_parallel, silent
from abstim.session.session import Session, open_session
from abstim.study.silicon import MeasuredTime, target_in
from abstim.study.validate import Measured
from functional.arrays import Bool, Float64
from functional.errors import InputError, refuse


class Measurement(NamedTuple):
    """A target on a variant of a GPU: cycles of some of its launches, or, without `launches`, of all together."""

    benchmark: str  # as the table names it
    variant: str
    target: str
    launches: tuple[int, ...] | None
    cycles: tuple[float, ...]


def of_table(
    table: Sequence[Measured], gpu: str | None, overrides: Sequence[str]
) -> tuple[str, dict[str, Gpu], list[Measurement]]:
    """(name of the GPU that is fitted, GPU by variant, what was measured): the variant's own GPU, or `gpu` with the
    variant's overrides, if it is a known one, and then `overrides`. Raises InputError if they are of several GPUs."""
    known = read_toml(config_dir() / "validation" / "variants.toml")
    variants = list(dict.fromkeys(entry.variant for entry in table))
    for variant in variants:
        if variant not in known and gpu is None:
            raise InputError(f"variant {variant!r} is not known; say which GPU it is with --gpu")
    own = {known[variant]["gpu"] for variant in variants if variant in known}
    of_variants = _only(own or {gpu or ""}, "choose by --variant")
    name = gpu or of_variants
    gpus = {v: load_gpu(name, [*known.get(v, {"set": []})["set"], *overrides]) for v in variants}
    found = [Measurement(e.benchmark, e.variant, e.benchmark, (*e.cycles,), (*e.cycles.values(),)) for e in table]
    return name, gpus, found


def of_times(
    programs: Path, table: Sequence[MeasuredTime], gpu: str | None, overrides: Sequence[str]
) -> tuple[str, dict[str, Gpu], list[Measurement]]:
    """The same of times on hardware, whose targets lie in `programs`; a variant is a core clock. Of several GPUs those
    of `gpu` are read. Raises InputError if it is none of them, for a target twice, for caches that were not flushed."""
    table = [row for row in table if row.gpu == gpu] or table
    name = gpu or table[0].gpu
    _only({row.gpu for row in table}, "name one with --gpu")
    if kept := next((row for row in table if row.flush != "all"), None):
        raise InputError(f"{kept.name}: measured with flush {kept.flush!r}; fit times launches from empty caches: all")
    gpus, found = dict[str, Gpu](), list[Measurement]()
    groups = grouped(table, lambda row: (row.target, row.core_clock_hz, row.launch is None))
    for (target, clock_hz, whole), rows in groups.items():
        variant = f"{clock_hz / 1e6:g} MHz"
        refuse(whole and len(rows) > 1, f"{target} was measured {len(rows)} times at {variant}; keep one row")
        gpus[variant] = load_gpu(name, [f"core_clock_hz={clock_hz:.0f}", *overrides])
        cycles = tuple(row.time_ns * clock_hz * 1e-9 for row in rows)
        launches = None if whole else tuple(row.launch for row in rows if row.launch is not None)
        found.append(Measurement(target, variant, target_in(programs, target), launches, cycles))
    return name, gpus, found


def _only(names: set[str], what_to_do: str) -> str:
    refuse(len(names) != 1, f"the table is of several GPUs ({', '.join(sorted(names))}); {what_to_do}")
    return names.pop()


class Observed:
    """A measurement and the kernel that predicts it. Parameters that change none of its cycles around a point are held
    there (`matters`, `around`), so that points which differ in them alone are timed once."""

    def __init__(self, measurement: Measurement, kernel: TimedKernel) -> None:
        self.measurement, self.kernel = measurement, kernel
        self.matters: Bool[np.ndarray, " name"] = np.ones(len(kernel.names), bool)
        self._around = kernel.defaults()
        self._kept: dict[bytes, np.ndarray] = {}

    def engine_cycles(self, values: np.ndarray, exactly: bool = False) -> Float64[np.ndarray, " launch"]:
        """What the model says at some values. `exactly`: parameters that seem not to matter are not held."""
        point = np.asarray(values if exactly else np.where(self.matters, values, self._around), float)
        key = point.tobytes()
        if key not in self._kept:
            self._kept[key] = self._observed(self.kernel.engine_cycles(point))
        return self._kept[key]

    def with_gradient(self, values: np.ndarray, anew: bool) -> tuple[np.ndarray, np.ndarray]:
        """Cycles and their gradients at real values; `anew`: it is found out again which parameters matter."""
        names = None if anew else [n for n, own in zip(self.kernel.names, self.matters, strict=True) if own]
        cycles, gradient = self.kernel.by_launch(values, names)
        if anew and self.kernel.box:  # elsewhere a slope is at a point, and 0 says little
            self.matters, self._around = np.asarray(gradient.any(0)), np.asarray(values, float)
        return self._observed(cycles), self._observed(gradient)

    def _observed(self, of_launches: np.ndarray) -> np.ndarray:
        return of_launches.sum(0, keepdims=True) if self.measurement.launches is None else of_launches


class Observations:
    """Measurements, one after the other. `cycles` were measured, a launch each; `entry`: the measurement that a launch
    belongs to; `weights`, of its error in log cycles: 1 / sqrt(launches of its measurement), so that these weigh alike;
    `benchmarks`: names, each once."""

    def __init__(self, entries: list[Observed]) -> None:
        self.entries, measured = entries, [np.array(each.measurement.cycles, float) for each in entries]
        self.cycles: Float64[np.ndarray, " launch"] = np.concatenate([np.zeros(0), *measured])
        self.entry = np.repeat(np.arange(len(entries)), np.array(list(map(len, measured)), int))
        self.weights = np.asarray(1 / np.sqrt(np.bincount(self.entry)[self.entry]))
        self.benchmarks = list(dict.fromkeys(each.measurement.benchmark for each in entries))

    def engine_cycles(self, points: Sequence[np.ndarray], exactly: bool = False) -> Float64[np.ndarray, "point launch"]:
        """The engine's cycles at some parameter vectors."""
        count = len(self.entries)

        def one(n: int) -> np.ndarray:
            return self.entries[n % count].engine_cycles(points[n // count], exactly)

        return np.concatenate(in_parallel(one, count * len(points))).reshape(len(points), -1)

    def with_gradients(
        self, values: np.ndarray, anew: bool, progress: Progress = silent, what: str = ""
    ) -> tuple[Float64[np.ndarray, " launch"], Float64[np.ndarray, "launch name"]]:
        """Cycles and their gradients at real parameter values."""

        def one(n: int) -> tuple[np.ndarray, np.ndarray]:
            return self.entries[n].with_gradient(values, anew)

        found = in_parallel(one, len(self.entries), lambda done, total: progress(what, done, total))
        return np.concatenate([c for c, _ in found]), np.concatenate([g for _, g in found])

    def errors(self, cycles: Float64[np.ndarray, " launch"]) -> Float64[np.ndarray, " measurement"]:
        """Signed error of each measurement's cycles, summed over its launches, as a fraction of the measured ones."""
        return np.asarray(np.bincount(self.entry, cycles) / np.bincount(self.entry, self.cycles) - 1)


def observations(
    found: Sequence[Measurement], names: Sequence[str], gpus: dict[str, Gpu], model: str, progress: Progress = silent
) -> Observations:
    """Execute every target once, and make its kernels. InputError where one cannot run, or has no derivatives."""
    make = kernel_of(model)
    timed = next(iter(gpus.values()))
    if model == "analytic" and timed.spec.timed_code != "ptx":
        raise InputError(f"{timed.name} is timed from machine code, which --model analytic does not know; leave it out")
    sessions: dict[str, Session] = {}
    entries = []
    for number, each in enumerate(found):
        progress("execute", number, len(found))
        if each.target not in sessions:
            sessions[each.target] = open_session(each.target, [gpus[each.variant]])
        gpu = gpus[each.variant]
        kernel = make(sessions[each.target], names, gpu, each.launches, box=gpu.spec.timed_code != "ptx")
        entries.append(Observed(each, kernel))
    return Observations(entries)


def programs_of(data: Observations) -> list[int]:
    """Equal numbers for measurements of targets whose kernels are of one module, by its text."""
    first: dict[str, int] = {}
    found = list(range(len(data.entries)))
    for n, each in enumerate(data.entries):
        modules = {launch.program.digest for launch in each.kernel.session.case.launches}
        joined = {found[n], *(found[first.setdefault(module, n)] for module in sorted(modules))}
        found = [min(joined) if number in joined else number for number in found]
    return found


def split(programs: Sequence[int], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Positions to fit, and held out; a program's are on the same side. InputError for a fraction that leaves none."""
    refuse(not 0 < fraction <= 1, f"split {fraction:g}: the part to fit is above 0 and at most 1")
    different = list(dict.fromkeys(programs))
    order = np.random.default_rng(seed).permutation(len(different))
    fitted = {different[k] for k in order[: max(1, round(fraction * len(different)))]}
    inside = [k for k, program in enumerate(programs) if program in fitted]
    return inside, [k for k, program in enumerate(programs) if program not in fitted]
