"""A target's kernels by the occupancy model, as functions of latencies: cycles with derivatives carried along."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from abstim.gpu.spec import INSTRUCTION_CLASSES, Params
from abstim.gradient.timed_kernel import Slopes, TimedKernel, gpu_at
from abstim.occupancy_vector.design_points import machine_of_lanes, queue_of
from abstim.occupancy_vector.items import LATENCIES, cut, units_of, work_a_cycle
from abstim.occupancy_vector.lanes import cycles_of, run_with_derivatives
from abstim.occupancy_vector.records import DUAL_WIDTH, MEMORY, NUMBERS, POOLS, TERMS, TICKS, WORK_A_CYCLE, Items
from abstim.occupancy_vector.timed_launch import DesignPoint, TimedLaunch
from functional.arrays import Float64, Int32, Int64
from precharacterize.classify import latency_class

# Latencies of the load/store unit that each parameter is part of
MEMORY_LATENCIES = {
    "shared_latency_cycles": ("shared",),
    "const_latency_cycles": ("const",),
    "l1d_latency_cycles": ("l1d", "l1d_miss"),
    "l1_miss_extra_cycles": ("l1d_miss",),
    "atomic_latency_cycles": ("atomic",),
}
INITIATION, WORKS = "initiation_cycles.", ("occupies", *POOLS)  # a section of parameters; TERMS that they change
STEP_CYCLES = 2.0**-10  # in which numbers are linear in their parameters
AT_ONCE = DUAL_WIDTH - 1  # parameters of one run


class OccupancyKernel(TimedKernel):
    """By the occupancy model. At whole cycles (64ths of one for service times) it is exactly what that model says. In
    between it is linear: the schedule is that of the nearest such point, frozen, and so is what each time was the
    latest of."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        carried = not self.box  # whose latencies an item has in it: of PTX instructions
        self._timed = {n: TimedLaunch(self.session, n, self.classes(n) if carried else None) for n in self.launches}

    def classes(self, number: int) -> Int64[np.ndarray, " instr"]:
        """Each instruction's class, an index of LATENCIES."""
        instructions = self.session.launch(number).program.instructions
        return np.array([LATENCIES.index(latency_class(i)) for i in instructions], np.int64)

    def with_own_slopes(self, values: Float64[np.ndarray, " name"]) -> Slopes:
        base = np.array(list(self.base(values).values()), float)
        found = [self._with_slopes(self.point(number, values)) for number in self.launches]
        cycles, gradient = (np.array(column, float) for column in zip(*found, strict=True))
        return cycles + gradient @ (np.asarray(values, float) - base), gradient

    def point(self, number: int, values: Float64[np.ndarray, " name"]) -> DesignPoint:
        """A launch at the base point of some values."""
        return self._timed[number].design_point(gpu_at(self.gpu, self.base(values)))

    def engine_cycles(self, values: Float64[np.ndarray, " name"]) -> Float64[np.ndarray, " launch"]:
        found = [self._timed[number].times([self.point(number, values)])[0].cycles for number in self.launches]
        return np.array(found, float)

    def _with_slopes(self, point: DesignPoint) -> tuple[int, Float64[np.ndarray, " name"]]:
        gradient = np.array([float(name == "launch_latency_cycles") for name in self.names])
        last, lanes = np.zeros(0), point.lanes
        for first in range(0, len(self.names), AT_ONCE):
            names = self.names[first : first + AT_ONCE]
            ends = run_with_derivatives(lanes, *term_slopes(point, names), number_slopes(point, names))
            last = ends[ends[:, 0] == ends[:, 0].max()]
            gradient[first : first + len(names)] += last[:, 1 : 1 + len(names)].mean(0) / TICKS
        cycles = int(cycles_of(last[:1, 0].astype(np.int64))[0])
        return cycles + int(point.gpu.params.launch_latency_cycles), gradient


def number_slopes(point: DesignPoint, names: Sequence[str]) -> Float64[np.ndarray, "lane number name"]:
    """How each of NUMBERS changes with each parameter, ticks a cycle: they are linear in them."""
    gpu, told, chosen = point.gpu, point.walked.told, point.chosen
    slopes = np.zeros((len(chosen), len(NUMBERS), len(names)))
    for k, name in enumerate(names):
        if name in {f.name for f in fields(Params)}:
            more: dict[str, Any] = {name: getattr(gpu.params, name) + STEP_CYCLES}
            moved = replace(gpu, params=replace(gpu.params, **more))
            both = (machine_of_lanes(own, told.found, told.sms) for own in (moved, gpu))
            slopes[:, :, k] = np.subtract(*both)[chosen] * (TICKS / STEP_CYCLES)
        elif name == "initiation_cycles.sfu":
            slopes[:, NUMBERS.index("special_slack"), k] = queue_of(gpu, "sfu") * TICKS
    return slopes


def term_slopes(
    point: DesignPoint, names: Sequence[str]
) -> tuple[Int32[np.ndarray, " item_term"], Float64[np.ndarray, "row name"]]:
    """By which row each of TERMS of each item changes with each parameter; the rows, ticks a cycle. Those with a
    latency in them have that one's, the others rows of their own, if any change."""
    rows, several = point.cut.lent.value.rows, len(LATENCIES)
    found, slopes = np.zeros((len(rows), len(TERMS)), np.int32), np.zeros((several, len(names)))
    for term in ("next", "after_next", "drain", "latency"):
        found[:, TERMS.index(term)] = rows[f"{term}_of"]
    for k, name in enumerate(names):
        section, _, key = name.partition(".")
        latencies = MEMORY_LATENCIES.get(name, (key,) if section == "latency_cycles" else ())
        slopes[[LATENCIES.index(latency) for latency in latencies], k] = TICKS
    if works := [k for k, name in enumerate(names) if name.startswith(INITIATION)]:
        own = np.zeros((len(rows), len(WORKS), len(names)))
        for k in works:
            own[:, :, k] = _initiation_slopes(point, names[k].removeprefix(INITIATION))
        found[:, [TERMS.index(term) for term in WORKS]] = several + np.arange(own[..., 0].size).reshape(len(rows), -1)
        slopes = np.concatenate([slopes, own.reshape(-1, len(names))])
    return found.ravel(), slopes


def _initiation_slopes(point: DesignPoint, name: str) -> Float64[np.ndarray, "item work"]:
    """Of a class's initiation: its special unit is held longer, or its pool has more work."""
    rows, own = point.cut.lent.value.rows, INSTRUCTION_CLASSES.index(name) + 1
    slopes = np.zeros((len(rows), len(WORKS)))
    operation = point.gpu.pipeline.operation(name)
    units = units_of(point.gpu, operation.unit)
    held = (rows["latency_of"] == own) & (rows["unit"] != MEMORY) & (operation.initiation_cycles >= units)
    slopes[:, WORKS.index("occupies")] = TICKS / units * held
    table, warps, chosen = point.inputs.table, point.warps, point.of.latency_of == own
    counted: Items = cut(table, warps, point.gpu, chosen=np.asarray(chosen)).value
    for pool, factor in zip(POOLS, work_a_cycle(table, warps, point.gpu), strict=True):
        slopes[:, WORKS.index(pool)] = counted.rows[pool] * factor * TICKS / WORK_A_CYCLE
    return slopes
