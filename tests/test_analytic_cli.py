"""`--model analytic` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from call_command import call

from abstim.session.result import LaunchResult


def test_run_has_the_fields_of_the_engine_and_the_bounds():
    code, out, _ = call("run", "nn_euclid", "--model", "analytic", "--json", "--set", "perfect_memory=false")
    launch = json.loads(out)["launches"][0]
    assert code == 0 and set(LaunchResult.__dataclass_fields__) <= set(launch)
    assert launch["bounds_cycles"][launch["limit"]] == max(launch["bounds_cycles"].values())
    memory = launch["memory"]
    assert 0 <= memory["l1d_hit_rate"] <= 1 and memory["dram_read_bytes"] == 32 * launch["caches"]["dram_reads"] > 0


def test_table_names_the_bound_and_fits():
    code, out, _ = call("run", "nn_euclid", "--model", "analytic")
    assert code == 0 and "bound" in out and "latency" in out and "Issue slots" not in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    "words",
    [
        ("run", "nn_euclid", "--model", "guess"),
        ("validate", "--points", "3"),
        ("validate",),
        ("validate", "--points", "3", "--benchmark", "nn_euclit"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(words):
    code, out, err = call(*words)
    assert code == 2 and out == "" and len(err.splitlines()) == 1


def test_validate_takes_the_model():
    words = (
        "--reference",
        str(Path(__file__).parent / "data" / "cycles.csv"),
        "--benchmark",
        "nn_euclid",
        "--variant",
        "GTX480_d",
    )
    code, out, _ = call("validate", "--model", "analytic", *words, "--json")
    (found,) = json.loads(out)["benchmarks"]
    assert code == 0 and abs(found["error"]) < 0.2
