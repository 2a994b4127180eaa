"""What stands beside a number: GPUs compared by time, what was timed, what is known of the error."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from abstim.cli.run_tables import print_results
from abstim.gpu.config import known_error_of, load_gpu
from abstim.models import run
from abstim.session.session import open_session
from abstim.show.report.launches import comparison_section
from precharacterize.machine_code import assemble


def test_gpus_side_by_side_are_compared_by_time(capsys):
    """H100 2.85 us was "0.78x" of A100 3.12 us: cycles of different clocks."""
    found = [run("nn_euclid", name) for name in ("gtx480", "rtx3070")]
    faster = f"{found[0].totals['seconds'] / found[1].totals['seconds']:.2f}x"
    assert faster != f"{found[0].totals['cycles'] / found[1].totals['cycles']:.2f}x"
    print_results(found)
    assert faster in capsys.readouterr().out
    table = comparison_section([result.to_json() for result in found]).charts[0].table
    assert table.rows[1][4] == faster


@pytest.fixture
def no_assembler(monkeypatch):
    """As where NVIDIA's wheels are not installed: one tool is there, the other is not."""
    monkeypatch.setattr(assemble, "tool", lambda name: "/bin/true" if name == "nvdisasm" else None)
    monkeypatch.setattr(assemble, "toolkits", lambda: ())


def test_every_output_says_that_machine_code_was_not_to_be_had(no_assembler, capsys):
    session = open_session("nn_euclid")
    without, other = run(session, "rtx3080"), run(session, "gtx480")
    assert "no ptxas at hand" in without.note and "nvdisasm" not in without.note and not other.note
    assert without.note in repr(without) and without.to_json()["note"] == without.note
    for results in ([without], [without, other]):
        print_results(results)
        said = " ".join(capsys.readouterr().out.split())
        assert "not timed from machine code" in said and "no ptxas at hand" in said
    assert without.note in comparison_section([json.loads(json.dumps(without.to_json()))] * 2).parts[0].notes
    assert "PTX with loads hoisted, at 1,440 MHz" in without.known_error


def test_times_of_ptx_beside_machine_code_are_marked(capsys):
    session = open_session("nn_euclid")
    found = [run(session, "rtx3080"), run(session, "rtx3070")]
    if found[0].timed_code != "machine code":
        pytest.skip("no assembler")
    print_results(found)
    said = " ".join(capsys.readouterr().out.split())
    assert "rtx3070 (PTX)" in said and "--timed-code ptx times all alike" in said
    print_results([run(session, gpu, ["timed_code=ptx"]) for gpu in ("rtx3080", "rtx3070")])
    assert "Not alike" not in capsys.readouterr().out


def test_all_brings_the_assembler():
    pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"]
    assert "sass" in extras["all"][0] and all("sys_platform == 'linux'" in need for need in extras["sass"])


def test_the_clock_that_was_compared_finds_its_figure():
    at_own, compared = load_gpu("rtx3080"), load_gpu("rtx3080", ["core_clock_hz=1440000000"])
    assert compared.known_error == at_own.known_error and "machine code, at 1,440 MHz" in at_own.known_error
    assert load_gpu("rtx3080", ["core_clock_hz=1e9"]).known_error.startswith("with values changed")
    assert load_gpu("rtx3080", ["sm_count=68"]).known_error == at_own.known_error  # as it is described


def test_other_models_know_the_gpu_behind_changed_values():
    said = known_error_of(load_gpu("rtx3080", ["sm_count=30"]), "occupancy")
    assert said.startswith("with values changed") and "6.5 % mean" in said


def test_figures_say_of_which_workloads_they_are():
    v100 = load_gpu("v100").known_error
    assert "7.2 % mean" in v100 and "19.3 % mean, 49 % worst (9 kernels, Rodinia" in v100
    assert "93 % worst" in load_gpu("rtx3080").known_error
    assert "120 % worst" in known_error_of(load_gpu("titanx"), "occupancy")
