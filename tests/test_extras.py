"""What works without the packages that no timing needs, and what is said where one is asked for."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from call_command import call

from abstim.extras import EXTRAS

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """An installation without extras."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "result.json").write_text('{"kind": "run"}')
    for name in list(sys.modules):
        if name.partition(".")[0] in EXTRAS or name.startswith(("abstim.analytic", "abstim.gradient", "sampling.pka")):
            monkeypatch.delitem(sys.modules, name)
    for package in EXTRAS:
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    "line", ["run relu", "run relu --json", "run relu --hot", "gpus", "suite", "characterize relu --listing",
             "explore relu --vary sm_count=4,8 -o a.json", "run relu --model analytic", "run relu --timeline t.json"],
)  # fmt: skip
def test_timing_needs_none_of_them(bare, line):
    code, _, err = call(*shlex.split(line))
    assert code == 0, err


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("report result.json -o x.html", "report"),
        ("explore relu --vary sm_count=4,8 -o a.csv", "report"),
        ("explore relu --vary sm_count=4,8 --cluster tcp://127.0.0.1:1", "cluster"),
        (f"validate --reference {Path(__file__).parent / 'data' / 'cycles.csv'} --plot x.svg", "report"),
    ],
)
def test_the_extra_is_named_before_any_work(bare, line, extra):
    code, out, err = call(*shlex.split(line))
    assert code == 2 and out == "" and err.count("\n") == 1, (code, out, err)
    assert err.startswith("abstim: this needs ") and f"pip install 'abstim[{extra}]'" in err


def test_every_package_is_in_the_extra_that_is_named():
    extras = PROJECT["optional-dependencies"]
    named = {package.replace("sklearn", "scikit-learn"): extra for package, extra in EXTRAS.items()}
    for package, extra in named.items():
        assert any(line.startswith(f"{package}==") for line in extras[extra]), (package, extra)
    assert not [line for line in PROJECT["dependencies"] if line.partition("==")[0] in named]
