"""Cold start on the engine: what warming leaves in the caches, and that it gives back what flushing took."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import abstim
from abstim.cli.app import app_for
from abstim.engine import Caches, simulate_point
from abstim.engine.simulation import bank_loads, warm, warm_code
from abstim.gpu.config import load_gpu
from abstim.progress import silent
from abstim.session.session import open_session
from abstim.study.cold_start import Study, cold_start, in_order
from functional.errors import InputError
from functional.launches.memory import GLOBAL_BASE
from functional.traces.trace import LINE_BYTES

GPU = load_gpu("gtx480")


@pytest.fixture(scope="module")
def study():
    return Study(open_session("dct8x8"), GPU)


def l2_lines(caches):
    return set(caches.l2_lines.tolist())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_warming_leaves_the_lines_that_running_leaves(study, number):
    """The footprint is smaller than L2, so which lines are in it does not depend on their order."""
    inputs, blocks = study.session.inputs(number, GPU), study.session.blocks_per_sm(number, GPU)
    ran, warmed = Caches(), Caches()
    simulate_point(inputs, GPU, blocks, ran)
    warm(inputs, GPU, blocks, warmed)
    assert l2_lines(warmed) == l2_lines(ran)
    assert l2_lines(warmed) >= set(study.footprints[number].tolist())


def test_a_part_of_a_launch_warms_a_part(study):
    inputs, blocks = study.session.inputs(0, GPU), study.session.blocks_per_sm(0, GPU)
    sizes = []
    for share in (0.0, 0.25, 1.0):
        caches = Caches()
        warm(inputs, GPU, blocks, caches, share)
        sizes.append(len(l2_lines(caches)))
    assert sizes[0] == 0 < sizes[1] < sizes[2]


def test_code_alone_brings_no_data(study):
    inputs, caches = study.session.inputs(0, GPU), Caches()
    warm_code(inputs, GPU, study.session.blocks_per_sm(0, GPU), caches)
    lines = l2_lines(caches)
    assert lines and not lines & set(study.footprints[0].tolist())


def test_code_of_a_lone_warp_that_reads_nothing_is_warmed_too(tmp_path):
    """Its one look-up is the SM's first."""
    path = tmp_path / "empty.ptx"
    path.write_text(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }")
    session, caches = open_session(abstim.load(str(path)).kernel("empty").launch(grid=1, block=32, args=[])), Caches()
    session.warm_code(0, GPU, caches)
    assert l2_lines(caches)


def test_where_data_alone_are_flushed_code_comes_from_l2():
    gpu = load_gpu("h100", timed_code="ptx")
    cycles = [abstim.run("fir", gpu, flush=flush).launches[0].cycles for flush in ("data", "all")]
    assert cycles[0] < cycles[1]


def test_after_itself_a_launch_misses_no_line(study):
    inputs, caches = study.session.inputs(0, GPU), Caches()
    warm(inputs, GPU, study.session.blocks_per_sm(0, GPU), caches)
    assert simulate_point(inputs, GPU, study.session.blocks_per_sm(0, GPU), caches).counters["dram_reads"] == 0


def test_lines_are_spread_over_controllers(study):
    lines = GLOBAL_BASE // LINE_BYTES + np.arange(6 * 16 * 8)
    loads = bank_loads(study.session.inputs(0, GPU), GPU, 1, lines)
    assert loads.shape == (GPU.spec.dram_channels, GPU.spec.dram_banks) and loads.sum() == len(lines)
    assert loads.sum(1).max() <= 2 * loads.sum(1).min()


def test_each_warm_up_gives_back_more_than_the_one_before(study):
    """dct8x8, worst launch and mean: none < correction factor < one launch < four launches (thesis, section 6)."""
    found = cold_start(study.session, GPU)
    accuracy = {policy.name: policy.accuracy for policy in found.policies}
    names = ["none", "code", "correction factor", "memory of 1", "memory of 4"]
    for measure in (np.min, np.mean):
        values = [float(measure(accuracy[name])) for name in names]
        assert values == sorted(values) and len(set(values)) == len(values)
    # not 1: tags are walked a memory access of each resident warp in turn, not in the order of time. L2, its dirty
    # sectors, open rows, L1I and constants come out the same; the order of use in L1D does not, and lines that it keeps
    # on one SM, the last to end, are worth 6 % of launches 7 and 10
    for name in ("memory of all", "BLRL"):
        assert accuracy[name].min() > 0.94 and accuracy[name].mean() > 0.98
    assert accuracy["perfect"].min() == 1.0
    assert 0 < found.affected[0.2] <= found.affected[0.05] < 1
    assert np.isnan(found.forward_reuse[-1]) and found.backward_reuse[1] > 0.9


def test_the_first_launch_needs_no_warm_up(study):
    cycles = in_order(study, study.memory_of(3)[:1], silent, "")
    assert cycles[0] == study.session.simulate(0, GPU, caches=Caches()).cycles


def test_perfect_memory_is_refused(study):
    with pytest.raises(InputError, match="perfect memory"):
        cold_start(study.session, load_gpu("gtx480_perfect"))


def test_command_prints_what_it_measures():
    result = CliRunner().invoke(app_for([]), ["coldstart", "nn_euclid", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["forward_reuse"] == [None] and found["policies"][0]["accuracy"] == [1.0]
    assert "nothing runs before the only launch" in CliRunner().invoke(app_for([]), ["coldstart", "nn_euclid"]).stdout
    text = CliRunner().invoke(app_for([]), ["coldstart", "pathfinder"]).stdout
    assert "memory of 1" in text and max(map(len, text.splitlines())) <= 100
