"""Cycles of the whole suite are within the bars against the reference's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from abstim.study.relative import median_miss_errors, relative_accuracy
from abstim.study.validate import read_reference, select, validate

CYCLES = Path(__file__).parent / "data" / "cycles.csv"
KERNELS, MICRO = ("table1", "apps"), ("micro",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant, groups, mean_bar, max_bar",
    [
        ("GTX480_a", KERNELS, 0.015, 0.08),
        ("GTX480_b", KERNELS, 0.025, 0.10),
        ("GTX480_a", MICRO, 0.025, None),
        ("GTX480_b", MICRO, 0.03, None),
        ("GTX480_a_lrr", KERNELS, 0.03, None),
        ("GTX480_b_lrr", KERNELS, 0.03, None),
        ("GTX480_b_two_level", KERNELS, 0.03, None),
        ("GTX480_c", KERNELS, 0.035, 0.16),
        ("GTX480_d", KERNELS, 0.035, 0.12),
        ("RTX3070", KERNELS, 0.035, 0.20),
    ],
)
def test_cycles_are_within_the_bars(variant, groups, mean_bar, max_bar):
    """Absolute errors of cycles, as a fraction of the measured ones: mean and, where there is a bar, maximum."""
    chosen, _ = select(read_reference(CYCLES), [variant], groups, ())
    found = validate(chosen)
    errors = [abs(comparison.error) for comparison in found.comparisons]
    assert found.skipped == [] and len(errors) == len(chosen)
    assert sum(errors) / len(errors) <= mean_bar
    assert max_bar is None or max(errors) <= max_bar


@pytest.mark.slow
def test_speed_ups_between_variants_rank_as_measured_and_misses_agree():
    """Kendall's tau of speed-ups, median relative error of miss counts; the kernels that finish soonest."""
    quick = ("nn_euclid", "relu", "fir", "maxpool", "simple_convolution", "black_scholes", "btree_find_k", "transpose",
             "backprop_layerforward", "histogram_atomics", "pathfinder", "scan")  # fmt: skip
    chosen, _ = select(read_reference(CYCLES), (), (), quick)
    found = validate(chosen).comparisons
    relative = relative_accuracy(found)
    assert relative is not None and relative.variants == 8 and relative.pooled >= 0.85
    assert {name: error <= 0.10 for name, (error, _) in median_miss_errors(found).items()} == {
        "l1d_misses": True, "l2_misses": True,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", ["dct8x8", "fdtd2d", "srad", "bfs"])
def test_caches_kept_between_launches_change_the_time_as_measured(benchmark):
    """Sign and size of the change, within five points."""
    predicted, measured = {}, {}
    for flush in ("all", "none"):
        chosen, _ = select(read_reference(CYCLES, flush), ["GTX480_d"], (), [benchmark])
        (found,) = validate(chosen, flush=flush).comparisons
        predicted[flush], measured[flush] = found.predicted_cycles, found.measured_cycles
    change = [cycles["none"] / cycles["all"] - 1 for cycles in (predicted, measured)]
    assert change[0] < 0 and change[0] == pytest.approx(change[1], abs=0.05)
