"""`bench_sampling.py methods`: means over targets, and a command that keeps what was done."""

from __future__ import annotations

import json

import bench_sampling as sampling
import pytest
from bench_sampling import SampleBench, bench_samples, summary
from call_command import call

from abstim.cli.app import COMMANDS
from abstim.study.sample.methods import METHODS
from abstim.study.sample.sample_result import Row
from abstim.study.sample.sampler import compare
from abstim.targets.resolve import names_in
from functional import suite
from functional.errors import InputError


@pytest.fixture(autouse=True)
def known_command(monkeypatch):
    monkeypatch.setitem(COMMANDS, "methods", "bench_sampling")


def row(error, covered=True, detailed=0.5, speed_up=2.0, method="photon", target="x"):
    return Row(
        target=target, method=method, cycles=1.0, error=error, covered=covered, detailed_fraction=detailed,
        functional_fraction=1.0, seconds=1.0, speed_up=speed_up, timing_speed_up=speed_up,
        instruction_speed_up=1 / detailed, basis="model", half_width=0.1, own_half_width=0.1)  # fmt: skip


def test_means_over_targets():
    found = summary(
        "photon",
        [row(0.04, speed_up=8.0, target="bfs"), row(0.01, covered=False), row(0.0, detailed=1.0, speed_up=0.5)],
    )
    assert (found.targets, found.sampled, found.worst_error) == (3, 2, 0.04)
    assert (found.worst_target, found.least_speed_up) == ("bfs", 0.5)  # a geometric mean hides them
    assert found.mean_error == pytest.approx(0.05 / 3)
    assert found.geomean_error == pytest.approx((0.04 * 0.01 * sampling.LEAST_ERROR) ** (1 / 3))
    assert found.detailed_fraction == pytest.approx(2 / 3)
    assert found.covered == pytest.approx(2 / 3) and found.covered_of_sampled == 0.5
    assert found.speed_up == pytest.approx(2.0) and found.best_speed_up == 8.0
    assert summary("photon", [row(0.0, detailed=1.0)]).covered_of_sampled is None


def test_groups_are_those_of_the_suite_and_of_the_workloads():
    assert names_in("all") == suite.names() and names_in("apps") == suite.names("apps")
    assert "relu_256x" in names_in("256x")
    with pytest.raises(InputError, match=r"no group 'sweet'; there are table1, .*256x"):
        names_in("sweet")


def test_sets_of_methods():
    ideal = ["ideal-first", "ideal-random", "ideal-systematic", "ideal-simpoint"]
    assert sampling.expanded(["ideal"]) == ideal and sampling.expanded(["pks", "pks"]) == ["pks"]
    everything = sampling.expanded(["all", "ideal"])
    assert sorted([*everything, "full"]) == sorted(METHODS) and not set(sampling.expanded(["all"])) & set(ideal)


METHODS_ASKED = ("--method", "pks", "--method", "ideal-first")


def test_command_measures_and_prints():
    code, out, _ = call("methods", "pathfinder", "nn_euclid", *METHODS_ASKED, "--json")
    data = json.loads(out)
    assert code == 0 and data["kind"] == "bench-sample" and not data["interrupted"] and not data["failed"]
    keys = [(r["target"], r["method"]) for r in data["rows"]]
    assert keys == [(target, method) for target in ("pathfinder", "nn_euclid") for method in ("pks", "ideal-first")]
    direct = compare("pathfinder", methods=["pks"])
    first = data["rows"][0]
    assert (first["true_cycles"], first["launches"]) == (direct.true_cycles, 3)
    assert first["error"] == direct.rows()[1].error
    assert data["overall"]["targets"] == 4 and [m["method"] for m in data["methods"]] == ["pks", "ideal-first"]
    code, out, _ = call("methods", "nn_euclid", *METHODS_ASKED)
    assert (
        code == 0
        and "ideal-first" in out
        and "geomean" in out
        and "pks is worst on nn_euclid" in out
        and max(map(len, out.splitlines())) <= 100
    )


def test_what_was_done_is_printed_after_an_interrupt_and_without_a_target_that_fails(monkeypatch):
    done = compare("nn_euclid", methods=["pks"])

    def stub(target, *_):
        if target == "bfs":
            raise KeyboardInterrupt
        if target == "hotspt":
            raise InputError("there is none")
        return done

    monkeypatch.setattr("abstim.study.sample.sampler.compare", stub)
    assert bench_samples(["nn_euclid", "bfs", "relu"], ["pks"]).to_json()["interrupted"]
    code, out, err = call("methods", "nn_euclid", "bfs", "relu", *METHODS_ASKED)
    assert code == 130 and "nn_euclid" in out and "interrupted" in err
    code, out, err = call("methods", "hotspt", "nn_euclid", *METHODS_ASKED, "--json")
    assert code == 2 and len(json.loads(out)["rows"]) == 1 and "hotspt is left out: there is none" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["methods", "--method", "foton"], "did you mean photon"),
        (["methods", "--group", "16"], "no group '16'"),
        (["bench", "--group", "16x"], "no group '16x' in the suite"),
    ],
)
def test_command_refuses_in_one_line(arguments, message):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_nothing_measured_has_no_means():
    assert SampleBench(gpu="gtx480").overall() is None and SampleBench(gpu="gtx480").summaries() == []
