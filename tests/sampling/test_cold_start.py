"""Reuse of footprints, warm-up lengths, the correction factor, and warm-up plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.cold_start import (
    Correction,
    affected_share,
    backward_reuse,
    blrl,
    evenly_used_controllers,
    forward_reuse,
    mrrl,
    previous_reference,
    warm_up,
)


def test_reuse_by_hand() -> None:
    prints = [np.unique(np.array(lines)) for lines in ([1, 2, 2, 3, 4], [3, 4, 5], [9])]
    np.testing.assert_allclose(forward_reuse(prints), [0.5, 0.0, np.nan])
    np.testing.assert_allclose(backward_reuse(prints), [np.nan, 2 / 3, 0.0])


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 30), max_size=30), min_size=2, max_size=6))
def test_reuse_is_a_share_and_overlaps_agree(lists) -> None:
    prints = [np.unique(np.array(lines, int)) for lines in lists]
    forward, backward = forward_reuse(prints), backward_reuse(prints)
    assert ((forward[:-1] >= 0) & (forward[:-1] <= 1)).all() and np.isnan(forward[-1]) and np.isnan(backward[0])
    for i in range(len(prints) - 1):
        assert forward[i] * len(prints[i]) == pytest.approx(backward[i + 1] * len(prints[i + 1]))


def test_affected_share_is_weighted_by_instructions() -> None:
    shares = affected_share(np.array([0, 1 / 6, 0.5]), np.array([70.0, 20.0, 10.0]))
    assert shares == pytest.approx({0.05: 0.3, 0.10: 0.3, 0.15: 0.3, 0.20: 0.1})


def test_previous_reference() -> None:
    assert previous_reference(np.array([5, 7, 5, 5, 7])).tolist() == [-1, -1, 0, 2, 1]


def test_warm_up_lengths_by_hand() -> None:
    # pre-sample 0..999 touches line k at instruction k; the sample from 1000 on reuses lines 900..999
    positions = np.concatenate([np.arange(1000), 1000 + np.arange(100)])
    addresses = np.concatenate([np.arange(1000), np.arange(900, 1000)])
    assert warm_up(blrl, positions, addresses, 1000, percentile=1.0, bucket=10) == 110  # 100 back: bucket 10
    assert warm_up(blrl, positions, addresses, 1000, percentile=0.5, bucket=10) == 60
    assert warm_up(mrrl, positions, addresses, 1000, percentile=1.0, bucket=10) == 110
    assert warm_up(blrl, positions, np.arange(1100), 1000) == 0
    assert warm_up(mrrl, positions, np.arange(1100), 1000) == 0


@settings(max_examples=60)
@given(st.integers(0, 9999), st.sampled_from([0.5, 0.9, 0.999, 1.0]))
def test_warm_up_covers_its_percentile(seed, percentile) -> None:
    rng = np.random.default_rng(seed)
    addresses, positions, boundary = rng.integers(60, size=400), np.arange(400), 300
    length = warm_up(blrl, positions, addresses, boundary, percentile, bucket=8)
    previous = previous_reference(addresses)
    crossing = [p for i, p in enumerate(previous) if i >= boundary and 0 <= p < boundary]
    assert 0 <= length <= boundary
    if crossing:
        assert np.mean(np.array(crossing) >= boundary - length) >= percentile - 1e-9


def test_blrl_is_shorter_where_only_the_pre_sample_reaches_far() -> None:
    """Long reuse inside the pre-sample does not concern the sample: MRRL overestimates (section 2.4.2)."""
    pre = np.tile(np.arange(450), 2)
    sample = np.repeat(pre[-5:], 20)
    addresses, positions = np.concatenate([pre, sample]), np.arange(1000)
    short, long = (warm_up(each, positions, addresses, 900, bucket=10) for each in (blrl, mrrl))
    assert short < long


def test_correction_factor() -> None:
    correction = Correction()
    assert correction.dram_latency_cycles - correction.l2_latency_cycles == 67
    assert correction.apply(10_000, 64 * 128, 8.0, 0.5) == pytest.approx(10_000 - 64 / 8 * 0.5 * 67)
    for reuse in (0.25, np.nan):  # OceanFFT, and a first launch
        assert correction.apply(10_000, 64 * 128, 8.0, reuse) == 10_000
    assert correction.apply(100, 1e9, 1.0, 1.0) == 50


def test_evenly_used_controllers() -> None:
    reads = np.zeros((16, 4))
    reads[:8] = 10
    assert evenly_used_controllers(reads, np.zeros((16, 4))) == pytest.approx(8)
    assert evenly_used_controllers(np.zeros((4, 2)), np.zeros((4, 2))) == 0
