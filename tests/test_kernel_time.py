"""Kernel time as a function: the engine's cycles at whole parameters, exact gradients of the replay in between."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abstim
from abstim.gpu.config import load_gpu
from abstim.gradient.parameter_vector import INDEX, PARAMETERS, is_whole, terms, values_of
from abstim.gradient.recorded_kernel import RecordedKernel
from functional.errors import InputError

REAL = ("perfect_memory=false",)
MEMORY = ("l1d_latency_cycles", "l2_request_cycles", "dram_latency_cycles", "dram_sector_cycles")


@cache
def kernel(target: str, *overrides: str, gpu: str = "gtx480") -> RecordedKernel:
    return RecordedKernel(target, PARAMETERS, load_gpu(gpu, overrides))


def at(own: RecordedKernel, **values: float) -> np.ndarray:
    point = own.defaults()
    for name, value in values.items():
        point[INDEX[name]] = value
    return point


@pytest.mark.parametrize(
    ("target", "gpu", "overrides"),
    [
        ("nn_euclid", "gtx480", REAL),
        ("nn_euclid", "gtx480_perfect", ()),
        ("reduction", "gtx480", (*REAL, "scheduler=lrr")),
        ("reduction", "gtx480_perfect", ("scheduler=two_level", "schedulers_per_sm=1")),
        ("micro_global_stride", "gtx480", REAL),
        ("relu", "rtx3070", ()),
    ],
)
def test_the_engines_cycles_at_whole_parameters(target, gpu, overrides):
    own = kernel(target, *overrides, gpu=gpu)
    cycles, _ = own.by_launch(own.defaults())
    expected = abstim.run(target, gpu, overrides)
    assert cycles.tolist() == [launch.cycles for launch in expected.launches]
    moved = at(own, l1d_latency_cycles=51, dram_latency_cycles=90, l2_sector_cycles=2.25)
    behind = () if own.gpu.spec.perfect_memory else ("dram_latency_cycles=90", "l2_sector_cycles=2.25")
    overrides = (*overrides, "l1d_latency_cycles=51", *behind)
    expected = abstim.run(target, gpu, overrides)
    assert own.by_launch(moved)[0].tolist() == [launch.cycles for launch in expected.launches]


def off_the_grid(seed: int) -> np.ndarray:
    """A point in the cell of the GTX 480's values where no two chains of events take the same time."""
    rng, base = np.random.default_rng(seed), values_of(load_gpu("gtx480_perfect"))
    whole = np.array([is_whole(name) for name in PARAMETERS])
    return base + np.where(whole, rng.uniform(0.05, 0.4, len(base)), rng.uniform(-0.4, 0.4, len(base)) / 64)


@pytest.mark.parametrize("target", ["nn_euclid", "micro_global_stride", "reduction"])
def test_gradient_against_central_differences_for_every_parameter(target):
    own, point, step = kernel(target, *REAL), off_the_grid(0), 1e-5
    _, gradient = own(point)
    assert np.count_nonzero(gradient) >= 15
    for k, name in enumerate(PARAMETERS):
        delta = np.zeros(len(point))
        delta[k] = step
        difference = (own(point + delta)[0] - own(point - delta)[0]) / (2 * step)
        assert gradient[k] == pytest.approx(difference, rel=1e-6, abs=1e-5), name


def test_a_lone_warps_gradient_is_the_engines_own_difference():
    """A pointer chase has one load at a time: a cycle more is a cycle more for every load that goes there.

    Within 5 %: the replay keeps what waits for whom, and a few per cent of the loads find an L2 slice busy otherwise.
    DRAM is left out: while the chain is laid out, thousands of lines come from there at once.
    """
    own = kernel("micro_pointer_chase", *REAL)
    base = own.defaults()
    _, gradient = own(base)
    steps = {"l1d_latency_cycles": 4, "l2_request_cycles": 13, "latency_cycles.int_mul": 1}
    for name, step in steps.items():
        delta = np.zeros(len(base))
        delta[INDEX[name]] = step
        difference = (own.engine_cycles(base + delta) - own.engine_cycles(base - delta)).sum() / (2 * step)
        assert gradient[INDEX[name]] == pytest.approx(difference, rel=0.05), name


def test_gradient_foretells_the_engine_where_a_queue_decides():
    """DRAM of two thirds of the bandwidth holds up relu: the replay sees the queue, not only the latencies on the way.

    Not at the GPU's own 1.515 cycles a sector: there the queue only begins to decide, and faster DRAM changes nothing.
    """
    own = kernel("relu", *REAL)
    point = at(own, dram_sector_cycles=2.25)
    cycles, gradient = own(point)
    slow, fast = (own.engine_cycles(at(own, dram_sector_cycles=v)).sum() for v in (2.5, 2.0))
    assert gradient[INDEX["dram_sector_cycles"]] == pytest.approx((slow - fast) / 0.5, rel=0.1)
    assert gradient[INDEX["dram_sector_cycles"]] * 2.25 / cycles > 0.5


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(0, 1000), st.sampled_from(["nn_euclid", "reduction"]))
def test_within_a_cell_time_is_convex_and_never_falls(a, b, target):
    """A maximum over sums with non-negative counts."""
    own, first, second = kernel(target, *REAL), off_the_grid(a), off_the_grid(b)
    low, high, middle = own(first), own(second), own((first + second) / 2)
    assert middle[0] <= (low[0] + high[0]) / 2 + 1e-6
    assert (middle[1] >= 0).all()
    assert own(np.maximum(first, second))[0] >= max(low[0], high[0]) - 1e-6
    tangent = low[0] + low[1] @ (second - first)
    assert high[0] >= tangent - 1e-6


def test_every_transformation_of_jax_agrees():
    gpu = load_gpu("gtx480", REAL)
    point = {"l1d_latency_cycles": 35.25, "dram_latency_cycles": 112.875, "dram_sector_cycles": 1.515}
    names = list(point)
    with jax.enable_x64(True):

        def time(params):
            return abstim.kernel_time(params, "nn_euclid", gpu)

        cycles, gradient = time(point), jax.grad(time)(point)
        assert cycles.dtype == jnp.float64
        assert jax.jit(time)(point) == cycles
        tangent = {name: float(k + 1) for k, name in enumerate(names)}
        both = jax.jvp(time, (point,), (tangent,))
        assert both[0] == cycles
        assert both[1] == pytest.approx(sum(tangent[n] * gradient[n] for n in names))
        forward = jax.jit(jax.jacfwd(time))(point)
        assert all(forward[name] == gradient[name] for name in names)
        lanes = {name: jnp.array([point[name], round(point[name])]) for name in names}
        many = jax.vmap(time)(lanes)
        assert many[0] == cycles
        assert many[1] == time({name: lanes[name][1] for name in names})
        slopes = jax.vmap(jax.jacfwd(time))(lanes)
        assert slopes["dram_sector_cycles"][0] == gradient["dram_sector_cycles"]
        assert all(v == 0 for row in jax.hessian(time)(point).values() for v in row.values())


def test_single_precision_is_exact_at_whole_cycles():
    gpu = load_gpu("gtx480", REAL)
    found = abstim.kernel_time({"l1d_latency_cycles": 40, "dram_sector_cycles": 1.515}, "nn_euclid", gpu)
    assert found.dtype == jnp.float32
    expected = abstim.run("nn_euclid", "gtx480", [*REAL, "l1d_latency_cycles=40"])
    assert float(found) == expected.totals["cycles"]


def test_launches_can_be_chosen():
    gpu, params = load_gpu("gtx480", REAL), {"l1d_latency_cycles": 35}
    whole = abstim.run("reduction", "gtx480", REAL)
    found = [float(abstim.kernel_time(params, "reduction", gpu, launches=[n])) for n in range(len(whole.launches))]
    assert found == [launch.cycles for launch in whole.launches]
    with pytest.raises(InputError, match="has launches 0 to"):
        abstim.kernel_time(params, "reduction", gpu, launches=[99])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"l1d_latency": 35}, "did you mean l1d_latency_cycles"),
        ({"sm_count": 15}, "no latency or service time"),
        ({"l1d_latency_cycles": 0}, "not a whole number from 1 to 4096"),
        ({"l1d_latency_cycles": float("nan")}, "not a number of cycles"),
        ({"l1d_latency_cycles": np.ones(2)}, "takes scalars"),
        ({}, "at least one parameter"),
    ],
)
def test_bad_parameters_are_said_in_one_line(params, message):
    with pytest.raises(InputError, match=message):
        abstim.kernel_time(params, "nn_euclid")


def test_terms_of_perfect_memory_never_reach_the_l2():
    for name in ("l2_request_cycles", "dram_latency_cycles", "dram_sector_cycles"):
        assert np.count_nonzero(terms(True)[:, INDEX[name]]) == 1  # the parameter itself
        assert np.count_nonzero(terms(False)[:, INDEX[name]]) > 1


def test_the_examples_of_the_documentation_run(monkeypatch, capsys):
    root = Path(__file__).parent.parent
    monkeypatch.chdir(root)
    blocks = re.findall(r"```python\n(.*?)```", (root / "docs" / "fit.md").read_text(), re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})
    cycles = abstim.run("nn_euclid", "gtx480", REAL).totals["cycles"]
    assert capsys.readouterr().out.startswith(f"{cycles:.1f}")


@pytest.mark.parametrize(
    ("target", "gpu", "overrides"),
    [("micro_barrier", "gtx480", REAL), ("micro_atomics", "gtx480", REAL), ("relu", "rtx3070", ())],
)
def test_every_event_waits_for_earlier_ones_and_one_of_them_decides(target, gpu, overrides):
    own = kernel(target, *overrides, gpu=gpu)
    for recording in own.recordings(own.defaults())[:3]:
        net = recording.network
        place = np.empty(len(net.order), np.int64)
        place[net.order] = np.arange(len(net.order))
        event = np.repeat(np.arange(len(net.order)), np.diff(net.first))
        assert (place[net.parent] < place[event]).all()
        assert (net.slack >= 0).all() and (net.scale >= 0).all()
        tight = np.bincount(event[net.slack == 0], minlength=len(net.order))
        assert (tight[1:] > 0).all() and tight[0] == 0  # 0: the launch itself


def test_a_kernel_of_one_instruction(tmp_path):
    path = tmp_path / "k.ptx"
    path.write_text(".version 9.0\n.target sm_80\n.address_size 64\n.entry k() { ret; }\n")
    case = abstim.load(str(path)).kernel("k").launch(grid=1, block=32, args=[])
    own = RecordedKernel(case, ["latency_cycles.other", "launch_latency_cycles"])
    cycles, gradient = own(own.defaults())
    assert cycles == abstim.run(case).totals["cycles"]
    assert gradient.tolist() == [0, 1]
