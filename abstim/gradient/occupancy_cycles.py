"""The cycles of launches by the occupancy model, as a JAX function of latencies and service times."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from abstim.gradient.occupancy_kernel import MEMORY_LATENCIES, OccupancyKernel
from abstim.gradient.timed_kernel import is_whole, step_of
from abstim.occupancy_vector.jax_lanes import Cut, bytes_of, ends_of
from abstim.occupancy_vector.records import LANE_ITEM, NUMBERS, TERMS, TICKS, Lanes
from functional.arrays import Float

WithGradient = Callable[[Array], tuple[Array, Array]]  # values [..., name] -> cycles [...], slopes [..., name]


def cycles_at_points(kernel: OccupancyKernel, with_gradient: WithGradient) -> Callable[[Array], Array]:
    """A function of values [point, name] that has the cycles [point] of all launches; `vmap` makes more points of it.
    Beside whole cycles (64ths of one for service times) they are linear, by the slopes of `with_gradient`."""
    launches = [_Launch(kernel, number) for number in kernel.launches]

    def on_points(values: Array) -> Array:
        with jax.enable_x64(True):
            return jnp.stack([launch.cycles(values) for launch in launches]).sum(0).astype(values.dtype)

    @jax.custom_batching.custom_vmap
    def at_points(values: Float[Array, "point name"]) -> Float[Array, " point"]:
        base = on_grid(kernel, values)
        return lax.cond(jnp.all(values == base), on_points, lambda given: with_gradient(given)[0], values)

    @at_points.def_vmap
    def more(size: int, batched: list[bool], values: Array) -> tuple[Array, bool]:
        return at_points(values.reshape(-1, values.shape[-1])).reshape(size, -1), True

    return at_points


def on_grid(kernel: OccupancyKernel, values: Float[Array, "*point name"]) -> Float[Array, "*point name"]:
    """Where the model is for given values, as `timed_kernel.base_values` has it."""
    own, step = (jnp.asarray(v, values.dtype) for v in (kernel.defaults(), [step_of(n) for n in kernel.names]))
    parts = jnp.round(values / step)
    service = jnp.where(parts == jnp.round(own / step), own, parts * step)
    return jnp.where(np.array([is_whole(name) for name in kernel.names]), jnp.floor(values + 0.5), service)


class _Launch:
    """One launch on a GPU, and the lanes that are run."""

    def __init__(self, kernel: OccupancyKernel, number: int) -> None:
        self._kernel, self._number = kernel, number
        point = kernel.point(number, kernel.defaults())
        self._own: Lanes = point.lanes
        self._rows = len(self._own.streams.lane_items)
        # the items are others where one of these is: so many that each instruction may be one
        self._cut_anew = any("." in name or name in MEMORY_LATENCIES for name in kernel.names)
        if self._cut_anew:
            self._rows = int(point.inputs.trace.warp_instructions[point.warps.value.leaders].sum())

    def cycles(self, values: Float[Array, "point name"]) -> Float[Array, " point"]:
        """Cycles at each point, all of them on the grid; NaN beyond what an accelerator's arrays count."""
        if not self._cut_anew:
            streams = self._own.streams
            same = (jnp.asarray(bytes_of(array)) for array in (streams.lane_items, streams.terms, streams.starts))
            return self._ended(*self._said(values, []), *same)
        starts = jax.ShapeDtypeStruct(bytes_of(self._own.streams.starts).shape, np.uint8)
        items = jax.ShapeDtypeStruct((self._rows, LANE_ITEM.itemsize), np.uint8)
        rest = [items, jax.ShapeDtypeStruct((self._rows * len(TERMS), 4), np.uint8), starts]
        return lax.map(lambda value: self._ended(*self._said(value[None], rest))[0], values)

    def _ended(self, machine: Array, latency: Array, items: Array, terms: Array, starts: Array) -> Array:
        ends = ends_of(self._own, Cut(machine, items, terms, starts))
        return jnp.where(ends.min(-1) < 0, jnp.nan, -(-ends.max(-1) // TICKS) + 1 + latency)

    def _said(self, values: Array, rest: list[jax.ShapeDtypeStruct]) -> tuple[Array, ...]:
        """(numbers of the lanes' machines as bytes, launch latency) at each point, and its items, terms and starts, if
        there is `rest`, their shapes; then there is one point."""
        points = values.shape[:-1]
        machines = jax.ShapeDtypeStruct((*points, len(self._own.first), len(NUMBERS) * 8), np.uint8)
        latencies = jax.ShapeDtypeStruct(points, np.int32)
        return jax.pure_callback(partial(self._say, bool(rest)), (machines, latencies, *rest), values)

    def _say(self, cut: bool, values: Array) -> tuple[np.ndarray, ...]:
        points = [self._kernel.point(self._number, value) for value in np.asarray(values, float)]
        lanes = [point.lanes for point in points]
        machines = np.stack([bytes_of(own.machine) for own in lanes])
        latencies = np.array([point.gpu.params.launch_latency_cycles for point in points], np.int32)
        if not cut:
            return machines, latencies
        items, terms = np.zeros(self._rows, LANE_ITEM), np.zeros(self._rows * len(TERMS), np.int32)
        streams = lanes[0].streams
        items[: len(streams.lane_items)], terms[: len(streams.terms)] = streams.lane_items, streams.terms
        return machines, latencies, bytes_of(items), bytes_of(terms), bytes_of(streams.starts)
