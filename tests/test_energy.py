"""Energy: the fit finds what made its data, the error that is told is that of kernels left out, sums are right."""

from dataclasses import replace

import numpy as np
import pytest
from call_command import call
from hypothesis import given, settings
from hypothesis import strategies as st

import abstim
from abstim.gpu.config import load_gpu
from abstim.session.side_by_side import Overlap
from abstim.study.energy import (
    DRAM_SECTOR_JOULES,
    FITTED,
    Rates,
    energy_of,
    fitted,
    measured_kernels,
    power_model,
    rates_of,
)
from functional.errors import InputError


def of_duty():
    return float(np.median([k.instructions_of_duty for k in measured_kernels() if k.warp_instructions is not None]))


@settings(max_examples=20)
@given(st.lists(st.floats(0.1, 10), min_size=len(FITTED), max_size=len(FITTED)))
def test_energies_that_made_the_powers_come_back(factors):
    idle, *each = (a * b for a, b in zip((60.0, 0.6, 2.5e-10, 2e-10, 4e-10), factors, strict=True))
    true = Rates(*each, DRAM_SECTOR_JOULES)
    kernels = [replace(k, watts=idle + float(np.dot(true, k.rates(of_duty())))) for k in measured_kernels()]
    model = fitted(kernels)
    assert model.idle_watts == pytest.approx(idle, rel=1e-6)
    assert model.each == pytest.approx(true, rel=1e-6)
    assert model.worst_error < 1e-6


def test_the_error_told_is_that_of_kernels_which_the_fit_has_not_seen():
    kernels, model = measured_kernels(), power_model("v100")
    errors = []
    for k in kernels:
        other = fitted([x for x in kernels if x is not k])
        errors.append(abs(sum(other.watts_of(k.rates(of_duty())).values()) / k.watts - 1))
    # without a kernel the median that turns duty into instructions may move a little
    assert model.mean_error == pytest.approx(np.mean(errors), rel=0.05)
    assert model.kernels == len(kernels) == 25
    seen = [abs(sum(model.watts_of(k.rates(of_duty())).values()) / k.watts - 1) for k in kernels]
    assert np.mean(seen) < model.mean_error < 0.15


def test_no_term_is_negative_and_dram_costs_what_is_published():
    model = power_model("v100")
    assert model.idle_watts > 0 and min(model.each) >= 0
    assert model.each.dram_sectors == pytest.approx(256 * 3.92e-12)


def test_joules_are_watts_times_seconds_and_add_up():
    gpu = load_gpu("v100")
    result = abstim.run("nn_euclid", gpu=gpu)
    energy, model = energy_of(result, gpu), power_model("v100")
    for launch, found in zip(result.launches, energy.launches, strict=True):
        assert 0 < launch.active_sms <= 80
        by_hand = model.idle_watts + float(np.dot(model.each, rates_of(launch)))
        assert found.watts == pytest.approx(by_hand)
    assert energy.joules == pytest.approx(sum(x.watts * x.seconds for x in energy.launches))
    assert energy.to_json()["joules"] == energy.joules
    beside = replace(result, overlap=Overlap(1, 1, []))
    assert "kernels side by side: energies are of one after the other" in energy_of(beside, gpu).unlike


def test_accesses_to_shared_memory_are_counted_once_whatever_their_conflicts():
    session = abstim.open_session("transpose")
    launch = abstim.run(session, gpu="gtx480_perfect").launches[1]
    conflicts = session.traces.trace(1).conflicts
    assert 0 < launch.shared_accesses == np.count_nonzero(conflicts) < conflicts.sum()


@pytest.mark.parametrize("gpu", ["rtx3080", "gtx480", "v100 sm_count=40"])
def test_a_gpu_whose_power_nobody_measured_is_refused(gpu):
    with pytest.raises(InputError, match="measured on a V100 alone"):
        power_model(gpu)
    assert power_model("v100 core_clock_hz=1417000000") == power_model("v100")


def test_command_says_what_is_known_of_the_error():
    same_clock, usual = (
        " ".join(call("run", "relu", "--gpu", "v100", *more, "--energy").out.split())
        for more in (("--set", "core_clock_hz=1417000000"), ())
    )
    assert "Error of the power: 11% mean" in usual
    assert "Not known of: the clock is 1.53 GHz" in usual and "the clock is" not in same_clock
