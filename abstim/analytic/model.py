"""Cycles of a launch on a design point, as one JAX function of a `Summary` and a `Point`.

time = launch latency + cold start + p-norm(waves of warps that hide each other's stalls, every resource's own time)"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from abstim.analytic.lone_warp import LOAD
from abstim.analytic.point import Point
from abstim.analytic.reuse_distance import L1_STEP, SIZES, WAYS
from abstim.analytic.summary import Summary, Work
from abstim.gpu.spec import ALUS

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    AnyArray = Array | np.ndarray


def between(values: Float[Array, "*other node"], nodes: AnyArray, x: Array) -> Float[Array, "*other"]:
    """Linear in log x between the nodes, constant beyond them."""
    at = jnp.log(jnp.maximum(x, 1e-3))
    weights = jnp.stack([jnp.interp(at, jnp.log(nodes), row) for row in np.eye(len(nodes))])
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
    l1_lines = jnp.where(p.l1d_bypass > 0, 1.0, p.l1d_sets * p.l1d_ways)

    def in_l2(values: Array) -> Array:
        return between(smooth_between(values, SIZES, l2_lines(p)), WAYS, p.l2_ways)

    l1 = between(smooth_between(summary.l1_misses, SIZES, l1_lines), WAYS, p.l1d_ways)
    l2 = between(in_l2(summary.l2_misses), SIZES[::L1_STEP], l1_lines)

    def at_point(values: Array) -> Array:
        return between(between(values, summary.resident_nodes, resident), summary.sm_nodes, p.sm_count)

    l1 = jnp.maximum(p.l1d_bypass, at_point(l1))
    return l1, jnp.minimum(l1, at_point(l2)), at_point(in_l2(summary.write_misses))


def by_sector(summary: Summary, point: Point, missed: Array, most: Array) -> tuple[Array, Array]:
    """(sectors that a cache asks for in whose place whole lines would miss so often, how many more accesses miss than
    there). One that asks for sectors asks once for each that is used, if the line stays, and for at most `most`."""
    w, p = summary.work, point
    sectored = jnp.maximum(p.l1d_sectored, p.l1d_bypass)
    lines = missed * w.lines
    sectors = jnp.where(sectored > 0, jnp.minimum(most, lines * w.line_sectors), lines * SECTORS_A_LINE)
    more = sectors * w.lines / jnp.maximum(1.0, w.load_sectors * lines)
    return sectors, jnp.where(sectored > 0, jnp.maximum(1.0, more), 1.0)


MOST_WARPS = 64  # of a scheduler
SHARPNESS = 4.0  # of the p-norm: two equal times cost 2^(1/4) = 1.19 times one
QUEUE = 0.3  # part of the requests of its wave in front of one, in the mean; of 0, 0.3, 0.5, 1 the least mean error
SECTORS_A_LINE, SECTOR_BYTES, WARP_THREADS = 4, 32, 32
BOUNDS = (
    "latency", "SP units", "SFU", "INT units", "DP units", "tensor units", "load/store unit", "fetch", "result bus",
    "SM replies", "SM stores", "L2", "DRAM", "atomics", "L1D misses in flight",
)  # fmt: skip


class Prediction(NamedTuple):
    """A launch on a design point and where its cycles come from; floats, or arrays with one leading axis."""

    cycles: Float[Array, "*point"]
    bounds_cycles: Float[Array, "*point bound"]  # each resource alone, in the order of BOUNDS
    cold_cycles: Float[Array, "*point"]
    resident_blocks: Float[Array, "*point"]
    l1d_misses: Float[Array, "*point"]
    l2_sectors: Float[Array, "*point"]  # asked for or written
    dram_sectors: Float[Array, "*point"]  # read


def predict_one(summary: Summary, point: Point) -> Prediction:
    """One launch on one design point."""
    s, p = summary, point
    resident, an_sm = resident_blocks(s, p)
    (l1, l1_wait), (l2, l2_wait), write = miss_ratios(s, p, resident)
    asked, more = by_sector(s, p, l1, s.work.load_sectors)
    read, more_read = by_sector(s, p, l2, asked)
    l1, l1_wait, l2, l2_wait = (
        jnp.minimum(1.0, x * y) for x, y in ((l1, more), (l1_wait, more), (l2, more_read), (l2_wait, more_read))
    )
    latency = latencies(p, l1_wait, l2_wait)
    alone, longest = (s.path @ latency).max(), (s.longest_path @ latency).max()
    cold = jnp.maximum(0, (s.cold_path @ latency).max() - (s.warm_path @ latency).max())
    uneven = busiest(s, p, resident / an_sm)
    share = uneven * an_sm / s.thread_blocks
    misses, sectors = l1 * s.work.lines, asked + s.work.store_sectors + s.work.atomics
    far = [
        *memory_cycles(s, p, share, misses, sectors, read + written_back(s, p, l2, write)),
        (1 - p.l1d_bypass) * in_flight_cycles(p, misses * share, l2 / jnp.maximum(1e-9, l1)),
    ]
    queue = QUEUE * jnp.stack(far).max() * resident / an_sm
    waves = jnp.maximum(longest, uneven * waves_cycles(s, p, alone + queue, resident, an_sm))
    bounds = jnp.stack([waves, *unit_cycles(s, p, share), *far])
    # what all SMs share idles while the first warps come to it, and after the last has been served: as long as a warp
    # takes for one of its loads
    idle = alone / jnp.maximum(1.0, s.path[:, LOAD].max())
    cycles = p.launch_latency_cycles + cold + jnp.maximum(p_norm(bounds), idle + jnp.stack(far).max())
    return Prediction(cycles, bounds, cold, resident, misses + s.work.stores, sectors, read)


def analytic_cycles(summary: Summary, point: Point) -> Float[Array, ""]:
    """Cycles of one launch on one design point; differentiable by every float of the point."""
    return predict_one(summary, point).cycles


def predict(summary: Summary, points: Point) -> Prediction:
    """One launch on `n` design points (`points_of`); every field of the result has `n` rows."""
    (one, whole), (rows, each) = (_joined(tree, axes) for tree, axes in ((summary, 0), (points, 1)))
    return _predict(one, rows, whole, each)


Shapes = tuple[tuple[int, ...], ...]


def _joined(tree: Any, axes: int) -> tuple[Float[np.ndarray, "*n number"], Shapes]:
    """(the arrays of a tree behind their first axes in one, which JAX takes over in the time of one; their shapes)."""
    arrays = [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(tree)]
    rows = [array.reshape(*array.shape[:axes], -1) for array in arrays]
    return np.concatenate(rows, -1), tuple(array.shape[axes:] for array in arrays)


def _apart(numbers: Float[Array, " number"], shapes: Shapes) -> list[Array]:
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(jnp.split(numbers, ends[:-1]), shapes, strict=True)]


@partial(jax.jit, static_argnums=(2, 3))
def _predict(one: Array, rows: Float[Array, "point number"], whole: Shapes, each: Shapes) -> Prediction:
    work, *others = len(Work._fields), *_apart(one, whole)
    summary = Summary(Work(*others[:work]), *others[work:])
    return jax.vmap(lambda row: predict_one(summary, Point(*_apart(row, each))))(rows)


def p_norm(bounds: Float[Array, " bound"]) -> Float[Array, ""]:
    """A smooth maximum, never below the largest."""
    largest = jax.lax.stop_gradient(bounds.max())
    return largest * ((bounds / largest) ** SHARPNESS).sum() ** (1 / SHARPNESS)


def whole(x: Array, rounding) -> Array:
    """`rounding(x)` with the derivative of x: steps in SM count or occupancy keep a slope."""
    return x + jax.lax.stop_gradient(rounding(x) - x)


def resident_blocks(summary: Summary, point: Point) -> tuple[Array, Array]:
    """Thread blocks an SM holds (abstim/occupancy.py), and blocks the busiest SM gets."""
    s, p = summary, point
    granularity = p.register_allocation_granularity
    registers = granularity * jnp.ceil(s.registers_per_thread / granularity) * WARP_THREADS * s.warps_per_block
    limits = jnp.stack([
        p.max_threads_per_sm / (WARP_THREADS * s.warps_per_block),
        p.max_warps_per_sm / s.warps_per_block,
        p.max_blocks_per_sm,
        p.registers_per_sm / jnp.maximum(1, registers),
        p.shared_bytes_per_sm / jnp.maximum(1, s.shared_bytes),
    ])  # fmt: skip
    an_sm = whole(s.thread_blocks / p.sm_count, lambda x: jnp.ceil(x - 1e-4))
    fitting = jnp.maximum(1, whole(limits.min(), lambda x: jnp.floor(x + 1e-4)))
    return jnp.minimum(fitting, an_sm), an_sm


def busiest(summary: Summary, point: Point, first: Array) -> Array:
    """Work of the busiest SM over that of as many mean blocks. Only the `first` part of its blocks, those handed out at
    the start, is dealt out blindly; the others go where there is room."""
    counts = np.arange(1, len(summary.imbalance) + 1)
    return 1 + first * (jnp.interp(point.sm_count, counts, summary.imbalance) - 1)


def miss_cycles(point: Point) -> tuple[Array, Array]:
    """What an L1D miss costs that L2 has, and what it costs more if not (docs/timing-rules.md, rule 11)."""
    p = point
    l2 = p.l2_request_cycles + p.l2_sector_cycles + p.l2_reply_cycles + SECTORS_A_LINE
    dram = p.dram_latency_cycles + p.dram_reply_cycles - p.l2_reply_cycles + p.dram_activate_cycles
    return l2, dram + SECTORS_A_LINE * p.dram_sector_cycles


def latencies(point: Point, l1_wait: Array, l2_wait: Array) -> Float[Array, " latency"]:
    """In the order of nodes.LATENCIES. `*_wait`: the share of critical loads that L1D, that L1D and L2 have not."""
    p, real = point, 1 - point.perfect_memory
    l2, dram = miss_cycles(p)
    miss = p.perfect_memory * p.l1_miss_extra_cycles + real * l2
    beyond = [
        p.shared_latency_cycles,
        p.const_latency_cycles,
        (1 - p.l1d_bypass) * p.l1d_latency_cycles + l1_wait * miss + real * l2_wait * dram,
        p.l1d_latency_cycles + miss,
        p.perfect_memory * p.atomic_latency_cycles + real * l2,
        (1 - p.perfect_instruction_cache) * (p.perfect_memory * p.l1i_miss_extra_cycles + real * (l2 + dram)),
        p.const_latency_cycles + (1 - p.perfect_constant_cache) * (miss + real * dram),
        jnp.ones_like(p.shared_latency_cycles),
    ]
    return jnp.concatenate([p.latency_cycles, jnp.stack(beyond)])


def ipc_one_issue(
    stall_cycles_an_instruction: Float[Array, "*point"], warps: Float[Array, "*point"]
) -> Float[Array, "*point"]:
    """IPC of a scheduler of which only the warp that issues can stall.

    In TBPoint's Markov chain (IPDPS 2014, Section IV-A) every warp that can run moves on in every cycle, issued or not.
    Here those not issued keep waiting: a closed queue of one server and N sources, whose server idles with the
    probability of Erlang's loss formula B(N, p M), whatever the distribution of stalls. `warps` need not be whole.
    """
    offered = stall_cycles_an_instruction
    start = warps - jnp.floor(warps)
    blocked = offered / (offered + start)

    def step(n, blocked):
        more = offered * blocked / (start + n + offered * blocked)
        return jnp.where(start + n <= warps + 1e-3, more, blocked)

    return 1 - jax.lax.fori_loop(1, MOST_WARPS + 1, step, blocked)


def waves_cycles(summary: Summary, point: Point, alone: Array, resident: Array, an_sm: Array) -> Array:
    """The busiest SM's time if only latencies and issue slots count: full waves of blocks, then a partial one.

    A warp takes `alone` cycles by itself; the more of them there are, the more of its stalls the others hide.
    """
    s, schedulers = summary, point.schedulers_per_sm
    instructions = s.work.instructions / (s.thread_blocks * s.warps_per_block)
    stalled = jnp.maximum(1e-3, alone / instructions - 1)  # cycles an instruction: p M

    def wave(blocks: Array) -> Array:
        warps = blocks * s.warps_per_block
        return warps * instructions / (schedulers * ipc_one_issue(stalled, warps / schedulers))

    full = jax.lax.stop_gradient(jnp.ceil(an_sm / resident - 1e-4) - 1)
    return full * wave(resident) + wave(an_sm - full * resident)


def unit_cycles(summary: Summary, point: Point, share: Array) -> list[Array]:
    """The busiest SM's units, each working without a pause; `share`: the part of the launch it does."""
    w, p = summary.work, point
    issued = w.by_class * share
    return [
        *(alu_cycles(p, unit, issued * p.on_unit[k]) for k, unit in enumerate(ALUS)),
        share * jnp.maximum(w.access_cycles / p.lsu_units, w.accesses / p.mem_port_width),
        share * w.fetches / p.fetches_per_cycle,
        issued.sum() / p.result_bus_width,
    ]


def alu_cycles(point: Point, unit: str, issued: Float[Array, " instruction_class"]) -> Array:
    """What the units of one kind need for the instructions of an SM; none, if the SM has no such units."""
    units, width = getattr(point, f"{unit}_units"), getattr(point, f"{unit}_port_width")
    return jnp.maximum((issued * point.initiation_cycles).sum() / jnp.maximum(units, 1), issued.sum() / width)


def written_back(summary: Summary, point: Point, l2: Array, write: Array) -> Array:
    """Sectors written to DRAM: what was written of all lines that came into L2 but the last, which are still there."""
    w = summary.work
    came = l2 * w.lines + write * w.store_lines
    return write * w.store_sectors * jnp.maximum(0, 1 - l2_lines(point) / jnp.maximum(1, came))


def memory_cycles(
    summary: Summary, point: Point, share: Array, misses: Array, sectors: Array, dram: Array
) -> list[Array]:
    """What the busiest SM's port, the L2 slices and the DRAM channels need for the traffic. A slice answers one sector
    a cycle, however many it reads (docs/timing-rules.md, rule 11)."""
    w, p, real = summary.work, point, 1 - point.perfect_memory
    answers = p.perfect_memory * (misses + w.stores + w.atomics) + real * sectors
    sent = w.store_sectors * SECTOR_BYTES + w.stores * p.packet_header_bytes
    served = (sectors - w.atomics) * jnp.maximum(1, p.l2_sector_cycles) + w.atomics * p.l2_atomic_cycles
    slices = p.dram_channels * p.l2_slices_per_channel
    # what a switch passes that queues at its inputs (docs/occupancy-vector.md, "Memory")
    switch = sectors * (1 / p.sm_count + 1 / slices) * (1 - jnp.maximum(p.crossbar_repeats, p.crossbar_output_queues))
    return [
        share * answers,
        real * share * sent / p.flit_bytes,
        real * jnp.maximum(served / slices, switch),
        real * dram * p.dram_sector_cycles / p.dram_channels,
        real * w.hottest_atomics * p.l2_atomic_cycles,
    ]


def in_flight_cycles(point: Point, misses: Array, beyond: Array) -> Array:
    """What L1D needs for its misses: one whose set is full of lines on their way blocks the tags.

    Lines drawn at random fill a set of `ways` after as many draws as it takes for `ways` + 1 people to share a birthday
    (Klamkin and Newman, 1967); so many are in flight. `beyond`: the share of misses that L2 has not.
    """
    p, people = point, point.l1d_ways + 1
    drawn = jnp.exp(gammaln(1 + 1 / people) + gammaln(people + 1) / people) * p.l1d_sets ** (p.l1d_ways / people)
    l2, dram = miss_cycles(p)
    return (1 - p.perfect_memory) * misses * (l2 + beyond * dram) / jnp.minimum(drawn, p.l1d_sets * p.l1d_ways)
