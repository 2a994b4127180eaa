"""Miss ratios between the nodes of a hit-rate curve: linear, and along the size with continuous slopes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from abstim.analytic.curves import L1_STEP, SIZES, WAYS
from abstim.analytic.point import Point
from abstim.analytic.summary import RESIDENT_NODES, SM_NODES, Summary

if TYPE_CHECKING:
    from jaxtyping import Array, Float

RESIDENTS, SMS = np.array(RESIDENT_NODES), np.array(SM_NODES)


def between(values: Float[Array, "*other node"], nodes: np.ndarray, x: Array) -> Float[Array, "*other"]:
    """Linear in log x between the nodes, constant beyond them."""
    at = jnp.log(jnp.maximum(x, 1e-3))
    weights = jnp.stack([jnp.interp(at, np.log(nodes), row) for row in np.eye(len(nodes))])
    return values @ weights


def smooth_between(values: Float[Array, "*other node"], nodes: np.ndarray, x: Array) -> Float[Array, "*other"]:
    """The quadratic B-spline with the nodes' values as coefficients: monotone where they are, slope continuous."""
    last = len(nodes) - 1
    at = jnp.clip(jnp.log2(jnp.maximum(x, 1e-3) / nodes[0]) / np.log2(nodes[1] / nodes[0]), 0, last)
    middle = jnp.round(at).astype(jnp.int32)
    part = at - middle
    weights = (0.5 * (0.5 - part) ** 2, 0.75 - part**2, 0.5 * (0.5 + part) ** 2)
    taken = (jnp.take(values, jnp.clip(middle + k, 0, last), axis=-1) for k in (-1, 0, 1))
    return jnp.stack([weight * value for weight, value in zip(weights, taken, strict=True)]).sum(0)


def l2_lines(point: Point) -> Array:
    """Lines of all slices."""
    p = point
    return p.l2_sets * p.l2_ways * p.l2_slices_per_channel * p.dram_channels


def miss_ratios(summary: Summary, point: Point, resident: Array) -> tuple[Array, Array, Array]:
    """Share that misses L1D, and L1D and L2: of line accesses, then of critical batches of loads; and share of written
    sectors that misses L2."""
    p = point
    l1_lines = p.l1d_sets * p.l1d_ways

    def in_l2(values: Array) -> Array:
        return between(smooth_between(values, SIZES, l2_lines(p)), WAYS, p.l2_ways)

    l1 = between(smooth_between(summary.l1_misses, SIZES, l1_lines), WAYS, p.l1d_ways)
    l2 = between(in_l2(summary.l2_misses), SIZES[::L1_STEP], l1_lines)

    def at_point(values: Array) -> Array:
        return between(between(values, RESIDENTS, resident), SMS, p.sm_count)

    l1 = at_point(l1)
    return l1, jnp.minimum(l1, at_point(l2)), at_point(in_l2(summary.write_misses))
