"""Sampling that chooses for the user, on programs and launches whose true cycles are known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import of
from synthetic import SyntheticLaunch

from sampling.auto.iterations import SHARES, IterationSampling, Timed
from sampling.auto.launches import LaunchSampling, ProgramWork, ratio, timed_selection
from sampling.auto.prediction import (
    KIND_DEGREES,
    KIND_ERROR,
    OTHER_NUMBERS,
    choose_heavy,
    choose_unlike,
    distances,
    launch_work,
    predict,
    segment_work,
)
from sampling.auto.segments import (
    DEAREST,
    FIRST_SEGMENTS,
    LEAST,
    READING,
    TELLING_WAVES,
    WRITING_BACK,
    Beginning,
    SegmentSampling,
    SegmentSimulation,
    _error_of_waves,
    cut_into_segments,
    first_segments,
    work_in_flight,
)
from sampling.estimate import exact


def program(seed: int, launches: int = 120, kernels: int = 4, hidden: float = 0.03):
    """Work of launches, and cycles that are a sum of shares of it, bent, with noise that no column shows."""
    rng = np.random.default_rng([18, seed])
    kernel = rng.integers(kernels, size=launches)
    size = np.exp(rng.normal(0, 1.0, launches))
    columns = np.column_stack(
        [np.ones(launches), 1e4 * size, 2e3 * size * rng.uniform(0.5, 2.0, launches), 50 * np.sqrt(size)]
    )
    shares = rng.uniform([500, 0.01, 0.05, 1], [3000, 0.1, 2.0, 20], (kernels, 4))
    cycles = (columns * shares[kernel]).sum(1) ** 1.03 * rng.lognormal(0, hidden, launches)
    cost = columns[:, 1]
    return work_of(kernel, columns, cost), cycles


def work_of(kernels, columns, cost, kinds=None):
    """Every launch its own kind, unless told."""
    kinds = np.arange(len(kernels)) if kinds is None else kinds
    return ProgramWork(kernels=kernels, kinds=kinds, columns=columns, cost=cost, instructions=columns[:, 1])


def sampled(work, cycles, **options):
    asked = []

    def measure(rows):
        asked.extend(rows)
        return [exact("full", float(cycles[row])) for row in rows]

    return LaunchSampling(**options).program(work, measure), asked


def test_truth_is_inside_as_often_as_promised():
    found = [
        (sampled(work, cycles, seed=k)[0], cycles.sum()) for k in range(of(40, 60)) for work, cycles in [program(k)]
    ]
    left = [(estimate, true) for estimate, true in found if estimate.basis != "exact"]
    assert len(left) > of(30, 50)
    assert np.mean([estimate.covers(true) for estimate, true in left]) >= 0.93
    assert np.mean([estimate.relative_error(true) for estimate, true in left]) < 0.01
    assert max(estimate.relative_half_width for estimate, _ in left) <= 0.02
    assert np.mean([estimate.detailed_fraction for estimate, _ in left]) < 0.5


def test_nothing_is_predicted_where_nothing_is_left_out(monkeypatch):
    work, cycles = program(3, launches=12, kernels=4)  # three launches of each kernel are the first that are simulated
    monkeypatch.setattr("sampling.auto.prediction.predict", None)
    found, asked = sampled(replace(work, kernels=np.arange(12) % 4), cycles)
    assert sorted(asked) == list(range(12)) and found.basis == "exact"
    assert found.low == found.total == found.high == pytest.approx(cycles.sum())


def test_less_error_goes_on_from_what_was_simulated():
    work, cycles = program(3)
    coarse, fine = (sampled(work, cycles, error=error)[1] for error in (0.05, 0.01))
    assert fine[: len(coarse)] == coarse
    assert len(fine) > len(coarse)


def test_what_cannot_be_predicted_is_simulated_in_full():
    work, cycles = program(1, launches=24, hidden=1.5)
    estimate, asked = sampled(work, cycles)
    assert sorted(asked) == list(range(24))
    assert (estimate.basis, estimate.total) == ("exact", pytest.approx(cycles.sum()))
    assert estimate.detailed_fraction == 1.0


def test_unlike_launches_are_not_predicted_from_calm_ones():
    """Thirty equal launches, then ten that move eight times the sectors: a random few would be calm ones."""
    columns = np.ones((40, 3)) * (1.0, 1e4, 1e3)
    columns[30:, 2] *= 8
    work = work_of(np.zeros(40, int), columns, columns[:, 1])
    cycles = columns[:, 2] * 3.0
    for seed in range(10):
        estimate, asked = sampled(work, cycles, seed=seed)
        assert max(asked) >= 30
        assert estimate.covers(cycles.sum())


def of_kinds(seed: int, kinds: int = 12, launches: int = 200):
    """Launches of few kinds, those of one kind within 0.3 % of each other."""
    work, cycles = program(seed, launches=kinds, kernels=2)
    rng = np.random.default_rng([19, seed])
    kind = np.append(np.arange(kinds), rng.integers(kinds, size=launches - kinds))
    found = work_of(work.kernels[kind], work.columns[kind], work.cost[kind], kind)
    return found, cycles[kind] * rng.normal(1.0, 0.003, launches)


@pytest.mark.parametrize("seed", range(10))
def test_of_launches_that_do_the_same_one_is_simulated(seed):
    work, cycles = of_kinds(seed)
    estimate, asked = sampled(work, cycles, seed=seed)
    assert len(set(work.kinds[asked])) == len(asked)
    assert estimate.covers(cycles.sum()) and estimate.relative_half_width <= 0.02
    assert np.array_equal(np.array(estimate.unit_cycles)[asked], cycles[asked])
    for kind in work.kinds[asked]:
        assert len(set(np.array(estimate.unit_cycles)[work.kinds == kind])) == 1


def test_less_error_than_equal_launches_may_have_takes_more_than_one_of_a_kind():
    work, cycles = of_kinds(0)
    estimate, asked = sampled(work, cycles, error=0.003)
    assert len(set(work.kinds[asked])) < len(asked)
    assert estimate.covers(cycles.sum()) and estimate.relative_half_width <= 0.003


def told_by_one_sm(seed: int, hidden: float, launches: int = 40):
    """Launches of sizes that no count of work tells, and what one SM says of each, `hidden` off."""
    rng = np.random.default_rng([23, seed])
    work, _ = program(seed, launches=launches)
    cycles = rng.lognormal(12.0, 1.0, launches)
    one_sm = cycles * rng.lognormal(0.02, hidden, launches)
    return replace(work, kernels=np.zeros(launches, int), cost=cycles, instructions=cycles, one_sm=one_sm), cycles


def test_what_one_sm_tells_takes_few_launches():
    """0.43 to 0.61 of them, by their size, where no work tells anything and 0.94 to 1.0 are needed."""
    for seed in range(of(8, 20)):
        work, cycles = told_by_one_sm(seed, 0.02)
        by_one_sm, by_work = (cycles[sampled(each, cycles)[1]].sum() for each in (work, replace(work, one_sm=None)))
        assert by_one_sm < 0.7 * by_work


@pytest.mark.parametrize("hidden", [0.01, 0.03, 0.06, 0.3])
def test_intervals_hold_however_little_one_sm_tells(hidden):
    programs = (told_by_one_sm(k, hidden) for k in range(of(25, 60)))
    found = [(sampled(work, cycles)[0], cycles) for work, cycles in programs]
    assert all(estimate.relative_half_width <= 0.02 for estimate, _ in found)
    assert np.mean([estimate.covers(cycles.sum()) for estimate, cycles in found]) >= 0.9


def test_what_weighs_most_for_its_cost_is_simulated_first():
    size, cost = np.array([4.0, 3.0, 10.0, 0.0]), np.array([1.0, 1.0, 20.0, 1.0])
    assert choose_heavy(size, cost, [], 9) == [0, 1, 2]
    assert choose_heavy(size, cost, [0], 1) == [1]


def test_a_kind_counts_as_its_launches():
    """What is predicted of it is what is predicted of them one by one, but for the error that they share."""
    columns, measured = np.array([[1.0, 10.0], *[[1.0, 20.0]] * 5, [1.0, 40.0]]), np.array([30.0, 90.0])
    of_kinds = predict(segment_work(columns), np.array([0, 6]), measured, np.array([0, 1, 1, 1, 1, 1, 2]))
    apart = predict(segment_work(columns), np.array([0, 6]), measured)
    for name in ("cycles", "errors", "residuals", "assumed"):
        assert getattr(of_kinds, name) == pytest.approx(getattr(apart, name))
    assert of_kinds.common_cycles == pytest.approx(apart.common_cycles)
    own = apart.variance - apart.common_cycles**2
    assert of_kinds.variance == pytest.approx(5 * own + of_kinds.common_cycles**2)


def test_launches_of_a_kind_are_as_long_as_the_mean_of_those_simulated():
    columns, kinds = np.array([[1.0, 10.0], [1.0, 10.0], [1.0, 10.0], [1.0, 40.0]]), np.array([0, 0, 0, 1])
    found = predict(segment_work(columns), np.array([1, 3, 0]), np.array([30.0, 90.0, 32.0]), kinds)
    assert found.cycles.tolist() == [32.0, 30.0, 31.0, 90.0]
    apart = np.array([30.0, 32.0]) / 31.0 - 1.0
    one = np.sqrt((KIND_DEGREES * KIND_ERROR**2 + apart @ apart) / (KIND_DEGREES + 1.0))
    assert found.errors.tolist() == [0.0, 0.0, pytest.approx(one / np.sqrt(2)), 0.0]
    assert found.degrees == pytest.approx(KIND_DEGREES + 1.0)  # nothing else is left to be off
    assert found.variance == pytest.approx((31.0 * found.errors[2]) ** 2)
    assert not found.unseen.any()


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_simulated_launches_keep_their_cycles(seed, count):
    work, cycles = program(seed, launches=30, kernels=1)
    sample = np.random.default_rng(seed).permutation(30)[:count]
    found = predict(segment_work(work.columns), sample, cycles[sample])
    assert np.array_equal(found.cycles[sample], cycles[sample])
    assert np.all(found.errors[sample] == 0)
    assert np.all(np.delete(found.errors, sample) > 0)
    assert np.all(found.cycles > 0)


def test_a_choice_has_no_launch_twice_and_none_of_the_sample():
    work, _ = program(0, launches=20, kernels=1)
    chosen = choose_unlike(segment_work(work.columns), work.cost, [3, 4], 30, np.random.default_rng(0))
    assert sorted(chosen) == [k for k in range(20) if k not in (3, 4)]


def test_distance_is_of_the_column_that_differs_most():
    a, b = (segment_work(np.array([row])) for row in ([99.0, 9.0], [99.0, 99.0]))
    assert distances(a, b)[0, 0] == pytest.approx(np.log(10))


def test_launches_given_other_numbers_are_apart_and_off_by_their_own():
    columns = np.array([[1.0, 50.0], [1.0, 50.0], [1.0, 50.0], [1.0, 80.0]])
    work = launch_work(columns, np.array([0, 1, 1, 1]))
    assert distances(work, work)[0].tolist() == pytest.approx(
        [0.0, OTHER_NUMBERS, OTHER_NUMBERS, OTHER_NUMBERS + np.log(81 / 51)]
    )
    assert distances(work, work)[1, 2] == 0.0
    assert work.same[1] == work.same[2]
    assert len(set(work.same.tolist())) == 3
    found = predict(work, np.array([0]), np.array([100.0]))
    apart = predict(work._replace(same=np.arange(4)), np.array([0]), np.array([100.0]))
    assert found.variance > apart.variance


def test_work_in_flight_is_all_work_and_none_twice():
    work = np.random.default_rng(0).uniform(size=(500, 2))
    cut = np.arange(0, 501, 50)
    late = work_in_flight(np.vstack([work, np.zeros((200, 2))]), np.append(cut, 700), 100)
    assert late[:, :2].sum(0) == pytest.approx(work.sum(0))
    assert late[0, 0] < work[:50, 0].sum()  # the first blocks have only begun


@pytest.mark.parametrize("seed", range(4))
def test_a_long_launch_from_segments(seed):
    blocks = 12_000
    phase = 1.0 + 0.5 * np.sin(np.linspace(0, 6, blocks)) if seed % 2 else None
    launch = SyntheticLaunch(seed, thread_blocks=blocks, phase=phase, cold=0.05)
    work = np.column_stack([launch.instructions, launch.requests])
    found = SegmentSampling(seed=seed).launch(launch, work, launch.warp_instructions.max(1))
    assert found is not None
    assert found.detailed_fraction < 0.6
    assert found.relative_error(launch.total()) < 0.02
    assert found.covers(launch.total())


def test_less_error_of_a_long_launch_goes_on_from_its_segments():
    """It ends as if that had been aimed at in the first place, and more error asks for nothing again."""
    make = lambda: SyntheticLaunch(1, thread_blocks=20_000, noise=0.5, cold=0.05)  # noqa: E731
    launch, done, begun = make(), [], []
    begin = launch.begin
    launch.begin = lambda: begun.append(1) or begin()
    work, longest = np.column_stack([launch.instructions, launch.requests]), launch.warp_instructions.max(1)
    coarse = SegmentSampling(error=0.04).launch(launch, work, longest, done)
    first = list(done)
    fine = SegmentSampling(error=LEAST).launch(launch, work, longest, done)
    assert coarse is not None and fine is not None and coarse.detailed_fraction < fine.detailed_fraction
    assert done[: len(first)] == first and len(begun) == len(done) > len(first)
    assert fine == SegmentSampling(error=LEAST).launch(make(), work, longest)
    assert SegmentSampling(error=0.04).launch(launch, work, longest, done) == coarse
    assert len(begun) == len(done)


class FillingLaunch(SyntheticLaunch):
    """Its last-level cache is full after `waves`; from then on memory writes in `writing` of the time, and reads."""

    def __init__(self, waves: float, writing: float, **options) -> None:
        super().__init__(0, thread_blocks=12_000, cold=0.05, **options)
        self.waves, self.writing = waves, writing

    def _observe(self, state):
        seen = super()._observe(state)
        gone = len(state.flying) and state.flying[-1][2] / self.shape.wave_blocks
        since = max(seen.clock_cycles - self.cold_cycles, 0.0)
        return replace(seen, cache_fill=min(gone / self.waves, 1.0), memory_read_cycles=0.8 * since,
                       memory_write_cycles=self.writing * since)  # fmt: skip


@pytest.mark.parametrize("waves, writing, begun, warm", [
    (5.5, 0.0, 8, 2),  # full after six waves, two more to look at
    (5.5, 0.05, 8, 2),  # written so little that it decides nothing
    (2.5, 0.3, 14, 11),  # what is evicted is written back, and settles while it is filled three times again
    (1000.0, 0.3, 4, 2),  # never full: nothing is evicted
])  # fmt: skip
def test_a_launch_begins_until_its_cache_is_full(waves, writing, begun, warm):
    simulation = SegmentSimulation(FillingLaunch(waves, writing))
    beginning = simulation.begin()
    assert (beginning.waves, beginning.warm_waves) == (begun, warm)
    cut = cut_into_segments(simulation.simulator.shape, beginning)
    assert cut[0] == begun * 60 and set(np.diff(cut)) == {beginning.segment_waves * 60}
    batch = simulation.run(beginning, cut, [5, 8], end=False)
    assert [len(cycles) for cycles in batch.wave_cycles] == [beginning.segment_waves] * 2
    apart = [5 * beginning.segment_waves, 2 * beginning.segment_waves]  # waves before either, at most these to warm up
    assert batch.stepped == 60 * (begun + sum(min(warm, waves) + beginning.segment_waves for waves in apart))


@pytest.mark.parametrize("waves, count", [
    (50, FIRST_SEGMENTS),  # 35 % of it would not do for more
    (100, 7),  # 4 waves, then 7 times two to warm up and two: 32, the most that 35 waves hold
    (200, 9), (1000, 9),  # 40 waves
])  # fmt: skip
def test_as_many_segments_first_as_make_a_launch_old(waves, count):
    launch = SyntheticLaunch(0, thread_blocks=60 * waves)
    assert launch.shape.wave_blocks == 60
    assert first_segments(launch.shape, Beginning(waves=4)) == count


@pytest.mark.parametrize("writing, least", [(0.3, WRITING_BACK), (0.0, READING)])
def test_where_memory_decides_segments_promise_little(writing, least):
    """What it did before may set the pace for longer than any segment sees."""
    launch = FillingLaunch(2.5, writing)
    work, longest = np.column_stack([launch.instructions, launch.requests]), launch.warp_instructions.max(1)
    assert SegmentSampling(error=0.02).launch(launch, work, longest) is None
    found = SegmentSampling(error=least).launch(launch, work, longest)
    assert found is not None and found.relative_half_width == pytest.approx(least)


def test_a_cache_that_fills_too_late_leaves_no_segments():
    """Which is told from its first waves, long before segments no longer pay."""
    simulation = SegmentSimulation(FillingLaunch(120.0, 0.3))
    assert simulation.begin() is None
    assert simulation.at == TELLING_WAVES * 60


def test_memory_that_is_busy_from_the_first_is_not_watched_until_caches_are_full():
    """Where no interval from segments would be narrow enough: else it is."""
    busy, idle = FillingLaunch(40.0, 0.0), SyntheticLaunch(0, thread_blocks=12_000)
    simulation = SegmentSimulation(busy)
    assert simulation.begin(idle=True) is None and simulation.at <= (TELLING_WAVES + 1) * 60
    assert SegmentSimulation(idle).begin(idle=True) is not None
    assert SegmentSimulation(busy).begin() is not None


def test_a_long_beginning_is_followed_by_as_many_segments():
    """It is simulated again before others; as many as leave something to be saved."""
    shape = SyntheticLaunch(0, thread_blocks=60 * 200).shape
    assert first_segments(shape, Beginning(waves=36)) == 9
    assert first_segments(shape, Beginning(waves=60)) == 14
    assert Beginning(waves=60).waves + 14 * Beginning().waves_a_segment < DEAREST * 200


def test_segments_more_alike_than_their_waves_are_not_believed():
    """As after something left out, from where each starts alike."""
    alike = [[90.0, 110.0, 95.0, 105.0]] * 4
    waves = np.array(alike) / 100 - 1
    assert _error_of_waves(alike) == pytest.approx(np.sqrt((waves**2).sum() / 12 / 16))


def test_launches_that_segments_do_not_pay_for():
    launch = SyntheticLaunch(0, thread_blocks=600)
    assert cut_into_segments(launch.shape) is None
    long = SyntheticLaunch(0, thread_blocks=12_000)
    giants = long.warp_instructions.max(1).astype(float)
    giants[-3] = 1e6  # one warp that ends alone
    work = np.column_stack([long.instructions, long.requests])
    assert SegmentSampling().launch(long, work, giants) is None


def test_what_was_chosen_on_one_gpu_serves_another():
    """There cycles are other shares of the work, and what no column shows is much the same."""
    inside, ratios, widths = [], [], []
    for seed in range(40):
        work, cycles = program(seed, hidden=0.05)
        rng = np.random.default_rng(seed)
        there = cycles**0.97 * rng.uniform(0.3, 0.6) * rng.lognormal(0, 0.01, len(cycles))
        _, asked = sampled(work, cycles, error=0.03)
        here, other = (
            timed_selection(work, {row: exact("full", float(column[row])) for row in asked})
            for column in (cycles, there)
        )
        found, half = ratio(here, other)
        inside.append(abs(other.total - there.sum()) <= other.half_width)
        ratios.append(abs(found - cycles.sum() / there.sum()) <= half)
        widths.append(half / found / (here.half_width / here.total + other.half_width / other.total))
    assert np.mean(inside) >= 0.93 and np.mean(ratios) >= 0.93
    assert np.median(widths) < 0.6  # the ratio is known better than either


def test_cycles_that_were_read_off_widen_intervals_by_their_errors():
    work, cycles = program(0)
    timed = {row: exact("full", float(cycle)) for row, cycle in enumerate(cycles)}
    whole = timed_selection(work, timed)
    assert whole.half_width == 0
    read = timed_selection(work, timed, shared_half_width=0.02)
    assert read.half_width / read.total == pytest.approx(0.02)
    assert ratio(read, whole, 0.05) == (1.0, pytest.approx(0.05))


def test_shares_of_the_iterations_tell_what_all_take():
    """A part that does not grow with them, and rates that differ by what is never more than a hundredth."""

    def timed(share):
        asked.append(share)
        return Timed(1e6 * share, 5000.0 + 3e5 * share * (1.0 + 0.01 * share))

    asked = []
    found = IterationSampling(error=0.2).launch(1e6, 700.0, timed)
    assert asked == list(SHARES) and found.basis == "model" and found.detailed_fraction == pytest.approx(7 / 16)
    assert found.covers(700.0 + 5000.0 + 3e5 * 1.01)
    assert sum(part.cycles for part in found.parts) == pytest.approx(found.total)


def test_shares_that_disagree_or_cannot_be_narrow_enough_are_none():
    bent = lambda share: Timed(1e6 * share, 3e5 * share**2)  # noqa: E731
    assert IterationSampling(error=0.2).launch(1e6, 0.0, bent) is None
    assert IterationSampling(error=0.2).launch(1e6, 0.0, lambda share: Timed(9e5, 1e5)) is None  # short warps
    assert IterationSampling(error=0.2).launch(1e6, 0.0, lambda share: None) is None
    assert not IterationSampling(error=0.02).worth_trying
    assert IterationSampling(error=0.02).launch(1e6, 0.0, lambda share: 1 / 0) is None  # nothing is simulated for it
