"""Cycles of a launch on a design point: functions of a launch's SUMMARY and a POINT that JAX traces, and that are
compiled: in place of records JAX has named tuples of arrays.

time = launch latency + p-norm(waves of warps that hide each other's stalls, every resource's time and its idle ends)"""

from collections import namedtuple
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from abstim.analytic import real_numbers as maths
from abstim.analytic.lone_warp import ATOMIC, CLASSES, CONST, CONST_MISS, FETCH_MISS, LOAD, ONE, SHARED, STORE
from abstim.analytic.look import MOST_SMS, SUMMARY, Tables, look
from abstim.analytic.point import POINT, Point
from abstim.analytic.real_numbers import ceil, dot, dot_of_three, fixed, floor, larger, power, smaller, where
from abstim.analytic.reuse_distance import (
    DISTANCE_BINS,
    L1_NODES,
    LAST_SIZE,
    LAST_WAYS,
    UPDATE_ROW,
    WRITE_ROW,
    miss_matrix,
)
from abstim.analytic.row_visits import STRETCH_LOG2, TOGETHER, VISIT_BINS
from functional.arrays import Array, Float
from functional.jit.machine_code import compiled
from functional.traces.line_record import SECTORS_A_LINE
from functional.traces.trace import LINE_BYTES

MOST_WARPS = 64  # of a scheduler
SHARPNESS = 12  # of the p-norm: two equal times cost 2^(1/12) = 1.06 times one
# Part of the requests of its wave in front of one, in the mean: of warps that are out of step, or take turns; part of a
# warp's path, or visits of it, for which what all wait for is half idle, at the end
QUEUE, QUEUE_IN_TURN, DRAIN, DRAIN_VISITS = 0.2, 0.5, 0.4, 2
SECTOR_BYTES, WARP_THREADS = 32, 32
BOUNDS = (
    "latency", "SFU", "DP units", "tensor units", "load/store unit", "SP units", "INT units", "front end", "result bus",
    "SM replies", "SM stores", "L2", "DRAM", "atomics", "L1D misses in flight",
)  # fmt: skip
# Where those begin of units that queue what they are given, of what schedulers share out, and of what SMs share
LATENCY, UNITS, SHARED_OUT, MEMORY, ATOMICS = (
    BOUNDS.index(name) for name in ("latency", "SFU", "SP units", "SM replies", "atomics")
)
# A launch on a design point: its cycles, those that each of BOUNDS takes alone, and of the cold start; hit rates (-1:
# of nothing) and counters as the engine has them. On the way there: the tables that it lies between, each of which is
# some part of it; shares of critical loads that L1D has not, that L2 has neither, and of atomics that L2 has not
COUNTERS = "l1d_accesses", "l1d_misses", "l2_accesses", "dram_reads"
HIT_RATES = "l1d_hit_rate", "l2_hit_rate"
TABLES_BETWEEN = 4
PREDICTION = np.dtype([
    ("cycles", "f8"), ("bounds_cycles", "f8", len(BOUNDS)),
    *((name, "f8") for name in ("cold_cycles", "resident_blocks", *HIT_RATES, *COUNTERS)),
    ("tables", "i8", TABLES_BETWEEN), ("parts", "f8", TABLES_BETWEEN), ("missed", "f8", 3),
])  # fmt: skip


class Summary(NamedTuple):
    """All of a launch that cycles are a function of."""

    work: Any  # a SUMMARY; for JAX its fields as arrays, by name
    tables: Tables


Work = namedtuple("Work", list(SUMMARY.names or ()))  # type: ignore[misc]


def place_among(nodes, x):
    """(k, part) of a number that lies `part` of the way from node k to k + 1, in logarithms; none lies beyond them."""
    at, k = smaller(larger(x, nodes[0]), nodes[len(nodes) - 1]), 0
    for n in range(1, len(nodes) - 1):
        k = k + (at > nodes[n])
    return k, (maths.log(at) - maths.log(nodes[k])) / (maths.log(nodes[k + 1]) - maths.log(nodes[k]))


def octaves(x, octaves_a_node, last):
    """How many nodes a number lies behind the first, 1, on a grid that is even in octaves."""
    return smaller(larger(maths.log2(larger(x, 1e-3)) / octaves_a_node, 0.0), last)


def place_of(x, octaves_a_node, last):
    """`place_among` nodes of such a grid."""
    at = octaves(x, octaves_a_node, last)
    before = smaller(floor(at), last - 1)
    return maths.number(before), at - before


def beside(part, i):
    """What the first or the second of two counts for, `part` of the way from one to the other."""
    return part if i else 1 - part


def spline(part, n):
    """What the n-th of three sizes counts for, `part` of the way from the middle one: the quadratic B-spline."""
    return 0.75 - part * part if n == 1 else 0.5 * (0.5 + (n - 1) * part) * (0.5 + (n - 1) * part)


def _missed_share(t, row, matrix, found, way, way_part, size, part):
    import jax.numpy as jnp

    two, three, parts = np.arange(2), np.arange(3), jnp.stack(found.parts)
    ways, sizes = jnp.stack([1 - way_part, way_part]), jnp.stack([spline(part, n) for n in range(3)])
    shares, missed = t.misses[jnp.stack(found.tables), row], matrix[way + two[:, None], size + three]
    return jnp.einsum("i,ib,k,l,klb", parts, shares, ways, sizes, missed)


@maths.traced_as(_missed_share)
def missed_share(t, row, matrix, found, way, way_part, size, part):
    """A share of `misses` of the tables that a point lies between, that a cache between two numbers of ways has not. Of
    three sizes it is the B-spline with theirs as coefficients: monotone where they are, slope continuous."""
    total = 0.0
    for i in range(TABLES_BETWEEN):
        if found.parts[i] > 0.0:
            for k in range(2):
                for n in range(3):
                    own, misses = found.parts[i] * beside(way_part, k) * spline(part, n), t.misses[found.tables[i], row]
                    total += own * maths.dot_of_rows(misses, matrix[way + k, size + n], DISTANCE_BINS)
    return total


def l2_lines(p):
    """Lines of all slices."""
    return p.l2_sets * p.l2_ways * p.l2_slices_per_channel * p.dram_channels


def share_of(t, matrix, found, row, lines, ways):
    """`missed_share` of a row on a point."""
    way, way_part = place_of(ways, 1, LAST_WAYS)
    at = octaves(lines, 0.5, LAST_SIZE)
    middle = maths.nearest(at)
    return missed_share(t, row, matrix, found, way, way_part, maths.number(middle), at - middle)


def find_tables(t, p, resident, found):
    """Which tables a point lies between, and what part each is of it."""
    sm, sm_part = place_among(t.sms, p.sm_count)
    held, held_part = place_among(t.residents, resident)
    for i in range(2):
        for j in range(2):
            found.tables[2 * i + j] = t.numbers[sm + i, held + j]
            found.parts[2 * i + j] = beside(sm_part, i) * beside(held_part, j)


def of_point(found, of_tables):
    """What tables have one number of."""
    total = 0.0
    for i in range(TABLES_BETWEEN):
        total = total + found.parts[i] * of_tables[found.tables[i]]
    return total


def _opened(visits, alone):
    import jax.numpy as jnp

    return (visits * alone ** (2.0 ** jnp.arange(VISIT_BINS) - 1)).sum()


@maths.traced_as(_opened)
def opened(visits, alone):
    """Of visits by how many others are near, 2^n - 1 each, those that open a row, if beside one of these a part of
    `alone` does."""
    total, left = 0.0, 1.0
    for k in range(VISIT_BINS):
        total += visits[k] * left
        left = left * left * alone
    return total


def rows_opened(s, t, p, found):
    """Rows opened for each sector read: for a line that nobody else in its bank's queue is of the row of.

    exp(-x) of them, if x are in the mean; of a sample, as many of which are known, (1 - x / known)^known."""
    row_bytes = p.dram_row_bytes / p.dram_banks * p.dram_channels
    stretch, total = (1 << STRETCH_LOG2) * LINE_BYTES * TOGETHER, 0.0
    alone = larger(0.0, 1 - s.lines_apart * p.dram_queue * row_bytes / stretch)
    for i in range(TABLES_BETWEEN):
        total = total + found.parts[i] * opened(t.visits[found.tables[i]], alone)
    return total


def miss_ratios(s, t, p, matrix, found, who):
    """Share that misses L1D, and L1D and L2: of sectors loaded (`who` 0), of critical batches of loads (1)."""
    l1_lines, row = p.l1d_sets * p.l1d_ways, who * (1 + L1_NODES)
    l1 = share_of(t, matrix, found, row, l1_lines, p.l1d_ways)
    k, part = place_of(l1_lines, 2, L1_NODES - 1)
    smaller_l1 = share_of(t, matrix, found, row + 1 + k, l2_lines(p), p.l2_ways)
    larger_l1 = share_of(t, matrix, found, row + 2 + k, l2_lines(p), p.l2_ways)
    return l1, smaller(l1, (1 - part) * smaller_l1 + part * larger_l1)


def predict_one(s, t, p, matrix, found):
    """One launch on one design point; `found`: a PREDICTION."""
    resident, an_sm = resident_blocks(s, p)
    find_tables(t, p, resident, found)
    l1, l2 = miss_ratios(s, t, p, matrix, found, 0)
    missed = found.missed
    missed[0], missed[1] = miss_ratios(s, t, p, matrix, found, 1)
    missed[2] = share_of(t, matrix, found, UPDATE_ROW, l2_lines(p), p.l2_ways)
    written = s.store_sectors * share_of(t, matrix, found, WRITE_ROW, l2_lines(p), p.l2_ways)
    asked, loaded, updated = l1 * s.load_sectors, l2 * s.load_sectors, missed[2] * s.atomics
    read, rows = loaded + updated, rows_opened(s, t, p, found)
    uneven = busiest(s, p, resident / an_sm)
    share, bounds = uneven * an_sm / s.thread_blocks, found.bounds_cycles
    misses, sectors = l1 * s.lines, asked + s.store_sectors + s.atomics
    absent, back = read + written, written_back(s, p, l2, written, updated)
    crowd = (1 - p.perfect_memory) * of_point(found, t.crowds) * larger(1.0, p.l2_sector_cycles)
    l2_cycles(s, p, share, sectors, absent, back, crowd, bounds)
    memory_cycles(s, p, share, misses, sectors, read + back, rows, bounds)
    bounds[MEMORY + 5] = (1 - s.l1d_bypass) * in_flight_cycles(p, misses * share, l2 / larger(1e-9, l1))
    unit_cycles(s, p, share, bounds)
    alone = path_cycles(s, p, s.path, missed)
    longest = path_cycles(s, p, s.longest_path, missed)
    cold = larger(0.0, path_cycles(s, p, s.cold_path, missed))
    jam = (1 - p.perfect_memory) * of_point(found, t.jams) * p.dram_latency_cycles
    bounds[LATENCY] = waves_cycles(s, p, alone, cold, resident, an_sm) + longest - alone + jam
    tail, trips = longest - alone, trip_cycles(s, p, s.path, missed)
    in_step = p.scheduler * in_step_cycles(s, p, share, bounds)
    waits = waiting(s, p, bounds, in_step, crowd, alone, tail, trips, missed[0], an_sm / resident)
    found.cycles = p.launch_latency_cycles + together(bounds, waits, DRAIN * (alone + cold))
    found.cold_cycles, found.resident_blocks, real = cold, resident, 1 - p.perfect_memory
    found.l1d_accesses, found.l1d_misses = s.lookups + s.stores, misses + s.stores
    found.l2_accesses, found.dram_reads = real * sectors, real * read
    found.l1d_hit_rate = where(s.lookups > 0, 1 - misses / larger(1.0, s.lookups), -1.0)
    found.l2_hit_rate = where(real * asked >= 0.5, 1 - loaded / larger(0.5, asked), -1.0)


def as_arrays(record: Any) -> Any:
    """A Summary, or POINTs, for JAX."""
    if isinstance(record, Summary):
        return Summary(as_arrays(record.work), record.tables)
    kind = Point if record.dtype == POINT else Work
    return kind(*(np.asarray(record[name]) for name in record.dtype.names or ()))


def predict_traced(summary: Summary, point: Point) -> Any:
    """A PREDICTION of `predict_one` as JAX traces it, its fields as attributes."""
    import jax
    import jax.numpy as jnp

    arrays = {name: [0.0] * PREDICTION[name].shape[0] for name in PREDICTION.names or () if PREDICTION[name].shape}
    found = SimpleNamespace(**arrays)
    work, tables, own, matrix = jax.tree.map(jnp.asarray, (*summary, point, miss_matrix()))
    predict_one(work, tables, own, matrix, found)
    return found


def analytic_cycles(summary: Summary, point: Point) -> Float[Array, ""]:
    """Cycles of one launch on one design point, for JAX; differentiable by every float of the point."""
    return predict_traced(summary, point).cycles


@compiled
def predict_all(work, tables, points, matrix, found):
    """One launch, as it was summarized, on all points: a PREDICTION each."""
    for k in range(len(points)):
        predict_one(work, tables, points[k], matrix, found[k])


@compiled
def look_and_predict(code, launch, reading, scratch, asked):
    """Look at a launch, and predict it."""
    look(code, launch, reading, scratch, asked)
    for k in range(len(asked.points)):
        predict_one(asked.work, asked.tables, asked.points[k], asked.matrix, asked.found[k])


@compiled
def residents_of(work, points, found):
    """Thread blocks that an SM of each point holds of a launch whose shape is known."""
    for k in range(len(points)):
        found[k], _ = resident_blocks(work, points[k])


def largest(numbers, first, stop):
    """Of an array from a place on."""
    found = numbers[first]
    for k in range(first + 1, stop):
        found = larger(found, numbers[k])
    return found


def sharpened(x):
    """To the power of SHARPNESS."""
    fourth = x * x * x * x
    return fourth * fourth * fourth


def visited(p, waits, far, alone, tail, visits):
    """Time of warps that take `waits` but for visits of something that all of them ask for.

    At one visit of all all warps are there at once: what they ask for then comes on top of their own path. At others
    they are out of step, the more so if ready warps do not take turns. At the end only the last visits of a mean warp
    are under way, and those that the longest one makes after."""
    queue = p.scheduler * QUEUE_IN_TURN + (1 - p.scheduler) * QUEUE
    mixed = larger(waits + queue * far, far + alone * smaller(DRAIN, DRAIN_VISITS / visits) + tail)
    return (waits + far) / visits + (1 - 1 / visits) * mixed


def waiting(s, p, bounds, in_step, crowd, alone, tail, trips, l1_wait, waves):
    """Time of warps that wait for memory; `trips`: of their path, those behind L1D. Warps that are in step wait for
    all of them together, and work in found."""
    loads, atomics = larger(1.0, s.path[LOAD] * l1_wait) * waves, larger(1.0, s.path[ATOMIC]) * waves
    far = larger(largest(bounds, MEMORY, ATOMICS), bounds[ATOMICS + 1])
    near = larger(bounds[LATENCY], in_step + p.scheduler * trips * waves)
    waits = visited(p, near, far, alone, tail, loads)
    waits = larger(waits, crowd + DRAIN * alone + tail)  # a line that all want brings them in step
    return visited(p, waits, bounds[ATOMICS], alone, tail, atomics)


def together(bounds, waits, drained):
    """What all bounds come to: a smooth maximum, of which two equal numbers cost 2^(1 / SHARPNESS). Units idle for
    part of a path, since the last warps end one after the other."""
    most = fixed(larger(waits, largest(bounds, UNITS, MEMORY) + drained))
    total = sharpened(waits / most)
    for k in range(UNITS, MEMORY):
        total = total + sharpened((bounds[k] + drained) / most)
    return most * power(total, 1 / SHARPNESS)


def resident_blocks(s, p):
    """Thread blocks an SM holds (abstim/occupancy.py), and blocks the busiest SM gets: steps in SM count or occupancy
    keep a slope, that of the line through them."""
    granularity = p.register_allocation_granularity
    registers = granularity * ceil(s.registers_per_thread / granularity) * WARP_THREADS * s.warps_per_block
    threads = p.max_threads_per_sm / (WARP_THREADS * s.warps_per_block)
    slots = smaller(p.max_warps_per_sm / s.warps_per_block, p.max_blocks_per_sm)
    shared_bytes = larger(1.0, s.shared_bytes + p.shared_bytes_kept_per_block)
    stored = smaller(p.registers_per_sm / larger(1.0, registers), p.shared_bytes_per_sm / shared_bytes)
    limit, an_sm = smaller(smaller(threads, slots), stored), s.thread_blocks / p.sm_count
    dealt = maths.stepped(an_sm, ceil(an_sm - 1e-4))
    return smaller(larger(1.0, maths.stepped(limit, floor(limit + 1e-4))), dealt), dealt


def busiest(s, p, first):
    """Work of the busiest SM over that of as many mean blocks. Only the `first` part of its blocks, those handed out at
    the start, is dealt out blindly; the others go where there is room."""
    at = smaller(larger(p.sm_count, 1.0), MOST_SMS)
    before = smaller(floor(at), MOST_SMS - 1)
    k, part = maths.number(before) - 1, at - before
    return 1 + first * ((1 - part) * s.imbalance[k] + part * s.imbalance[k + 1] - 1)


def miss_cycles(p):
    """What an L1D miss costs that L2 has, and what it costs more if not (docs/timing-rules.md, rule 11)."""
    l2 = p.l2_request_cycles + p.l2_sector_cycles + p.l2_reply_cycles + SECTORS_A_LINE
    dram = p.dram_latency_cycles + p.dram_reply_cycles - p.l2_reply_cycles
    return l2, dram + SECTORS_A_LINE * p.dram_sector_cycles


def path_cycles(s, p, path, missed):
    """Of a path, as counts of LATENCIES. `missed`: the share of critical loads that L1D, that L1D and L2 have not, and
    of atomics that L2 has not. The first of those loads finds its DRAM row closed."""
    real, (l2, dram) = 1 - p.perfect_memory, miss_cycles(p)
    miss = p.perfect_memory * p.l1_miss_extra_cycles + real * l2
    code = p.perfect_memory * p.l1i_miss_extra_cycles + real * (l2 + dram)
    const = p.const_latency_cycles + (1 - p.perfect_constant_cache) * (miss + real * dram)
    near = path[ONE] + path[SHARED] * p.shared_latency_cycles + path[CONST] * p.const_latency_cycles
    hits = (path[LOAD] * (1 - s.l1d_bypass * missed[0]) + path[STORE]) * p.l1d_latency_cycles
    cold = path[FETCH_MISS] * (1 - p.perfect_instruction_cache) * code + path[CONST_MISS] * const
    return dot(path[:CLASSES], p.latency_cycles) + near + hits + cold + trip_cycles(s, p, path, missed)


def trip_cycles(s, p, path, missed):
    """Of them, those on the way to L2 and DRAM, and back."""
    real, (l2, dram) = 1 - p.perfect_memory, miss_cycles(p)
    miss = p.perfect_memory * p.l1_miss_extra_cycles + real * l2
    loads = path[LOAD] * (missed[0] * miss + real * missed[1] * dram)
    atomics = path[ATOMIC] * (p.perfect_memory * p.atomic_latency_cycles + real * (l2 + missed[2] * dram))
    opened = real * smaller(1.0, path[LOAD] * missed[1]) * p.dram_activate_cycles
    return loads + path[STORE] * miss + atomics + opened


@cache
def _traced_ipc():
    """`ipc_one_issue` for JAX. One loop has its slopes, too: one that JAX runs backwards keeps all its steps."""
    import jax
    import jax.numpy as jnp

    def ipc(offered, warps):
        start = warps - jnp.floor(warps)

        def step(n, blocked):
            more = offered * blocked / (start + n + offered * blocked)
            return jnp.where(start + n <= warps + 1e-3, more, blocked)

        return 1 - jax.lax.fori_loop(1, MOST_WARPS + 1, step, offered / (offered + start))

    with_slopes = jax.custom_jvp(ipc)

    @with_slopes.defjvp
    def _forward(given, moved):
        along = jax.vmap(lambda way: jax.jvp(ipc, given, (way[0], way[1])), out_axes=(None, 0))
        found, slopes = along(jnp.eye(2))
        return found, slopes[0] * moved[0] + slopes[1] * moved[1]

    return with_slopes


def _ipc_one_issue(stall_cycles_an_instruction, warps):
    return _traced_ipc()(stall_cycles_an_instruction, warps)


@maths.traced_as(_ipc_one_issue)
def ipc_one_issue(stall_cycles_an_instruction, warps):
    """IPC of a scheduler of which only the warp that issues can stall.

    In TBPoint's Markov chain (IPDPS 2014, Section IV-A) every warp that can run moves on in every cycle, issued or not.
    Here those not issued keep waiting: a closed queue of one server and N sources, whose server idles with the
    probability of Erlang's loss formula B(N, p M), whatever the distribution of stalls. `warps` need not be whole."""
    offered, start = stall_cycles_an_instruction, warps - floor(warps)
    blocked, n = offered / (offered + start), 1
    while n <= MOST_WARPS and start + n <= warps + 1e-3:
        blocked = offered * blocked / (start + n + offered * blocked)
        n += 1
    return 1 - blocked


def waves_cycles(s, p, alone, cold, resident, an_sm):
    """The busiest SM's time if only latencies and issue slots count: full waves of blocks, then a partial one.

    A warp takes `alone` cycles by itself, one of the first wave `cold` more; the more of them there are, the more of
    its stalls the others hide."""
    instructions = s.instructions / (s.thread_blocks * s.warps_per_block)
    stalled = larger(1e-3, alone / instructions - 1)  # cycles an instruction: p M
    begun = larger(1e-3, (alone + cold) / instructions - 1)
    full = fixed(ceil(an_sm / resident - 1e-4) - 1)
    first = wave_cycles(s, p, begun, instructions, resident)
    last = wave_cycles(s, p, stalled, instructions, an_sm - full * resident)
    found = larger(full - 1, 0.0) * wave_cycles(s, p, stalled, instructions, resident)
    return first + found + where(full > 0, last, 0.0)


def wave_cycles(s, p, stalled, instructions, blocks):
    """Of so many thread blocks together."""
    warps, schedulers = blocks * s.warps_per_block, p.schedulers_per_sm
    return warps * instructions / (schedulers * ipc_one_issue(stalled, warps / schedulers))


def unit_cycles(s, p, share, bounds):
    """The busiest SM's units, each working without a pause; `share`: the part of the launch it does."""
    bounds[UNITS] = alu_cycles(s, p, share, 1, p.sfu_units, p.sfu_port_width)
    bounds[UNITS + 1] = alu_cycles(s, p, share, 3, p.dp_units, p.dp_port_width)
    bounds[UNITS + 2] = alu_cycles(s, p, share, 4, p.tensor_units, p.tensor_port_width)
    bounds[UNITS + 3] = share * larger(s.access_cycles / p.lsu_units, s.accesses / p.mem_port_width)
    bounds[SHARED_OUT] = alu_cycles(s, p, share, 0, p.sp_units, p.sp_port_width)
    bounds[SHARED_OUT + 1] = alu_cycles(s, p, share, 2, p.int_units, p.int_port_width)
    bounds[SHARED_OUT + 2] = share * larger(s.fetches / p.fetches_per_cycle, s.instructions / p.schedulers_per_sm)
    bounds[SHARED_OUT + 3] = share * s.results / p.result_bus_width


def in_step_cycles(s, p, share, bounds):
    """Of an SM whose warps are in step: first all of a turn are at the load/store unit, then all issue what waits for
    that, but for what they do beside it."""
    k, part = place_of(p.schedulers_per_sm, 1, 2)
    both = share * ((1 - part) * s.of_walks[k + 3] + part * s.of_walks[k + 4]) / p.schedulers_per_sm
    return bounds[UNITS + 3] + bounds[SHARED_OUT + 2] - both


def alu_cycles(s, p, share, kind, units, width):
    """What the units of one kind need for the instructions of an SM; none, if the SM has no such units."""
    held = dot_of_three(s.by_class, p.on_unit[kind], p.initiation_cycles)
    return share * larger(held / larger(units, 1.0), dot(s.by_class, p.on_unit[kind]) / width)


def written_back(s, p, l2, written, updated):
    """Sectors written to DRAM: what was written of all lines that came into L2 but the last, which are still there."""
    came = l2 * s.lines + written * s.store_lines / larger(1.0, s.store_sectors) + updated
    return (written + updated) * larger(0.0, 1 - l2_lines(p) / larger(1.0, came))


def l2_cycles(s, p, share, sectors, absent, back, crowd, bounds):
    """What L2 needs for the traffic: a slice is busy with what it holds or writes back, and answers one sector a cycle,
    whatever it reads (docs/timing-rules.md, rule 11); the lines that most warps of a turn want are one slice's."""
    real, port = 1 - p.perfect_memory, larger(1.0, p.l2_sector_cycles)
    slices = p.dram_channels * p.l2_slices_per_channel
    held = larger(0.0, sectors - s.atomics - absent) * port + s.atomics * p.l2_atomic_cycles
    served = held + absent + back * p.l2_sector_cycles
    # what a switch passes that queues at its inputs (docs/occupancy-vector.md, "Memory")
    switch = sectors * (share + 1 / slices) * (1 - larger(p.crossbar_repeats, p.crossbar_output_queues))
    bounds[MEMORY + 2] = larger(real * larger(served / slices, switch), crowd)
    bounds[MEMORY + 4] = real * s.hottest_atomics * p.l2_atomic_cycles


def memory_cycles(s, p, share, misses, sectors, dram, rows, bounds):
    """What the busiest SM's port and the DRAM channels need for it."""
    real = 1 - p.perfect_memory
    answers = p.perfect_memory * (misses + s.stores + s.atomics) + real * sectors
    sent = s.store_sectors * SECTOR_BYTES + s.stores * p.packet_header_bytes
    bounds[MEMORY] = share * answers
    bounds[MEMORY + 1] = real * share * sent / p.flit_bytes
    bounds[MEMORY + 3] = real * dram * p.dram_sector_cycles / p.dram_channels * larger(1.0, rows * row_sectors(p))


def row_sectors(p):
    """As many sectors move in the time found two openings of rows."""
    return larger(p.dram_row_to_row_cycles, p.dram_row_cycle_cycles / p.dram_banks) / p.dram_burst_cycles


def in_flight_cycles(p, misses, beyond):
    """What L1D needs for its misses: one whose set is full of lines on their way blocks the tags.

    Lines drawn at random fill a set of `ways` after as many draws as it takes for `ways` + 1 people to share a birthday
    (Klamkin and Newman, 1967); so many are in flight. `beyond`: the share of misses that L2 has not."""
    people, (l2, dram) = p.l1d_ways + 1, miss_cycles(p)
    drawn = maths.exp(maths.log_gamma(1 + 1 / people) + maths.log_gamma(people + 1) / people) * power(
        p.l1d_sets, p.l1d_ways / people
    )
    return (1 - p.perfect_memory) * misses * (l2 + beyond * dram) / smaller(drawn, p.l1d_sets * p.l1d_ways)
