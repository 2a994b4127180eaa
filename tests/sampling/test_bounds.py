"""Intervals learnt from hard programs: as often right as promised, whatever the errors are like."""

import math
from dataclasses import replace

import numpy as np
import pytest
from bench_sampling import learn, learn_all, split

from sampling import estimate
from sampling.estimate import Bound, around, bounded, exact


@pytest.mark.parametrize("draw", ["lognormal", "exponential", "pareto"])
def test_of_new_rows_as_many_are_inside_as_promised(draw):
    rng = np.random.default_rng(0)
    errors = {
        "lognormal": lambda n: 0.02 * rng.lognormal(0, 1, n),
        "exponential": lambda n: rng.exponential(0.05, n),
        "pareto": lambda n: 0.01 * rng.pareto(3, n),
    }[draw]
    inside = []
    for _ in range(300):
        bound = learn("m", "model", list(errors(40)), [0.01] * 40)
        inside.append(float(np.mean(errors(200) <= bound.relative_half_width(0.01))))
    assert 0.945 < np.mean(inside) < 0.98


def test_the_narrower_of_two_ways():
    own = np.linspace(0.01, 0.5, 50)
    assert learn("m", "model", list(0.3 * own), list(own)) == Bound("m", "model", "times", pytest.approx(0.3), 50)
    assert learn("m", "model", [0.02] * 50, list(own)).how == "constant"


def test_few_rows_are_no_bound():
    assert learn("m", "model", [0.01] * 18, [0.0] * 18).relative_half_width(0.1) == math.inf
    assert learn("m", "model", [0.01] * 19, [0.0] * 19).relative_half_width(0.1) == 0.01


def test_an_estimate_gets_the_interval_of_its_method_and_basis(monkeypatch):
    rows = {
        ("m", "model"): Bound("m", "model", "constant", 0.2, 40),
        ("n", "model"): Bound("n", "model", "times", 3, 40),
    }
    monkeypatch.setattr(estimate, "_learnt", lambda: rows)
    stated = around("m", 100.0, 1.0, basis="model", detailed_fraction=0.1)
    assert (bounded(stated, "m").low, bounded(stated, "m").high) == (pytest.approx(80), pytest.approx(120))
    assert bounded(stated, "auto") == stated and not bounded(stated, "other").bounded
    assert not bounded(replace(stated, basis="sampled"), "m").bounded  # never met on the hard set
    assert bounded(exact("m", 100.0), "m") == exact("m", 100.0)
    wide = around("n", 100.0, 40.0, basis="model", detailed_fraction=0.1)
    assert not bounded(wide, "n").bounded
    assert bounded(wide, "n").low == 0.0


def test_rows_of_a_bench_become_bounds():
    rows = [
        {"method": m, "basis": b, "true_cycles": 100, "cycles": 110.0, "own_half_width": 0.01}
        for m, b in [("pks", "model")] * 20 + [("pks", "exact")] * 5 + [("auto", "sampled")] * 30
    ]
    (bound,) = learn_all(rows)
    assert (bound.method, bound.basis, bound.rows) == ("pks", "model", 20)
    assert bound.value == pytest.approx(10 / 110)


def test_a_bound_is_held_against_programs_that_it_was_not_learnt_from():
    rng = np.random.default_rng(1)
    rows = [
        {"method": "m", "basis": "model", "target": f"p{k % 20}:{k}", "true_cycles": 100.0,
         "cycles": 100.0 / (1.0 + off), "own_half_width": 0.01}
        for k, off in enumerate(rng.exponential(0.05, 400))
    ]  # fmt: skip
    (found,) = split(rows)
    assert found.rows == 400 and 0.1 < found.own < 0.3 and 0.92 < found.learnt < 0.98
    assert found.factor == pytest.approx(-math.log(0.05) * 5, rel=0.25)  # the quantile of the exponential distribution
    (few,) = split(rows[:20])
    assert few.learnt is None


def test_the_file_is_read():
    assert all(bound.rows > 0 for bound in estimate._learnt().values())
