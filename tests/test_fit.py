"""Fitting latencies to cycles: known parameters come back, unknown ones are said to be unknown."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from nightly import NIGHTLY

from abstim.cli import main
from abstim.gpu.config import load_gpu
from abstim.gradient.timed_kernel import kernel_of
from abstim.session.session import open_session
from abstim.study.fit.data import observations, of_table, of_times, programs_of, split
from abstim.study.fit.fitted import ErrorSummary, knowledge
from abstim.study.fit.solve import OUTLIER, _no_better, damped, deviations_of, fit
from abstim.study.silicon import MeasuredTime
from abstim.study.validate import Measured, choose, known_variants, read_reference
from functional.errors import InputError

CYCLES = Path(__file__).parent / "data" / "cycles.csv"
VARIANT = "GTX480_d"
VALUES = ("start", "fit")
THREE = ("l1d_latency_cycles", "shared_latency_cycles", "latency_cycles.sfu")


def synthetic(benchmarks, values, launches=(0, 2, 3), model="detailed") -> list[Measured]:
    """What a model says of some benchmarks with some values of the parameters; of these launches, as far as there are
    any: the first ones are the shortest."""
    names, point, gpu = tuple(values), np.array(list(values.values()), float), known_variants()[VARIANT]
    found = []
    for name in benchmarks:
        session = open_session(name, [gpu])
        own = [number for number in launches if number < len(session)]
        cycles = kernel_of(model)(session, names, gpu, own).engine_cycles(point)
        found.append(Measured(name, VARIANT, "all", dict(zip(own, map(int, cycles), strict=True)), {}))
    return found


def test_two_perturbed_latencies_come_back_exactly():
    truth = {"l1d_latency_cycles": 52, "dram_latency_cycles": 80}
    table = synthetic(("micro_pointer_chase", "micro_global_stride"), truth)
    found = fit(table, tuple(truth))
    assert found.values == truth
    assert all(p.identified and p.high is None for p in found.parameters)  # by two of two kernels
    by_values = {e.values: e.mean_error for e in found.errors}
    assert by_values["fit"] == 0 < by_values["start"] == by_values["file"]


@pytest.mark.parametrize("model", ["occupancy", "analytic"])
def test_latencies_come_back_by_the_other_models(model):
    truth = {"l1d_latency_cycles": 52, "dram_latency_cycles": 80}
    table = synthetic(("micro_pointer_chase", "micro_global_stride"), truth, model=model)
    assert fit(table, tuple(truth), model=model).values == pytest.approx(truth, abs=1)


@pytest.mark.skipif(not NIGHTLY, reason="a longer one of the two above: at night")
def test_three_latencies_come_back_from_three_kernels():
    """Perturbed by factors of 1/2 to 2; each must come back within 2 % (five: docs/results.md#fit-perturbed)."""
    gpu, rng = load_gpu("gtx480_perfect"), np.random.default_rng(1)
    start = np.array([gpu.settings[name].value for name in THREE])
    truth = dict(zip(THREE, np.round(start * 2 ** rng.uniform(-1, 1, len(THREE))).tolist(), strict=True))
    found = fit(synthetic(("micro_smem_conflict", "micro_sfu", "nn_euclid"), truth, (0, 11)), THREE)
    assert found.values == pytest.approx(truth, rel=0.02)


def test_a_parameter_the_kernels_do_not_use_stays_and_is_named():
    table = synthetic(("micro_global_stride", "relu"), {"l1d_latency_cycles": 45}, (0, 2))
    found = fit(table, ("l1d_latency_cycles", "latency_cycles.tensor"), overrides=["latency_cycles.tensor=20"])
    tensor = found.parameters[1]
    assert (tensor.value, tensor.identified, tensor.low) == (20, False, 0)
    assert tensor.high is None
    assert found.unidentified == [{"latency_cycles.tensor": 1.0}] or found.unidentified == [
        {"latency_cycles.tensor": -1.0}
    ]
    assert found.parameters[0].identified
    assert found.values["l1d_latency_cycles"] == pytest.approx(45, abs=1)


def test_knowledge_of_a_linear_problem_is_the_textbooks():
    rng = np.random.default_rng(0)
    jacobian, errors = rng.normal(size=(40, 2)), rng.normal(size=40) * 0.01
    found = knowledge(("a", "b"), np.array([10.0, 20.0]), errors, jacobian, 40)
    covariance = np.linalg.inv(jacobian.T @ jacobian) * (errors**2).sum() / 38
    half = 2.0243941 * math.sqrt(covariance[0, 0])  # Student's t, 38 degrees of freedom, 97.5 %
    assert found.low[0] == pytest.approx(10 * math.exp(-half), rel=1e-6)
    assert found.high[0] == pytest.approx(10 * math.exp(half), rel=1e-6)
    expected = covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1])
    assert found.correlation[0, 1] == pytest.approx(expected)
    assert not found.unidentified


@pytest.mark.parametrize(("kernels", "bounded"), [(2, False), (3, True)])
def test_no_more_kernels_than_parameters_bound_none(kernels, bounded):
    """What they leave is rounding alone; a parameter that changes nothing takes none of them."""
    jacobian = np.array([[0.9, 0.1, 0], [0.2, 0.7, 0], [0.5, 0.6, 0]])[:kernels]
    found = knowledge(("a", "b", "c"), np.ones(3), np.full(kernels, 1e-4), jacobian, kernels)
    assert np.isfinite(found.high[:2]).tolist() == [bounded] * 2 and math.isinf(found.high[2])
    assert found.unidentified == [{"c": 1.0}]


def test_two_parameters_that_do_the_same_are_not_told_apart():
    one = np.random.default_rng(1).uniform(0.2, 0.8, 12)
    found = knowledge(("a", "b", "c"), np.ones(3), np.full(12, 0.01), np.stack([one, one, one**2], 1), 12)
    assert len(found.unidentified) == 1
    (direction,) = found.unidentified
    assert set(direction) == {"a", "b"}
    assert direction["a"] == pytest.approx(-direction["b"])
    assert math.isinf(found.high[0]) and math.isinf(found.high[1])
    assert not found.unseen.any()  # their product can be fitted


def test_fewer_launches_than_parameters_leaves_some_unseen():
    found = knowledge(("a", "b", "c"), np.ones(3), np.zeros(1), np.array([[1.0, 0, 0]]), 1)
    assert found.unseen.tolist() == [False, True, True]


def test_split_is_by_program_and_repeats():
    """Two benchmarks of the same kernels, and one on two variants, are on one side."""
    names = ["micro_global_stride", "relu", "micro_global_stride:stride_4", "nn_euclid", "micro_sfu"]
    table = [Measured(name, variant, "all", {0: 1}, {}) for name in names for variant in ("GTX480_c", "GTX480_d")]
    _, gpus, found = of_table(table, None, ())
    programs = programs_of(observations(found, THREE, gpus, "detailed"))
    assert programs == [0, 0, 2, 2, 0, 0, 6, 6, 8, 8]
    inside, outside = split(programs, 0.5, 3)
    assert sorted(inside + outside) == list(range(10))
    assert not {programs[k] for k in inside} & {programs[k] for k in outside}
    assert len({programs[k] for k in inside}) == 2
    assert split(programs, 0.5, 3) == (inside, outside) and any(split(programs, 0.5, n)[0] != inside for n in range(9))
    assert split(programs, 1.0, 0)[1] == []
    with pytest.raises(InputError, match="above 0"):
        split(programs, 0.0, 0)


def test_variants_of_one_gpu_only():
    table = choose(read_reference(CYCLES), ["GTX480_c", "RTX3070"], (), ["relu"])
    for gpu in (None, "gtx480"):  # which would have been fitted to an RTX 3070's cycles, too
        with pytest.raises(InputError, match="several GPUs"):
            of_table(table, gpu, ())
    name, gpus, _ = of_table(choose(table, ["GTX480_c"], (), ()), "gtx480", ["l1d_latency_cycles=50"])
    assert name == "gtx480"
    assert not gpus["GTX480_c"].spec.perfect_memory
    assert gpus["GTX480_c"].params.l1d_latency_cycles == 50


def test_what_sources_say_is_a_prior_and_what_set_says_is_none():
    gpu = load_gpu("gtx480", ["l1d_latency_cycles=50"])
    names = ("l1d_latency_cycles", "dram_latency_cycles", "latency_cycles.tensor")  # --set, measured, choice
    assert deviations_of(gpu, names).tolist() == [math.inf, 0.2, 1.0]


def disagreeing():
    """Two programs of which each alone would have another latency of DRAM; the seed holds out the second."""
    low, high = (
        synthetic([name], {"dram_latency_cycles": cycles}, (0, 5, 8))[0]
        for name, cycles in (("micro_pointer_chase", 80), ("micro_global_stride", 113))
    )
    return [low, high]


def test_the_start_is_kept_if_what_was_held_out_gets_no_better(tmp_path):
    seed = next(n for n in range(9) if split([0, 1], 0.5, n)[0] == [0])
    found = fit(disagreeing(), ["dram_latency_cycles"], fraction=0.5, seed=seed, polish_rounds=1)
    (parameter,) = found.parameters
    assert found.kept_start and "start is kept" in found.verdict
    assert parameter.value == parameter.start == 113 and parameter.fitted < 100
    found.save(tmp_path / "kept.toml")
    written = load_gpu(str(tmp_path / "kept.toml"))
    assert written.params.dram_latency_cycles == 113
    assert "no better on what was held out" in written.settings["dram_latency_cycles"].source
    assert "start is kept" in written.labels["fit"]


def test_a_mean_that_falls_by_one_outlier_alone_is_no_better():
    def errors(*rows):
        return [ErrorSummary("held out", values, 9, *row, 0.2, "x") for values, row in zip(VALUES, rows, strict=False)]

    assert _no_better(errors((0.056, 0.015), (0.054, 0.022))) and _no_better(errors((0.02, 0.01), (0.02, 0.01)))
    assert not _no_better(errors((0.056, 0.015), (0.054, 0.015))) and not _no_better([])


def test_the_formula_does_not_know_machine_code():
    row = MeasuredTime("relu", "v100", 1e9, "all", 1.0, "x")
    with pytest.raises(InputError, match="timed from machine code"):
        fit([row], ["l1d_latency_cycles"], model="analytic")


def test_what_follows_from_a_time_is_not_fitted_beside_it():
    row = MeasuredTime("relu", "v100", 1e9, "all", 1.0, "x")
    with pytest.raises(InputError, match="follows from launch_latency_ns; set that instead"):
        fit([row], ["launch_latency_cycles"])


def test_times_on_hardware_are_cycles_of_its_clock():
    """Of a launch alone, and of all launches together; a parameter comes back from them."""
    gpu = load_gpu("gtx480", ["core_clock_hz=1000000000"])
    session = open_session("micro_global_stride", [gpu])
    truth = np.array([80.0])
    cycles = kernel_of("detailed")(session, ["dram_latency_cycles"], gpu, [0, 1, 2]).engine_cycles(truth)
    every = kernel_of("detailed")(session, ["dram_latency_cycles"], gpu).engine_cycles(truth).sum()
    row = lambda ns, launch: MeasuredTime("micro_global_stride", "gtx480", 1e9, "all", float(ns), "x", launch)  # noqa: E731
    table = [row(cycles[0], 0), row(every, None), row(cycles[2], 2)]
    name, gpus, found = of_times(Path(), table, None, ())
    assert name == "gtx480" and list(gpus) == ["1000 MHz"]
    assert [each.launches for each in found] == [(0, 2), None]
    assert [*found[0].cycles, *found[1].cycles] == pytest.approx([cycles[0], cycles[2], every])
    result = fit(table, ["dram_latency_ns"], overrides=["dram_latency_ns=113"], polish_rounds=1)
    assert result.values == {"dram_latency_ns": 80}
    assert not result.kept_start and "Nothing was held out" in result.verdict
    with pytest.raises(InputError, match="flush 'none'"):
        of_times(Path(), [MeasuredTime("relu", "gtx480", 1e9, "none", 1.0, "x")], None, ())


def test_times_of_one_gpu_are_fitted_and_each_target_once():
    of = lambda gpu: MeasuredTime("relu", gpu, 1e9, "all", 1.0, "x")  # noqa: E731
    with pytest.raises(InputError, match="several GPUs"):
        of_times(Path(), [of("v100"), of("a100")], None, ())
    with pytest.raises(InputError, match="several GPUs"):
        of_times(Path(), [of("v100"), of("a100")], "my.toml", ())
    assert len(of_times(Path(), [of("v100"), of("a100")], "v100", ())[2]) == 1  # not the other's as if they were its
    with pytest.raises(InputError, match="relu was measured 2 times at 1000 MHz"):
        of_times(Path(), [of("v100"), of("v100")], None, ())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """(what the command printed, the GPU it wrote)."""
    folder = tmp_path_factory.mktemp("fit")
    head, *rows = CYCLES.read_text().splitlines()
    quick = {("relu", "0"), ("micro_global_stride", "2"), ("nn_euclid", "0")}
    cells = [row.split(",") for row in rows]
    table = folder / "cycles.csv"
    table.write_text("\n".join([head, *(",".join(c) for c in cells if (c[0], c[2]) in quick and c[4] == VARIANT)]))
    arguments = [
        "fit", "--reference", str(table), "--params", "dram_latency_cycles,l2_sector_cycles", "--set",
        "dram_latency_cycles=60", "--set", "l2_sector_cycles=4", "--split", "0.67", "--seed", "3", "--rounds", "1",
        "-o", str(folder / "fitted.toml"), "--json",
    ]  # fmt: skip
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as out, pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    return json.loads(out.getvalue()), folder / "fitted.toml"


def test_command_improves_on_a_bad_start_and_says_so(fitted):
    result, _ = fitted
    assert result["kind"] == "fit"
    errors = {(e["part"], e["values"]): e["mean_error"] for e in result["errors"]}
    assert errors["fitted", "fit"] < errors["fitted", "start"]
    assert len(result["fitted_benchmarks"]) == 2 and len(result["held_out_benchmarks"]) == 1
    assert not result["kept_start"]
    assert ("held out", "file") in errors


def test_written_gpu_can_be_loaded_and_says_where_its_values_are_from(fitted):
    result, path = fitted
    gpu = load_gpu(str(path))
    assert "fitted to cycles.csv" in gpu.title
    for parameter in result["parameters"]:
        setting = gpu.settings[parameter["name"]]
        assert setting.value == parameter["value"]
        assert setting.source.startswith("fit from")
    assert gpu.labels["fit"].startswith("abstim fit to cycles.csv --split 0.67 --seed 3")
    assert "error of 1 held-out benchmark" in gpu.labels["fit"]
    assert gpu.settings["sm_count"] == load_gpu("gtx480_perfect").settings["sm_count"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--params", "l1d_latency"], "did you mean l1d_latency_cycles"),
        (["--params", ""], "name at least one parameter"),
        (["--params", "launch_latency_cycles"], "needs a start above 0"),
        (["--params", "launch_latency_ns", "--set", "launch_latency_ns=9", "--model", "analytic"], "are differences"),
        (["--params", "l1d_latency_cycles", "--split", "2"], "above 0 and at most 1"),
        (["--params", "l1d_latency_cycles", "--factor", "1"], "above 1"),
        (["--params", "l1d_latency_cycles", "--benchmark", "hotspt"], "did you mean hotspot"),
        (["--params", "l1d_latency_cycles", "--variant", "GTX480_d", "-o", "x.json"], "must end in .toml"),
        (["--params", "l1d_latency_cycles", "--silicon", str(CYCLES)], "fit needs --reference CSV, or --silicon CSV"),
        (["--params", "l1d_latency_cycles", "--programs", "/"], "without --silicon"),
    ],
)
def test_bad_input_ends_in_one_line(arguments, message, capsys):
    base = ["fit", "--reference", str(CYCLES), "--variant", "GTX480_a", "--benchmark", "relu"]
    with pytest.raises(SystemExit) as stop:
        main([*base, *arguments])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


def test_damped_errors_are_the_errors_when_small_and_their_root_when_large():
    errors = np.array([-1e-9, 0.0, 1e-5, 0.02, -0.5, 3.0])
    values, slopes = damped(errors)
    assert values[:3] == pytest.approx(errors[:3], rel=1e-6)
    loss = 2 * OUTLIER**2 * (np.sqrt(1 + (errors / OUTLIER) ** 2) - 1)
    assert values**2 == pytest.approx(loss, rel=1e-6, abs=1e-15)
    step = 1e-6
    assert slopes[3:] == pytest.approx((damped(errors + step)[0] - damped(errors - step)[0])[3:] / (2 * step), rel=1e-5)
