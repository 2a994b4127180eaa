"""Cycles of the whole suite are within the bars against the reference's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from abstim.validate import read_reference, select, validate

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
        ("GTX480_c", KERNELS, 0.06, None),
        ("GTX480_d", KERNELS, 0.06, 0.25),
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
