"""Sweeps from a sample: chosen once, timed in part on every point, with intervals that hold."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pytest
from hard_set import known_programs  # noqa: F401
from nightly import of

from abstim.analytic import points_of, predict
from abstim.analytic.predictions import summary_of
from abstim.gpu.config import load_gpu
from abstim.session.session import open_session
from abstim.study.explore import estimated, explore, sweep_of
from abstim.study.explore.estimated import IN_FULL, InterpolatedSweep, Roughly, TimedPairs
from abstim.study.explore.points import Space, parse_axes
from abstim.study.sample.automatic import Aim, iterations_of, thinned
from abstim.study.sample.sampler import sample
from functional.errors import InputError
from precharacterize.synchronisation import code_of
from sampling.auto import interpolation
from sampling.auto.iterations import SHARES

GPU = load_gpu("gtx480")
TARGET, VARY = "hard_shrinking", ("sm_count=8,30",)


@pytest.fixture(scope="module", autouse=True)
def worth_it():
    """These programs are so small that every point would be timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimated, "WORTH", np.inf)
        patch.setattr(interpolation, "OVERHEAD", np.inf)
        yield


@pytest.fixture(scope="module")
def sampled():
    return explore([TARGET], sweep_of(GPU, VARY, aim=Aim(0.03), sample=True))


def test_estimates_of_a_sweep_are_near_what_all_launches_take(sampled):
    true = explore([TARGET], sweep_of(GPU, VARY)).cycles[:, 0]
    base = explore([TARGET], sweep_of(GPU, ["sm_count=15"])).cycles[0, 0]
    (found,) = sampled.sampled.found
    assert np.abs(found.cycles / true - 1).max() < 0.02
    assert np.abs(found.speed_ups[:, 0] / (base / true) - 1).max() < 0.02
    # Of two points, of a program whose launches all differ in size and in a number: 0.63 is what the formula chooses
    assert found.work < 0.65 * 2 and found.read.timed.all() and not sampled.points.reasons.any()


def test_a_ratio_is_known_better_than_both_its_cycles(sampled):
    (found,) = sampled.sampled.found
    (up, half), base = found.speed_ups[0], found.selections[0]
    assert half / up <= found.half_widths[0] + base.half_width / base.total


def test_the_table_has_the_intervals_and_the_same_sweep_is_the_same(sampled):
    again = explore([TARGET], sweep_of(GPU, VARY, aim=Aim(0.03), sample=True))
    assert json.dumps(again.table()) == json.dumps(sampled.table())
    row = {name: column[0] for name, column in sampled.table().items()}
    assert 0 < row["cycles_half_width"] <= 0.03 and 0 < row["speed_up_half_width"] < row["speed_up"]


LARGER = ["sm_count=4:30:2", "dram_gbps=60:180:30"]
CHECKED = of(3, 1)  # by day each third number of SMs


def test_most_points_of_a_larger_sweep_are_read_off_between_those_timed():
    (found,) = explore(["hard_decode"], sweep_of(GPU, LARGER, aim=Aim(0.05), sample=True)).sampled.found
    true = explore(["hard_decode"], sweep_of(GPU, [f"sm_count=4:30:{2 * CHECKED}", LARGER[1]])).cycles[:, 0]
    assert found.read.timed.mean() < 0.6 and not found.read.left and found.half_widths.max() <= 0.05
    cycles, half_widths = (own.reshape(14, 5)[::CHECKED].ravel() for own in (found.cycles, found.half_widths))
    assert (np.abs(cycles - true) <= half_widths * cycles).mean() >= 0.95


def test_a_point_that_cannot_be_is_a_row_with_its_reason():
    found = explore([TARGET], sweep_of(GPU, ["max_threads_per_sm=64,1536"], aim=Aim(0.1), sample=True))
    assert "does not fit" in found.reasons[0] and found.cycles[0, 0] < 0 < found.cycles[1, 0]
    assert found.table()["speed_up"][0] is None


@pytest.mark.parametrize(
    "vary, refused",
    [
        (["max_threads_per_sm=64,1536", "dram_latency_cycles=80,160"], [0, 1]),
        (["core_clock_mhz=600,700", "dram_gbps=100,4300.8"], [1]),
    ],
)
def test_points_that_differ_in_times_alone_each_say_why_they_cannot_be(vary, refused):
    exactly, learnt = explore([TARGET], sweep_of(GPU, vary)), explore([TARGET], sweep_of(GPU, vary, aim=Aim(0.1)))
    assert learnt.reasons == exactly.reasons and np.array_equal(learnt.cycles, exactly.cycles)
    assert [row for row, reason in enumerate(learnt.reasons) if reason] == refused


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_what_nothing_tells_is_left_after_a_few_looks(noise):
    """A formula that lacks a smooth function of two keys; or noise, which no pairs tell of others."""
    axes = np.meshgrid(np.linspace(-1, 1, 20), np.linspace(-1, 1, 20), indexing="ij")
    features, off = np.stack([axis.ravel() for axis in axes], 1), np.random.default_rng(1).normal(0, noise, 400)
    rough = interpolation.Rough(np.full(400, 1e6), np.zeros((400, 0)), np.zeros((400, 0)), features, np.arange(2))
    true, batches = (rough.cycles * np.exp(0.2 * features[:, 0] * features[:, 1] + off)), []

    def time(wanted):
        batches.append(len(wanted))
        return true[np.array(wanted)]

    found = interpolation.read_off(time, rough, interpolation.most_within(0.03, 0.95, 0.95), 0.95)
    assert bool(found.left) == found.timed.all() == (noise > 0) and len(batches) < 8
    assert np.mean(np.abs(found.cycles / true - 1) < 0.03) > 0.95


ERROR = 0.08  # the kernel is short and rough: 3 % takes nearly all of its points
SPACE = ["sm_count=4:32:4", "schedulers_per_sm=1,2", "scheduler=gto,lrr", "dram_gbps=60,90,120,150"]


@pytest.fixture(scope="module")
def every():
    """All points of a space in detail."""
    return explore(["micro_global_stride:stride_4"], sweep_of(GPU, SPACE)).cycles[:, 0]


def learnt(**how):
    return explore(["micro_global_stride:stride_4"], sweep_of(GPU, SPACE, aim=Aim(ERROR), **how))


def test_points_of_a_sweep_are_learnt_from_some_and_the_intervals_hold(every):
    found = learnt()
    table = {name: np.array(column) for name, column in found.table().items()}
    off, detailed = np.abs(found.cycles[:, 0] / every - 1), table["found"] == "detailed"
    assert detailed.mean() < 0.6 and not off[detailed].any() and not table["cycles_half_width"][detailed].any()
    assert (off <= ERROR).mean() >= 0.95 and (off <= table["cycles_half_width"]).mean() >= 0.94
    assert (table["found"][found.best()[:10]] == "detailed").all() and every[found.best()[0]] == every.min()


def test_without_a_formula_points_are_learnt_by_their_keys(every, monkeypatch):
    """As for machine code: launches are timed on the first GPU."""
    monkeypatch.setattr(TimedPairs, "roughly", TimedPairs.as_on_first)
    table = {name: np.array(column) for name, column in learnt().table().items()}
    assert (np.abs(every / table["cycles"] - 1) <= table["cycles_half_width"] + 1e-3).mean() >= 0.94


def test_keys_that_decide_how_many_thread_blocks_an_sm_holds_are_that_number():
    session, space = open_session("relu"), Space(GPU, parse_axes(["sm_count=8,15", "max_warps_per_sm=16,17,48"]))
    pairs = TimedPairs(session, space.at(np.arange(6)), lambda _: None, Aim())
    known, nothing = pairs.roughly(0), np.zeros((6, 0))
    said = predict(summary_of(session, 0, pairs.points.gpu(0)), points_of([pairs.points.gpu(k) for k in range(6)]))
    np.testing.assert_allclose(known.cycles, said["cycles"], rtol=1e-9)
    held = pairs.rough([known], [1])
    assert len(held.places) == 2 and [len(np.unique(at[:3])) for _, at in held.places] == [1, 2]
    assert len(pairs.rough([Roughly(known.cycles, nothing, nothing)], [1]).places) == 3


class FourLaunches(InterpolatedSweep):
    """Three of one kind and one of another, of known `cycles` on each point."""

    def __init__(self, cycles):
        self.session, self.aim, self.known, self.true, self._alike = range(4), Aim(0.03), {}, cycles, {0: 3, 3: 1}

    def timed(self, pairs):
        self.known |= {pair: self.true[pair] for pair in pairs}
        return np.array([self.true[pair] for pair in pairs])


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.05])
def test_alike_launches_are_timed_once_where_that_is_near_enough(noise):
    cycles = 1e4 * np.exp(np.random.default_rng(0).normal(0, noise, (60, 4))) * [1.0, 1.1, 0.9, 2.0]
    sweep = FourLaunches(cycles)
    found = sweep.quickly([*range(40)])
    assert np.array_equal(found.cycles[:IN_FULL], cycles[:IN_FULL].sum(1)) and not found.off[:IN_FULL].any()
    assert len(sweep.known) == (160 if noise == 0.05 else 40 * 2 + IN_FULL * 2)
    errors = np.abs(np.log(found.cycles / cycles[:40].sum(1)))[IN_FULL:]
    assert (errors <= 3 * found.off[IN_FULL:]).all() and (found.off[IN_FULL:] > 0).all() == (noise < 0.05)
    assert found.own == pytest.approx(0.0 if noise == 0.05 else found.off[-1])  # as many are left out as are timed
    again = sweep.quickly([39, 50])
    assert again.cycles == pytest.approx(cycles[[39, 50]].sum(1), rel=0.03)
    assert again.off[0] == again.off[1] and ((50, 1) in sweep.known) == (noise == 0.05)


def test_a_page_of_the_sweep_says_how_each_point_was_found(tmp_path, capsys):
    from abstim.cli import main

    vary = [argument for axis in SPACE for argument in ("--vary", axis)]
    page = tmp_path / "sweep.html"
    with pytest.raises(SystemExit) as ended:
        main(["explore", "micro_global_stride:stride_4", *vary, "--error", f"{ERROR:.0%}", "--plot", str(page)])
    text = page.read_text()
    assert ended.value.code == 0 and f"Charts: {page}" in capsys.readouterr().out
    assert "Parallel coordinates" in text and "What matters" in text
    assert "%, estimated" in text and ", detailed" in text and "times are estimates" in text
    with pytest.raises(SystemExit):
        main(["explore", "relu", "--vary", "sm_count=4,8", "--plot", "sweep.svg"])
    assert "must end in .html" in capsys.readouterr().err


def test_the_front_is_timed_in_detail(every):
    found = learnt(objective=["sm_count", "seconds"])
    front = found.pareto()
    assert set(np.array(found.table()["found"])[front]) == {"detailed"}
    assert np.array_equal(found.cycles[front, 0], every[front])


def test_a_sweep_that_learning_costs_more_is_timed_in_full(every, monkeypatch):
    monkeypatch.setattr(estimated, "WORTH", 0.0)
    found = learnt()
    assert np.array_equal(found.cycles[:, 0], every) and set(found.table()["found"]) == {"detailed"}
    assert "costs no more" in found.sampled.found[0].read.left


@pytest.mark.parametrize("how", [{"model": "analytic"}, {"strategy": "multi-fidelity"}])
def test_what_a_sampled_sweep_cannot_do_is_refused(how):
    with pytest.raises(InputError, match="--sample"):
        sweep_of(GPU, VARY, aim=Aim(), sample=True, **how)


def parts(target: str, share: float):
    session = open_session(target)
    program, trace = session.launch(0).program, session.traces.trace(0)
    return session, program, trace, thinned(program, trace, iterations_of(program, trace).kept(share, SHARES[0]))


@pytest.mark.parametrize("target", ["matmul_tiled", "spmv_csr"])  # barriers; warps of different lengths
def test_fewer_iterations_are_a_launch_of_the_same_shape(target):
    session, program, trace, found = parts(target, 1 / 4)
    lengths = np.array([block.stop - block.start for block in program.blocks])
    assert found.warp_instructions.sum() == lengths[found.blocks].sum() < trace.warp_instructions.sum()
    assert len(found.thread_blocks) == len(trace.thread_blocks)
    assert (found.blocks[found.block_offsets[:-1]] == trace.blocks[trace.block_offsets[:-1]]).all()
    assert (found.blocks[found.block_offsets[1:] - 1] == trace.blocks[trace.block_offsets[1:] - 1]).all()
    assert session.simulate(0, GPU, found).cycles < session.simulate(0, GPU).cycles


def test_all_iterations_are_the_launch():
    _, _, trace, found = parts("matmul_tiled", 1.0)
    for name in ("blocks", "records", "conflicts", "record_offsets", "warp_instructions"):
        assert np.array_equal(getattr(found, name), getattr(trace, name)), name


@pytest.mark.parametrize("control", ["pkp", "occupancy"])
def test_a_control_variate_is_one_column_more_and_what_it_simulates_is_counted(control):
    plain = sample("hard_decode", GPU, aim=Aim(0.05)).estimate
    found = sample("hard_decode", GPU, aim=Aim(0.05, control=control)).estimate
    assert found.relative_half_width <= 0.05
    assert found.total == pytest.approx(plain.total, rel=0.02)
    assert (found.detailed_fraction > plain.detailed_fraction + 0.2) == (control == "pkp")


def test_persistent_thread_blocks_from_some_of_their_iterations(monkeypatch):
    # an earlier run of this test simulated it in full
    monkeypatch.setattr("abstim.study.sample.sampler.kept_parts", lambda *_: nullcontext({}))
    found = sample("hard_persistent_falling:3", GPU, aim=Aim(0.1)).estimate
    assert found.basis == "model" and found.detailed_fraction < 0.5
    assert {part.how for part in found.parts} == {"detailed", "extrapolated"}
    assert sample("hard_persistent_falling:3", GPU, aim=Aim(0.02)).estimate.basis == "exact"


def test_barriers_of_some_warps_are_not_cut(monkeypatch):
    """Warps that wait for each other at several barriers might go on to different ones."""
    program, trace = (session := open_session("matmul_tiled")).launch(0).program, session.traces.trace(0)
    kept = iterations_of(program, trace).kept(1 / 4, SHARES[0])
    monkeypatch.setattr("abstim.study.sample.automatic.barriers_of", lambda *_: [code_of(1, 64)])
    assert thinned(program, trace, kept) is None
