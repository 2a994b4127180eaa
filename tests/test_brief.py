"""What a result shows of itself in Python: a screen at most; the unit is the terminal's."""

from __future__ import annotations

import numpy as np
import pytest

import abstim
from abstim.cli import main
from abstim.gpu.config import load_gpu
from abstim.study.cold_start import cold_start
from abstim.study.explore import explore, sweep_of
from abstim.study.sample.sampler import compare, sample
from functional import suite


def results():
    session = abstim.open_session("nn_euclid")
    found = abstim.run(session, "gtx480")
    yield from (found, found.launches[0], load_gpu("gtx480"), abstim.advise(session, load_gpu("gtx480")))
    yield from (sample("gaussian_elimination", method="pks"), compare("reduction", methods=["pks"]))
    yield cold_start(abstim.open_session("reduction"), load_gpu("gtx480"))
    yield explore(["relu"], sweep_of(load_gpu("gtx480"), ["sm_count=8:60:2"]))


def test_what_is_loaded_and_launched_takes_a_line():
    """A launch showed its whole program, and the contents of its arrays."""
    module = abstim.load(str(suite.ptx_path("relu")))
    program, data = module.program(), np.zeros(1024, np.float32)
    launch = program.launch("relu", 4, 256, [data, data, 1024])
    shown = [*map(repr, (module, module.kernel(), program, launch, suite.case("hotspot")))]
    assert all(len(text.splitlines()) == 1 and len(text) < 300 for text in shown)
    assert shown[3] == "<launch of relu, grid 4x1x1, block 256x1x1>" and shown[4] == "<hotspot: 2 launches>"


def test_a_target_and_a_gpu_are_given_by_name_everywhere():
    (found,) = abstim.counterfactual("relu", "gtx480_perfect")
    assert [found.totals["cycles"]] == [r.totals["cycles"] for r in abstim.run_many("relu", ["gtx480_perfect"])]
    assert abstim.advise("relu", "gtx480_perfect").cycles == found.totals["cycles"]
    with pytest.raises(abstim.InputError, match="did you mean gtx480"):
        abstim.run_many("relu", ["gtx48"])


@pytest.mark.parametrize("grid", [4.0, "4", (1, 2, 3, 4), None])
def test_a_grid_that_is_none_is_refused(grid):
    with pytest.raises(abstim.InputError, match="not one to three integers"):
        abstim.load(str(suite.ptx_path("relu"))).program().launch("relu", grid, 256, [np.zeros(4), np.zeros(4), 4])


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
