"""Twelve programs whose outcome depends on the order of thread blocks (kernels in order_programs.cu), with what they
must put out whatever that order is. `python tests/order_programs.py GTX480_d queue tiles`: cycles and shares of work by
SM, in turns and by the engine's clock, of variants of `abstim validate`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from functional.launches.case import Case, Expected
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.ptx.ir import Module
from functional.ptx.parser import parse

# Registers a thread, from `ptxas -v` 13.5 for sm_75
REGISTERS = {
    "queue": 14, "steal": 16, "stream_k": 31, "look_back": 29, "grid_barrier": 18, "ticket_lock": 14, "spin_flag": 12,
    "frontier": 19, "hash_insert": 10, "histogram": 10, "producer_consumer": 17, "tiles": 37,
}  # fmt: skip
U32, F32 = np.uint32, np.float32


@cache
def _module() -> Module:
    return parse(Path(__file__).with_name("order_programs.ptx"))


def _work(x: np.ndarray, steps: np.ndarray) -> np.ndarray:
    x = x.astype(F32)
    for step in range(int(steps.max(initial=0))):
        x = np.where(step < steps, (x.astype(np.float64) * F32(1.0001) + 0.5).astype(F32), x)
    return x


def _case(
    kernel: str, grid: int, block: int, buffers: dict[str, np.ndarray], more: tuple[int, ...],
    expected: dict[str, np.ndarray],
) -> Case:  # fmt: skip
    memory = Memory(_module().variables)
    for name, values in buffers.items():
        memory.allocate(name, values.nbytes, values)
    arguments = [*(Pointer(name) for name in buffers), *more]
    launch = make_launch(link(_module(), kernel), grid, block, arguments, memory)
    checks = {n: Expected(v, 1e-4 if v.dtype.kind == "f" else 0.0, 1e-5) for n, v in expected.items()}
    dtypes = {name: values.dtype for name, values in buffers.items()}
    return Case(kernel, _module(), memory, (launch,), checks, dtypes, "order", REGISTERS)


def _items(items: int, block: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    steps = np.random.default_rng(seed).integers(10, 200, items).astype(np.int32)
    threads = np.broadcast_to(np.arange(block), (items, block))
    return steps, _work(threads, steps[:, None]).reshape(-1)


def queue(grid: int = 90, block: int = 64, items: int = 1200, seed: int = 0) -> Case:
    """A work queue, items of 10 to 200 steps."""
    steps, y = _items(items, block, seed)
    buffers = {"counter": np.zeros(1, U32), "owner": np.zeros(items, U32), "steps": steps, "y": np.zeros_like(y)}
    return _case("queue", grid, block, buffers, (items,), {"y": y, "counter": np.array([items + grid], U32)})


def steal(grid: int = 60, block: int = 64, each: int = 16, seed: int = 0) -> Case:
    """A queue a block; those of the first blocks are ten times as long to do."""
    steps, _ = _items(grid * each, block, seed)
    steps[: 6 * each] *= 10
    y = _work(np.broadcast_to(np.arange(block), (grid * each, block)), steps[:, None]).reshape(-1)
    buffers = {"heads": np.zeros(grid, U32), "owner": np.zeros(grid * each, U32), "steps": steps, "y": np.zeros_like(y)}
    return _case("steal", grid, block, buffers, (each,), {"y": y})


def stream_k(grid: int = 60, block: int = 64, tiles: int = 44, depth: int = 60, seed: int = 0) -> Case:
    """Tiles whose last part waits for the others."""
    x = np.random.default_rng(seed).uniform(0, 1, tiles * depth * block).astype(F32)
    y = x.reshape(tiles, depth, block).sum(1).reshape(-1)
    parts = np.zeros(grid * block, F32)
    buffers = {"x": x, "parts": parts, "flags": np.zeros(grid, U32), "y": np.zeros_like(y)}
    return _case("stream_k", grid, block, buffers, (tiles, depth), {"y": y})


def look_back(grid: int = 200, block: int = 128, seed: int = 0) -> Case:
    """A scan with decoupled look-back."""
    x = np.random.default_rng(seed).integers(0, 1000, grid * block).astype(U32)
    one, state = np.zeros(1, U32), np.zeros(grid, U32)
    buffers = {"ticket": one, "state": state, "sums": state, "prefixes": state, "x": x, "y": np.zeros_like(x)}
    return _case("look_back", grid, block, buffers, (), {"y": np.cumsum(x, dtype=U32)})


def grid_barrier(grid: int = 60, block: int = 64, steps: int = 12, seed: int = 0) -> Case:
    """A stencil, with a barrier of all blocks behind each step."""
    a = b = np.random.default_rng(seed).uniform(0, 1, grid * block).astype(F32)
    for _ in range(steps):
        b = (0.25 * np.roll(b, 1) + 0.5 * b + 0.25 * np.roll(b, -1)).astype(F32)
    buffers = {"arrived": np.zeros(1, U32), "generation": np.zeros(1, U32), "a": a, "b": np.zeros_like(a)}
    return _case("grid_barrier", grid, block, buffers, (steps,), {"b" if steps % 2 else "a": b})


def ticket_lock(grid: int = 45, block: int = 32, rounds: int = 6) -> Case:
    """A lock served in the order of tickets."""
    total = grid * rounds
    one = np.zeros(1, U32)
    buffers = {"next": one, "serving": one, "sum": one, "order": np.zeros(total, U32)}
    return _case("ticket_lock", grid, block, buffers, (rounds,), {"sum": np.array([total], U32)})


def spin_flag(grid: int = 60, block: int = 32, backwards: int = 1) -> Case:
    """A chain of flags, from the last block to the first."""
    values = np.array([(3 ** (k + 1) - 1) // 2 % (1 << 32) for k in range(grid)], U32)
    buffers = {"flags": np.zeros(grid, U32), "values": np.zeros(grid, U32)}
    return _case(
        "spin_flag",
        grid,
        block,
        buffers,
        (backwards,),
        {"values": np.ascontiguousarray(values[:: -1 if backwards else 1])},
    )


def frontier(grid: int = 60, nodes: int = 1500, seed: int = 0) -> Case:
    """A breadth-first search over one queue, every node reached once."""
    rng = np.random.default_rng(seed)
    degrees = rng.integers(1, 24, nodes)
    start = np.append(0, np.cumsum(degrees)).astype(np.int32)
    edges = rng.integers(0, nodes, start[-1]).astype(np.int32)
    edges[start[:-1]] = (np.arange(nodes) + 1) % nodes  # a ring: all are reached
    visited, places = np.zeros(nodes, U32), np.zeros(nodes, U32)
    visited[0] = places[0] = 1
    one = np.ones(1, U32)
    buffers = {
        "start": start, "edges": edges, "visited": visited, "queue": places, "tail": one, "head": np.zeros(1, U32),
        "left": one, "owner": np.zeros(nodes, U32),
    }  # fmt: skip
    reached = {"visited": np.ones(nodes, U32), "tail": np.array([nodes], U32), "left": np.zeros(1, U32)}
    return _case("frontier", grid, 32, buffers, (nodes,), reached)


def hash_insert(grid: int = 60, block: int = 64, n: int = 12000, room: int = 1 << 12, seed: int = 0) -> Case:
    """Keys that come about four times each into a table three quarters full."""
    keys = np.random.default_rng(seed).integers(1, room * 3 // 4, n).astype(U32)
    buffers = {"table": np.zeros(room, U32), "values": np.zeros(room, U32), "keys": keys}
    case = _case("hash_insert", grid, block, buffers, (n, room - 1), {})
    return case


def histogram(grid: int = 30, block: int = 64, n: int = 6000, count: int = 64, seed: int = 0) -> Case:
    """Additions of doubles by compare-and-swap, to a few words."""
    keys = np.random.default_rng(seed).integers(0, 1 << 30, n).astype(U32)
    bins = np.bincount(keys % count, minlength=count).astype(np.float64)
    return _case("histogram", grid, block, {"bins": np.zeros(count), "keys": keys}, (n, count), {"bins": bins})


def producer_consumer(grid: int = 60, items: int = 40, room: int = 4) -> Case:
    """Pairs of blocks with a ring of four places between them."""
    pairs, k = grid // 2, np.arange(items)
    made = _work(k % 97, k % 5 * 8).astype(U32)
    zeros = np.zeros(pairs, U32)
    buffers = {"ring": np.zeros(pairs * room, U32), "made": zeros, "used": zeros, "sums": zeros}
    sums = np.full(pairs, made.sum(dtype=U32), U32)
    return _case("producer_consumer", grid, 32, buffers, (items, room), {"sums": sums})


def tiles(grid: int = 45, side: int = 20, depth: int = 16, seed: int = 0) -> Case:
    """Persistent blocks on tiles whose length grows by row."""
    width = 16 * (side * depth // 16 + 1)
    a = np.random.default_rng(seed).uniform(0, 0.1, side * 16 * width).astype(F32)
    parts = a.reshape(side, 16, width // 16, 16)
    c = np.zeros((side, 16, side, 16), F32)
    for row in range(side):
        for k in range(row * depth // 16 + 1):
            c[row] += (parts[row, :, k] @ parts[row, :, k])[:, None, :]
    buffers = {"counter": np.zeros(1, U32), "owner": np.zeros(side * side, U32), "a": a, "c": np.zeros(c.size, F32)}
    return _case("tiles", grid, 256, buffers, (side, depth), {"c": c.reshape(-1)})


PROGRAMS: dict[str, Callable[..., Case]] = {
    make.__name__: make
    for make in (
        queue, steal, stream_k, look_back, grid_barrier, ticket_lock, spin_flag, frontier, hash_insert, histogram,
        producer_consumer, tiles,
    )
}  # fmt: skip


def compare(variant: str, name: str) -> str:
    """One line: cycles in turns and by the engine's clock; the part of the work that another SM does."""
    from abstim import open_session
    from abstim.study.validate import known_variants

    gpu, case, found = known_variants()[variant], PROGRAMS[name](), []
    for coupled in (False, True):
        session = open_session(lambda: case, [gpu], coupled=coupled)
        trace = session.traces.trace(0)
        assert not any(output.mismatches for output in session.traces.outputs)
        simulation = session.simulation(0, gpu, trace)
        simulation.run(np.arange(len(trace.thread_blocks)), drain=True)
        work = trace.warp_instructions.reshape(-1, trace.warps_per_block).sum(1)
        by_sm = np.bincount(simulation.blocks["sm"], weights=work, minlength=gpu.spec.sm_count)
        found.append((simulation.result().cycles, by_sm / by_sm.sum()))
    (turns, shares), (clock, others) = found
    return f"{variant} {name}: {turns} {clock} {turns / clock - 1:+.1%}, work {np.abs(shares - others).sum() / 2:.1%}"


if __name__ == "__main__":
    for each in sys.argv[2:] or PROGRAMS:
        print(compare(sys.argv[1], each), flush=True)
