"""Units of a full simulation: nothing lost, nothing twice, the same in any pieces; and what baselines say of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abstim
from abstim.gpu.config import load_gpu
from abstim.study.sample import ideal
from abstim.study.sample.counts import basic_block_vector
from abstim.study.sample.ideal import Cutter, simulate_units
from abstim.study.sample.methods import METHODS, Known
from abstim.study.sample.sampled_program import SampledProgram
from abstim.study.sample.sampler import compare, sample
from abstim.targets.resolve import open_target
from functional.errors import InputError
from sampling import Profile

IDEAL = [name for name in METHODS if name.startswith("ideal-")]
REAL, PERFECT = load_gpu("gtx480"), load_gpu("gtx480_perfect")


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=60),
    st.integers(1, 20),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_a_stream_cut_by_hand(stream, each, cuts) -> None:
    steps, blocks = np.array(stream).T
    cycles = np.cumsum(steps) + 1
    cutter = Cutter(len(stream), each, 3)
    for piece in np.split(np.arange(len(stream)), sorted(cuts)):
        cutter.add(cycles[piece], blocks[piece])
    found = cutter.units(int(cycles[-1]) + 5, 0.0)
    starts = range(0, len(stream), each)
    assert found.instructions.tolist() == [len(stream[at : at + each]) for at in starts]
    expected = [np.bincount(blocks[at : at + each], minlength=3).tolist() for at in starts]
    assert found.basic_blocks.tolist() == expected
    ends = [int(cycles[at + each - 1]) for at in starts if at + each < len(stream)] + [int(cycles[-1]) + 5]
    assert np.cumsum(found.cycles).tolist() == ends


@pytest.mark.parametrize("target", ["nn_euclid", "pathfinder", "btree_find_k"])
@pytest.mark.parametrize("gpu", [REAL, PERFECT], ids=["real", "perfect"])
def test_units_add_up_to_the_full_simulation(target, gpu, monkeypatch) -> None:
    program = SampledProgram(open_target(target), gpu)
    found = simulate_units(program, 777)
    traces = [program.launches.trace(number) for number in range(len(program))]
    assert found.cycles.sum() == abstim.run(target, gpu).totals["cycles"]
    assert (found.instructions[:-1] == 777).all()
    assert found.instructions.sum() == sum(int(trace.warp_instructions.sum()) for trace in traces)
    assert np.array_equal(found.basic_blocks.sum(1), found.instructions)
    vectors = [
        basic_block_vector(launch.program, trace) for launch, trace in zip(program.case.launches, traces, strict=True)
    ]
    assert np.array_equal(found.basic_blocks.sum(0), sum(vectors))  # one kernel each
    for rows in (1, 3_000):
        monkeypatch.setattr(ideal, "STEP_ROWS", rows)
        again = simulate_units(program, 777)
        assert np.array_equal(again.cycles, found.cycles) and np.array_equal(again.basic_blocks, found.basic_blocks)


@pytest.mark.parametrize("gpu", [REAL, PERFECT], ids=["real", "perfect"])
def test_pieces_of_a_log_are_the_whole_log_in_order(gpu) -> None:
    program = SampledProgram(open_target("btree_find_k"), gpu)
    trace = program.launches.trace(0)
    order = program.launches.thread_blocks(0).at(np.arange(len(trace.thread_blocks)))

    def launch():
        return program.session.simulation(0, gpu, trace)

    whole = launch().run(order, drain=True, log_rows=int(trace.warp_instructions.sum()))
    cycle, sm, instruction = (whole[name] for name in ("cycle", "sm", "instruction"))
    sort = np.lexsort((sm, cycle))
    pieces = list(ideal.issues(launch(), order, "", step_rows=2_000))
    assert len(pieces) > 10
    assert np.array_equal(np.concatenate([piece[0] for piece in pieces]), cycle[sort])
    assert np.array_equal(np.concatenate([piece[1] for piece in pieces]), instruction[sort])


def test_kernels_have_columns_of_their_own() -> None:
    program = SampledProgram(open_target("pagerank"), PERFECT)
    found = simulate_units(program)
    share, gather = (launch.program for launch in program.case.launches[:2])
    assert found.basic_blocks.shape[1] == len(share.blocks) + len(gather.blocks)
    whole = sum(basic_block_vector(share, program.launches.trace(number)) for number in range(0, len(program), 2))
    assert np.array_equal(found.basic_blocks.sum(0)[: len(share.blocks)], whole)


def test_a_log_that_memory_cannot_hold_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(ideal, "MOST_ROWS", 1_000)
    with pytest.raises(InputError, match=r"0 nn_euclid: .* warp instructions in flight are too many"):
        simulate_units(SampledProgram(open_target("nn_euclid"), PERFECT))


def test_phases_are_found_and_their_cycles_exact() -> None:
    """Three kinds of units, each with its own basic blocks and CPI: SimPoint needs one of each."""
    kind = np.repeat([0, 1, 0, 2], 50)
    blocks = np.array([[90, 10, 0, 0], [0, 50, 50, 0], [10, 0, 0, 90]])[kind] * 10
    cycles = np.array([300, 900, 150])[kind]
    profile = Profile(instructions=np.full(200, 1000.0), basic_blocks=blocks.astype(float), cycles=cycles.astype(float))
    for name in IDEAL:
        estimate = ideal.from_units(name, profile)
        if name == "ideal-simpoint":
            assert len(estimate.parts) == 3 and estimate.total == pytest.approx(cycles.sum())
            assert estimate.low == pytest.approx(estimate.high)
        else:
            assert estimate.detailed_fraction == pytest.approx(0.1) and estimate.high > estimate.low


@pytest.mark.parametrize("name", ["ideal-random", "ideal-systematic"])
def test_intervals_hold_the_total_of_units_with_a_drain(name) -> None:
    """The last three of 300 units hold a fifth of the cycles; few samples of a tenth meet one of them."""

    def covered(seed):
        rng = np.random.default_rng([7, seed])
        cycles = rng.permutation(np.append(rng.lognormal(4.0, 0.3, 297), [1000.0, 1500.0, 2000.0]))
        profile = Profile(instructions=np.full(300, 1000.0), cycles=cycles)
        return ideal.from_units(name, profile).covers(cycles.sum())

    assert np.mean([covered(seed) for seed in range(200)]) >= 0.9


def test_baselines_choose_parts_of_a_single_launch_and_say_that_they_are_ideal() -> None:
    found = compare("pathfinder", REAL, IDEAL)
    assert [result.method for result in found.results] == IDEAL
    for result in found.results:
        estimate = result.estimate
        assert estimate.ideal and estimate.detailed_fraction < 0.12 and estimate.functional_fraction == 1.0
        assert estimate.covers(found.true_cycles) and estimate.relative_error(found.true_cycles) < 0.25
        assert estimate.basis == "model"
        assert "units" in estimate.parts[0].how
        assert result.to_json()["estimate"]["ideal"]


def test_units_are_kept_and_made_again_when_damaged() -> None:
    from abstim.study.sample.sampled_program import name_of
    from functional.keep.kept import Kept

    gpu = load_gpu("gtx480", ["l1d_ways=2"])
    case = open_target("nn_euclid")
    path = Kept("units").path(name_of(("abstim.study.sample.ideal",), case, gpu))
    path.unlink(missing_ok=True)
    first = ideal.units_of(SampledProgram(case, gpu))
    kept = ideal.units_of(SampledProgram(case, gpu))
    assert first.seconds == kept.seconds and np.array_equal(first.cycles, kept.cycles)
    path.write_bytes(b"damaged")
    assert np.array_equal(ideal.units_of(SampledProgram(case, gpu)).cycles, first.cycles)


def test_a_profile_from_elsewhere_is_refused() -> None:
    with pytest.raises(InputError, match="leave out the profile"):
        sample("nn_euclid", REAL, "ideal-random", known=Known(Profile(instructions=np.ones(1)), measured=True))
