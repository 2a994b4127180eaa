"""Sampling's view of executor and engine: nothing is lost, nothing is counted twice, nothing is executed twice."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hard_set import hard_case
from ptx_kernels import HEADER, entry

from abstim.engine.state import ISSUE, NEVER
from abstim.gpu.config import load_gpu
from abstim.models import run
from abstim.study.sample.counts import (
    EngineFunctional,
    block_counts,
    instruction_classes,
    launch_counts,
    part_of,
    warp_types,
)
from abstim.study.sample.on_demand import ThreadBlocks
from abstim.study.sample.sampled_program import Finished, SampledProgram
from abstim.study.sample.simulator import WINDOW_CYCLES, Watch
from abstim.targets.resolve import open_target, ptx_case
from functional.execution.default_executor import default_executor
from precharacterize.classify import kinds_of
from sampling import Pkp
from sampling.estimate import exact

REAL = load_gpu("gtx480")
PERFECT = load_gpu("gtx480_perfect")


def program(target="spmv_csr", gpu=REAL, **options) -> SampledProgram:
    return SampledProgram(open_target(target), gpu, **options)


@cache
def stepped(target: str, perfect: bool, chunk: int):
    """Every observation of a launch stepped `chunk` thread blocks at a time, and the opened program."""
    opened = program(target, PERFECT if perfect else REAL)
    simulator = opened.simulator(0, basic_blocks=True)
    simulator.begin()
    seen = []
    for start in range(0, simulator.shape.thread_blocks, chunk):
        blocks = np.arange(start, min(start + chunk, simulator.shape.thread_blocks))
        seen.append(simulator.step(blocks))
    seen.append(simulator.result())
    return opened, seen


CASES = [("spmv_csr", False, 12), ("spmv_csr", True, 25), ("btree_find_k", False, 16), ("particlefilter", True, 5)]


@pytest.mark.parametrize(("target", "perfect", "chunk"), CASES)
def test_a_launch_in_steps_takes_the_cycles_of_a_whole_one(target, perfect, chunk) -> None:
    _, seen = stepped(target, perfect, chunk)
    assert seen[-1].clock_cycles == run(target, PERFECT if perfect else REAL).launches[0].cycles
    clocks = [each.clock_cycles for each in seen]
    assert clocks == sorted(clocks)


@pytest.mark.parametrize(("target", "perfect", "chunk"), CASES)
def test_everything_retires_once_and_in_order(target, perfect, chunk) -> None:
    opened, seen = stepped(target, perfect, chunk)
    launch = opened.case.launches[0]
    blocks = np.concatenate([each.blocks for each in seen])
    assert np.array_equal(np.sort(blocks), np.arange(launch.thread_blocks))
    assert sum(len(each.warp_retire_cycles) for each in seen) == launch.thread_blocks * launch.warps_per_block
    for column in ("block_retire_cycles", "warp_retire_cycles"):
        assert (np.diff(np.concatenate([getattr(each, column) for each in seen])) >= 0).all()
    for each in seen:
        assert not set(each.resident_blocks) & set(each.blocks)
        assert (each.block_dispatch_cycles < each.block_retire_cycles).all()
        assert (each.block_retire_cycles <= each.clock_cycles).all()


@pytest.mark.parametrize(("target", "perfect", "chunk"), CASES)
def test_basic_blocks_chain_from_first_issue_to_retirement(target, perfect, chunk) -> None:
    opened, seen = stepped(target, perfect, chunk)
    trace = opened.launches.trace(0)
    events = np.concatenate([each.basic_blocks for each in seen])
    issue = np.concatenate([each.basic_block_issue_cycles for each in seen])
    retire = np.concatenate([each.basic_block_retire_cycles for each in seen])
    counts = block_counts(trace, len(opened.case.launches[0].program.blocks))
    assert np.array_equal(np.bincount(events, minlength=counts.shape[1]), counts.sum(0))
    lives = sum((each.warp_retire_cycles - each.warp_issue_cycles).sum() for each in seen)
    assert (retire >= issue).all() and (retire - issue).sum() == lives  # blocks of a warp leave no gap


@pytest.mark.parametrize(("target", "perfect", "chunk"), CASES)
def test_windows_and_latencies(target, perfect, chunk) -> None:
    opened, seen = stepped(target, perfect, chunk)
    windows = np.concatenate([each.window_instructions for each in seen])
    whole = float(opened.launches.trace(0).warp_instructions.sum())
    assert len(windows) == seen[-1].clock_cycles // WINDOW_CYCLES
    assert whole * 0.98 - 2000 < windows.sum() <= whole
    latency = seen[-1].class_latency_cycles
    assert np.isnan(latency).sum() < len(latency) and np.nanmin(latency) >= 0
    fill = [each.cache_fill for each in seen]
    assert max(fill) <= 1.0 and (min(fill) == 1.0) == perfect


def test_a_latency_not_known_yet_is_no_part_of_the_mean() -> None:
    log = np.zeros(3, ISSUE)
    log["instruction"], log["cycle"], log["result_cycle"] = [0, 1, 0], [5, 6, 7], [9, NEVER, 13]
    watch = Watch(np.array([0]), np.array([0, 1]), 1)
    watch.read(log, np.zeros((0, 2), np.int64))
    assert watch.class_latency_cycles[0] == 5 and np.isnan(watch.class_latency_cycles[1])


def test_thread_blocks_left_out_are_not_executed() -> None:
    opened = program("nn_euclid")
    simulator = opened.simulator(0)
    simulator.begin()
    simulator.step(np.array([3, 1, 70]))
    seen = simulator.result()
    assert sorted(seen.blocks.tolist()) == [1, 3, 70]
    assert opened.launches.thread_blocks(0).executed < 10
    whole = program("nn_euclid").launches.trace(0).warp_instructions.sum()
    assert 0 < opened.executed_instructions < 0.1 * whole


def test_batches_execute_each_thread_block_once_and_leave_the_memory_of_one_run() -> None:
    case = open_target("histogram_atomics")  # atomics: twice would show
    (launch,) = case.launches
    whole, parts = case.memory.copy(), case.memory.copy()
    expected = default_executor().run(launch, whole)
    blocks = ThreadBlocks(launch, lambda launch, some: default_executor().run(launch, parts, some))
    for asked in ([40], [7, 3], [0, 1, 2], [41, 40, 7], list(range(30, 35))):
        at = blocks.at(np.array(asked))
        assert np.array_equal(blocks.trace.thread_blocks[at], asked)
    blocks.finish()
    assert np.array_equal(np.sort(blocks.trace.thread_blocks), np.arange(launch.thread_blocks))
    assert np.array_equal(whole.arena, parts.arena)
    ordered = part_of(blocks.trace, blocks.at(np.arange(launch.thread_blocks)))
    for stream in ("blocks", "records", "block_offsets", "record_offsets"):
        assert np.array_equal(getattr(ordered, stream), getattr(expected, stream))


def test_profile_of_warps_against_their_traces() -> None:
    opened = program("bfs")
    functional = EngineFunctional(opened.launches.thread_blocks(4))
    asked = np.array([5, 0, 59])
    found = functional.profile(asked)
    trace = opened.launches.trace(4)
    at = opened.launches.thread_blocks(4).at(asked)
    warps = (at[:, None] * trace.warps_per_block + np.arange(trace.warps_per_block)).ravel()
    assert np.array_equal(found.counts @ functional.block_instructions, trace.warp_instructions[warps])
    sequences = [tuple(trace.blocks[trace.block_offsets[w] : trace.block_offsets[w + 1]]) for w in warps]
    same = np.array([[a == b for b in sequences] for a in sequences])
    assert np.array_equal(found.types[:, None] == found.types, same)


def test_warp_types_tell_the_order_of_basic_blocks() -> None:
    trace = program("bfs").launches.trace(0)
    first = trace.blocks.copy()
    swapped = first.copy()
    at = int(np.flatnonzero(np.diff(first[: trace.block_offsets[1]].astype(int)))[0])
    swapped[[at, at + 1]] = swapped[[at + 1, at]]
    from dataclasses import replace

    assert warp_types(trace)[0] != warp_types(replace(trace, blocks=swapped))[0]


def test_characteristics_of_a_kernel_counted_by_hand() -> None:
    """nn_euclid: 30,700 of 120 x 256 threads load two floats of a record and store one."""
    opened = program("nn_euclid")
    code = opened.case.launches[0].program
    counts = launch_counts(code, opened.launches.trace(0), np.array(kinds_of(code)))
    active = -(-30700 // 32)
    assert counts["global_stores"] == active and counts["coalesced_global_stores"] == -(-30700 // 8)
    assert counts["global_loads"] in (active, 2 * active)  # one load of a pair, or two
    assert counts["coalesced_global_loads"] == counts["global_loads"] / active * -(-30700 * 8 // 32)
    assert counts["shared_loads"] == counts["local_loads"] == counts["global_atomics"] == 0
    assert counts["thread_blocks"] == 120 and counts["instructions"] == opened.launches.trace(0).warp_instructions.sum()


@pytest.mark.parametrize(
    "target", ["histogram_atomics", "micro_local_spill", "matmul_tiled", "gemm_mma", "aes256_encrypt"]
)
def test_every_record_finds_its_instruction(target) -> None:
    opened = program(target)
    code = opened.case.launches[0].program
    counts = launch_counts(code, opened.launches.trace(0), np.array(kinds_of(code)))
    expected = {
        "histogram_atomics": "global_atomics",
        "micro_local_spill": "local_loads",
        "matmul_tiled": "shared_loads",
    }
    assert counts[expected.get(target, "global_loads")] > 0


@pytest.mark.parametrize("partial", [False, True])
def test_earlier_launches_are_finished_unless_the_user_says_otherwise(partial) -> None:
    """In bfs each launch reads what the one before it found."""
    opened = program("bfs", partial=partial)
    first, whole = opened.launches.thread_blocks(0), opened.case.launches[0].thread_blocks
    first.at(np.array([0, whole - 1]))
    opened.launches.thread_blocks(2)
    assert first.ever == (2 if partial else whole)
    assert opened.launches.alone == partial


def test_launches_that_decide_nothing_for_each_other_are_executed_alone() -> None:
    opened = program("hotspot")
    opened.launches.thread_blocks(1)
    assert opened.launches.alone and opened.launches.executed_instructions == 0


def test_classes_never_seen_start_at_their_unit_or_cache() -> None:
    opened = program("spmv_csr")
    simulator = opened.simulator(0, basic_blocks=True)
    simulator.begin()
    seen = simulator.step(np.arange(1))
    code, params = opened.case.launches[0].program, REAL.params
    classes, table = instruction_classes(code), simulator.launch.inputs.table
    assert len(seen.initial_latency_cycles) == len(seen.class_latency_cycles) == classes.max() + 1
    for place, instruction in enumerate(code.instructions):
        found = seen.initial_latency_cycles[classes[place]]
        if instruction.is_memory and instruction.space == "global":
            assert found >= params.l1d_latency_cycles
        elif not instruction.is_memory:
            same = table.latency_cycles[classes == classes[place]]
            assert same.min() <= found <= same.max()


def test_single_cycles_are_counted_as_windows_are() -> None:
    def windows(width: int) -> np.ndarray:
        opened = program("btree_find_k")
        simulator = opened.simulator(0, window_cycles=width)
        simulator.begin()
        first = simulator.step(np.arange(20))
        return np.concatenate([first.window_instructions, simulator.result().window_instructions])

    single, wide = windows(1), windows(WINDOW_CYCLES)
    whole = len(wide) * WINDOW_CYCLES
    assert len(single) >= whole and single[:whole].reshape(-1, WINDOW_CYCLES).sum(1).tolist() == wide.tolist()


@pytest.mark.parametrize("gpu", [REAL, PERFECT])
def test_a_launch_below_a_wave_that_is_looked_at_on_its_way_ends_as_it_would(gpu) -> None:
    """No IPC is stable enough for s = 0."""
    opened = program(hard_case("hard_decode"), gpu)
    simulator, looks = opened.simulator(0, window_cycles=1), []
    advance = simulator.advance
    simulator.advance = lambda cycles: looks.append(cycles) or advance(cycles)
    estimate = Pkp(in_flight=False, s=0.0).launch(simulator)
    assert estimate.basis == "exact" and estimate.total == opened.session.simulate(0, gpu).cycles
    assert len(looks) > (0 if gpu is PERFECT else 3)


def test_a_launch_that_is_no_longer_watched_ends_as_it_would() -> None:
    opened, seen = stepped("spmv_csr", False, 12)
    simulator = program("spmv_csr").simulator(0, basic_blocks=True)
    simulator.begin()
    assert len(simulator.step(np.arange(12)).class_latency_cycles)
    simulator.forget()
    simulator.step(np.arange(12, simulator.shape.thread_blocks))
    last = simulator.result()
    assert last.clock_cycles == seen[-1].clock_cycles and len(last.basic_blocks) == 0
    assert last.dispatched_instructions == opened.launches.trace(0).warp_instructions.sum()


def test_a_launch_that_was_dropped_can_be_asked_for_again() -> None:
    """As `--control` does: each launch is estimated, and some are simulated afterwards."""
    launches = program("gaussian_elimination").launches
    first = launches.trace(1)
    launches.drop(1)
    again = launches.trace(1)
    assert again is not first and np.array_equal(again.records, first.records)


def test_histories_are_in_the_order_of_the_launches_whichever_thread_ended_first() -> None:
    opened = program("gaussian_elimination")
    found = Finished(
        estimate=exact("x", 1.0, (), {}), executed_instructions=1.0, time_seconds=0.0, history=[(0.0, 0.0)]
    )
    opened.asked = {(3, "x"): found, (1, "x"): found}
    assert [name.split()[0] for name in opened.stability()] == ["1", "3"]


def test_what_thread_blocks_left_out_have_stored_can_be_read_in_l2(tmp_path: Path) -> None:
    """Block 0 stores 256 bytes or every other word of them, which block 1 reads."""
    body = "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p0, %r1, 0; mad.wide.u32 %rd1, %r0, 8, %rd0; @%p0 bra store;"
    body += " ld.global.u32 %r2, [%rd1]; bra end; store: st.global.STORED end:"
    reads = {}
    for name, stored in {"whole": "u64 [%rd1], %rd0;", "part": "u32 [%rd1], %r0;"}.items():
        (tmp_path / f"{name}.ptx").write_text(HEADER + entry(body.replace("STORED", stored)))
        for left_out in ([], [0]):
            case = ptx_case(str(tmp_path / f"{name}.ptx"), "", [2], [32], ["buf:u32:64"])
            simulator = SampledProgram(case, load_gpu("rtx3070")).simulator(0)
            simulator.begin()
            simulator.leave_out(np.array(left_out, np.int64))
            simulator.step(np.array([1]))
            simulator.result()
            reads[name, len(left_out)] = int(simulator.launch.state.shared.traffic["dram_reads"].sum())
    assert reads["whole", 0] - reads["whole", 1] == 8 and reads["part", 0] == reads["part", 1]
