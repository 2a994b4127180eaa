"""The array engine equals the compiled engine to the cycle, on everything a result holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_launches import POLICIES, gpus, launches, table_of, trace_of

from abstim.config import Gpu, load_gpu
from abstim.engine import EngineResult, LaunchInputs, simulate
from functional.errors import InputError

# Shrinking is left to the oracle's test: one example here takes as long as thirty there
EXAMPLES = settings(
    deadline=None, max_examples=10, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)


def ceiling(policy: str) -> Gpu:
    """A design point as large as any random one in every size: all examples then share one compiled program."""
    gpu = load_gpu("gtx480")
    sizes = {
        "sm_count": 16,
        "schedulers_per_sm": 4,
        "sp_units": 4,
        "sp_port_width": 4,
        "mem_collectors": 16,
        "scheduler": policy,
    }
    return replace(gpu, spec=replace(gpu.spec, **sizes))


def assert_same(array: EngineResult, compiled: EngineResult) -> None:
    assert array.cycles == compiled.cycles
    np.testing.assert_array_equal(array.sm_cycles, compiled.sm_cycles)
    np.testing.assert_array_equal(array.issue_slots, compiled.issue_slots)
    np.testing.assert_array_equal(array.resident_warp_cycles, compiled.resident_warp_cycles)
    assert array.counters == compiled.counters


def assert_engines_agree(inputs: LaunchInputs, points: list[Gpu], blocks_per_sm: list[int]) -> None:
    array = simulate(inputs, points, blocks_per_sm, backend="array")
    for a, c in zip(array, simulate(inputs, points, blocks_per_sm), strict=True):
        assert_same(a, c)


@pytest.mark.parametrize("policy", POLICIES)
@EXAMPLES
@given(st.data())
def test_random_launches(policy: str, data: st.DataObject) -> None:
    launch = data.draw(launches((policy,), most_blocks=6))
    others = data.draw(st.lists(gpus((policy,)), min_size=2, max_size=2))
    roomy = [replace(g, spec=replace(g.spec, max_warps_per_sm=48)) for g in others]
    assert_engines_agree(launch.inputs, [launch.gpu, ceiling(policy), *roomy], [launch.blocks_per_sm] * 4)


@pytest.mark.parametrize("name", ["nn_euclid", "micro_barrier"])
def test_suite_kernels(name: str) -> None:
    from abstim.simulate import execute, occupancies, registers_of
    from abstim.target import open_target

    workload = execute(open_target(name))
    gpu = load_gpu("gtx480")
    points = [gpu, replace(gpu, spec=replace(gpu.spec, sm_count=7, schedulers_per_sm=1))]
    registers = registers_of(workload.case)
    blocks = [occupancies(workload.case, registers, g)[0].blocks_per_sm for g in points]
    assert_engines_agree(workload.inputs(0, gpu), points, blocks)


def test_too_many_warps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from abstim.engine.array import prepare

    monkeypatch.setattr(prepare, "LIMIT_WARPS", 0)
    rng = np.random.default_rng(1)
    table = table_of(rng, [1, 2], "alu")
    inputs = LaunchInputs(table, trace_of(rng, table, 1, 1, 0, 1))
    with pytest.raises(InputError, match="too long for the array engine"):
        simulate(inputs, [load_gpu("gtx480")], [1], backend="array")
