"""Reuse distances and hit-rate curves against caches simulated access by access."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstim.analytic.lone_warp import LOOK_UP, UPDATE, WRITE
from abstim.analytic.reuse_distance import (
    DISTANCE_BINS,
    L1_STEP,
    NEVER,
    SIZES,
    WAYS,
    Distances,
    Launch,
    bins_of,
    distances,
    histograms,
    miss_curves,
    write_curve,
)
from functional.traces.line_record import ALL_SECTORS, line_of, packed

NO_BATCHES = np.zeros((0, 2), np.int64)


def order_by_hand(first_record, warps, sm_count, resident):
    """(SM, turn, record), record by record: what `reuse.order_of_sm` does, written down plainly."""
    blocks = (len(first_record) - 1) // warps
    found = []
    for sm in range(sm_count):
        waiting, slots = list(range(sm, blocks, sm_count)), [None] * resident
        cursors, turn = list(first_record[:-1]), 0
        while waiting or any(slot is not None for slot in slots):
            for k in range(resident):
                if slots[k] is None and waiting:
                    slots[k] = waiting.pop(0)
                own = [] if slots[k] is None else range(slots[k] * warps, (slots[k] + 1) * warps)
                for w in own:
                    if cursors[w] < first_record[w + 1]:
                        found.append((sm, turn, cursors[w]))
                        cursors[w] += 1
                if all(cursors[w] == first_record[w + 1] for w in own):
                    slots[k] = None
            turn += 1
    return found


def lru_misses(lines, actions, sets, ways, first_level):
    """Accesses that miss an LRU cache; a first level drops what is written and does not see atomics."""
    cache, missed = [[] for _ in range(sets)], []
    for line, action in zip(lines, actions, strict=True):
        if first_level and action == UPDATE:
            continue
        tags = cache[line % sets]
        if action != WRITE or not first_level:
            missed.append(line not in tags)
        if line in tags:
            tags.remove(line)
        if action != WRITE or not first_level:
            tags.append(line)
            del tags[:-ways]
    return missed


def launch_of(lines, actions, first_record):
    """Accesses to whole lines, whose numbers are the lines."""
    records = packed(np.array(lines, np.uint32), ALL_SECTORS)
    return Launch(records, np.array(actions, np.uint8), np.array(lines, np.int32), np.array(first_record, np.int64))


@st.composite
def launches(draw, kinds):
    """One record an instruction, and warps a block."""
    warps, blocks = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    counts = [draw(st.integers(1, 12)) for _ in range(warps * blocks)]
    total = sum(counts)
    lines = draw(st.lists(st.integers(0, 9), min_size=total, max_size=total))
    actions = draw(st.lists(st.sampled_from(kinds), min_size=total, max_size=total))
    return launch_of(lines, actions, np.concatenate([[0], np.cumsum(counts)])), warps


SHAPES = (st.integers(1, 3), st.integers(1, 3), st.integers(1, 8))


@settings(max_examples=60)
@given(launches([LOOK_UP, LOOK_UP, UPDATE]), *SHAPES)
def test_l1_distances_are_those_of_fully_associative_caches(launch, sm_count, resident, size):
    launch, warps = launch
    lines, actions = line_of(launch.records).astype(np.int64), launch.actions
    found = distances(launch, 10, warps, sm_count, resident)
    order = order_by_hand(launch.first_record.tolist(), warps, sm_count, resident)
    for sm in range(sm_count):
        own = [r for s, _, r in order if s == sm]
        misses = lru_misses(lines[own], actions[own], 1, size, True)
        assert [found.l1[r] >= size for r in own if actions[r] == LOOK_UP] == misses


@settings(max_examples=60)
@given(launches([LOOK_UP, LOOK_UP, WRITE, UPDATE]), *SHAPES)
def test_l2_distances_are_those_of_one_cache_behind_all_sms(launch, sm_count, resident, size):
    launch, warps = launch
    lines, actions = line_of(launch.records).astype(np.int64), launch.actions
    found = distances(launch, 10, warps, sm_count, resident)
    order = order_by_hand(launch.first_record.tolist(), warps, sm_count, resident)
    mixed = [r for _, _, r in sorted(order, key=lambda entry: (entry[1], entry[0]))]
    misses = lru_misses(lines[mixed], actions[mixed], 1, size, False)
    assert [found.l2[r] >= size for r in mixed] == misses
    assert (found.l1_wait >= found.l1).all() and (found.l2_wait >= found.l2)[actions != WRITE].all()


def test_a_line_that_is_written_leaves_the_first_level():
    found = distances(launch_of([0] * 3, [LOOK_UP, WRITE, LOOK_UP], [0, 3]), 1, 1, 1, 1)
    assert found.l1.tolist() == [NEVER, -1, NEVER]
    assert found.l2.tolist() == [NEVER, 0, 0]


def test_a_line_asked_for_in_the_same_turn_is_waited_for():
    found = distances(launch_of([0] * 4, [LOOK_UP] * 4, [0, 2, 4]), 1, 2, 1, 1)
    assert found.l1.tolist() == [NEVER, 0, 0, 0]  # warp 0: records 0, 1; warp 1: records 2, 3
    assert found.l1_wait.tolist() == [NEVER, 0, NEVER, 0]  # warp 1 asks while the line is on its way


@pytest.mark.parametrize("ways", [1, 4, 8])
def test_curve_of_random_accesses_is_that_of_set_associative_caches(ways):
    generator = np.random.default_rng(3)
    lines = generator.permutation(4096)[(900 * generator.random(30_000) ** 2).astype(int)]  # scattered, some hotter
    launch = launch_of(lines, np.full(len(lines), LOOK_UP), [0, len(lines)])
    curve, both = miss_curves(histograms(distances(launch, 4096, 1, 1, 1), launch, NO_BATCHES).pairs)
    for size in (32, 128, 512):
        at = np.flatnonzero(size == SIZES)[0]
        missed = np.mean(lru_misses(lines, launch.actions, size // ways, ways, True))
        assert curve[int(np.log2(ways)), at] == pytest.approx(missed, abs=0.03)
    assert (np.diff(curve, axis=1) <= 1e-9).all() and (np.diff(both, axis=0) <= 1e-9).all()
    assert curve.shape == (len(WAYS), len(SIZES)) and both.shape == (len(SIZES[::L1_STEP]), len(WAYS), len(SIZES))


def test_written_sectors_miss_with_their_line():
    writes = np.bincount(bins_of(np.array([NEVER] * 3 + [0])), minlength=DISTANCE_BINS)
    assert write_curve(writes)[-1, -1] == 0.75
    assert not write_curve(np.zeros(DISTANCE_BINS)).any()


def test_both_levels_miss_no_more_than_the_first():
    generator = np.random.default_rng(4)
    pairs = np.floor(np.exp(generator.uniform(0, 10, (2, 5000)))).astype(np.int64)
    l1, both = miss_curves(np.histogram2d(*map(bins_of, pairs), bins=np.arange(DISTANCE_BINS + 1) - 0.5)[0])
    assert (both <= l1[2, ::L1_STEP, None, None] + 1e-9).all()
    assert both[0, 0, 0] > 0.5 > both[-1, -1, -1]


def test_distances_are_counted_in_their_bins_and_batches_by_their_largest():
    many = np.unique(np.round(np.exp(np.linspace(0, np.log(2.0**21), 3000)))).astype(np.int32)
    l1, l2 = (np.append(*own).astype(np.int32) for own in ((many, [NEVER, 0]), (many[::-1], [3, -1])))
    launch = launch_of(np.zeros(len(l1)), [LOOK_UP] * (len(l1) - 1) + [WRITE], [0, len(l1)])
    batches = np.array([[0, 5], [7, 7], [len(l1) - 3, len(l1)]])
    found = histograms(Distances(l1, l1, l2, l2), launch, batches)
    expected = np.histogram2d(bins_of(l1[:-1]), bins_of(l2[:-1]), bins=np.arange(DISTANCE_BINS + 1) - 0.5)[0]
    assert np.abs(found.pairs - expected).sum() < 0.01 * len(l1)  # large distances are rounded first
    assert not found.writes.any() and found.waits.sum() == 2
    assert found.waits[bins_of(l1[4]), bins_of(l2[0])] == found.waits[DISTANCE_BINS - 1, bins_of(l2[-2])] == 1


def test_some_lines_and_sms_stand_for_all():
    generator = np.random.default_rng(5)
    lines = (40_000 * generator.random(60_000) ** 2).astype(int)
    launch = launch_of(lines, np.full(len(lines), LOOK_UP), np.arange(0, len(lines) + 1, 500))
    found = [distances(launch, 40_000, 1, 8, 2, *limits) for limits in ((1 << 40, 1 << 40), (4_000, 30_000))]
    measured = found[1].l1 >= 0
    assert 0.4 < measured.mean() < 0.6 and (found[0].l1 >= 0).all()
    curves = [miss_curves(histograms(own, launch, NO_BATCHES).pairs) for own in found]
    for exact, estimated in zip(*curves, strict=True):
        np.testing.assert_allclose(estimated, exact, atol=0.03)


@settings(max_examples=40)
@given(launches([LOOK_UP, LOOK_UP, WRITE, UPDATE]), st.integers(1, 9), st.integers(1, 9))
def test_sms_without_a_block_and_room_without_one_change_no_distance(launch, sm_count, resident):
    """A summary takes each different case once."""
    launch, warps = launch
    blocks = (len(launch.first_record) - 1) // warps
    busy = min(sm_count, blocks)
    found = distances(launch, 10, warps, sm_count, resident)
    same = distances(launch, 10, warps, busy, min(resident, -(-blocks // busy)))
    np.testing.assert_array_equal(found, same)
