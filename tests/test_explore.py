"""Sweeps, part by part: ranges, derived keys, expressions, designs, fronts, sensitivity, search with a screen."""

from __future__ import annotations

import inspect
import math
import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstim.engine import design_point
from abstim.gpu import occupancy, spec
from abstim.gpu.config import domains, load_gpu
from abstim.study.explore.expressions import Expression
from abstim.study.explore.points import DERIVED, REFUSE_NOTHING, TOLERANCE, Space, parse_axes, parse_axis, value_of
from abstim.study.explore.result import of_columns
from abstim.study.explore.search import MOST_POINTS, design, front, ranked, search
from abstim.study.explore.sweep import sweep_of
from functional.errors import InputError

GPU = load_gpu("gtx480_perfect")
PROPERTY = settings(max_examples=100)


def space(*vary: str, **define: str) -> Space:
    return Space(GPU, parse_axes(vary), {name: Expression(text) for name, text in define.items()})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("sm_count=8:144:8", tuple(range(8, 145, 8))),
        ("sm_count=8:15:4", (8, 12)),
        ("l2_kib=512:8192:log2", (512.0, 1024.0, 2048.0, 4096.0, 8192.0)),
        ("sm_count=3:25:log2", (3, 6, 12, 24)),
        ("schedulers_per_sm=1,2,4", (1, 2, 4)),
        ("sm_count=1,8:24:8", (1, 8, 16, 24)),
        ("dram_sector_cycles=0.1:0.3:0.1", (0.1, 0.2, 0.3)),  # exact decimals
        ("l2_sector_cycles=0.5:2:4#", (0.5, 1.0, 1.5, 2.0)),
        ("scheduler=gto,lrr", ("gto", "lrr")),
        ("perfect_memory=true,false", (True, False)),
        ("latency_cycles.int_add=4", (4,)),
        ("spec.sm_count=4", (4,)),
    ],
)
def test_ranges(text, values):
    assert parse_axis(text).values == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sm_cuont=8", "did you mean sm_count"),
        ("l2_kb=8", "did you mean l2_kib"),
        ("sm_count=0", "whole number from 1"),
        ("sm_count=1.5", "whole number from 1"),
        ("sm_count=8:1:1", "empty"),
        ("sm_count=8:16:0", "empty"),
        ("sm_count=0:16:log2", "empty"),
        ("sm_count=1:4096:1e-9", "empty or has more"),
        ("sm_count=1:inf:1", "no range of numbers"),
        ("sm_count=1:nan:1", "no range of numbers"),
        ("sm_count=1:2", "first:last:step"),
        ("sm_count=", "key=values"),
        ("sm_count", "key=values"),
        ("sm_count=1,,2", "missing between the commas"),
        ("sm_count=4,4", "twice"),
        ("scheduler=fifo", "one of gto"),
        ("l2_kib=-5", "above 0"),
    ],
)
def test_what_is_no_range_is_said_in_one_line(text, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_axis(text)
    assert "\n" not in str(caught.value)


def test_every_key_of_set_can_be_varied():
    for key in domains().keys() - {"shared_options_kib"}:  # itself a list with commas
        assert parse_axis(f"{key}={str(GPU.settings[key].value).lower()}").values == (GPU.settings[key].value,)


@pytest.mark.parametrize("key", DERIVED)
def test_a_derived_key_set_to_what_it_is_changes_nothing(key):
    """Up to the engine's steps."""
    now = float(value_of(key, {name: np.array(s.value) for name, s in GPU.settings.items()}))
    points = space(f"{key}={now!r}").at(np.arange(1))
    assert points.reasons[0] == ""
    base = DERIVED[key].base
    assert points.columns[base][0] == pytest.approx(GPU.settings[base].value, rel=TOLERANCE)
    assert float(points.values(base)[0]) * 64 % 1 == 0


def test_derived_keys_by_hand():
    points = space("l2_kib=384,768", "dram_channels=6,12", "dram_gbps=100", "l1d_kib=16,48").at(np.arange(8))
    # 6 channels x 2 slices x 8 ways x 128 B = 12 KiB a set; 6 x 32 B x 0.7 GHz / 100 GB/s = 1.344 cycles
    assert points.columns["l2_sets"].tolist() == [32, 32, 16, 16, 64, 64, 32, 32]
    assert points.columns["dram_sector_cycles"].tolist() == [86 / 64, 86 / 64, 172 / 64, 172 / 64] * 2
    assert points.columns["dram_gbps"] == pytest.approx(6 * 32 * 0.7 * 64 / 86)  # what is had, not what was wished
    assert points.columns["l1d_ways"].tolist() == [4, 12] * 4
    assert points.gpu(7).spec.l2_sets == 32
    assert points.gpu(7).params.dram_sector_cycles == 172 / 64


def test_derived_keys_follow_each_other():
    points = space("dram_gbps=88.7", "core_clock_mhz=700,1400").at(np.arange(2))
    slow, fast = points.columns["dram_sector_cycles"]
    assert fast == pytest.approx(2 * slow, rel=0.02)


def test_nothing_that_refuses_a_gpu_looks_at_a_policy():
    checks = (spec._contradictions, occupancy.occupancy, occupancy.demands_of, occupancy.check_cluster,
              design_point.refuse_unsupported, design_point.units_of, design_point.cache_bytes)  # fmt: skip
    looked_at = re.findall(r"\w+", "".join(map(inspect.getsource, checks)) + repr(design_point.LIMITS))
    assert "sm_count" in looked_at and not set(REFUSE_NOTHING) & set(looked_at)
    assert set(REFUSE_NOTHING) <= set(domains())
    settings = zip(REFUSE_NOTHING, ["gto", "lru", 8, 8, 8, 8], strict=True)
    axes = parse_axes(["sm_count=1,2", "dram_latency_cycles=60,80", *(f"{key}={value}" for key, value in settings)])
    points = Space(GPU, axes).at(np.arange(1))
    assert points.deciding == ["sm_count"]


def test_a_value_that_cannot_be_had_is_refused_and_a_combination_is_a_row():
    with pytest.raises(InputError, match=r"l1d_kib = 6 cannot be had; the nearest is 8 \(l1d_ways = 2\)"):
        design(space("l1d_kib=6,16"), "grid", None, 0, ())
    points = design(space("l1d_kib=8,16", "l1d_sets=32,128"), "grid", None, 0, ())
    assert [bool(reason) for reason in points.reasons] == [False, True, False, False]


@pytest.mark.parametrize("vary", [("l2_kib=768", "l2_sets=64"), ("sm_count=1", "sm_count=2")])
def test_two_axes_of_one_key_are_refused(vary):
    with pytest.raises(InputError, match=r"both set|given twice"):
        space(*vary)


def test_grid_order_is_that_of_the_options():
    points = space("sm_count=1,2", "schedulers_per_sm=1,2,4").at(np.arange(6))
    rows = list(zip(points.columns["sm_count"].tolist(), points.columns["schedulers_per_sm"].tolist(), strict=True))
    assert rows == list(product((1, 2), (1, 2, 4)))


NUMBERS = {"a": 3.0, "b": -2.0, "c": 0.5, "n": 7}
LEAF = st.one_of(st.sampled_from(sorted(NUMBERS)), st.integers(0, 9).map(str), st.just("1.5"))
NESTED = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.sampled_from(["<", "<=", "==", "!=", ">"]), inner).map(lambda t: f"({' '.join(t)}) * 1"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        inner.map(lambda e: f"abs(-{e})"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]} < 2 and not {t[1]} > 1 or {t[0]} in (1, 3)) * 2"),
    ),
    max_leaves=8,
)


@PROPERTY
@given(NESTED)
def test_expressions_are_pythons(text):
    expected = eval(text, {"__builtins__": {}, "min": min, "max": max, "abs": abs}, NUMBERS)
    found = Expression(text)(lambda name: np.array([NUMBERS[name]]))
    assert np.broadcast_to(found, 1)[0] == pytest.approx(float(expected))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "a.__class__.__bases__", "(1).real", "[x for x in (1, 2)]", "lambda: 1",
        "a if a else b", "a[0]", "open('x')", "f'{a}'", "a := 1", "b'x'", "1j", "{1: 2}", "a in b", "min(a)",
        "sqrt(a, b)", "sqrt(x=a)", "a & b", "~a", "...", "None", "", "a +", "a; b", "*a", "min(*a)", "(" * 400,
        "-" * 1900 + "1", "a" * 3000, "a < (1, 2)",
    ],
)  # fmt: skip
def test_nothing_else_is_an_expression(text):
    with pytest.raises(InputError):
        Expression(text)(lambda name: np.array([1.0]))


def test_expressions_see_keys_derived_keys_and_definitions():
    points = space("sm_count=8,16", "scheduler=gto,lrr", area="sm_count * tile", tile="4 + l1d_kib / 16").at(
        np.arange(4)
    )
    assert points.values("area").tolist() == [40, 40, 80, 80]
    assert points.values("l2_kib").tolist() == [768] * 4
    chosen = points.evaluate(
        Expression("scheduler == 'gto' and latency_cycles.int_add == 4 and not perfect_memory == false")
    )
    assert chosen.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sm_cuont < 5", "did you mean sm_count"),
        ("scheduler + 1", "words can be compared only"),
        ("scheduler", "gives words"),
        ("log(sm_count - 1)", "is -inf at some"),
        ("1 / (sm_count - 1)", "is inf at some"),
    ],
)
def test_an_expression_that_is_no_number_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        space("sm_count=1,2").at(np.arange(2)).evaluate(Expression(text))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"define": ["a=b", "b=a"], "objective": ["a"]}, "leads back"),
        ({"define": ["sm_count=4"]}, "is a key of the GPU"),
        ({"define": ["cycles=4"]}, "name of a result"),
        ({"define": ["4"]}, "name=expression"),
        ({"constraint": ["time < 1"]}, "known only after"),
        ({"count": 0}, "whole number above 0"),
        ({"count": 5}, "the grid has all its points"),
    ],
)
def test_wrong_sweeps_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        sweep = sweep_of(GPU, ["sm_count=1,2"], **arguments)
        sweep.space.at(np.arange(2)).evaluate(sweep.objectives[0])


def test_constraints_thin_out_every_strategy():
    where = space("sm_count=1:40:1", "schedulers_per_sm=1,2,4")
    small = [Expression("sm_count * schedulers_per_sm < 20")]
    grid = design(where, "grid", None, 0, small)
    assert len(grid) == 19 + 9 + 4
    assert set(design(where, "random", 10, 1, small).positions) < set(grid.positions)
    assert len(design(where, "random", 10, 1, small)) == 10
    assert set(design(where, "latin", 40, 1, small).positions) < set(grid.positions)
    with pytest.raises(InputError, match="no point keeps"):
        design(where, "grid", None, 0, [Expression("sm_count < 0")])


def test_samples_are_different_points_and_follow_the_seed():
    where = space("sm_count=1:4000:1", "max_blocks_per_sm=1:64:1", "dram_channels=1:1000:1")
    for strategy in ("random", "latin"):
        one, again, other = (design(where, strategy, 500, seed, ()).positions for seed in (1, 1, 2))
        assert len(np.unique(one)) == len(one) == 500
        assert (one == again).all() and not (one == other).all()
    with pytest.raises(InputError, match="more than 1,000,000"):
        design(where, "grid", None, 0, ())


def test_a_latin_hypercube_hits_every_stratum_once():
    points = design(space("sm_count=1:64:1", "max_blocks_per_sm=1:64:1"), "latin", 64, 3, ())
    for column in points.columns.values():
        assert sorted(column.tolist()) == list(range(1, 65))


def test_a_million_points_are_quick_columns():
    where = space("sm_count=1:1000:1", "dram_gbps=50:300:1000#", cost="sm_count + dram_gbps / 10")
    points = design(where, "grid", None, 0, [Expression("cost > 0")])
    assert len(points) == MOST_POINTS


def dominates(a, b) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and any(x < y for x, y in zip(a, b, strict=True))


@PROPERTY
@given(st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[st.integers(0, 6)] * n), min_size=1, max_size=40)))
def test_fronts_are_those_of_the_definition(rows):
    values = np.array(rows, float)
    expected = [not any(dominates(other, row) for other in rows) for row in rows]
    assert front(values).tolist() == expected
    order = ranked(values, len(rows)).tolist()
    assert sorted(order) == list(range(len(rows)))
    for earlier, k in enumerate(order):  # nothing comes before what dominates it
        assert not any(dominates(rows[later], rows[k]) for later in order[earlier + 1 :])


def test_regression_finds_the_exponents():
    points = space("sm_count=2:64:log2", "schedulers_per_sm=1,2,4", "scheduler=gto,lrr").at(np.arange(36))
    lrr = np.where(points.columns["scheduler"] == "lrr", 1.5, 1.0)
    seconds = 3e-5 * points.columns["sm_count"] ** -0.8 * points.columns["schedulers_per_sm"] ** -0.25 * lrr
    sms, schedulers, policy = of_columns({axis.key: points.columns[axis.key] for axis in points.space.axes}, seconds)
    assert sms.elasticity == pytest.approx(-0.8) and sms.best == 64
    assert schedulers.elasticity == pytest.approx(-0.25) and schedulers.swing == pytest.approx(math.sqrt(2))
    assert policy.elasticity is None and policy.swing == pytest.approx(1.5) and policy.best == "gto"


def test_regression_sees_through_a_lopsided_choice_of_points():
    """Many schedulers come with few SMs here; what the SMs do is not put down to the schedulers, nor to L2."""
    points = space("sm_count=2:64:log2", "schedulers_per_sm=1,2,4", "l2_kib=384,768").at(np.arange(36))
    points = points.where(points.columns["sm_count"] * points.columns["schedulers_per_sm"] < 70)
    seconds = points.columns["sm_count"] ** -1.0 * points.columns["schedulers_per_sm"] ** -0.5
    sms, schedulers, l2 = of_columns({axis.key: points.columns[axis.key] for axis in points.space.axes}, seconds)
    assert sms.elasticity == pytest.approx(-1) and sms.swing == pytest.approx(32)
    assert schedulers.elasticity == pytest.approx(-0.5) and schedulers.swing == pytest.approx(2)
    assert (l2.elasticity, l2.swing) == (0, 1)


def test_of_a_key_with_one_value_nothing_is_known_and_words_have_no_elasticity():
    columns = {"scheduler": np.repeat("gto", 4), "sm_count": np.array([1, 1, 2, 2]), "word": np.array([*"abab"])}
    sms, word = of_columns(columns, np.array([2.0, 2.0, 1.0, 1.0]))
    assert (sms.key, word.key) == ("sm_count", "word") and sms.elasticity == pytest.approx(-1)
    assert (word.elasticity, word.swing) == (None, 1)  # it was varied, and changed nothing


def true_cycles(points) -> np.ndarray:
    sms, schedulers = points.columns["sm_count"], points.columns["schedulers_per_sm"]
    work = 1e6 / np.minimum(sms, 97) / schedulers**0.6 * (1 + 0.2 * (points.columns["scheduler"] == "lrr"))
    return np.rint(work + 400)[:, None].astype(np.int64)


def test_a_search_with_a_biased_screen_finds_the_front(monkeypatch):
    """The screen knows nothing of the policy and has the schedulers' exponent wrong; the first rounds tell."""
    where = space(
        "sm_count=1:128:1", "schedulers_per_sm=1,2,3,4", "scheduler=gto,lrr", area="sm_count*(3+schedulers_per_sm)"
    )
    points = where.at(np.arange(where.size))
    asked = []

    def screen(columns):
        return 2e6 / columns["sm_count"][:, None] / columns["schedulers_per_sm"][:, None] ** 0.2

    def time(some):
        asked.append(len(some))
        return true_cycles(some), [""] * len(some)

    def objectives(some, cycles):
        return np.stack([some.values("area"), cycles[:, 0]], 1).astype(float)

    found = search(points, screen(points.columns), time, objectives, 300)
    assert len(found.points) == sum(asked) == 300 and len(asked) > 1
    assert (found.cycles == true_cycles(found.points)).all()
    everything = objectives(points, true_cycles(points))
    true_front = points.positions[front(everything)]
    hits = np.isin(true_front, found.points.positions).mean()
    assert hits > 0.85
    monkeypatch.setattr("abstim.study.explore.search.ROUNDS", 1)
    uncorrected = search(points, screen(points.columns), time, objectives, 300)
    assert np.isin(true_front, uncorrected.points.positions).mean() < hits - 0.05


@pytest.mark.parametrize(
    ("key", "values"),
    [("core_clock_hz", (1e9, 2e9)), ("dram_channels", (20, 80)), ("dram_bytes_per_second", (5e11, 2e12)),
     ("launch_latency_ns", (500, 3000)), ("dram_latency_ns", (100, 500))],
)  # fmt: skip
def test_the_formula_derives_cycles_from_times_at_every_point(key, values):
    """As a run of each point does: a clock, say, changes what a nanosecond is."""
    from abstim.analytic import points_of
    from abstim.study.explore.formula import analytic_points

    base = load_gpu("a100")
    found = analytic_points(base, {key: np.array(values)})
    expected = points_of([load_gpu("a100", [f"{key}={value:.0f}"]) for value in values])
    for name in found.dtype.names:
        assert np.array_equal(found[name], expected[name]), name


def test_the_analytic_screen_takes_columns_as_it_takes_gpus():
    analytic = pytest.importorskip("abstim.analytic")
    from abstim.session.session import open_session
    from abstim.study.explore.formula import analytic_screen

    workload = open_session("nn_euclid")
    points = space("sm_count=4,8,12,16", "dram_gbps=50,100", "latency_cycles.fp32_add=4,9", "scheduler=gto,lrr").at(
        np.arange(32)
    )
    columns = {key: values for key, values in points.columns.items() if key != "dram_gbps"}
    found = analytic_screen([workload], GPU)(columns)
    gpus = [points.gpu(k) for k in range(len(points))]
    (summary,) = analytic.summaries(workload, GPU)
    expected = analytic.predict(summary, analytic.points_of(gpus))["cycles"]
    assert found[:, 0] == pytest.approx(expected, rel=1e-5)
    assert len(np.unique(found)) > 3
