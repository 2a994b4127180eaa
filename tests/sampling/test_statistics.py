"""Statistics, the dispatcher and the estimator that every method over launches shares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sampling import Estimate, Full, Profile, RandomUnits, SamplingError, Systematic
from sampling.estimate import around, combine, exact
from sampling.launch_in_progress import dispatch, dispatch_equal, finish
from sampling.selection import Selection, first_of_each
from sampling.selection_files import write_csv, write_kernelslist, write_simpoints
from sampling.statistics import batch_means, coefficient_of_variation, numbered, slope_of, t_quantile, two_means

QUICK = settings(max_examples=60)
POSITIVE = st.floats(0.5, 1e6, allow_nan=False)


def test_quantiles() -> None:
    assert t_quantile(math.inf) == pytest.approx(1.959964, abs=1e-6)
    assert t_quantile(1) == pytest.approx(12.7062, abs=1e-3)
    assert t_quantile(1.0, 0.9) == pytest.approx(math.tan(0.45 * math.pi))  # Cauchy's distribution
    assert t_quantile(2.0, 0.9) == pytest.approx(0.9 * math.sqrt(2 / (1 - 0.9**2)))
    assert t_quantile(0.2, 0.9) == t_quantile(1.0, 0.9)  # none has fewer than one
    assert coefficient_of_variation(np.array([3.0])) == 0.0


@QUICK
@given(st.floats(-3, 3), st.floats(-100, 100), arrays(float, 20, elements=st.floats(0, 1e6), unique=True))
def test_the_slope_of_a_line_is_found(slope, intercept, x) -> None:
    if np.ptp(x) < 1.0:
        return
    assert slope_of(x, slope * x + intercept) == pytest.approx(slope, abs=1e-6)


@QUICK
@given(arrays(float, st.integers(2, 30), elements=POSITIVE))
def test_two_means_is_the_best_cut(values) -> None:
    if values.max() == values.min():
        return

    def loss(cut):
        parts = values[values <= cut], values[values > cut]
        return sum(float(((part - part.mean()) ** 2).sum()) for part in parts if len(part))

    best = min(loss(cut) for cut in np.unique(values)[:-1])
    assert loss(two_means(values)) <= best * (1 + 1e-6) + 1e-6 * float(values.max()) ** 2


def test_batch_means_sees_correlation() -> None:
    rng = np.random.default_rng(0)
    walk = np.convolve(rng.normal(size=4200), np.ones(200) / math.sqrt(200), "valid")[:4000]
    naive = walk.std(ddof=1) / math.sqrt(len(walk))
    assert batch_means(walk)[1] > 3 * naive
    white = rng.normal(size=4000)
    assert batch_means(white)[1] == pytest.approx(1 / math.sqrt(4000), rel=0.6)
    assert batch_means(np.array([7.0])) == (7.0, 0.0, math.inf)


@QUICK
@given(arrays(float, st.integers(1, 9), elements=st.floats(0, 500)), st.floats(1, 100), st.integers(0, 60))
def test_equal_durations_need_no_heap(free, duration, count) -> None:
    slots = dispatch(free, np.full(count, duration))[1]
    np.testing.assert_allclose(np.sort(dispatch_equal(free, duration, count)), np.sort(slots), rtol=1e-9)


def test_finish_of_nothing_is_the_last_slot() -> None:
    assert (finish(np.array([3.0, 9.0]), np.array([5.0]), 0, np.random.default_rng(0)) == 9.0).all()


def test_errors_of_one_source_add_up() -> None:
    one = around("m", 100.0, 5.0, detailed_fraction=0.5)
    apart = combine("m", [one, one], [1, 1])
    shared = combine("m", [one, one], [1, 1], ["same", "same"])
    assert apart.standard_error == pytest.approx(5 * math.sqrt(2))
    assert shared.standard_error == pytest.approx(10)
    assert shared.total == 200 and shared.detailed_fraction == 0.5
    assert exact("m", 3.0).covers(3.0) and not exact("m", 3.0).covers(3.1)


def profile(instructions) -> Profile:
    return Profile(instructions=np.asarray(instructions, float))


@QUICK
@given(arrays(float, st.integers(2, 40), elements=POSITIVE), st.integers(0, 1000))
def test_full_selection_is_exact(cycles, seed) -> None:
    rng = np.random.default_rng(seed)
    estimate = Full().select(profile(rng.uniform(1, 9, len(cycles)))).estimate(list(cycles))
    assert estimate.total == pytest.approx(cycles.sum())
    assert (estimate.basis, estimate.detailed_fraction) == ("exact", 1.0)
    assert estimate.high - estimate.low == 0


@QUICK
@given(st.integers(3, 200), st.floats(0.01, 1), st.integers(0, 99))
def test_constant_cpi_is_found_by_any_sample(units, fraction, seed) -> None:
    work = np.random.default_rng(seed).uniform(1e3, 1e6, units)
    for method in (RandomUnits(fraction, seed), Systematic(fraction, seed=seed)):
        selection = method.select(profile(work))
        estimate = selection.estimate(list(2.5 * work[selection.units]))
        assert estimate.total == pytest.approx(2.5 * work.sum())
        assert np.dot(selection.multipliers, work[selection.units]) == pytest.approx(work.sum())
        assert 0 < estimate.detailed_fraction <= 1


def test_nested_estimates_pass_their_error_on() -> None:
    ones = np.ones(2)
    selection = Selection(
        method="m", units=np.array([0]), strata=np.zeros(2, int), size=ones, instructions=ones, spread=np.zeros(1)
    )
    inner = around("inner", 10.0, 1.0, detailed_fraction=0.25, basis="model")
    outer = selection.estimate([inner])
    assert outer.total == 20.0 and outer.standard_error == pytest.approx(2.0)
    assert outer.detailed_fraction == 0.125 and outer.basis == "model"


def test_labels() -> None:
    strata = numbered([7, 7, 3, 9, 3])
    assert strata.tolist() == [0, 0, 1, 2, 1]
    assert first_of_each(strata).tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    "make",
    [
        lambda: profile([]),
        lambda: profile([1.0, 0.0]),
        lambda: Profile(instructions=np.ones(2), cycles=np.ones(3)),
        lambda: profile([1.0]).need("cycles", "STEM"),
        lambda: Full().select(profile([1.0, 2.0])).estimate([1.0]),
    ],
)
def test_bad_input_is_one_clear_line(make) -> None:
    with pytest.raises(SamplingError) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_exported_files(tmp_path) -> None:
    work = np.array([1e3, 3e3, 1e3, 3e3])
    selection = Selection(
        method="m", units=np.array([1, 2]), strata=np.array([0, 1, 0, 1])[::-1].copy(), size=work, instructions=work
    )
    listing = tmp_path / "kernelslist.g"
    listing.write_text("MemcpyHtoD,0x1,64\nkernel-1.traceg\nkernel-2.traceg\nkernel-3.traceg\nkernel-4.traceg\n")
    kept = write_kernelslist(selection, listing, tmp_path / "out").read_text().split()
    assert kept == ["MemcpyHtoD,0x1,64", "kernel-2.traceg", "kernel-3.traceg"]
    points, weights = write_simpoints(selection, tmp_path / "out")
    assert points.read_text() == "1 0\n2 1\n"
    assert sum(float(line.split()[0]) for line in weights.read_text().splitlines()) == pytest.approx(1)
    assert len(write_csv(selection, tmp_path / "out").read_text().splitlines()) == 3
    listing.write_text("kernel-1.traceg\n")
    with pytest.raises(SamplingError, match="lists 1 kernels"):
        write_kernelslist(selection, listing, tmp_path / "out")


def test_estimate_is_frozen() -> None:
    with pytest.raises(AttributeError):
        exact("m", 1.0).total = 2.0  # type: ignore[misc]
    assert isinstance(exact("m", 1.0), Estimate)
