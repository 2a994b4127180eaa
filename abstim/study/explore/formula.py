"""Points by the analytic model, as many at once as memory lets: results of a sweep, or a guide for a better model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from abstim.brief import grouped
from abstim.engine.design_point import refuse_without_units
from abstim.gpu.config import Gpu, not_looked_at
from abstim.gpu.spec import ALUS, FROM_TIME, HARDWARE_CLASSES, INSTRUCTION_CLASSES, POLICIES, in_cycles
from abstim.session.session import Session
from abstim.study.explore.jobs import Work
from abstim.study.explore.points import Points
from abstim.study.explore.search import FAILED, Cycles, Screen
from functional.arrays import Float
from functional.errors import InputError

AT_ONCE = 1 << 16  # points
_DECIDE_CYCLES = (*FROM_TIME.values(), "core_clock_hz", "dram_channels")
DifferentLaunches = Sequence[tuple[Any, int]]  # of a target: summaries that differ, and of how many launches each is
Formula = Callable[
    [Sequence[DifferentLaunches], Gpu, Mapping[str, np.ndarray], Callable[[np.ndarray], np.ndarray]], np.ndarray
]


def analytic_screen(sessions: Sequence[Session], gpu: Gpu) -> Screen:
    """A screen of the targets around a GPU. Keys it does not know (policies, banks, ...) change nothing in it."""
    targets = _launches_of(sessions, gpu)
    return lambda columns: formula_cycles(targets, gpu, columns)


def _launches_of(sessions: Sequence[Session], gpu: Gpu, points: np.ndarray | None = None) -> list[DifferentLaunches]:
    """What the formula asks of targets, around a GPU, or on some points alone."""
    from abstim.analytic import summaries

    def told(one: Any) -> bytes:
        return b"".join(part.tobytes() for part in (one.work, *one.tables))

    alike = [grouped(summaries(session, gpu, points), told).values() for session in sessions]
    return [[(same[0], len(same)) for same in launches] for launches in alike]


def _shared_out(gpu: Gpu, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """As of `analytic_points`, those that differ in how they share out thread blocks."""
    from abstim.analytic import points_of

    deciding = {key: columns[key] for key in ("sm_count", *RESIDENCY) if key in columns}
    if not deciding:
        return points_of([gpu])
    return analytic_points(gpu, dict(zip(deciding, np.unique(np.stack([*deciding.values()]), axis=1), strict=True)))


def formula_cycles(
    targets: Sequence[DifferentLaunches], gpu: Gpu, columns: Mapping[str, np.ndarray],
    rounded: Callable[[np.ndarray], np.ndarray] = lambda cycles: cycles,
) -> Float[np.ndarray, "point target"]:  # fmt: skip
    """Of points around a GPU, whose varied keys are `columns`: sums of launches, each as `rounded` gives it."""
    from abstim.analytic import predict

    count = len(next(iter(columns.values())))
    found = np.zeros((count, len(targets)))
    for first in range(0, count, AT_ONCE):  # all numbers of a point together are hundreds of bytes
        some = slice(first, first + AT_ONCE)
        points = analytic_points(gpu, {key: values[some] for key, values in columns.items()})
        for target, launches in enumerate(targets):
            for summary, often in launches:
                found[some, target] += often * rounded(predict(summary, points)["cycles"])
    return found


def analytic_points(gpu: Gpu, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """As many points of the analytic model as the columns have rows: the GPU with the columns put in."""
    from abstim.analytic import points_of

    points = np.repeat(points_of([gpu]), len(next(iter(columns.values()))))
    for key, values in columns.items():
        section, _, name = key.rpartition(".")
        if name in HARDWARE_CLASSES:  # of machine code alone
            continue
        if section == "unit":
            found = np.stack([values == unit for unit in ALUS], 1)
            points["on_unit"][:, :, INSTRUCTION_CLASSES.index(name)] = found
        elif section:
            points[section][:, INSTRUCTION_CLASSES.index(name)] = values
        elif key == "scheduler":
            points[key] = [POLICIES[policy].in_turn for policy in values]
        elif key in (points.dtype.names or ()):
            points[key] = values
    own = {key: columns.get(key, gpu.settings[key].value) + np.zeros(len(points)) for key in _DECIDE_CYCLES}
    for key, source in FROM_TIME.items():
        if own[source].all():  # 0: not said by time
            points[key] = in_cycles(key, own[source], own["core_clock_hz"], own["dram_channels"])
    return points


# Keys that decide how many thread blocks an SM holds (abstim.gpu.occupancy)
RESIDENCY = ("max_threads_per_sm", "max_warps_per_sm", "max_blocks_per_sm", "registers_per_sm", "shared_bytes_per_sm",
             "shared_bytes_kept_per_block", "register_allocation_granularity")  # fmt: skip
_UNITS = ("sub_cores", "schedulers_per_sm", *(f"{kind}_units" for kind in ALUS),
          *(f"unit.{name}" for name in INSTRUCTION_CLASSES))  # fmt: skip


@dataclass
class FormulaTimer:
    """Points by the analytic model, all at once; nothing is kept."""

    sessions: Sequence[Session]
    gpu: Gpu
    formula: Formula = formula_cycles
    work: Work = field(default_factory=Work)

    @staticmethod
    def refuse(points: Points) -> None:
        """Raises InputError for a varied key that the analytic model does not look at: as a result, rather than as a
        guide for a better model, its cycles would be wrong."""
        from abstim.analytic.predictions import UNREAD

        if unread := UNREAD.intersection(points.keys_of_gpu):
            raise InputError(not_looked_at(f"--vary {min(unread)}", "analytic"))

    def __call__(self, points: Points) -> tuple[Cycles, list[str]]:
        """As of `Timer`."""
        from abstim.analytic import whole_cycles
        from abstim.analytic.predictions import is_reading

        started = perf_counter()
        does_not_fit = points.of_alike((*RESIDENCY, *_UNITS), partial(self._does_not_fit, points))
        reasons = np.where(points.reasons == "", does_not_fit, points.reasons)
        usable = np.flatnonzero(reasons == "")
        cycles = np.full((len(points), len(self.sessions)), FAILED, np.int64)
        first = points.where(usable).of_alike([*filter(is_reading, points.keys_of_gpu)], lambda k: usable[k])
        for k in sorted(set(first.tolist())):  # of those that take a trace as it does
            alike = usable[first == k]
            columns = points.where(alike).keys_of_gpu
            launches = _launches_of(self.sessions, points.gpu(k), _shared_out(self.gpu, columns))
            cycles[alike] = self.formula(launches, self.gpu, columns, whole_cycles)
        self.work.count_points(cycles, self.sessions)
        self.work.seconds += perf_counter() - started
        return cycles, reasons.tolist()

    def _does_not_fit(self, points: Points, k: int) -> str:
        """Why a thread block does not fit on a point, or has not the units it needs."""
        try:
            gpu = points.gpu(k)
            for session in self.sessions:
                session.check_fit([gpu])
                for number in range(len(session)):
                    refuse_without_units(gpu.spec, session.table(number, gpu))
        except InputError as error:
            return str(error)
        return ""
