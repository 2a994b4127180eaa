"""Reuse distances and hit-rate curves against caches simulated access by access."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstim.analytic.lone_warp import ACTION, LOOK_UP, PASSING, TURN_SHIFT, UPDATE, WRITE
from abstim.analytic.reuse_distance import (
    DISTANCE_BINS,
    L1_NODES,
    NEVER,
    ROWS,
    SIZES,
    WRITE_ROW,
    Found,
    bins_of,
    fill_table,
    miss_matrix,
    reuse_of,
    spread_of,
    use_caches,
)
from functional.jit.machine_code import compiled
from functional.traces.line_record import ALL_SECTORS

NO_BATCHES = np.zeros((0, 3), np.int32)


class Taken(NamedTuple):
    """What reuse distances look at of a Reading."""

    drops: int = 1
    merges: int = 4


FOUR_WAIT = Taken()


@compiled
def find_distances(reuse, sm_count, resident, reading):
    use_caches(reuse.uses, sm_count, resident, reading, reuse.order, reuse.level, reuse.found)


@compiled
def find_table(reuse, batches, loads, table):
    fill_table(reuse.uses, batches, reuse.found, reuse.counts, loads, table)


def distances(launch, sm_count, resident, measured=1, reading=FOUR_WAIT):
    """`measured`: L1D of every so many SMs is looked at."""
    launch.order.measured[:] = np.arange(len(launch.order.measured)) % measured == 0
    find_distances(launch, sm_count, resident, reading)
    return Found(*(column[: launch.uses.sizes["uses"][0]] for column in launch.found))


def table_of(launch, found, batches=NO_BATCHES):
    """Of distances, which may not be its own."""
    for column, own in zip(launch.found, found, strict=True):
        column[: len(own)] = own
    table = np.zeros((ROWS, DISTANCE_BINS), np.float32)
    asked = launch.uses.sectors[: len(found.l1)][found.l1 >= 0]
    find_table(launch, batches, int(np.bitwise_count(asked).sum()), table)
    return table


def order_by_hand(launch, sm_count, resident):
    """(SM, turn, use), use by use, SM by SM: what `sort_uses` does, written down plainly."""
    first_use, (_, _, _, blocks, warps, *_) = launch.uses.first.tolist(), launch.uses.sizes[0]
    found = []
    for sm in range(sm_count):
        waiting, slots = list(range(sm, blocks, sm_count)), [None] * resident
        cursors, turn = list(first_use[:-1]), 0
        while waiting or any(slot is not None for slot in slots):
            for k in range(resident):
                if slots[k] is None and waiting:
                    slots[k] = waiting.pop(0)
            for k in sorted((k for k in range(resident) if slots[k] is not None), key=slots.__getitem__):
                own = range(slots[k] * warps, (slots[k] + 1) * warps)
                for w in own:
                    if cursors[w] < first_use[w + 1]:
                        found.append((sm, turn, cursors[w]))
                        cursors[w] += 1
                if all(cursors[w] == first_use[w + 1] for w in own):
                    slots[k] = None
            turn += 1
    return found


def by_turns(order):
    """The same as L2 sees them: each turn begins with another SM."""
    busy = 1 + max(sm for sm, *_ in order)

    def place(entry):
        sm, turn, _ = entry
        return turn, (sm - (spread_of(turn + 1) * busy >> 32)) % busy

    return [use for *_, use in sorted(order, key=place)]


def lru_misses(lines, actions, sets, ways, first_level, sectors=None):
    """Accesses that miss an LRU cache, for want of the line or of a sector; a first level drops what is written and
    does not see atomics."""
    cache, missed, valid = [[] for _ in range(sets)], [], {}
    for n, (line, action) in enumerate(zip(lines, actions, strict=True)):
        if first_level and action == UPDATE:
            continue
        tags, asked = cache[line % sets], ALL_SECTORS if sectors is None else int(sectors[n])
        held = valid.get(line, 0) if line in tags else 0
        if action != WRITE or not first_level:
            missed.append(line not in tags or asked & ~held != 0)
        valid[line] = held | asked
        if line in tags:
            tags.remove(line)
        if action != WRITE or not first_level:
            tags.append(line)
            del tags[:-ways]
    return missed


def launch_of(lines, actions, first_use, warps=1, scale=1):
    """Uses of whole lines, whose numbers are the lines; of these one of every `scale` stands for all."""
    blocks, count, room = (len(first_use) - 1) // warps, len(lines), len(lines) + 10
    launch = reuse_of(room, len(first_use) - 1, blocks)
    uses, counts = launch.uses, np.diff(first_use)
    uses.lines[:count], uses.sectors[:], uses.first[:], uses.beside[:] = lines, ALL_SECTORS, first_use, np.arange(room)
    uses.acts[:count] = np.concatenate([np.arange(n) for n in counts]) << TURN_SHIFT | actions
    uses.lengths[:] = np.maximum(1, counts.reshape(blocks, warps).max(1))
    uses.counted[:] = np.arange(room) % scale == scale // 2
    uses.sizes[0] = (count, 0, room, blocks, warps, scale)
    return launch


@st.composite
def launches(draw, kinds):
    """One record an instruction, and warps a block."""
    warps, blocks = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    counts = [draw(st.integers(1, 12)) for _ in range(warps * blocks)]
    total = sum(counts)
    lines = draw(st.lists(st.integers(0, 9), min_size=total, max_size=total))
    actions = draw(st.lists(st.sampled_from(kinds), min_size=total, max_size=total))
    return launch_of(lines, actions, np.concatenate([[0], np.cumsum(counts)]), warps)


SHAPES = (st.integers(1, 3), st.integers(1, 3), st.integers(1, 8))


def accesses(launch):
    count = launch.uses.sizes["uses"][0]
    return launch.uses.lines[:count].astype(np.int64), launch.uses.acts[:count] & ACTION


@settings(max_examples=60)
@given(launches([LOOK_UP, LOOK_UP, UPDATE]), *SHAPES)
def test_l1_distances_are_those_of_fully_associative_caches(launch, sm_count, resident, size):
    lines, actions = accesses(launch)
    found = distances(launch, sm_count, resident)
    order = order_by_hand(launch, sm_count, resident)
    for sm in range(sm_count):
        own = [r for s, _, r in order if s == sm]
        misses = lru_misses(lines[own], actions[own], 1, size, True)
        assert [found.l1[r] >= size for r in own if actions[r] == LOOK_UP] == misses


@settings(max_examples=60)
@given(launches([LOOK_UP, LOOK_UP, UPDATE]), st.integers(0, 1 << 30), *SHAPES)
def test_a_sector_that_was_not_asked_for_since_its_line_came_misses(launch, seed, sm_count, resident, size):
    lines, actions = accesses(launch)
    sectors = np.random.default_rng(seed).integers(1, ALL_SECTORS + 1, len(lines))
    launch.uses.sectors[: len(lines)] = sectors
    found = distances(launch, sm_count, resident)
    order = order_by_hand(launch, sm_count, resident)
    for sm in range(sm_count):
        own = [r for s, _, r in order if s == sm]
        misses = lru_misses(lines[own], actions[own], 1, size, True, sectors[own])
        assert [found.l1[r] >= size for r in own if actions[r] == LOOK_UP] == misses


def test_what_all_ask_for_in_a_turn_is_counted():
    """Four thread blocks, two of them on each SM: line 0, then one of each block's own, then line 0."""
    launch = launch_of([n for block in range(4) for n in (0, block + 1, 0)], [LOOK_UP] * 12, np.arange(0, 13, 3))
    distances(launch, 2, 2)
    state = launch.level.state[0]
    # sectors of the line that most ask for, turn by turn; those that L1Ds ask for are of lines that are new to them
    assert state["all_asked"] == 4 * (4 + 1 + 4) and state["all_fetched"] == 4 * (2 + 1 + 0)


@pytest.mark.parametrize(("sms", "sectors", "jam"), [(4, 0b1111, 0), (5, 0b1111, 3), (5, 0b0110, 1), (5, 0b0001, 0)])
def test_sectors_of_a_line_that_too_many_sms_want_come_one_after_the_other(sms, sectors, jam):
    """Each SM asks for line 0, and then for line 1; that they are out of step by then is not looked at."""
    launch = launch_of([0, 1] * sms, [LOOK_UP] * 2 * sms, np.arange(0, 2 * sms + 1, 2))
    launch.uses.sectors[: 2 * sms] = [sectors, 0b1111] * sms
    distances(launch, sms, 1)
    assert launch.level.state[0]["jam"] == (jam if sms > 4 else 0)


def test_lines_side_by_side_in_a_slice_are_wanted_together():
    """Five SMs ask for lines 0 and 1: two of one slice are a line of eight sectors."""
    launch = launch_of([0, 1] * 5, [LOOK_UP] * 10, np.arange(0, 11, 2))
    launch.uses.acts[:10], launch.uses.beside[1] = LOOK_UP, 0
    distances(launch, 5, 1)
    state = launch.level.state[0]
    assert state["all_asked"] == state["all_fetched"] == 5 * 8 and state["jam"] == 7


def test_no_sm_is_always_the_first():
    """Eight thread blocks ask for the same lines, one after the other: DRAM is read for each SM as often, or so."""
    launch = launch_of(list(range(400)) * 8, [LOOK_UP] * 3200, np.arange(0, 3201, 400))
    found = distances(launch, 8, 1)
    assert np.count_nonzero(found.l2[:400] == NEVER) == pytest.approx(50, abs=5)


def test_what_passes_l1d_leaves_it_as_it_was():
    acts = [LOOK_UP, LOOK_UP | PASSING, LOOK_UP | PASSING, WRITE | PASSING, LOOK_UP]
    found = distances(launch_of([0, 1, 1, 1, 0], acts, [0, 5]), 1, 1)
    assert found.l1.tolist() == [NEVER, NEVER, NEVER, -1, 0]
    assert found.l2.tolist() == [NEVER, NEVER, 0, 0, 1]


@settings(max_examples=60)
@given(launches([LOOK_UP, LOOK_UP, WRITE, UPDATE]), *SHAPES)
def test_l2_distances_are_those_of_one_cache_behind_all_sms(launch, sm_count, resident, size):
    lines, actions = accesses(launch)
    found = distances(launch, sm_count, resident)
    order = order_by_hand(launch, sm_count, resident)
    mixed = by_turns(order)
    misses = lru_misses(lines[mixed], actions[mixed], 1, size, False)
    assert [found.l2[r] >= size for r in mixed] == misses
    assert (found.l1_wait >= found.l1).all() and (found.l2_wait >= found.l2)[actions != WRITE].all()


def test_a_line_that_is_written_leaves_the_first_level():
    found = distances(launch_of([0] * 3, [LOOK_UP, WRITE, LOOK_UP], [0, 3]), 1, 1)
    assert found.l1.tolist() == [NEVER, -1, NEVER]
    assert found.l2.tolist() == [NEVER, 0, 0]
    kept = distances(launch_of([0] * 3, [LOOK_UP, WRITE, LOOK_UP], [0, 3]), 1, 1, reading=Taken(drops=0))
    assert kept.l1.tolist() == [NEVER, -1, 0]


def test_a_line_asked_for_in_the_same_turn_is_waited_for():
    found = distances(launch_of([0] * 4, [LOOK_UP] * 4, [0, 2, 4], warps=2), 1, 1)
    assert found.l1.tolist() == [NEVER, 0, 0, 0]  # warp 0: uses 0, 1; warp 1: uses 2, 3
    assert found.l1_wait.tolist() == [NEVER, 0, NEVER, 0]  # warp 1 asks while the line is on its way


def curves(table, first=0):
    """Misses [ways, size] of L1D, and [L1D, ways, size] of L2 behind it."""
    missed = miss_matrix()
    return missed @ table[first], np.einsum("lb,wsb->lws", table[first + 1 : first + 1 + L1_NODES], missed)


@pytest.mark.parametrize("ways", [1, 4, 8])
def test_curve_of_random_accesses_is_that_of_set_associative_caches(ways):
    generator = np.random.default_rng(3)
    lines = generator.permutation(4096)[(900 * generator.random(30_000) ** 2).astype(int)]  # scattered, some hotter
    launch = launch_of(lines, np.full(len(lines), LOOK_UP), [0, len(lines)])
    curve, both = curves(table_of(launch, distances(launch, 1, 1)))
    for size in (32, 128, 512):
        at = np.flatnonzero(size == SIZES)[0]
        missed = np.mean(lru_misses(lines, np.full(len(lines), LOOK_UP), size // ways, ways, True))
        assert curve[int(np.log2(ways)), at] == pytest.approx(missed, abs=0.03)
    assert (np.diff(curve, axis=1) <= 1e-6).all() and (np.diff(both, axis=0) <= 1e-6).all()
    assert (both <= curve[2, 1:-1:4, None, None] + 1e-6).all()


def test_written_sectors_miss_with_their_line():
    count = 4
    launch = launch_of(np.arange(count), [WRITE] * count, [0, count])
    nothing, l2 = np.full(count, -1, np.int32), np.array([NEVER] * 3 + [0], np.int32)
    table = table_of(launch, Found(nothing, nothing, l2, nothing, nothing))
    assert miss_matrix()[-1, -1] @ table[WRITE_ROW] == 0.75 and not table[:WRITE_ROW].any()


def test_sectors_that_are_there_do_not_miss_with_the_others():
    """Two, then one of these and one more."""
    launch = launch_of([0, 0], [LOOK_UP] * 2, [0, 2])
    launch.uses.sectors[:2] = 0b0011, 0b0110
    curve, both = curves(table_of(launch, distances(launch, 1, 1)))
    assert curve[-1, -1] == both[-1, -1, -1] == 0.75


def test_distances_are_counted_in_their_bins_and_batches_by_their_largest():
    l1 = np.unique(np.round(np.exp(np.linspace(0, np.log(2.0**21), 3000)))).astype(np.int32)
    count, l2 = len(l1), l1[::-1].copy()
    launch = launch_of(np.arange(count), [LOOK_UP] * count, [0, count])
    batches = np.array([[0, 5, 0], [7, 7, 0], [count - 3, count, 0]], np.int32)
    table = table_of(launch, Found(l1, l1, l2, l2, np.full(count, 4)), batches)
    expected = np.bincount(bins_of(l1), minlength=DISTANCE_BINS) / count
    assert np.abs(table[0] - expected).sum() < 0.01  # large distances are rounded first
    assert table[1, bins_of(l2)].all() and table[0].sum() == pytest.approx(1) and not table[WRITE_ROW].any()
    waits = table[1 + L1_NODES]
    assert waits[bins_of(l1[4])] == waits[bins_of(l1[-1])] == 0.5


def test_some_lines_and_sms_stand_for_all():
    generator = np.random.default_rng(5)
    lines, found = (40_000 * generator.random(60_000) ** 2).astype(int), []
    for scale, sms in ((1, 8), (8, 4)):
        launch = launch_of(lines, np.full(len(lines), LOOK_UP), np.arange(0, len(lines) + 1, 500), scale=scale)
        own = distances(launch, 8, 2, 8 // sms)
        assert (own.l1 >= 0).mean() == pytest.approx(sms / 8, abs=0.1)
        found.append(curves(table_of(launch, own)))
    for exact, estimated in zip(*found, strict=True):
        np.testing.assert_allclose(estimated, exact, atol=0.03)


@settings(max_examples=40)
@given(launches([LOOK_UP, LOOK_UP, WRITE, UPDATE]), st.integers(1, 9), st.integers(1, 9))
def test_sms_without_a_block_and_room_without_one_change_no_distance(launch, sm_count, resident):
    """A summary takes each different case once."""
    blocks = launch.uses.sizes["blocks"][0]
    busy = min(sm_count, blocks)
    found = np.array(distances(launch, sm_count, resident))
    same = np.array(distances(launch, busy, min(resident, -(-blocks // busy))))
    np.testing.assert_array_equal(found, same)
