"""`validate --silicon`: measured times against predicted ones."""

from __future__ import annotations

import csv
import json

import pytest

from abstim.cli import main
from abstim.gpu.config import gpu_names, known_error_of, load_gpu
from abstim.models import run
from abstim.study.silicon import (
    COLUMNS,
    MeasuredTime,
    TimedKernel,
    compare_times,
    operations_median,
    plot,
    read_measured_times,
    summarise,
)
from functional.errors import InputError


def table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([COLUMNS, *rows])
    return path


def kernel(measured: float, predicted: float, gpu: str = "x", kind: str = "memory") -> TimedKernel:
    return TimedKernel(MeasuredTime("k", gpu, 1e9, "all", measured, kind), predicted, "PTX", 0.0)


def test_errors_by_class_and_gpu() -> None:
    found = [kernel(10, 11), kernel(20, 16), kernel(40, 40, kind="integer"), kernel(80, 160, gpu="y")]
    sums = {s.name: s for s in summarise(found)}
    assert list(sums) == ["all", "GPU x", "GPU y", "class memory", "class integer"]
    assert sums["all"].mean_error == pytest.approx((0.1 + 0.2 + 0 + 1) / 4)
    assert sums["all"].median_error == pytest.approx(0.15)
    assert sums["all"].bias == pytest.approx((1.1 * 0.8 * 1 * 2) ** 0.25)
    assert sums["all"].rank_correlation == pytest.approx(1.0)
    assert sums["class integer"].rank_correlation is None and sums["GPU y"].mean_error == 1


def test_a_table_is_compared(tmp_path, capsys) -> None:
    clock = 6e8
    took = run("nn_euclid", gpu=load_gpu("gtx480", [f"core_clock_hz={clock:.0f}"])).totals["seconds"] * 1e9
    row = ("nn_euclid", "gtx480", clock, "all", took / 2, "memory")
    wrong = [("relu", "gtx481", *row[2:]), ("nobody", *row[1:]), (*row[:3], "some", *row[4:])]
    path = table(tmp_path / "t.csv", [*wrong[:2], row, wrong[2]])  # which do not cost it what it has found
    (only,), skipped = compare_times(read_measured_times(path), tmp_path)
    assert only.ratio == pytest.approx(2) and only.timed_code == "PTX"
    assert [s.split(":")[0] for s in skipped] == ["relu", "nobody", "nn_euclid"]
    with pytest.raises(SystemExit) as ended:
        main(["validate", "--silicon", str(path), "--json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["summaries"][0]["mean_error"] == pytest.approx(1) and said["skipped"] == skipped


def test_a_recorded_launch_is_compared_by_its_number(tmp_path) -> None:
    trace = tmp_path / "mine" / "recorded"
    with pytest.raises(SystemExit):
        main(["trace", "hotspot", "-o", str(trace)])
    launches = run("hotspot", gpu="gtx480").launches
    hertz = load_gpu("gtx480").spec.core_clock_hz
    rows = [f"mine/recorded,gtx480,{hertz},all,1000,stencil,{n},1,,5" for n in (1, 0)]
    path = tmp_path / "t.csv"
    heads = ",".join([*COLUMNS, "launch", "fp32_operations", "fp64_operations", "integer_operations"])
    path.write_text("\n".join([heads, *rows]))
    found, _ = compare_times(read_measured_times(path), tmp_path)
    assert [k.predicted_ns for k in found] == pytest.approx([1e9 * launches[n].seconds for n in (1, 0)])
    assert found[0].measured.operations == {"fp32": 1, "integer": 5} and found[0].operations_error is None
    path.write_text(path.read_text().replace("stencil,1", "stencil,7"))
    left, skipped = compare_times(read_measured_times(path), tmp_path)
    assert left == found[1:] and skipped == ["mine/recorded 7: the target has 2 launches"]


def counted(measured: dict[str, float], made: dict[str, int]) -> TimedKernel:
    return TimedKernel(MeasuredTime("k", "x", 1e9, "all", 10, "m", None, measured), 11, "PTX", 1.0, "k", made)


def test_operations_are_compared_as_a_part_of_all() -> None:
    found = [
        counted({"fp32": 80, "integer": 20}, {"fp32": 80, "fp64": 0, "integer": 25}),
        counted({"fp32": 100, "integer": 0.5}, {"fp32": 50, "fp64": 0, "integer": 4}),
    ]
    assert found[0].operations_error == pytest.approx(0.05) and found[1].operations_error == pytest.approx(53.5 / 100.5)
    assert operations_median(found) == {"fp32": (0.25, 2), "integer": (0.25, 1)}
    assert [(s.name, s.kernels) for s in summarise(found)][:2] == [("all", 2), ("operations within 10%", 1)]


def test_a_scatter_plot_of_times(tmp_path) -> None:
    plot([kernel(10, 11), kernel(20, 16), kernel(40, 40, kind="integer")], tmp_path / "times.svg")
    text = (tmp_path / "times.svg").read_text()
    assert "us, measured" in text and "memory" in text and "integer" in text
    with pytest.raises(InputError, match=r"times\.xyz"):
        plot([kernel(10, 11)], tmp_path / "times.xyz")


@pytest.mark.parametrize(
    "row",
    [
        ("nn_euclid", "gtx480", "fast", "all", 5, "x"),
        ("nn_euclid", "gtx480", 1755, "all", 5, "x"),  # in MHz
        ("nn_euclid", "gtx480", 1e9, "all", -5, "x"),
        ("nn_euclid", "gtx480", 1e9, "all", 0, "x"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, row) -> None:
    with pytest.raises(InputError, match=r"t\.csv:2: "):
        read_measured_times(table(tmp_path / "t.csv", [row]))


def test_what_would_count_twice_is_refused(tmp_path) -> None:
    row = ("nn_euclid", "gtx480", 1e9, "all", 5, "x")
    with pytest.raises(InputError, match=r"t\.csv:3: nn_euclid on gtx480 is there twice"):
        read_measured_times(table(tmp_path / "t.csv", [row, (*row[:4], 6, "y")]))


def test_a_missing_column_is_named(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("target,gpu\nx,y\n")
    with pytest.raises(InputError, match="core_clock_hz"):
        read_measured_times(tmp_path / "t.csv")


@pytest.mark.parametrize("name", gpu_names())
def test_every_answer_says_what_is_known_of_its_error(name) -> None:
    gpu, altered = load_gpu(name), load_gpu(name, ["sm_count=3"])
    assert "hardware" in gpu.known_error or name in ("fermi_tbpoint", "mi100", "r9nano")
    assert not altered.known_error or altered.known_error.startswith("with values changed, nothing")


def test_a_result_without_any_check_says_so() -> None:
    assert "nothing is known" in run("nn_euclid", gpu="fermi_tbpoint").known_error
    altered = run("nn_euclid", "gtx480", ["sm_count=3"])
    assert altered.known_error.count("with values changed") == 1


@pytest.mark.parametrize("model", ["occupancy", "analytic"])
@pytest.mark.parametrize("name", ["v100", "a100", "h200"])
def test_other_models_say_that_hardware_was_not_compared(model, name) -> None:
    assert "no time of a kernel was compared" in known_error_of(load_gpu(name), model)
    assert "% mean" in known_error_of(load_gpu("gtx480"), model)


def test_a_model_that_was_compared_with_hardware_says_so() -> None:
    assert "19 kernels" in known_error_of(load_gpu("rtx3080"), "occupancy")
