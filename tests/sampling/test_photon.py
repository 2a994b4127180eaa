"""Photon's levels on synthetic launches: what each switches on, what it costs, how far off it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic import SyntheticLaunch

from sampling import Photon
from sampling.photon import (
    DEFAULT_LATENCY_CYCLES,
    Analysis,
    BlockSampling,
    Detector,
    KernelSampling,
    StabilityRule,
    WarpSampling,
    analyse,
    interval_cycles,
)
from sampling.photon.analysis import distance, sample_blocks
from sampling.protocol import BlockCode

IRREGULAR = ((0, 1, 1, 1, 2), (0, 1, 2), (0, 2), (0, 1, 1, 1, 1, 1, 1, 2))


def regular(seed: int = 0, **settings) -> SyntheticLaunch:
    return SyntheticLaunch(seed, **{"thread_blocks": 4000, **settings})


def test_paper_parameters_are_the_defaults() -> None:
    photon = Photon()
    assert (photon.analysis_share, photon.dimensions) == (0.01, 16)
    assert photon.warp == WarpSampling(window=1024, delta=0.03, dominance=0.95)
    assert photon.block == BlockSampling(window=2048, delta=0.03, stable_rate=0.95)


def test_detector_wants_a_slope_of_one_and_a_settled_mean() -> None:
    issue = np.arange(0.0, 400.0)
    steady, slowing = Detector(StabilityRule(100)), Detector(StabilityRule(100))
    steady.add(issue, issue + 50)
    slowing.add(issue, 1.1 * issue + 50)
    assert steady.stable and steady.slope == pytest.approx(1) and steady.drift == 0
    assert not slowing.stable and slowing.slope == pytest.approx(1.1)
    local = Detector(StabilityRule(100))  # flat now, at another level than before
    local.add(issue, issue + np.where(issue < 300, 50, 80))
    assert abs(1 - local.slope) < 0.03 and not local.stable
    few = Detector(StabilityRule(100))
    few.add(issue[:50], issue[:50])
    assert not few.stable


def test_regular_launch_is_warp_sampled() -> None:
    launch = regular()
    estimate = Photon().launch(launch, launch)
    assert estimate.relative_error(launch.total()) < 0.02
    assert estimate.detailed_fraction < 0.2 and estimate.functional_fraction < 0.25
    assert [part.how for part in estimate.parts] == ["detailed", "warp"]
    assert sum(part.cycles for part in estimate.parts) == pytest.approx(estimate.total)


def test_irregular_launch_is_block_sampled() -> None:
    launch = regular(sequences=IRREGULAR)
    estimate = Photon().launch(launch, launch)
    assert estimate.relative_error(launch.total()) < 0.02
    assert estimate.detailed_fraction < 0.4 and estimate.functional_fraction == 1.0
    assert estimate.parts[-1].how == "basic block"


def test_block_sampling_hands_over_to_warp_sampling() -> None:
    launch = regular(thread_blocks=12000, noise=0.1)
    estimate = Photon(warp=WarpSampling(window=4096), block=BlockSampling(window=1024)).launch(launch, launch)
    assert estimate.parts[-1].how == "basic block, then warp"
    assert estimate.functional_fraction < 0.9
    assert estimate.relative_error(launch.total()) < 0.02


def test_small_launch_is_simulated_in_full() -> None:
    launch = regular(thread_blocks=100)
    launch.begin()
    launch.step(np.arange(100))
    assert launch.result().clock_cycles == pytest.approx(launch.total())
    estimate = Photon().launch(launch, launch)
    assert estimate.basis == "exact" and estimate.detailed_fraction == 1.0
    assert estimate.total == pytest.approx(launch.total())


def test_nothing_is_skipped_before_memory_use_changes() -> None:
    phase = np.where(np.arange(4000) < 1500, 1.0, 4.0)
    launch = regular(phase=phase)
    guarded = Photon().launch(launch, launch)
    careless = Photon(request_tolerance=np.inf).launch(launch, launch)
    assert guarded.relative_error(launch.total()) < 0.05
    assert careless.relative_error(launch.total()) > 0.4  # warps of one type, but slower ones later


def test_repeated_kernel_is_not_simulated() -> None:
    launches = [regular(seed, name=f"launch {seed}") for seed in range(6)]
    estimate = Photon().program([(launch, launch) for launch in launches])
    true = sum(launch.total() for launch in launches)
    assert estimate.relative_error(true) < 0.03 and estimate.covers(true)
    assert estimate.detailed_fraction < 0.05
    assert sum(part.how.startswith("kernel") for part in estimate.parts) == 5


def test_kernel_matching() -> None:
    photon = Photon()
    big, other = regular(0), regular(1, sequences=((0, 2, 2, 2),))
    for launch in (big, other):
        photon.launch(launch, launch)
    sampling = photon.kernel
    assert sampling is not None
    first, _ = sampling.known[big.shape.kernel]
    half = regular(2, thread_blocks=2000)
    known = analyse(half, half.shape)
    match = sampling.match(known, half.shape)
    assert match is first
    prediction = sampling.predict(known, half.shape, match)
    assert prediction.relative_error(half.total()) < 0.05 and prediction.detailed_fraction == 0
    few = regular(3, thread_blocks=3, cores=15)  # fewer warps than cores: only equal counts match
    assert sampling.match(analyse(few, few.shape), few.shape) is None


def test_gpu_bbv_orders_types_by_weight() -> None:
    launch = regular(sequences=IRREGULAR, type_shares=(0.1, 0.6, 0.1, 0.2))
    whole = analyse(launch, launch.shape, share=1.0)
    assert whole.gpu_bbv.shape == (4, 16) and whole.type_shares[0] == whole.type_shares.max()
    assert (np.diff(whole.type_shares) <= 0).all() and whole.type_shares.sum() == pytest.approx(1)
    sample = analyse(launch, launch.shape, share=0.05)
    assert np.abs(whole.block_shares - sample.block_shares).max() < 0.05
    assert distance(whole.gpu_bbv, whole.gpu_bbv) == 0
    assert distance(whole.gpu_bbv, whole.gpu_bbv[:1]) > 0
    assert len(sample_blocks(launch.shape, 0.01)) == 40


def test_analysis_is_kept_and_reused() -> None:
    launch = regular()
    known = analyse(launch, launch.shape)
    again = Analysis.of_columns(known.columns())
    np.testing.assert_array_equal(again.gpu_bbv, known.gpu_bbv)
    online, offline = Photon().launch(launch, launch), Photon().launch(launch, launch, again)
    assert offline.total == online.total
    assert offline.functional_fraction < online.functional_fraction


def test_interval_model() -> None:
    chain = BlockCode(classes=np.array([0, 0, 1]), sources=((), (0,), (1,)))
    free = BlockCode(classes=np.array([0, 0, 1]), sources=((), (), ()))
    latency = np.array([10.0, np.nan])
    assert interval_cycles(chain, latency) == 21.0  # 0, 10, 20, then the next block
    assert interval_cycles(free, latency) == 3.0
    load_use = BlockCode(classes=np.array([1, 0]), sources=((), (0,)))
    assert interval_cycles(load_use, latency, np.array([1.0, 400.0])) == 401.0
    assert interval_cycles(load_use, latency) == DEFAULT_LATENCY_CYCLES + 1


def test_rare_blocks_are_modelled() -> None:
    """A block that no warp simulated in detail runs still gets a time."""
    launch = regular(sequences=((0, 1, 1, 1, 2), (0, 1, 1, 1, 2, 3)), type_shares=(0.9998, 0.0002),
                     block_cycles=(40.0, 120.0, 60.0, 20.0), block_instructions=(10, 30, 12, 5))  # fmt: skip
    estimate = Photon(warp=None).launch(launch, launch)
    assert estimate.parts[-1].how == "basic block"
    assert estimate.relative_error(launch.total()) < 0.02


def test_levels_can_be_switched_off() -> None:
    launch = regular()
    estimate = Photon(kernel=None, warp=None, block=None).launch(launch, launch)
    assert estimate.detailed_fraction == 1.0
    assert KernelSampling().match(analyse(launch, launch.shape), launch.shape) is None


def growing(**settings) -> SyntheticLaunch:
    """Later thread blocks execute up to eight times the instructions of the first, in equal time."""
    launch = regular(**settings)
    grown = np.arange(launch.shape.thread_blocks) * 8 // launch.shape.thread_blocks + 1
    launch.warp_instructions = launch.warp_instructions * grown[:, None]
    plain = launch.profile

    def profile(blocks: np.ndarray):
        found = plain(blocks)
        return replace(found, counts=found.counts * np.repeat(grown[blocks], launch.shape.warps_per_block)[:, None])

    launch.profile = profile
    return launch


def longer(**settings) -> SyntheticLaunch:
    """The same with time: short warps first, long ones last."""
    launch = regular(sequences=IRREGULAR, **settings)
    order = np.argsort(launch.instructions, kind="stable")
    for name in ("events", "cycles", "event_instructions", "warp_instructions", "block_cycles"):
        setattr(launch, name, getattr(launch, name)[order])
    launch.types = launch.types.reshape(launch.shape.thread_blocks, -1)[order].ravel()
    return launch


@pytest.mark.parametrize(
    ("make", "method"),
    [(growing, Photon(block=None, request_tolerance=np.inf)), (longer, Photon(warp=None)), (longer, Photon())],
)
def test_the_detailed_share_counts_instructions_not_thread_blocks(make, method) -> None:
    launch = make()
    dispatched: list[int] = []
    step = launch.step
    launch.step = lambda blocks: dispatched.extend(blocks) or step(blocks)
    estimate = method.launch(launch, launch)
    done = launch.instructions[dispatched].sum()
    assert 0 < len(dispatched) < launch.shape.thread_blocks
    assert estimate.parts[0].instructions == done
    share = done / launch.instructions.sum()
    assert abs(share - len(dispatched) / launch.shape.thread_blocks) > 0.02  # or this would test nothing
    assert estimate.detailed_fraction == pytest.approx(share, rel=0.03)
    assert sum(part.instructions for part in estimate.parts) == pytest.approx(launch.instructions.sum(), rel=0.03)


def test_a_launch_simulated_in_full_has_the_instructions_counted() -> None:
    launch = growing(thread_blocks=50)
    estimate = Photon().launch(launch, launch)
    assert estimate.basis == "exact"
    assert [part.instructions for part in estimate.parts] == [launch.instructions.sum()]


def test_a_launch_that_cannot_be_skipped_in_its_first_third_is_not_watched_to_its_end() -> None:
    """Three waves: one in flight and one to settle are more than that."""
    for blocks, given_up in ((180, True), (4000, False)):
        launch = SyntheticLaunch(thread_blocks=blocks)
        forgotten = []
        launch.forget = lambda found=forgotten: found.append(1)
        estimate = Photon().launch(launch, launch)
        assert bool(forgotten) == given_up
        assert (estimate.basis == "exact") == given_up
        if given_up:
            assert estimate.total == pytest.approx(launch.total())
            watched = Photon(pays=1.0).launch(launch, launch)
            assert watched.total == pytest.approx(estimate.total)


def test_a_launch_that_does_not_settle_is_watched_for_a_third_and_those_like_it_not_at_all() -> None:
    """Windows that never fill: nothing is ever stable."""
    photon, watched = Photon(kernel=None, warp=WarpSampling(window=1 << 20), block=None), []
    for blocks in (1500, 1500, 3000):
        launch = SyntheticLaunch(thread_blocks=blocks)
        launch.shape = replace(launch.shape, kernel="k")
        dispatched: list[int] = []
        step, at = launch.step, len(watched)
        watched.append(0)
        launch.step = lambda ids, into=dispatched, take=step: into.append(len(ids)) or take(ids)
        launch.forget = lambda into=dispatched, at=at: watched.__setitem__(at, sum(into))
        estimate = photon.launch(launch, launch)
        assert estimate.basis == "exact" and estimate.total == pytest.approx(launch.total())
    assert watched[0] == pytest.approx(500, abs=15) and watched[1] == 0 and watched[2] == pytest.approx(1000, abs=15)


class FillingLaunch(SyntheticLaunch):
    """Its cache is full after a share of the launch."""

    full_after = 0.8

    def _observe(self, state):
        seen = super()._observe(state)
        done = (len(self.block_cycles[: int(state.instructions // self.instructions.mean())])) / len(self.block_cycles)
        return replace(seen, cache_fill=min(done / self.full_after, 1.0))


@pytest.mark.parametrize(("full_after", "given_up"), [(0.8, True), (0.1, False)])
def test_a_cache_that_fills_late_is_known_early(full_after, given_up) -> None:
    launch = FillingLaunch(thread_blocks=4000)
    launch.full_after = full_after
    forgotten = []
    launch.forget = lambda: forgotten.append(launch.state.clock)
    estimate = Photon().launch(launch, launch)
    assert bool(forgotten) == given_up and (estimate.basis == "exact") == given_up
    assert not given_up or forgotten[0] < 0.2 * estimate.total


def test_a_rare_block_starts_at_the_latencies_that_are_given() -> None:
    from sampling.photon import BlockTimes

    launch = regular()
    times = BlockTimes(BlockSampling(), launch)
    nan = np.array([np.nan])
    launch.begin()
    seen = launch.step(np.arange(4))
    times.watch(replace(seen, basic_blocks=seen.basic_blocks[:0], class_latency_cycles=nan,
                        initial_latency_cycles=np.array([30.0])))  # fmt: skip
    chain = launch.code(0)
    assert times.cycles()[0][0] == interval_cycles(chain, nan, np.array([30.0])) == 30.0 * (len(chain.classes) - 1) + 1
