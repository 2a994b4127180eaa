"""The compiled engine against the scalar oracle, and what must hold of any engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle
import pytest
from algorithm_1_lanes import algorithm_1_cycles, algorithm_1_lanes
from hypothesis import given
from hypothesis import strategies as st
from nightly import examples, of
from random_gpus import configured, gpus, mixtures
from random_launches import Launch, launches, simulate, straight_launch
from real_programs import differences, real_launch

from abstim.engine import EngineResult, LaunchInputs
from abstim.gpu.config import gpu_names, load_gpu
from abstim.gpu.spec import POLICIES
from abstim.occupancy_vector.lanes import cycles_of, run
from abstim.session.session import open_session
from functional.errors import InputError
from functional.traces.line_record import SHARED_PASS
from precharacterize.classify import Kind
from precharacterize.synchronisation import COMMIT, COPY, NONE

EXAMPLES = examples(4, 25)


def one(launch: Launch, gpu=None) -> EngineResult:
    return simulate(launch.inputs, [gpu or launch.gpu], [launch.blocks_per_sm])[0]


def assert_same(a: EngineResult, b: EngineResult) -> None:
    assert a.cycles == b.cycles
    np.testing.assert_array_equal(a.sm_cycles, b.sm_cycles)
    np.testing.assert_array_equal(a.issue_slots, b.issue_slots)
    np.testing.assert_array_equal(a.resident_warp_cycles, b.resident_warp_cycles)
    assert a.counters == b.counters


def assert_follows_the_rules(launch: Launch) -> None:
    engine = one(launch)
    expected = oracle.simulate(launch.inputs, launch.gpu, launch.blocks_per_sm)
    assert engine.cycles == expected.cycles
    assert engine.sm_cycles.tolist() == expected.sm_cycles
    assert engine.issue_slots[:, 0].tolist() == expected.issued
    assert engine.resident_warp_cycles.tolist() == expected.resident_warp_cycles
    assert engine.counters == dict.fromkeys(engine.counters, 0) | expected.counters


@pytest.mark.parametrize("policy", POLICIES)
@EXAMPLES
@given(st.data())
def test_compiled_engine_follows_the_rules(policy: str, data: st.DataObject) -> None:
    assert_follows_the_rules(data.draw(launches((policy,))))


@pytest.mark.parametrize("name", gpu_names()[:: of(3, 1)])
@examples(2, 12)
@given(st.data())
def test_engine_follows_the_rules_on_every_gpu(name: str, data: st.DataObject) -> None:
    assert_follows_the_rules(data.draw(launches(gpu=configured(name))))


@pytest.mark.parametrize("policy", POLICIES)
@examples(2, 12)  # nearly each is a kind of GPU that the engine is compiled for
@given(st.data())
def test_engine_follows_the_rules_on_mixtures_of_gpus(policy: str, data: st.DataObject) -> None:
    assert_follows_the_rules(data.draw(launches(gpu=mixtures((policy,)))))


@pytest.mark.parametrize("name", of(gpu_names()[1::4], gpu_names()))
@examples(1, 4)
@given(st.integers(0, 2**32))
def test_engine_follows_the_rules_with_real_memory_on_every_gpu(name: str, seed: int) -> None:
    """SMs and memory side together; `python tests/real_programs.py 500` does as many, and larger ones."""
    assert differences(real_launch(seed, name, most_blocks=3, machine=seed % 2 == 1)) == {}


def test_a_store_of_both_halves_of_its_line_goes_on_when_there_is_room_again() -> None:
    """Its two sectors go to L2 as the whole line, for which the queue had no room; it then waited for some reply."""
    gpu = load_gpu("gtx480", ["sm_count=1", "dram_channels=2", "inject_queue_flits=4", "crossbar_queue_flits=10"])
    inputs = straight_launch([*[Kind.GLOBAL_STORE] * 4, Kind.EXIT], warps=1)
    records = ((1000 + np.arange(4)) << 5 | 0b0101 << 1).astype(np.uint32)
    trace = replace(inputs.trace, records=records, record_offsets=np.array([0, len(records)]))
    assert differences(Launch(replace(inputs, trace=trace), gpu, 1)) == {}


def test_what_had_no_room_to_send_goes_on_when_a_window_begins() -> None:
    """An atomic whose next sector was for later waited until then, and others took its room; a constant behind shared
    memory's passes was looked up before its turn (556 cycles in place of 615)."""
    assert differences(real_launch(49, "gtx480_1sched", hardware=False)) == {}
    queue = ["inject_queue_flits=4", "crossbar_queue_flits=20"]
    gpu = load_gpu("gtx480", ["sm_count=1", "dram_channels=2", "l1d_bypass=true", *queue])
    inputs = straight_launch([Kind.GLOBAL_LOAD, Kind.SHARED_LOAD, Kind.CONST_LOAD, Kind.EXIT], warps=1)
    records = np.array([*((1000 + k) << 5 | 2 | (k < 23) for k in range(24)), 5 << 5 | 6], np.uint32)
    trace = replace(inputs.trace, records=records, record_offsets=np.array([0, 25]), conflicts=np.array([60], np.uint8))
    assert differences(Launch(replace(inputs, trace=trace), gpu, 1)) == {}


def test_a_texture_that_had_no_room_does_not_wait_for_l1ds_miss_queue() -> None:
    """Its misses do not go through it: 1 % of a launch's cycles on the TITAN X."""
    queues = ["inject_queue_flits=4", "crossbar_queue_flits=64", "l1d_miss_queue=2"]
    gpu = load_gpu("gtx480", ["sm_count=1", "dram_channels=2", *queues])
    inputs = straight_launch([Kind.GLOBAL_LOAD, Kind.TEXTURE_LOAD, Kind.L2_LOAD, Kind.EXIT], warps=1)
    lines = [[5000], [9000, 9001, 9002], [*range(1000, 1168)]]
    records = [line << 5 | 2 | (line != own[-1]) for own in lines for line in own]
    trace = replace(inputs.trace, records=np.array(records, np.uint32), record_offsets=np.array([0, len(records)]))
    assert differences(Launch(replace(inputs, trace=trace), gpu, 1)) == {}


def test_a_load_that_was_refused_finds_what_another_bank_has_left_since() -> None:
    """It slept until something came back, when its line was gone again (700 cycles in place of 563)."""
    sizes = ["l1d_banks=4", "l1d_sets=1", "l1d_ways=3", "l1d_mshrs=1", "sm_count=1", "dram_channels=2"]
    policy = ["l1d_sectored=true", "l1d_write=through", "l1d_write_allocate=true", "coalescing=line"]
    load, store = Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE
    inputs = straight_launch([load, load, store, store, store, Kind.EXIT], warps=1)
    records = [line << 5 | sectors << 1 for line, sectors in [(50, 1), (60, 8), (60, 12), (70, 12), (80, 12)]]
    trace = replace(inputs.trace, records=np.array(records, np.uint32), record_offsets=np.array([0, 5]))
    assert differences(Launch(replace(inputs, trace=trace), load_gpu("gtx480", [*sizes, *policy]), 1)) == {}


def test_a_barrier_issued_second_holds_its_warp() -> None:
    """On the TITAN X a store and the barrier behind it issue in one turn; the warp waits all the same."""
    gpu = load_gpu("titanx", ["perfect_memory=true", "sm_count=1"])
    kinds = [Kind.SHARED_STORE, Kind.BARRIER, *[Kind.ALU] * 6, Kind.EXIT]
    assert_follows_the_rules(Launch(straight_launch(kinds, warps=13), gpu, 1))


@EXAMPLES
@given(launches())
def test_issue_slots_fill_every_scheduler_cycle(launch: Launch) -> None:
    result = one(launch)
    assert (result.issue_slots >= 0).all()
    assert set(result.issue_slots.sum(1)) == {result.cycles * launch.gpu.spec.schedulers_per_sm}
    assert result.issue_slots[:, 0].sum() == launch.inputs.trace.warp_instructions.sum()


@examples(4, 10)
@given(launches(), st.lists(gpus(), min_size=7, max_size=7), st.integers(0, 7))
def test_a_point_is_independent_of_the_points_beside_it(launch: Launch, others: list, place: int) -> None:
    fitting = [replace(g, spec=replace(g.spec, max_warps_per_sm=48)) for g in others]
    points = [*fitting[:place], launch.gpu, *fitting[place:]]
    results = simulate(launch.inputs, points, [launch.blocks_per_sm] * len(points))
    assert_same(results[place], one(launch))


@EXAMPLES
@given(launches())
def test_same_input_same_result(launch: Launch) -> None:
    assert_same(one(launch), one(launch))


@EXAMPLES
@given(launches())
def test_parameters_that_cannot_matter_do_not(launch: Launch) -> None:
    spec = replace(launch.gpu.spec, shared_bytes_per_sm=1 << 20, registers_per_sm=1 << 20, core_clock_hz=1e9)
    if spec.scheduler != "two_level":
        spec = replace(spec, two_level_active_warps=launch.gpu.spec.two_level_active_warps + 3)
    assert_same(one(launch, replace(launch.gpu, spec=spec)), one(launch))


@pytest.mark.parametrize("policy", ["lrr", "oldest"])
@EXAMPLES
@given(launches(("gto",)))
def test_algorithm_1_lies_between_its_bounds(policy: str, launch: Launch) -> None:
    """A lone warp takes the sum of its latencies; a block a cycle an instruction at least, all in turn at most."""
    table, trace = launch.inputs.table, launch.inputs.trace
    sums = [
        sum(int(table.gap_cycles[table.block_start[b] : table.block_stop[b]].sum()) for b in trace.blocks[start:stop])
        for start, stop in zip(trace.block_offsets, trace.block_offsets[1:], strict=False)
    ]
    cycles = oracle.algorithm_1(launch.inputs, 1, policy)
    blocks = np.reshape(sums, (-1, trace.warps_per_block))
    assert max(blocks.max(1).sum(), trace.warp_instructions.sum()) <= cycles <= blocks.sum()
    if trace.warps_per_block == 1:
        assert cycles == blocks.sum()


@pytest.mark.parametrize("policy", ["lrr", "oldest"])
@EXAMPLES
@given(launches(("gto",)), st.integers(1, 3), st.sampled_from(["gtx480", "rtx3080"]))
def test_algorithm_1_is_a_setting_of_the_occupancy_engine(
    policy: str, launch: Launch, sm_count: int, name: str
) -> None:
    """Whatever a GPU takes to launch thread blocks: the RTX 3080 takes long."""
    gpu = load_gpu(name, [f"scheduler={policy}", f"sm_count={sm_count}"])
    found = run(algorithm_1_lanes(launch.inputs.table, launch.inputs.trace, gpu))
    assert cycles_of(found.end).max() == oracle.algorithm_1(launch.inputs, sm_count, policy)


def test_algorithm_1_of_a_kernel() -> None:
    session, gpu = open_session("relu", []), load_gpu("gtx480", ["scheduler=lrr"])
    inputs = session.inputs(0, gpu)
    assert algorithm_1_cycles(session, 0, gpu) == oracle.algorithm_1(inputs, gpu.spec.sm_count, "lrr")
    with pytest.raises(InputError, match="lrr or oldest, not by gto"):
        algorithm_1_cycles(session, 0, load_gpu("gtx480"))


@pytest.mark.parametrize(("name", "copies"), [("gtx480_perfect", [COPY, COMMIT]), ("rtx3070", [COPY, COMMIT])])
def test_a_wait_for_copies_lasts_until_their_groups_are_there(name, copies):
    def cycles(wait: int) -> int:
        inputs = straight_launch([Kind.GLOBAL_LOAD, Kind.ALU, Kind.ALU, Kind.ALU, Kind.EXIT], 1)
        lines = np.array([1000 << 5 | 15 << 1 | 1, SHARED_PASS], np.uint32)
        trace = replace(inputs.trace, records=lines, record_offsets=np.array([0, 2]))
        table = replace(inputs.table, copies=np.array([*copies, wait, NONE, NONE], np.int32))
        launch = Launch(LaunchInputs(table, trace), load_gpu(name), 1)
        assert_follows_the_rules(launch)
        return one(launch).cycles

    assert cycles(0) == cycles(1) > cycles(2) == cycles(NONE)
