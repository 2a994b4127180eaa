"""SMs that do the same are run once: nothing that is said of the launch, its thread blocks and its warps changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import examples
from random_launches import launches

from abstim.engine import Simulation
from abstim.engine.alike_blocks import EVERY_BLOCK_ITS_OWN, _told_apart, kinds_of
from abstim.gpu.config import load_gpu
from abstim.session.session import open_session
from functional.errors import InputError
from functional.traces.line_record import LINE_SHIFT, is_data, line_of
from functional.traces.trace import concatenate

ONE_BY_ONE = EVERY_BLOCK_ITS_OWN


def outcome(inputs, gpu, blocks_per_sm, kinds, threads=1):
    """All that a launch says of itself, and which SMs followed others."""
    launch = Simulation(inputs, gpu, blocks_per_sm, windows=64, window_cycles=16, kinds=kinds, threads=threads)
    try:
        launch.run(np.arange(len(inputs.trace.thread_blocks)), drain=True)
    except InputError as error:
        return str(error).partition("of number")[0], np.zeros(1)
    result = launch.result()
    parts = (
        result.sm_cycles,
        result.issue_slots,
        result.resident_warp_cycles,
        launch.windows,
        launch.blocks,
        launch.warps,
    )
    said = [part.tolist() for part in parts]
    return (said, result.counters), launch.state.sm["follows"]


def moved(trace, lines):
    """The same with its data so many lines further."""
    data = is_data(line_of(trace.records))
    return replace(trace, records=np.where(data, trace.records + np.uint32(lines << LINE_SHIFT), trace.records))


@examples(25, 100)
@given(launches(most_blocks=3), st.lists(st.integers(0, 40), min_size=2, max_size=16), st.integers(2, 9))
def test_random_launches_of_thread_blocks_that_are_alike(launch, lines, sms):
    spec, params = replace(launch.gpu.spec, sm_count=sms), replace(launch.gpu.params, dispatch_interval_cycles=0)
    gpu = replace(launch.gpu, spec=spec, params=params)
    trace = concatenate([moved(launch.inputs.trace, n) for n in lines], launch.inputs.trace.warps_per_block)
    inputs = replace(launch.inputs, trace=trace)
    alone, _ = outcome(inputs, gpu, launch.blocks_per_sm, ONE_BY_ONE)
    together, _ = outcome(inputs, gpu, launch.blocks_per_sm, _told_apart(trace))
    assert together == alone


@pytest.mark.parametrize(
    "name, gpu, overrides, most",
    [
        ("nn_euclid", "gtx480_perfect", [], 2),  # two turns of equal thread blocks, and a last one that is not
        ("nn_euclid", "rtx3070", ["perfect_memory=true", "scheduler=lrr"], 46),
        ("nn_euclid", "gtx480_perfect", ["scheduler=two_level", "sm_count=7"], 2),
        ("kmeans_invert_mapping", "gtx480_perfect", [], 15),  # other lines meet in L1D's sets
        ("scan", "h100", ["perfect_memory=true", "dispatch_interval_cycles=0"], 60),
    ],
)
def test_kernels_of_the_suite(name, gpu, overrides, most):
    session, gpu = open_session(name), load_gpu(gpu, overrides)
    inputs, blocks = session.inputs(0, gpu), session.blocks_per_sm(0, gpu)
    alone, _ = outcome(inputs, gpu, blocks, ONE_BY_ONE)
    together, follows = outcome(inputs, gpu, blocks, _told_apart(inputs.trace))
    assert together == alone and (follows == 0).sum() <= most
    shared, _ = outcome(inputs, gpu, blocks, _told_apart(inputs.trace), threads=3)
    assert shared == alone


def test_where_thread_blocks_differ_sms_are_run_one_by_one():
    assert kinds_of(open_session("hotspot").traces.trace(0), load_gpu("gtx480_perfect")) is EVERY_BLOCK_ITS_OWN
    regular, gpu = open_session("nn_euclid").traces.trace(0), load_gpu("gtx480_perfect")
    assert len(set(kinds_of(regular, gpu).tolist())) == 2
    assert kinds_of(regular, load_gpu("gtx480")) is EVERY_BLOCK_ITS_OWN
    assert kinds_of(regular, load_gpu("gtx480_perfect", ["dispatch_interval_cycles=1"])) is EVERY_BLOCK_ITS_OWN


def test_thread_blocks_are_alike_wherever_their_data_lie_but_not_if_they_touch_other_sectors():
    trace = open_session("nn_euclid").traces.trace(0)
    kinds = _told_apart(concatenate([trace, moved(trace, 3)], trace.warps_per_block))
    assert (kinds[: len(kinds) // 2] == kinds[len(kinds) // 2 :]).all()
    other = replace(trace, records=trace.records ^ np.uint32(2))
    both = _told_apart(concatenate([trace, other], trace.warps_per_block))
    assert not set(both[: len(both) // 2]) & set(both[len(both) // 2 :])
