"""Reuse distances and hit-rate curves against caches simulated access by access."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstim.analytic.lone_warp import LOOK_UP, UPDATE, WRITE
from abstim.analytic.reuse_distance import (
    L1_STEP,
    NEVER,
    SIZES,
    WAYS,
    distances,
    histogram,
    largest_in,
    miss_curves,
    write_curve,
)
from functional.traces.line_record import ALL_SECTORS, line_of, packed


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


@st.composite
def launches(draw, kinds):
    """One record an instruction: (records, actions, first record of each warp, warps a block)."""
    warps, blocks = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    counts = [draw(st.integers(1, 12)) for _ in range(warps * blocks)]
    total = sum(counts)
    lines = draw(st.lists(st.integers(0, 9), min_size=total, max_size=total))
    actions = draw(st.lists(st.sampled_from(kinds), min_size=total, max_size=total))
    records = packed(np.array(lines, np.uint32), ALL_SECTORS)
    return records, np.array(actions, np.uint8), np.concatenate([[0], np.cumsum(counts)]), warps


SHAPES = (st.integers(1, 3), st.integers(1, 3), st.integers(1, 8))


@settings(max_examples=60)
@given(launches([LOOK_UP, LOOK_UP, UPDATE]), *SHAPES)
def test_l1_distances_are_those_of_fully_associative_caches(launch, sm_count, resident, size):
    records, actions, first_record, warps = launch
    lines = line_of(records).astype(np.int64)
    found = distances(records, actions, first_record.astype(np.int64), lines, 10, warps, sm_count, resident)
    order = order_by_hand(first_record.tolist(), warps, sm_count, resident)
    for sm in range(sm_count):
        own = [r for s, _, r in order if s == sm]
        misses = lru_misses(lines[own], actions[own], 1, size, True)
        assert [found[0, r] >= size for r in own if actions[r] == LOOK_UP] == misses


@settings(max_examples=60)
@given(launches([LOOK_UP, LOOK_UP, WRITE, UPDATE]), *SHAPES)
def test_l2_distances_are_those_of_one_cache_behind_all_sms(launch, sm_count, resident, size):
    records, actions, first_record, warps = launch
    lines = line_of(records).astype(np.int64)
    found = distances(records, actions, first_record.astype(np.int64), lines, 10, warps, sm_count, resident)
    order = order_by_hand(first_record.tolist(), warps, sm_count, resident)
    mixed = [r for _, _, r in sorted(order, key=lambda entry: (entry[1], entry[0]))]
    misses = lru_misses(lines[mixed], actions[mixed], 1, size, False)
    assert [found[2, r] >= size for r in mixed] == misses
    assert (found[1] >= found[0]).all() and (found[3] >= found[2])[actions != WRITE].all()


def test_a_line_that_is_written_leaves_the_first_level():
    records, actions = np.array([packed(5, ALL_SECTORS)] * 3, np.uint32), np.array([LOOK_UP, WRITE, LOOK_UP], np.uint8)
    found = distances(records, actions, np.array([0, 3]), np.zeros(3, np.int64), 1, 1, 1, 1)
    assert found[0].tolist() == [NEVER, -1, NEVER]
    assert found[2].tolist() == [NEVER, 0, 0]


def test_a_line_asked_for_in_the_same_turn_is_waited_for():
    records, actions = np.array([packed(7, ALL_SECTORS)] * 4, np.uint32), np.full(4, LOOK_UP, np.uint8)
    found = distances(records, actions, np.array([0, 2, 4]), np.zeros(4, np.int64), 1, 2, 1, 1)
    assert found[0].tolist() == [NEVER, 0, 0, 0]  # warp 0: records 0, 1; warp 1: records 2, 3
    assert found[1].tolist() == [NEVER, 0, NEVER, 0]  # warp 1 asks while the line is on its way


@pytest.mark.parametrize("ways", [1, 4, 8])
def test_curve_of_random_accesses_is_that_of_set_associative_caches(ways):
    generator = np.random.default_rng(3)
    lines = generator.permutation(4096)[(900 * generator.random(30_000) ** 2).astype(int)]  # scattered, some hotter
    actions, records = np.full(len(lines), LOOK_UP, np.uint8), packed(lines.astype(np.uint32), ALL_SECTORS)
    found = distances(records, actions, np.array([0, len(lines)]), lines.astype(np.int64), 4096, 1, 1, 1)
    curve, both = miss_curves(histogram(found[0], found[2]))
    for size in (32, 128, 512):
        at = np.flatnonzero(size == SIZES)[0]
        missed = np.mean(lru_misses(lines, actions, size // ways, ways, True))
        assert curve[int(np.log2(ways)), at] == pytest.approx(missed, abs=0.03)
    assert (np.diff(curve, axis=1) <= 1e-9).all() and (np.diff(both, axis=0) <= 1e-9).all()
    assert curve.shape == (len(WAYS), len(SIZES)) and both.shape == (len(SIZES[::L1_STEP]), len(WAYS), len(SIZES))


def test_written_sectors_miss_with_their_line():
    assert write_curve(np.array([NEVER] * 3 + [0]))[-1, -1] == 0.75
    assert not write_curve(np.zeros(0, np.int64)).any()


def test_both_levels_miss_no_more_than_the_first():
    generator = np.random.default_rng(4)
    pairs = np.floor(np.exp(generator.uniform(0, 10, (2, 5000)))).astype(np.int64)
    l1, both = miss_curves(histogram(pairs[0], pairs[1]))
    assert (both <= l1[2, ::L1_STEP, None, None] + 1e-9).all()
    assert both[0, 0, 0] > 0.5 > both[-1, -1, -1]


def test_largest_in_a_range():
    assert largest_in(np.array([3, -1, 8, 2]), np.array([[0, 2], [1, 4], [1, 2], [2, 2]])).tolist() == [3, 8, -1, -1]


@settings(max_examples=40)
@given(launches([LOOK_UP, LOOK_UP, WRITE, UPDATE]), st.integers(1, 9), st.integers(1, 9))
def test_sms_without_a_block_and_room_without_one_change_no_distance(launch, sm_count, resident):
    """A summary takes each different case once."""
    records, actions, first_record, warps = launch
    lines, first = line_of(records).astype(np.int64), first_record.astype(np.int64)
    blocks = (len(first) - 1) // warps
    busy = min(sm_count, blocks)
    found = distances(records, actions, first, lines, 10, warps, sm_count, resident)
    same = distances(records, actions, first, lines, 10, warps, busy, min(resident, -(-blocks // busy)))
    assert (found == same).all()
