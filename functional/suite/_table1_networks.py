"""GATSim's Table I: neural network layers, breadth-first search, B+ tree search."""

from __future__ import annotations

import numpy as np

from functional.launches.launch import Pointer
from functional.suite._recipe import Recipe, bench, blocks, f32, f64, i32, rng, u8, uniform


@bench("table1")
def backprop_layerforward(c: Recipe) -> None:
    n_in, n_hid = 1024, 32
    r = rng(101)
    x = uniform(r, 0, 1, n_in + 1)
    w = uniform(r, -1, 1, n_in + 1, n_hid + 1)
    product = np.zeros_like(w)
    product[1:, 1:] = w[1:, 1:] * x[1:, None]
    partial = product[1:, 1:].astype(f64).reshape(n_in // 16, 16, n_hid).sum(1)
    args = [
        c.input("input", x),
        c.input("weight", w),
        c.output("product", product),
        c.output("partial", partial.astype(f32), 1e-5, 1e-5),
        n_hid,
    ]
    c.launch("backprop_layerforward", (n_hid // 16, n_in // 16), (16, 16), *args)


@bench("table1")
def backprop_adjust_weights(c: Recipe) -> None:
    n_in, n_hid, eta, mom = 1024, 32, 0.3, 0.3
    r = rng(102)
    delta, layer = uniform(r, -1, 1, n_hid + 1), uniform(r, 0, 1, n_in + 1)
    layer[0] = 1
    w, old = uniform(r, -1, 1, n_in + 1, n_hid + 1), uniform(r, -0.1, 0.1, n_in + 1, n_hid + 1)
    dw = f64(f32(eta)) * delta.astype(f64)[None, :] * layer.astype(f64)[:, None] + f64(f32(mom)) * old
    dw[:, 0] = 0
    new_w, new_old = w + dw, dw.copy()
    new_old[:, 0] = old[:, 0]
    bw, bo = c.input("weight", w), c.input("old", old)
    c.expect(bw, new_w, 1e-5, 1e-6)
    c.expect(bo, new_old, 1e-5, 1e-6)
    given = c.inputs(delta=delta, layer=layer)
    c.launch("backprop_adjust_weights", (n_hid // 16, n_in // 16), (16, 16), *given, bw, bo, n_hid, eta, mom)


@bench("table1")
def bfs(c: Recipe, n: int = 15300) -> None:
    source = 0
    r = rng(103)
    degree = r.integers(1, 8, n)
    degree[source] = 6
    row_ptr = np.concatenate([[0], np.cumsum(degree)]).astype(i32)
    col = r.integers(0, n, row_ptr[-1]).astype(i32)
    # reference: plain breadth-first search, level by level
    cost = np.full(n, -1, i32)
    cost[source] = 0
    front, again = [source], []
    while front:
        nxt = set()
        for v in front:
            for w in col[row_ptr[v] : row_ptr[v + 1]]:
                if cost[w] < 0:
                    cost[w] = cost[v] + 1
                    nxt.add(int(w))
        again.append(1 if nxt else 0)
        front = sorted(nxt)
    start = np.zeros(n, u8)
    start[source] = 1
    cost0 = np.full(n, -1, i32)
    cost0[source] = 0
    b_row, b_col = c.input("row_ptr", row_ptr), c.input("col", col)
    b_front, b_vis, b_cost = c.input("frontier", start), c.input("visited", start.copy()), c.input("cost", cost0)
    b_mark = c.output("marked", np.zeros(n, u8))
    b_again = c.output("again", np.array(again, i32))
    c.expect(b_front, np.zeros(n, u8))
    c.expect(b_vis, (cost >= 0).astype(u8))
    c.expect(b_cost, cost)
    for level in range(len(again)):
        c.launch("bfs_expand", blocks(n, 256), 256, b_row, b_col, b_front, b_mark, b_vis, b_cost, n)
        c.launch("bfs_update", blocks(n, 256), 256, b_front, b_mark, b_vis, Pointer(b_again.buffer, 4 * level), n)


def make_btree(keys, order=128, fill=96):
    """Bulk-load a B+ tree; returns keys and children (nodes x order) and the inner height."""
    end = 0x7FFFFFFF
    levels = [[(keys[i : i + fill], np.arange(i, min(i + fill, len(keys)))) for i in range(0, len(keys), fill)]]
    while len(levels[0]) > 1:
        below = levels[0]
        first = np.array([k[0] for k, _ in below])
        levels.insert(
            0, [(first[i : i + fill], np.arange(i, min(i + fill, len(below)))) for i in range(0, len(below), fill)]
        )
    total = sum(len(level) for level in levels)
    node_keys = np.full((total, order), end, i32)
    child = np.zeros((total, order), i32)
    base = 0
    for depth, level in enumerate(levels):
        leaf = depth == len(levels) - 1
        next_base = base + len(level)
        for i, (k, ch) in enumerate(level):
            node_keys[base + i, : len(k)] = k
            child[base + i, : len(ch)] = ch if leaf else ch + next_base
        base = next_base
    return node_keys, child, len(levels) - 1


@bench("table1")
def btree_find_k(c: Recipe) -> None:
    r = rng(104)
    keys = np.cumsum(r.integers(1, 5, 20000)).astype(i32)
    keys[0] = 0
    record = r.integers(0, 1 << 30, keys.size).astype(i32)
    node_keys, child, height = make_btree(keys)
    query = r.integers(0, keys[-1] + 50, 240).astype(i32)
    query[::2] = r.choice(keys, 120)
    pos = np.clip(np.searchsorted(keys, query), 0, keys.size - 1)
    result = np.where(keys[pos] == query, record[pos], -1).astype(i32)
    given = c.inputs(keys=node_keys, child=child, record=record, query=query)
    out = c.output("result", result)
    c.launch("btree_find_k", query.size, 128, *given, out, height)


@bench("table1")
def btree_find_range_k(c: Recipe) -> None:
    r = rng(105)
    keys = np.cumsum(r.integers(1, 5, 20000)).astype(i32)
    keys[0] = 0
    node_keys, child, height = make_btree(keys)
    lo = r.integers(0, keys[-1], 240).astype(i32)
    lo[::3] = r.choice(keys, 80)
    hi = lo + r.integers(0, 3000, 240).astype(i32)
    first = np.searchsorted(keys, lo, "left")
    length = np.searchsorted(keys, hi, "right") - first
    given = c.inputs(keys=node_keys, child=child, lo=lo, hi=hi)
    out = [c.output("first", first.astype(i32)), c.output("length", length.astype(i32))]
    c.launch("btree_find_range_k", lo.size, 128, *given, *out, height)
