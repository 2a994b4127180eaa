"""What a cache walk found, as lanes read it, against the same said plainly."""

import numpy as np
import pytest

import abstim
from abstim.gpu.config import load_gpu
from abstim.occupancy_vector.cache_walk import NOMINAL_CYCLES, TOLD_SM, Walk, empty_caches, lines_of
from abstim.occupancy_vector.records import ACCESS_WORD, BACK_BITS, MOST_PARTS, NEVER_LATE, PARTS, RECENT
from abstim.occupancy_vector.timed_launch import TimedLaunch, room_of
from abstim.session.session import open_session
from functional.jit.machine_code import Native

choose = Native("abstim.occupancy_vector.answer_kernel", "choose")
end_stretch, end_window = (Native("abstim.occupancy_vector.evenness", name) for name in ("end_stretch", "end_window"))
SMALL = ["sm_count=3", "max_blocks_per_sm=2", "l1d_sets=4", "l1d_ways=2", "l1i_sets=1", "l1i_ways=2"]
BANKS = ["l1d_sectored=true", "l1d_banks=4", "coalescing=sector"]


@pytest.fixture(scope="module", params=[("kmeans_point", []), ("spmv_csr", []), ("spmv_csr", BANKS)])
def walked(request):
    """(the walk, thread blocks by SM, what is told of it)."""
    name, sets = request.param
    launch = TimedLaunch(open_session(name), 0)
    launch.trace = launch.trace.part(0, 12)
    point = launch.design_point(load_gpu("gtx480", SMALL + sets))
    streams, told, count = point.lanes.streams, point.walked.told, launch.trace.warps_per_block
    items, warps, traced = point.nominal.lent.value, point.warps.value, point.warps.traced.value
    found = *room_of(point)[1].value, None, None
    walk = Walk(None, *items[1:4], *warps[:3], traced.records, traced.words, told.dealt, *found)
    numbers = np.arange(12 * count).reshape(12, count)
    return walk, [numbers[streams.dealt[own["first"] : own["stop"]]].ravel().tolist() for own in told.sms], streams


def level_of(wait):
    """(level, part) of a nominal wait."""
    level = int(wait > NOMINAL_CYCLES[0]) + int(wait > NOMINAL_CYCLES[1])
    if not level:
        return 0, 0
    before, own = NOMINAL_CYCLES[level - 1], NOMINAL_CYCLES[level]
    return level, min(MOST_PARTS - 1, int(np.ceil((wait - before) * PARTS / (own - before))) - 1)


def fields_of(word):
    """The fields of an access's word."""
    found, value = {}, int(word) & 0xFFFFFFFF
    for name, bits in ACCESS_WORD:
        found[name], value = value & ((1 << bits) - 1), value >> bits
    return found


def accesses_of(walk, warps_of_sms):
    """Accesses of all SMs, one after the other."""
    return [k for sm in warps_of_sms for w in sm for k in range(walk.access_offsets[w], walk.access_offsets[w + 1])]


def test_words_say_what_was_found(walked):
    walk, warps_of_sms, told = walked
    for k in accesses_of(walk, warps_of_sms):
        level, part = level_of(int(walk.answers[k]["way"]))
        expected = {"occupies": walk.accesses[k]["cycles"], "level": level, "part": part}
        expected |= {name: walk.answers[k][name] for name in ("sectors", "dram_sectors")}
        assert fields_of(told.accesses[k]) == expected


def test_who_waits_for_the_same_data_is_one_fill(walked):
    walk, warps_of_sms, told = walked
    own = accesses_of(walk, warps_of_sms)
    rows = {k: {name: int(walk.answers[k][name]) for name in walk.answers.dtype.names} for k in own}
    waits_for = {k: -1 if row["sectors"] else (row["waits_for"] or row["behind"]) - 1 for k, row in rows.items()}
    followed = {k for k, row in rows.items() if row["sectors"] and (row["behind"] or row["trips"])}
    followed |= {k for k in waits_for.values() if k >= 0}
    for row in rows.values():
        if row["behind"] and row["sectors"]:
            before = rows[row["behind"] - 1]
            early = (before["there"] - row["until"]) * PARTS // (NOMINAL_CYCLES[2] - NOMINAL_CYCLES[1])
            back = min(RECENT, row["number"] - before["number"])
            assert row["back"] == back + (min(MOST_PARTS, max(0, early)) << BACK_BITS)
    askers = [k if k in followed else waits_for[k] for k in own]
    numbers = {asker: n for n, asker in enumerate(dict.fromkeys(a for a in askers if a >= 0), 1)}
    assert len(numbers) > 20 and any(row["behind"] for row in rows.values())
    for k, asker in zip(own, askers, strict=True):
        held = rows[k]["behind"] and k not in followed
        assert told.fills[k] == numbers.get(asker, 0) * (-1 if held else 1)
    for asker, n in numbers.items():
        assert told.fill_words[n] == told.accesses[asker] and told.fill_trips[n] == rows[asker]["trips"]
        assert told.fill_behind[n] == rows[asker]["back"]


def test_late_lines_of_a_warp_are_in_order_and_end_with_a_mark(walked):
    walk, warps_of_sms, told = walked
    lines = {}
    for w in (w for sm in warps_of_sms for w in sm):
        fetches = np.arange(walk.fetch_offsets[w], walk.fetch_offsets[w + 1])
        late = fetches[walk.fetch_waits[fetches] > 0]
        first = told.late_starts[w]
        begins = walk.items["begins"][walk.offsets[walk.paths[w]] + late - fetches[0]]
        assert told.late_begins[first : first + len(late) + 1].tolist() == [*begins.tolist(), NEVER_LATE]
        for n, asker in enumerate(walk.fetch_askers[late].tolist(), first):
            assert told.late_fills[n] == lines.setdefault(asker - 1, told.late_fills[n])
    assert len(lines) > 3 and len(set(lines.values())) == len(lines)
    for asker, fill in lines.items():
        level, part = level_of(int(walk.fetch_waits[asker]))
        sectors = {"sectors": 4, "dram_sectors": 4 * (level == 2)}
        assert fields_of(told.fill_words[fill]) == {"occupies": 0, "level": level, "part": part} | sectors


def test_sms_that_may_end_last_are_run():
    """Of 15 four."""
    assert abstim.run("kmeans_point", model="occupancy").launches[0].stepped_fraction == pytest.approx(4 / 15, rel=0.02)


@pytest.mark.parametrize(("queues_at_outputs", "busiest"), [(0, 8 * 2 + 6 * 3), (1, 11 * 3)])
def test_slices_serve_one_burst_after_the_other_where_packets_queue_before_the_switch(queues_at_outputs, busiest):
    """A stretch in which two SMs ask one slice for 8 sectors, and one in which three ask another for 6."""
    gpu = load_gpu("gtx480")
    caches = empty_caches(gpu, 1, *lines_of(gpu))
    for slice, sectors, sms in ((0, 8, 2), (1, 6, 3)):
        caches.slice_sectors[:2], caches.servers["asks"][:sms] = 3, 1
        caches.slice_sectors[slice] = sectors
        end_stretch(caches, 15, queues_at_outputs)
    end_window(caches, 15)
    totals = caches.totals[0]
    assert (totals["slice_sectors"], totals["busiest_slice"], totals["bursts"]) == (20, busiest, 0)
    assert not (caches.slice_sectors.any() or caches.servers["asks"].any() or caches.window_sectors.any())


def test_who_ends_last_in_the_walk_and_who_has_most_to_do_are_run_in_turn():
    sms = np.zeros(16, TOLD_SM)
    sms["ended"], sms["load"] = np.arange(16), -np.arange(16)
    sms["load"][15] = 1
    choose(sms)
    assert np.flatnonzero(sms["is_run"]).tolist() == [0, 1, 13, 14, 15]
    few = np.zeros(3, TOLD_SM)
    choose(few)
    assert few["is_run"].all()


def test_turns_say_what_left_the_sm_before_a_load_though_it_came_later(walked):
    walk, warps_of_sms, told = walked
    found, turns = [], 0
    for sm in warps_of_sms:
        rows = [walk.answers[k] for w in sm for k in range(walk.access_offsets[w], walk.access_offsets[w + 1])]
        first = len(found)
        found += [0] * len(rows)
        turns += sum(int(row["turn"]) for row in rows)
        for row in rows:
            if row["turn"]:
                found[first + row["turn"] - 1] = max(0, int(row["left"]) - int(row["came"]))
    assert told.turns[: len(found)].tolist() == found and any(found) == (turns > 0)


@pytest.mark.parametrize("gpu", ["rtx2060", "titanx"])
def test_a_stream_on_one_sm_takes_what_the_detailed_model_says(gpu):
    """Four banks before a miss queue of 16; loads that pass L1D by, a sector a cycle: else 13 and 20 % less."""
    cycles = [abstim.run("relu", gpu, ["sm_count=1"], model=m).totals["cycles"] for m in ("occupancy", "detailed")]
    assert cycles[0] == pytest.approx(cycles[1], rel=0.04)
