"""`abstim.kernel_time`: the cycles of a target as a function that JAX can transform."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from abstim.analytic.model import analytic_cycles, as_arrays
from abstim.analytic.point import Point, points_of
from abstim.analytic.predictions import summary_of
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from abstim.gradient.occupancy_cycles import cycles_at_points
from abstim.gradient.occupancy_kernel import OccupancyKernel
from abstim.gradient.timed_kernel import Slopes, TimedKernel, base_values, check_names, gpu_at, kernel_of, refuse_times
from abstim.occupancy_vector.kept_programs import kept_programs
from functional.arrays import Float, Float64
from functional.errors import refuse

cycles_with_slopes = jax.jit(jax.value_and_grad(analytic_cycles, argnums=1))


class FormulaKernel(TimedKernel):
    """By the formula, whose summaries of launches are those of the GPU's own values."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        refuse_times(self.names)  # a point of the formula is in cycles
        self._own: Any = as_arrays(points_of([self.gpu])[0])
        summaries = (summary_of(self.session, number, self.gpu) for number in self.launches)
        self._summaries = [as_arrays(summary) for summary in summaries]

    def cycles(self, values: Float[jax.Array, " name"]) -> Float[jax.Array, ""]:
        """Cycles of all launches."""
        point = self._point(values)
        return jnp.stack([analytic_cycles(summary, point) for summary in self._summaries]).sum()

    def with_own_slopes(self, values: Float64[np.ndarray, " name"]) -> Slopes:
        self.base(values)  # refuses what is no number of cycles
        cycles, slopes = [], []
        with kept_programs():
            point = self._point(jnp.asarray(values, jnp.float32))
            for summary in self._summaries:
                found, slope = cycles_with_slopes(summary, point)
                cycles.append(float(found))
                slopes.append([self._of(slope, name) for name in self.names])
        return np.array(cycles), np.array(slopes)

    def engine_cycles(self, values: Float64[np.ndarray, " name"]) -> Float64[np.ndarray, " launch"]:
        return self.with_own_slopes(values)[0]

    def _point(self, values: Float[jax.Array, " name"]) -> Point:
        point = self._own
        for k, name in enumerate(self.names):
            section, _, key = name.rpartition(".")
            if section:
                moved = jnp.asarray(getattr(point, section)).at[INSTRUCTION_CLASSES.index(key)].set(values[k])
                point = point._replace(**{section: moved})
            elif name in Point._fields:
                point = point._replace(**{name: values[k]})
        return point

    @staticmethod
    def _of(slopes: Point, name: str) -> float:
        """What a gradient has of a parameter; 0 for what the formula does not look at."""
        section, _, key = name.rpartition(".")
        if section:
            return float(getattr(slopes, section)[INSTRUCTION_CLASSES.index(key)])
        return float(getattr(slopes, name, 0.0))


KERNELS = 32  # targets kept ready


def kernel_time(
    params: Mapping[str, jax.typing.ArrayLike], target: Any, gpu: str | Gpu = "gtx480", *,
    launches: Sequence[int] | None = None, model: str = "detailed", box: bool = False,
) -> Array:  # fmt: skip
    """Core cycles of a target's launches (all, or those at some positions), caches flushed before each.

    `params`: values of some latencies and service times of the GPU, by name (`timed_kernel.PARAMETERS`:
    every key of [params], [latency_cycles] and [initiation_cycles]), scalars in core cycles, or `TIMES` as [time] has
    them; the others are the GPU's own. `target`: what `abstim.run` takes, or a `Session`. jit, vmap, jvp, grad, jacfwd
    and scan compose with it; only `params` may be traced. The result has the precision of JAX's floats: enable
    `jax_enable_x64` beyond 16 million cycles.

    At whole cycles (64ths of one for service times) it is exactly what the model says; in between it is linear. The
    slopes by the detailed model, and with `box` by all, are those of the mean over 10 % to either side of a value
    (docs/fit.md), else by the occupancy model those of the frozen schedule (docs/occupancy-vector.md).

    `model`: detailed, occupancy, or analytic, the formula, whose cycles are not rounded. Raises InputError for another
    one, an unknown name, a value that is no scalar or out of range, or a launch that is not there; inside a transformed
    function a value out of range is JAX's own runtime error."""
    names = check_names(params)
    values = [jnp.asarray(params[name], float) for name in names]
    for name, value in zip(names, values, strict=True):
        refuse(value.shape, f"{name} has the shape {value.shape}; kernel_time takes scalars, jax.vmap does arrays")
    named = _Target(target if isinstance(target, str) else id(target), target)
    kernel = _kernel(named, names, gpu, None if launches is None else tuple(launches), model, box)
    if not any(isinstance(value, jax.core.Tracer) for value in values):
        gpu_at(kernel.gpu, base_values(kernel.gpu, {n: float(v) for n, v in zip(names, values, strict=True)}))
    return cycles_of(kernel)(jnp.stack(values))


@dataclass(frozen=True)
class _Target:
    key: str | int  # text by value, anything else by identity
    target: Any = field(compare=False)


@lru_cache(KERNELS)
def _kernel(
    target: _Target, names: tuple[str, ...], gpu: str | Gpu, launches: tuple[int, ...] | None, model: str, box: bool
) -> TimedKernel:
    return kernel_of(model)(target.target, names, gpu, launches, box=box)


@lru_cache(KERNELS)
def cycles_of(kernel: TimedKernel) -> Callable[[Array], Array]:
    """Cycles of a kernel's launches as a function of values [name]."""
    if isinstance(kernel, FormulaKernel) and not kernel.box:
        return jax.jit(kernel.cycles)
    with_gradient = partial(_cycles_and_gradient, kernel)
    if isinstance(kernel, OccupancyKernel):
        at_points = cycles_at_points(kernel, with_gradient)
    else:

        def at_points(values: Array) -> Array:
            return _on_host(lambda point: (kernel.at(point),), [()], values)[0]

    @jax.custom_jvp
    def cycles(values: Array) -> Array:
        return at_points(values[None])[0]

    @cycles.defjvp
    def with_slopes(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        found, gradient = with_gradient(*primals)
        return found, gradient @ tangents[0]

    return cycles


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _cycles_and_gradient(kernel: TimedKernel, values: Array) -> tuple[Array, Array]:
    cycles, gradient = _on_host(kernel, [(), (len(kernel.names),)], values)
    return cycles, gradient


@_cycles_and_gradient.defjvp
def _linear(kernel: TimedKernel, primals: tuple[Array], tangents: tuple[Array]):
    cycles, gradient = _cycles_and_gradient(kernel, *primals)
    return (cycles, gradient), ((gradient * tangents[0]).sum(-1), jnp.zeros_like(gradient))


def _on_host(
    function: Callable[[np.ndarray], tuple[Any, ...]], shapes: Sequence[tuple[int, ...]], values: Array
) -> tuple[Array, ...]:
    """What a function of values [name] says of each of values [..., name], in arrays [..., *shape]."""

    def of_points(values: Any) -> tuple[np.ndarray, ...]:
        given = np.asarray(values)
        found = [function(point.astype(float)) for point in given.reshape(-1, given.shape[-1])]
        columns = zip(zip(*found, strict=True), shapes, strict=True)
        return tuple(np.array(own, given.dtype).reshape((*given.shape[:-1], *shape)) for own, shape in columns)

    types = tuple(jax.ShapeDtypeStruct((*values.shape[:-1], *shape), values.dtype) for shape in shapes)
    return jax.pure_callback(of_points, types, values, vmap_method="broadcast_all")
