"""Advice, and results beside earlier ones: each finding is a run of the model, and the run is of what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from call_command import call

import abstim
from abstim.gpu.config import load_gpu
from abstim.session.memory_accesses import accesses_of, coalesced, without_conflicts
from abstim.session.session import open_session
from abstim.study.counterfactual import advise
from functional.traces.line_record import MORE, sectors_of


def findings(target, gpu="gtx480", overrides=()):
    return {finding.kind: finding for finding in advise(open_session(target), load_gpu(gpu, overrides)).findings}


def test_a_transpose_is_told_of_its_strides_and_its_banks():
    found = findings("transpose")
    assert next(iter(found)) == "uncoalesced access" and "32.0 sectors" in found["uncoalesced access"].text
    assert "32.0 passes" in found["bank conflicts"].text and found["bank conflicts"].gain > 0.1
    assert "atomics" not in found


def test_what_a_kernel_does_well_is_not_found():
    found = findings("nn_euclid")
    assert not {"uncoalesced access", "bank conflicts", "atomics"} & set(found)


def test_occupancy_names_what_limits_it():
    found = findings("hotspot", overrides=["max_threads_per_sm=256"])
    assert "limited by threads" in found["occupancy"].text
    assert found["occupancy"].cycles == abstim.run("hotspot", "gtx480", ["max_threads_per_sm=512"]).totals["cycles"]


def test_a_tail_wave_is_that_of_the_grid():
    """121 blocks of hotspot: on 20 SMs with 6 each a wave and one block more, on 21 all in one."""
    assert findings("hotspot", overrides=["sm_count=20"])["tail wave"].gain > 0.05
    assert "tail wave" not in findings("hotspot", overrides=["sm_count=21"])


def test_without_conflicts_and_coalesced_are_the_same_launch():
    inputs = open_session("transpose").inputs(0, load_gpu("gtx480"))
    for better in (coalesced(inputs), without_conflicts(inputs)):
        before, after = accesses_of(inputs), accesses_of(better)
        assert np.array_equal(before.instruction, after.instruction) and len(after.first) == len(after.instruction)
        assert (np.diff(better.trace.record_offsets) <= np.diff(inputs.trace.record_offsets)).all()
        assert better.trace.record_offsets[-1] == len(better.trace.records)
        assert not better.trace.records[-1] & MORE and (sectors_of(better.trace.records) > 0).any()
    assert without_conflicts(inputs).trace.conflicts.max(initial=0) <= 1


def test_the_command_advises():
    code, out, _ = call("advise", "transpose")
    assert code == 0 and "uncoalesced access" in out and max(map(len, out.splitlines())) <= 100
    found = json.loads(call("advise", "micro_smem_conflict:ind_8way", "--json")[1])
    assert found["kind"] == "advice" and found["findings"][0]["gain"] == max(f["gain"] for f in found["findings"])
    code, out, _ = call("advise", "micro_int_add", "--gpu", "gtx480_perfect")
    assert code == 0 and "2 %" in out


def test_a_result_beside_an_earlier_one(tmp_path):
    old = tmp_path / "old.json"
    old.write_text(call("run", "hotspot", "--json")[1])
    code, out, _ = call("run", "hotspot", "--against", str(old))
    assert code == 0 and "1.00x" in out and "sm_count" not in out
    code, out, _ = call("run", "hotspot", "--against", str(old), "--set", "sm_count=30")
    assert code == 0 and "sm_count: 15 before, 30 now" in out
    out = call("run", "hotspot", "--against", str(old), "--set", "unit.fp32_mul=sfu", "--flush", "none")[1]
    assert "unit.fp32_mul: sp before, sfu now" in out and "flush: all before, none now" in out
    other = json.loads(old.read_text())
    other["launches"][1]["grid"] = [1, 2, 3]
    old.write_text(json.dumps(other))
    out = call("run", "hotspot", "--against", str(old))[1]
    assert out.count("Not the same") == 1 and "launch 1, grid: [1, 2, 3] before, [" in out
    found = json.loads(call("run", "hotspot", "--against", str(old), "--set", "sm_count=30", "--json")[1])
    whole = found["against"]["rows"][-1]
    assert whole["speed_up"] == pytest.approx(whole["cycles_before"] / whole["cycles_after"])
    assert whole["cycles_before"] == json.loads(old.read_text())["totals"]["cycles"]
    code, out, _ = call("run", "relu", "--against", str(old))
    assert code == 0 and "other kernels" in out and "target: hotspot before, relu now" in out


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "run"}', '{"kind": "bench"}', None])
def test_what_is_no_result_is_refused(tmp_path, text):
    path = tmp_path / "old.json"
    if text is not None:
        path.write_text(text)
    code, out, err = call("run", "relu", "--against", str(path))
    assert (code, out) == (2, "") and "old.json" in err and err.count("\n") == 1


def test_registers_are_those_of_all_launches():
    assert "Registers a thread: 14 to 40 (from resources.json)" in call("run", "particlefilter")[1]
