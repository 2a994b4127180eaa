"""Programs that mislead sampling, small enough to be simulated in full: what they do later is not what they do first.

Each takes a `HardCase` whose seed decides sizes and data. `FIRST` is what methods and their interval floors were made
with; `SECOND`, other kernels and other causes, and `THIRD`, other mixtures of both, were each looked at last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hard_case import HardCase

from functional.launches.launch import Argument
from functional.suite import workloads

if TYPE_CHECKING:
    from jaxtyping import Int64

    from functional.launches.case import Case

Maker = Callable[[HardCase], None]
WORDS = 1 << 19  # of a buffer that is read at random, 2 MiB: more than one L2, less than the other
THREADS = 64  # a thread block
NARROW = 32  # the same, where there are to be many of them


def _phases(
    p: HardCase, steps: Int64[np.ndarray, " tb"], kind: Int64[np.ndarray, " tb"], resident: int | None = None
) -> None:
    """One launch, steps and kind of each thread block; `resident`: so many persistent ones go through the work."""
    x, y = p.floats("x", WORDS), p.floats("y", len(steps) * NARROW)
    work: list[Argument] = [p.ints("steps", np.maximum(steps, 1)), p.ints("kind", kind), x, y, WORDS - 1]
    if resident is None:
        p.launch("phases", len(steps), NARROW, *work)
    else:
        p.launch("persistent", resident, NARROW, *work, len(steps))


def _blocks(p: HardCase, least: int = 5000, most: int = 9000) -> int:
    return int(p.rng.integers(least, most))


def phase_switch(p: HardCase) -> None:
    """Arithmetic, then, from somewhere in the second half on, loads."""
    blocks = _blocks(p)
    at = int(blocks * p.rng.uniform(0.5, 0.8))
    kind = np.where(np.arange(blocks) < at, 0, p.rng.choice([1, 3, 33]))
    _phases(p, np.full(blocks, 12), kind)


def phase_runs(p: HardCase) -> None:
    """Runs of random length and kind."""
    blocks = _blocks(p)
    runs = p.rng.integers(20, 400, blocks // 20)
    kind = np.repeat(p.rng.choice([0, 0, 1, 9], len(runs)), runs)[:blocks]
    _phases(p, np.repeat(p.rng.integers(4, 30, len(runs)), runs)[:blocks], kind)


def growing(p: HardCase) -> None:
    """Work grows over the grid."""
    blocks = _blocks(p)
    _phases(p, np.linspace(2, p.rng.integers(30, 60), blocks).astype(int), np.full(blocks, p.rng.choice([0, 1])))


def falling(p: HardCase) -> None:
    """Work falls over the grid."""
    blocks = _blocks(p)
    _phases(p, np.linspace(p.rng.integers(30, 60), 2, blocks).astype(int), np.full(blocks, p.rng.choice([0, 1])))


def heavy_tail(p: HardCase) -> None:
    """A few thread blocks have most of the work."""
    blocks = _blocks(p)
    _phases(p, np.minimum(5 * p.rng.pareto(1.2, blocks) + 3, 3000).astype(int), np.zeros(blocks, int))


def late_giant(p: HardCase) -> None:
    """One of the last thread blocks is long, and ends alone."""
    blocks = _blocks(p)
    steps = np.full(blocks, 10)
    steps[-int(p.rng.integers(1, 20))] = p.rng.integers(1500, 4000)
    _phases(p, steps, np.full(blocks, p.rng.choice([0, 1])))


def early_giants(p: HardCase) -> None:
    """Some of the first thread blocks hold their slots for most of the launch."""
    blocks = _blocks(p)
    steps = np.full(blocks, 10)
    steps[p.rng.integers(0, 200, 12)] = p.rng.integers(500, 1500, 12)
    _phases(p, steps, np.full(blocks, p.rng.choice([0, 1])))


def few_waves(p: HardCase) -> None:
    """A launch of a few waves, of thread blocks of two kinds."""
    blocks = _blocks(p, 800, 2400)
    _phases(p, p.rng.choice([20, 90], blocks), p.rng.choice([0, 1], blocks))


def persistent_falling(p: HardCase) -> None:
    """Persistent thread blocks whose items shrink."""
    items = _blocks(p)
    _phases(p, np.linspace(40, 3, items).astype(int), np.full(items, p.rng.choice([0, 1])), int(p.rng.choice([60, 92])))


def persistent_phases(p: HardCase) -> None:
    """Persistent thread blocks that first compute, then load."""
    items = _blocks(p)
    kind = np.where(np.arange(items) < items * p.rng.uniform(0.3, 0.7), 0, p.rng.choice([1, 5]))
    _phases(p, np.full(items, 12), kind, int(p.rng.choice([60, 92])))


def locality_change(p: HardCase) -> None:
    """The same instructions on neighbours first, at random later."""
    n = _blocks(p, 4000, 6000) * NARROW
    at = int(n * p.rng.uniform(0.4, 0.8))
    index = np.append(np.roll(np.arange(at), -1), p.rng.integers(0, n, n - at))
    p.launch("gather", n // NARROW, NARROW, p.ints("index", index), p.floats("x", n), p.floats("y", n), n, 3)


def _power_law(p: HardCase, nodes: int, alpha: float, most: int) -> Int64[np.ndarray, " node"]:
    return np.minimum(p.rng.pareto(alpha, nodes) * 3 + 1, most).astype(np.int64)


def hub_graph(p: HardCase) -> None:
    """A row a thread: rows of hubs hold their warps up."""
    nodes = _blocks(p, 800, 1600) * 64
    degrees = _power_law(p, nodes, 1.5, 1500)
    start, column = p.graph(degrees, p.rng.integers(0, nodes, degrees.sum()))
    p.launch("rows", nodes // 64, 64, start, column, p.floats("x", nodes), p.floats("y", nodes), nodes)


def hub_iterations(p: HardCase) -> None:
    """A sorted graph with hubs, gone over again and again."""
    nodes = _blocks(p, 100, 200) * 64
    degrees = np.sort(_power_law(p, nodes, 1.7, 600))[::-1]
    start, column = p.graph(degrees, (nodes * p.rng.random(degrees.sum()) ** 3).astype(int))
    a, b = p.floats("x", nodes), p.floats("y", nodes)
    for k in range(int(p.rng.integers(8, 16))):
        p.launch("rows", nodes // 64, 64, start, column, *((a, b) if k % 2 == 0 else (b, a)), nodes)


def frontiers(p: HardCase) -> None:
    """A breadth-first search: equal launches, of which the frontier makes different ones."""
    nodes = _blocks(p, 100, 200) * 128
    degrees = _power_law(p, nodes, 1.6, 300)
    near = np.repeat(np.arange(nodes), degrees) + p.rng.integers(-nodes // 6, nodes // 6, degrees.sum())
    start, column = p.graph(degrees, near % nodes)
    depth = np.full(nodes, -1)
    depth[p.rng.integers(0, nodes, 4)] = 0
    levels = p.ints("depth", depth)
    for level in range(16):
        p.launch("frontier", nodes // 128, 128, start, column, levels, level, nodes)


def v_cycles(p: HardCase) -> None:
    """Multigrid: the same kernels on grids that shrink and grow."""
    side, depth = int(p.rng.choice([64, 128])), int(p.rng.integers(3, 5))
    sides = [side >> k for k in range(depth)]
    u = [p.floats(f"u{s}", s * s) for s in sides]
    f, v = [p.floats(f"f{s}", s * s) for s in sides], [p.floats(f"v{s}", s * s) for s in sides]
    for _ in range(int(p.rng.integers(4, 8))):
        for k, s in enumerate(sides):
            for a, b in ((u[k], v[k]), (v[k], u[k])):
                p.launch("smooth", -(-s * s // 128), 128, a, f[k], b, s)
            if k + 1 < depth:
                p.launch("coarsen", -(-(sides[k + 1] ** 2) // 128), 128, u[k], f[k + 1], sides[k + 1])
        for k in reversed(range(depth - 1)):
            p.launch("refine", -(-(sides[k] ** 2) // 128), 128, u[k + 1], u[k], sides[k])
            p.launch("smooth", -(-(sides[k] ** 2) // 128), 128, u[k], f[k], v[k], sides[k])


def decode(p: HardCase) -> None:
    """A transformer's tokens: what it attends to grows, its other layers do not."""
    width, heads = 32, int(p.rng.choice([4, 6]))
    size = width * heads
    q, out, w = p.floats("q", size), p.floats("out", size), p.floats("w", size * size)
    keys, values = p.floats("keys", size * 1024), p.floats("values", size * 1024)
    first, step = int(p.rng.integers(8, 100)), int(p.rng.integers(4, 10))
    for token in range(24):
        p.launch("attend", heads, 128, q, keys, values, out, first + step * token, width)
        p.launch("project", size // 64, 64, w, out, q, size, size)


def strides(p: HardCase) -> None:
    """The same kernel with the same counts at other strides."""
    x, y = p.floats("x", WORDS), p.floats("y", 1 << 16)
    for stride in p.rng.choice([1, 2, 4, 8, 16, 32, 33], 24).tolist():
        p.launch("strided", 90, 128, x, y, stride, WORDS - 1, 4)


def late_strides(p: HardCase) -> None:
    """Nothing but neat launches for a long while, then some at large strides."""
    x, y, calm = p.floats("x", WORDS), p.floats("y", 1 << 16), int(p.rng.integers(20, 36))
    for k in range(40):
        p.launch("strided", 90, 128, x, y, 1 if k < calm else int(p.rng.choice([8, 32])), WORDS - 1, 4)


def changing_data(p: HardCase) -> None:
    """The same launch with other data: from neighbours to anywhere."""
    n, x = 80 * 128, p.floats("x", 1 << 18)
    y = p.floats("y", n)
    for k in range(24):
        spread = int(2 ** p.rng.uniform(0, 18))
        index = (np.arange(n) + p.rng.integers(0, spread, n)) % n if spread > 1 else np.arange(n)
        p.launch("gather", n // 128, 128, p.ints(f"index{k}", index), x, y, n, 4)


def dirty_lines(p: HardCase) -> None:
    """Writes begin late, and lines leave L2 later still."""
    blocks, rounds = _blocks(p, 4000, 6000), 10
    y = p.floats("y", blocks * NARROW * (rounds + 1))
    p.launch("dirty", blocks, NARROW, p.floats("x", 64), y, int(blocks * p.rng.uniform(0.1, 0.7)), rounds)


def hot_bins(p: HardCase) -> None:
    """A histogram, launch by launch, of keys that turn ever more alike."""
    n = 40 * 128 * 4
    bins = p.ints("bins", np.zeros(4096, int))
    for k in range(20):
        keys = (4096 * p.rng.random(n) ** (1 + k * p.rng.uniform(0.1, 0.6))).astype(int)
        p.launch("count", 40, 128, p.ints(f"keys{k}", keys), bins, n, 4)


def escape_times(p: HardCase) -> None:
    """Iterations by place: some thread blocks run to the end, most stop early."""
    blocks = _blocks(p, 3000, 5000)
    n = blocks * NARROW
    re = np.linspace(-2.2, p.rng.uniform(0.4, 1.2), n) + p.rng.normal(0, 0.01, n)
    im = p.rng.uniform(0.0, 0.3) + p.rng.normal(0, 0.05, n)
    at = [p.buffer("re", re.astype(np.float32)), p.buffer("im", im.astype(np.float32)), p.ints("out", np.zeros(n))]
    p.launch("escape", blocks, NARROW, *at, int(p.rng.integers(60, 150)))


def sorting(p: HardCase) -> None:
    """A bitonic sort: as many comparisons a step, at other distances, of other data."""
    log = int(p.rng.choice([12, 13]))
    x = p.floats("x", 1 << log)
    for k in range(1, log + 1):
        for j in reversed(range(k)):
            p.launch("bitonic", (1 << log) // 128, 128, x, 1 << j, 1 << k)


def shrinking(p: HardCase) -> None:
    """Elimination: every launch smaller than the one before."""
    n = int(p.rng.integers(64, 112))
    a = p.floats("a", n * n)
    for pivot in range(n - 1):
        p.launch("eliminate", -(-((n - pivot - 1) ** 2) // 128), 128, a, n, pivot)


def dying(p: HardCase) -> None:
    """Of equal launches ever fewer thread blocks still work."""
    blocks, rounds = _blocks(p, 200, 400), 30
    last = np.minimum(p.rng.geometric(p.rng.uniform(0.06, 0.2), blocks), rounds)
    at, x = p.ints("last", last), p.floats("x", blocks * THREADS)
    for k in range(rounds):
        p.launch("relax", blocks, THREADS, at, x, k, 20)


def lognormal(p: HardCase) -> None:
    """Launches of three kernels whose sizes spread over two orders of magnitude."""
    x, y, w = p.floats("x", WORDS), p.floats("y", 1 << 18), p.floats("w", 1 << 18)
    for size in np.exp(p.rng.normal(3.0, 1.2, 60)).clip(1, 600).astype(int).tolist():
        match int(p.rng.integers(3)):
            case 0:
                p.launch("strided", size, 128, x, y, 1, WORDS - 1, 6)
            case 1:
                p.launch("smooth", size, 128, x, w, y, int(np.sqrt(size * 128)))
            case _:
                p.launch("project", size, 64, w, x, y, size * 64, min(16, (1 << 18) // (size * 64)))


def searches(p: HardCase) -> None:
    """Queries that are sorted at first and random later."""
    n, queries = 1 << int(p.rng.integers(14, 18)), _blocks(p, 700, 1200) * 128
    wanted = p.rng.random(queries)
    at = int(queries * p.rng.uniform(0.3, 0.7))
    wanted[:at].sort()
    keys = [p.buffer(k, v.astype(np.float32)) for k, v in (("s", np.sort(p.rng.random(n))), ("q", wanted))]
    p.launch("search", queries // 128, 128, *keys, p.ints("out", np.zeros(queries)), n, queries)


def levels(p: HardCase) -> None:
    """A triangular system level by level: launches as long as their level is wide."""
    n = _blocks(p, 6000, 12000)
    widths = np.maximum(1, p.rng.pareto(0.9, 60) * 40).astype(int)
    bounds = np.unique(np.minimum(np.append(0, np.cumsum(widths)), n))
    degrees = p.rng.geometric(0.15, n)
    start, column = p.graph(degrees, p.rng.integers(0, n, degrees.sum()))
    order, value, x = p.ints("order", p.rng.permutation(n)), p.floats("value", int(degrees.sum())), p.floats("x", n)
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        p.launch("solve", -(-(last - first) // 64), 64, order, start, column, value, x, first, last)


def block_sparse(p: HardCase) -> None:
    """Rows of tiles, whose numbers rise in the middle of the matrix."""
    rows = _blocks(p, 300, 500)
    hill = 1 + 12 * np.exp(-(((np.arange(rows) / rows - p.rng.uniform(0.3, 0.9)) / 0.1) ** 2))
    degrees = p.rng.poisson(hill)
    start, column = p.graph(degrees, p.rng.integers(0, rows, degrees.sum()))
    tiles = [p.floats(name, 256 * max(count, 1)) for name, count in (("a", degrees.sum()), ("b", rows), ("c", rows))]
    p.launch("tiles", rows, 256, start, column, *tiles)


def spans(p: HardCase) -> None:
    """The same launch over data that fit a cache or do not."""
    x, y = p.floats("x", 1 << 20), p.floats("y", 1 << 16)
    for _ in range(24):
        p.launch("sweep", 120, 128, x, y, int(2 ** p.rng.uniform(8, 20)), 8)


def matches(p: HardCase) -> None:
    """Comparisons that stop early, but for a part of the text that repeats."""
    n, size = _blocks(p, 900, 1500) * 64, 1 << 18
    text = p.rng.integers(0, 4, size).astype(np.uint8)
    text[size // 2 :] = np.tile(text[:64], size // 128)
    first = np.linspace(0, size - 4096, n) + p.rng.integers(0, 64, n)
    second = (first + 64 * p.rng.integers(1, 8, n)).clip(0, size - 2048)
    pairs = np.stack([first, second], axis=1).astype(int).ravel()
    p.launch("match", n // 64, 64, p.buffer("text", text), p.ints("from", pairs), p.ints("out", np.zeros(n)), 100)


def tidal(p: HardCase) -> None:
    """Steps of thread blocks rise and fall like a tide, faster and faster."""
    blocks = _blocks(p)
    t = np.linspace(0, 1, blocks)
    steps = 16 + 14 * np.sin(2 * np.pi * p.rng.uniform(2, 5) * t**2)
    _phases(p, steps.astype(int), np.where(p.rng.random(blocks) < t, 3, 0))


def bursts(p: HardCase) -> None:
    """Launches of one kernel, of which rare ones have a hundred times the work in some thread blocks."""
    blocks, x = 100, p.floats("x", WORDS)
    y, kind = p.floats("y", blocks * THREADS), p.ints("kind", np.zeros(100, int))
    for k in range(40):
        steps = np.full(blocks, 8)
        if p.rng.random() < 0.1:
            steps[p.rng.integers(0, blocks, 3)] = 800
        p.launch("phases", blocks, THREADS, p.ints(f"steps{k}", steps), kind, x, y, WORDS - 1)


def sawtooth(p: HardCase) -> None:
    """Sizes climb and fall back, strides turn at another pace."""
    x, y = p.floats("x", WORDS), p.floats("y", 1 << 17)
    pace, turn = int(p.rng.integers(5, 9)), int(p.rng.integers(3, 5))
    for k in range(48):
        p.launch("strided", 20 + 25 * (k % pace), 128, x, y, 1 << (k // turn) % 6, WORDS - 1, 4)


def drifting(p: HardCase) -> None:
    """Three kernels whose sizes walk at random, and gather from ever farther away."""
    n, x = 60 * 128, p.floats("x", WORDS)
    y, w = p.floats("y", 1 << 17), p.floats("w", 1 << 18)
    walk = np.exp(np.cumsum(p.rng.normal(0, 0.15, 45))).clip(0.2, 5.0)
    for k, scale in enumerate(walk.tolist()):
        if k % 3 == 0:
            p.launch("project", max(int(60 * scale), 1), 64, w, x, y, 64, 16)
        elif k % 3 == 1:
            p.launch("sweep", max(int(40 * scale), 1), 128, x, y, int(2 ** p.rng.uniform(8, 18)), 8)
        else:
            index = (np.arange(n) + p.rng.integers(0, 1 + k * 300, n)) % n
            p.launch("gather", n // 128, 128, p.ints(f"index{k}", index), x, y, n, 3)


def restarts(p: HardCase) -> None:
    """Thread blocks that die out, again and again, each time at another rate."""
    blocks, x = _blocks(p, 150, 300), p.floats("x", 300 * THREADS)
    for start in range(3):
        last = np.minimum(p.rng.geometric(p.rng.uniform(0.05, 0.4), blocks), 12)
        at = p.ints(f"last{start}", last)
        for k in range(12):
            p.launch("relax", blocks, THREADS, at, x, k, 20)


def crowds(p: HardCase) -> None:
    """Launches with a giant each, of another size and at another place."""
    blocks, x = 200, p.floats("x", WORDS)
    y, kind = p.floats("y", blocks * NARROW), p.ints("kind", p.rng.choice([0, 1], blocks))
    for k in range(24):
        steps = p.rng.integers(6, 14, blocks)
        steps[p.rng.integers(0, blocks)] = int(np.exp(p.rng.uniform(3, 7)))
        p.launch("phases", blocks, NARROW, p.ints(f"steps{k}", steps), kind, x, y, WORDS - 1)


def terraces(p: HardCase) -> None:
    """One launch whose work falls in steps, and whose loads scatter from the middle on."""
    blocks = _blocks(p)
    steps = np.repeat(p.rng.integers(4, 40, 8), -(-blocks // 8))[:blocks]
    _phases(p, np.sort(steps)[::-1], np.where(np.arange(blocks) < blocks // 2, 1, 9))


def bank_strides(p: HardCase) -> None:
    """One code and grid; conflicts on shared memory's banks by an argument."""
    x, y = p.floats("x", 2048), p.floats("y", 90 * 128)
    for stride in p.rng.choice([1, 2, 4, 8, 16, 32, 33], 60).tolist():
        p.launch("banks", 90, 128, x, y, stride, 40)


def late_banks(p: HardCase) -> None:
    """The same, without conflicts at first and in most launches."""
    x, y, calm = p.floats("x", 2048), p.floats("y", 90 * 128), int(p.rng.integers(30, 50))
    for k in range(60):
        p.launch("banks", 90, 128, x, y, 1 if k < calm else int(p.rng.choice([1, 16, 32])), 40)


def line_strides(p: HardCase) -> None:
    """Strides of whole lines: as many sectors and lines, in other sets, slices and channels."""
    x, y = p.floats("x", 1 << 22), p.floats("y", 90 * 128)
    for lines in p.rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 48], 50).tolist():
        p.launch("strided", 90, 128, x, y, 32 * lines, (1 << 22) - 1, 4)


def tiny_and_huge(p: HardCase) -> None:
    """A thousand tiny launches and four huge ones of one kernel."""
    x, y = p.floats("x", WORDS), p.floats("y", 900 * THREADS)
    sizes = [*p.rng.integers(1, 4, 1000).tolist(), *p.rng.integers(500, 900, 4).tolist()]
    for k in p.rng.permutation(len(sizes)).tolist():
        steps, kind = p.rng.integers(8, 40, sizes[k]), p.rng.choice([0, 1], sizes[k])
        p.launch("phases", sizes[k], THREADS, p.ints(f"steps{k}", steps), p.ints(f"kind{k}", kind), x, y, WORDS - 1)


def crumbs_and_rocks(p: HardCase) -> None:
    """Two thousand launches of a thread block or two, a few of which gather from afar, and four of hundreds."""
    x, y = p.floats("x", WORDS), p.floats("y", 1 << 17)
    for k in p.rng.permutation(2000).tolist():
        blocks = int(p.rng.integers(500, 900)) if k < 4 else int(p.rng.integers(1, 3))
        p.launch("strided", blocks, 128, x, y, int(p.rng.choice([1, 1, 1, 2, 8])), WORDS - 1, int(p.rng.integers(2, 7)))


def bank_phases(p: HardCase) -> None:
    """One launch whose thread blocks meet conflicts in runs."""
    blocks = _blocks(p)
    runs = p.rng.integers(50, 600, blocks // 50)
    stride = np.repeat(p.rng.choice([1, 1, 2, 8, 32], len(runs)), runs)[:blocks]
    p.launch("bank_runs", blocks, 64, p.floats("x", 2048), p.floats("y", blocks * 64), p.ints("stride", stride), 20)


def walks(p: HardCase) -> None:
    """One launch of chains through memory, of lengths that spread."""
    blocks = _blocks(p, 3000, 5000)
    n = blocks * 64
    length = np.minimum(p.rng.pareto(1.5, n // 32) * 6 + 2, 200)
    p.launch(
        "walk", blocks, 64, p.ints("next", p.rng.permutation(n)), p.ints("length", length), p.ints("o", [0] * n), n
    )


def convolution(p: HardCase) -> None:
    """A plain convolution: many waves of thread blocks that do the same."""
    side = int(p.rng.choice([1024, 1152, 1280]))
    padded = (side + 4) * (side + 4)
    p.launch(
        "convolve", side * side // 256, 256, p.floats("x", padded), p.floats("w", 25), p.floats("y", side**2), side
    )


def row_orders(p: HardCase) -> None:
    """As many lines a launch, in an order that opens DRAM's rows seldom or often."""
    blocks, rounds = 80, 4
    count = blocks * rounds * 4
    x, y = p.floats("x", count * 32), p.floats("y", blocks * 128)
    for k in range(40):
        order = np.arange(count)
        if p.rng.random() < 0.4:
            order = p.rng.permutation(count)
        p.launch("ordered", blocks, 128, p.ints(f"order{k}", order), x, y, rounds)


def unit_mixes(p: HardCase) -> None:
    """As many instructions a launch, on another unit."""
    y = p.floats("y", 80 * 128)
    for k in range(48):
        kind = p.rng.random(80) < p.rng.choice([0.0, 0.0, 0.5, 1.0])
        p.launch("mix", 80, 128, p.ints(f"kind{k}", kind), y, 60)


def waves(p: HardCase) -> None:
    """Grids around whole waves, of equal thread blocks."""
    x, y = p.floats("x", WORDS), p.floats("y", 700 * 128)
    for blocks in p.rng.integers(60, 700, 50).tolist():
        p.launch("skewed", blocks, 128, x, y, int(p.rng.choice([0, 0, 0, 40])), 6)


def periods(p: HardCase) -> None:
    """One launch of equal thread blocks, but for every seventh or eleventh."""
    blocks, period = _blocks(p), int(p.rng.choice([7, 11]))
    steps = np.where(np.arange(blocks) % period == 0, p.rng.integers(60, 120), 10)
    _phases(p, steps, np.full(blocks, p.rng.choice([0, 1])))


def products(p: HardCase) -> None:
    """A product of matrices of many waves."""
    side = int(p.rng.choice([640, 768]))
    a, b, c = p.floats("a", side * 64), p.floats("b", side * 64), p.floats("c", side * side)
    p.launch("multiply", (side // 16) ** 2, 256, a, b, c, side, 64)


def bank_drift(p: HardCase) -> None:
    """One launch whose thread blocks meet ever more conflicts."""
    blocks = _blocks(p)
    stride = 2 ** np.minimum((np.arange(blocks) / blocks * p.rng.uniform(3, 6)).astype(int), 5)
    p.launch("bank_runs", blocks, 64, p.floats("x", 2048), p.floats("y", blocks * 64), p.ints("stride", stride), 20)


def heavy_sizes(p: HardCase) -> None:
    """Sizes of launches of two kernels with a heavy tail."""
    x, y, w = p.floats("x", WORDS), p.floats("y", 2000 * 128), p.floats("w", 1 << 18)
    for size in np.minimum(p.rng.pareto(0.8, 300) * 2 + 1, 1500).astype(int).tolist():
        if p.rng.random() < 0.5:
            p.launch("smooth", size, 128, x, w, y, max(int(np.sqrt(size * 128)), 3))
        else:
            p.launch("banks", size, 128, x, y, int(p.rng.choice([1, 2])), 20)


FIRST: tuple[Maker, ...] = (
    phase_switch, phase_runs, growing, falling, heavy_tail, late_giant, early_giants, few_waves, persistent_falling,
    persistent_phases, locality_change, hub_graph, hub_iterations, frontiers, v_cycles, decode, strides, late_strides,
    changing_data, dirty_lines, hot_bins, escape_times, sorting, shrinking, dying, lognormal,
)  # fmt: skip
SECOND: tuple[Maker, ...] = (searches, levels, block_sparse, spans, matches, tidal, bursts)
THIRD: tuple[Maker, ...] = (sawtooth, drifting, restarts, crowds, terraces)
FOURTH: tuple[Maker, ...] = (
    bank_strides, late_banks, line_strides, tiny_and_huge, crumbs_and_rocks, bank_phases, walks, convolution,
    row_orders,
)  # fmt: skip
FIFTH: tuple[Maker, ...] = (unit_mixes, waves, periods, products, bank_drift, heavy_sizes)
GROUPS = {"hard": FIRST, "hard2": SECOND, "hard3": THIRD, "hard4": FOURTH, "hard5": FIFTH}
MAKERS = {f"hard_{maker.__name__}": maker for makers in GROUPS.values() for maker in makers}


def is_hard(target: str) -> bool:
    """Is it the name of a program of the hard sets, with or without `:SEED`?"""
    name, _, seed = target.partition(":")
    return name in MAKERS and (seed.isdigit() or target == name)


def hard_case(target: str) -> Case:
    """`hard_NAME` or `hard_NAME:SEED` (0 where none is given). Raises KeyError for any other name (`is_hard`)."""
    name, _, seed = target.partition(":")
    program = HardCase(target, np.random.default_rng([int(seed or 0), list(MAKERS).index(name)]))
    MAKERS[name](program)
    return program.case()


def hard_names(group: str) -> tuple[str, ...]:
    """Names of a group of GROUPS."""
    return tuple(f"hard_{maker.__name__}" for maker in GROUPS[group])


def make_known(change: Callable[[object, str, object], None] = setattr) -> None:
    """The programs become targets by name, and their groups groups of workloads; `change` sets an attribute."""
    names, is_name, case = workloads.names, workloads.is_name, workloads.case

    def all_names(group: str | None = None) -> tuple[str, ...]:
        if group in GROUPS:
            return hard_names(group)
        return (*names(group), *(MAKERS if group is None else ()))

    change(workloads, "GROUPS", (*workloads.GROUPS, *GROUPS))
    change(workloads, "names", all_names)
    change(workloads, "is_name", lambda target: is_hard(target) or is_name(target))
    change(workloads, "case", lambda name: hard_case(name) if is_hard(name) else case(name))


@pytest.fixture(scope="module", autouse=True)
def known_programs():
    """For the tests of a module that imports this."""
    with pytest.MonkeyPatch.context() as patch:
        make_known(patch.setattr)
        yield
