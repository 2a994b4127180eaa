"""`abstim.kernel_time`: the cycles of a target as a function that JAX can transform."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from abstim.gpu.config import Gpu
from abstim.gradient.formula_kernel import FormulaKernel
from abstim.gradient.occupancy_cycles import cycles_at_points
from abstim.gradient.occupancy_kernel import OccupancyKernel
from abstim.gradient.parameter_vector import base_values, check_names, gpu_at
from abstim.gradient.timed_kernel import TimedKernel, kernel_of
from functional.errors import refuse

KERNELS = 32  # targets kept ready


def kernel_time(
    params: Mapping[str, jax.typing.ArrayLike], target: Any, gpu: str | Gpu = "gtx480", *,
    launches: Sequence[int] | None = None, model: str = "detailed", box: bool = False,
) -> Array:  # fmt: skip
    """Core cycles of a target's launches (all, or those at some positions), caches flushed before each.

    `params`: values of some latencies and service times of the GPU, by name (`parameter_vector.PARAMETERS`:
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
