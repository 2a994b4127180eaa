"""The stopwatch's bookkeeping: verdicts that know noise, and the comparison with the reference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from call_command import call

from abstim.study import bench as compare
from abstim.study.bench import BenchResult, Rate, read_rows
from abstim.study.validate import known_variants
from functional.errors import InputError
from functional.execution.computer import default_threads

CYCLES = Path(__file__).parent / "data" / "cycles.csv"
NAMES = ("x", "y", "z")


def result(seed, scale=1.0, noise=0.02, rounds=6, machine=1.0):
    """A result whose rounds scatter by `noise`: a slow round is slow for all, half so for the yardstick."""
    rng = np.random.default_rng(seed)
    slow = machine * np.exp(noise * rng.standard_normal(rounds))
    times = {
        n: scale * base * slow * np.exp(noise / 4 * rng.standard_normal(rounds))
        for n, base in zip(NAMES, (1, 3, 9), strict=True)
    }
    rates = {n: {"time": Rate(tuple(map(float, t)), tuple(map(float, t)), 1.0, 1, 1, 1, 1)} for n, t in times.items()}
    return BenchResult(
        "gtx480", 1, rates, yardstick_seconds=(0.01 * machine * (slow / machine) ** 0.5).tolist()
    ).to_json()


def verdict(old, new):
    (found,) = compare.compared(old, new)
    return found


def test_a_change_beyond_noise_is_told_and_its_size():
    faster, slower = verdict(result(1), result(2, scale=0.8)), verdict(result(1), result(2, scale=1.25))
    assert (faster.verdict, slower.verdict) == ("faster", "slower")
    assert faster.low < 1.25 < faster.high and slower.low < 0.8 < slower.high
    assert faster.speed == pytest.approx(1.25, rel=0.05) and faster.benchmarks == 3


def test_noise_is_rarely_told_as_a_change():
    verdicts = [verdict(result(seed), result(1000 + seed)).verdict for seed in range(200)]
    assert verdicts.count("same within noise") >= 190


def test_a_change_smaller_than_the_noise_is_not_told():
    assert verdict(result(1, noise=0.3), result(2, noise=0.3, scale=0.95)).verdict == "same within noise"


def test_a_slower_machine_is_not_a_slower_abstim():
    assert verdict(result(1), result(2, machine=1.06)).verdict == "same within noise"
    assert verdict(result(1), result(2, machine=1.5)).verdict == compare.UNSTEADY


def test_two_rounds_say_nothing():
    found = verdict(result(1), result(2, scale=0.5, rounds=2))
    assert (found.verdict, found.low, found.high) == (compare.TOO_FEW, None, None)


def test_the_same_result_twice_is_the_same():
    found = verdict(result(1), result(1))
    assert found.verdict == "same within noise" and found.speed == 1
    still = result(1, noise=0.0)
    assert verdict(still, still).verdict == "same within noise"


def test_what_else_changed_is_listed():
    old, new = result(1), result(2)
    old["machine"] = old["machine"] | {"processor": "abacus", "abstim": "0.0.1"}
    assert compare.differences(old, new) == [f"processor was abacus, is {new['machine']['processor']}"]
    assert compare.differences(new, new) == []


def test_results_without_anything_in_common_are_refused(tmp_path):
    """Before anything is measured: it was all lost."""
    old = result(1)
    still = json.dumps(old | {"yardstick_seconds": [0.0] * 6})
    for text, message in (
        ("{", "not JSON"),
        ('{"kind": "run"}', "not a result of `abstim bench"),
        ("[]", "not a result"),
        ('{"kind": "bench"}', "old.json: not a whole result"),
        (still, "not a whole result"),
        (json.dumps(old | {"benchmarks": {"other": old["benchmarks"]["x"]}}), "no benchmark and stage in common"),
    ):
        (tmp_path / "old.json").write_text(text)
        with pytest.raises(InputError, match=message):
            compare.read_old(tmp_path / "old.json", "detailed", NAMES, ["time"])
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert compare.read_old(tmp_path / "old.json", "detailed", NAMES, ["time"])["kind"] == "bench"
    with pytest.raises(InputError, match="No such file"):
        compare.read_old(tmp_path / "missing.json", "detailed", NAMES, ["time"])


def test_reference_seconds_are_summed_over_launches(tmp_path):
    head = "benchmark,launch,variant,cycles,flush,reference_cpu_s\n"
    path = tmp_path / "cycles.csv"
    path.write_text(head + "x,0,GTX480_a,10,all,1.5\nx,1,GTX480_a,20,all,2\nx,0,GTX480_a,9,none,100\n")
    found = read_rows(path, ["GTX480_a"], ["x"])
    assert found.seconds == {("x", "GTX480_a"): 3.5} and found.measured[0].cycles == {0: 10, 1: 20}
    with pytest.raises(InputError, match="none of the benchmarks"):
        read_rows(path, ["GTX480_a"], ["y"])
    path.write_text(head + "x,0,GTX480_a,10,all,soon\n")
    with pytest.raises(InputError, match="needs a number in the column reference_cpu_s"):
        read_rows(path, ["GTX480_a"], ["x"])


@pytest.mark.parametrize(("model", "other"), [("detailed", "analytic"), ("occupancy", "detailed")])
def test_command_measures_compares_and_prints(tmp_path, monkeypatch, model, other):
    monkeypatch.setattr("abstim.study.bench.MIN_SECONDS", 0.01)
    beside = ("bench", "nn_euclid", "--rounds", "3", "--reference", str(CYCLES), "--variant", "GTX480_a")
    beside += ("--model", model)
    code, out, _ = call(*beside, "--json")
    data = json.loads(out)
    assert code == 0 and data["kind"] == "bench" and data["machine"]["numpy"] == np.__version__
    stages = data["benchmarks"]["nn_euclid"]
    assert set(stages) == {"parse", "characterize", "execute", "time"}
    assert all(len(stage["round_seconds"]) == 3 for stage in stages.values())
    (row,) = data["against"]
    from abstim.models import run

    (gpu, cycles) = known_variants()["GTX480_a"], row["predicted_cycles"]
    assert run("nn_euclid", gpu, model=model).totals["cycles"] == cycles
    assert row["error"] == pytest.approx(cycles / row["measured_cycles"] - 1)
    assert row["speedup"] == pytest.approx(row["reference_seconds"] / row["seconds"]) and row["reference_seconds"] > 0.1
    (tmp_path / "old.json").write_text(out)
    code, out, _ = call(*beside, "--compare", str(tmp_path / "old.json"))
    assert code == 0 and f"by the {model} model)" in out and f"Beside the earlier result, {model} model" in out
    assert max(map(len, out.splitlines())) <= 100
    code, _, error = call("bench", "nn_euclid", "--model", other, "--compare", str(tmp_path / "old.json"))
    assert code == 2 and f"measured the {model} model" in error


def test_the_stage_time_is_measured_on_several_threads(monkeypatch):
    monkeypatch.setattr("abstim.study.bench.MIN_SECONDS", 0.01)
    monkeypatch.setenv("ABSTIM_THREADS", "1")
    by_threads = ("bench", "nn_euclid", "--stage", "time", "--threads", "1", "--threads", "2")
    code, out, _ = call(*by_threads, "--json")
    first, second = json.loads(out)["scaling"]
    assert code == 0 and (first["threads"], second["threads"], first["speedup"]) == (1, 2, 1.0)
    seconds = [one["benchmarks"]["nn_euclid"]["seconds"] for one in (first, second)]
    assert second["speedup"] == pytest.approx(seconds[0] / seconds[1])
    assert default_threads() == 1
    code, out, err = call(*by_threads, "--threads", "0")
    assert code == 2 and "not a number of threads" in err and err.count("\n") == 1


def test_a_comparison_needs_every_stage():
    code, out, err = call("bench", "nn_euclid", "--stage", "parse", "--reference", str(CYCLES), "--variant", "GTX480_a")
    assert (code, out) == (2, "") and "needs every stage" in err and err.count("\n") == 1
    code, out, err = call("bench", "nn_euclid", "--rounds", "0")
    assert code == 2 and "rounds = 0" in err


def test_what_was_measured_before_an_interrupt_is_printed_and_nothing_compared_with_it(monkeypatch, tmp_path):
    whole, measured = compare.stage_rate, list[str]()

    def once(stage, session, *others):
        if measured:
            raise KeyboardInterrupt
        measured.append(stage)
        return whole(stage, session, *others)

    monkeypatch.setattr(compare, "stage_rate", once)
    code, out, _ = call("bench", "nn_euclid", "hotspot", "--stage", "parse", "--json")
    (tmp_path / "old.json").write_text(out)
    assert code == 130 and [*json.loads(out)["benchmarks"]] == ["nn_euclid"]
    code, _, err = call("bench", "nn_euclid", "--stage", "parse", "--compare", str(tmp_path / "old.json"))
    assert code == 2 and "was interrupted" in err
