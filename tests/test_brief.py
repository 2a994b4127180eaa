"""What a result shows of itself in Python: a screen at most; the unit is the terminal's."""

from __future__ import annotations

import pytest

import abstim
from abstim.cli import main
from abstim.gpu.config import load_gpu
from abstim.study.cold_start import cold_start
from abstim.study.explore import explore, sweep_of
from abstim.study.sample import compare, sample


def results():
    session = abstim.open_session("nn_euclid")
    found = abstim.run(session, "gtx480")
    yield from (found, found.launches[0], load_gpu("gtx480"), abstim.advise(session, load_gpu("gtx480")))
    yield from (sample("gaussian_elimination", method="pks"), compare("gaussian_elimination", methods=["pks"]))
    yield cold_start(abstim.open_session("dct8x8"), load_gpu("gtx480"))
    yield explore(["relu"], sweep_of(load_gpu("gtx480"), ["sm_count=8:60:2"]))


def test_a_result_takes_a_screen_at_most():
    for found in results():
        text = repr(found)
        assert "\n" not in text and len(text) <= 24 * 80, (type(found), len(text))
        assert type(found).__name__ in text or text.startswith("<nn_euclid on gtx480")


def test_issue_slots_are_cycles_on_the_terminal_as_in_python(capsys):
    found = abstim.run("nn_euclid", "gtx480").launches[0]
    with pytest.raises(SystemExit):
        main(["run", "nn_euclid"])
    out = capsys.readouterr().out
    assert all(f"{count:,}" in out for count in found.issue_slots.values())
