"""Kernel time as a function: the engine's cycles at whole parameters, its own differences as derivatives."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from threading import Event, Thread

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import examples

import abstim
from abstim.gpu.config import load_gpu
from abstim.gradient.timed_kernel import DetailedKernel, is_whole
from abstim.occupancy_vector.kept_programs import kept_programs
from functional.errors import InputError

REAL = ("perfect_memory=false",)
NAMES = ("l1d_latency_cycles", "l2_request_cycles", "dram_latency_cycles", "dram_sector_cycles", "l2_sector_cycles")


@cache
def kernel(target: str, *overrides: str, gpu: str = "gtx480") -> DetailedKernel:
    return DetailedKernel(target, NAMES, load_gpu(gpu, overrides))


def at(own: DetailedKernel, **values: float) -> np.ndarray:
    point = own.defaults()
    for name, value in values.items():
        point[NAMES.index(name)] = value
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
    cycles = own.engine_cycles(own.defaults())
    expected = abstim.run(target, gpu, overrides)
    assert cycles.tolist() == [launch.cycles for launch in expected.launches]
    moved = at(own, l1d_latency_cycles=51, dram_latency_cycles=90, l2_sector_cycles=2.25)
    behind = () if own.gpu.spec.perfect_memory else ("dram_latency_cycles=90", "l2_sector_cycles=2.25")
    overrides = (*overrides, "l1d_latency_cycles=51", *behind)
    expected = abstim.run(target, gpu, overrides)
    assert own.engine_cycles(moved).tolist() == [launch.cycles for launch in expected.launches]


def off_the_grid(seed: int) -> np.ndarray:
    """A point in the cell of the GTX 480's values."""
    rng, base = np.random.default_rng(seed), kernel("nn_euclid", *REAL).defaults()
    whole = np.array([is_whole(name) for name in NAMES])
    return base + np.where(whole, rng.uniform(0.05, 0.4, len(base)), rng.uniform(-0.4, 0.4, len(base)) / 64)


@pytest.mark.parametrize(("target", "gpu"), [("nn_euclid", "gtx480"), ("relu", "rtx3070"), ("fir", "qv100")])
def test_the_gradient_is_the_engines_own_difference_over_a_tenth(target, gpu):
    """As commands say it: the same launches with a value a tenth larger, and a tenth smaller."""
    own = DetailedKernel(target, ["l1d_latency_cycles", "l2_sector_cycles"], load_gpu(gpu))
    latency, service = own.defaults()
    steps = (round(latency / 10), round(service * 6.4) / 64)
    _, gradient = own(own.defaults())
    for k, (name, value, step) in enumerate(zip(own.names, (int(latency), service), steps, strict=True)):
        more, less = (
            abstim.run(target, gpu, {name: value + sign * step}).totals["cycles"] for sign in (1, -1)
        )  # fmt: skip
        assert gradient[k] == pytest.approx((more - less) / (2 * step)), name


def test_a_value_that_can_only_grow_has_the_slope_to_one_side():
    own = DetailedKernel("micro_pointer_chase", ["l1d_latency_cycles"], load_gpu("gtx480", [*REAL]), [0])
    low, high = (own.engine_cycles(np.array([v])).sum() for v in (1.0, 2.0))
    assert own(np.array([1.0])) == (low, high - low)


def test_a_dependent_load_costs_what_its_latency_is():
    """A pointer chase has one load at a time: a cycle more is a cycle more for every load that goes there."""
    names = ["l1d_latency_cycles", "l2_request_cycles"]
    own = DetailedKernel("micro_pointer_chase", names, load_gpu("gtx480", REAL), [0, 3])
    base = own.defaults()
    _, gradient = own(base)
    for k in range(2):
        one = np.eye(2)[k]
        difference = (own.engine_cycles(base + one) - own.engine_cycles(base - one)).sum() / 2
        assert gradient[k] == pytest.approx(difference, rel=0.05), own.names[k]


def test_barriers_of_a_part_of_a_block_have_derivatives(tmp_path):
    path = tmp_path / "k.ptx"
    body = "{ .reg .pred %p; .reg .u32 %r; mov.u32 %r, %tid.x; setp.lt.u32 %p, %r, 64; @%p bar.sync 1, 64; ret; }"
    path.write_text(f".version 9.0\n.target sm_80\n.address_size 64\n.entry k() {body}\n")
    case = abstim.load(str(path)).kernel("k").launch(grid=1, block=128, args=[])
    own = DetailedKernel(case, ["launch_latency_cycles"])
    assert own(own.defaults())[1].tolist() == [1]


@examples(8, 30)
@given(st.integers(0, 1000), st.integers(0, 1000), st.sampled_from(["nn_euclid", "reduction"]))
def test_within_a_cell_time_is_linear(a, b, target):
    own, first, second = kernel(target, *REAL), off_the_grid(a), off_the_grid(b)
    low, high, middle = (own.at(point) for point in (first, second, (first + second) / 2))
    assert middle == pytest.approx((low + high) / 2)
    cycles, gradient = own(first)
    assert cycles == pytest.approx(low) and high == pytest.approx(low + gradient @ (second - first))


def test_threads_that_keep_programs_leave_jax_as_its_user_configured_it():
    """The first to come is the first to go here, and the other had seen what it configured."""
    own = "jax_enable_x64", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    came, other_came, went = Event(), Event(), Event()

    def configured():
        return [getattr(jax.config, name) for name in own]

    def first():
        with kept_programs():
            came.set()
            other_came.wait(10)
        went.set()

    jax.config.update("jax_enable_x64", True)
    try:
        before, thread = configured(), Thread(target=first)
        thread.start()
        came.wait(10)
        assert jnp.zeros(1).dtype == jnp.float64  # of the user's thread
        with kept_programs():
            assert jnp.zeros(1).dtype == jnp.float32
            other_came.set()
            went.wait(10)
        thread.join()
        assert configured() == before
    finally:
        jax.config.update("jax_enable_x64", False)


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


def test_the_examples_of_the_documentation_run(monkeypatch, capsys):
    root = Path(__file__).parent.parent
    monkeypatch.chdir(root)
    blocks = re.findall(r"```python\n(.*?)```", (root / "docs" / "fit.md").read_text(), re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})
    cycles = abstim.run("nn_euclid", "gtx480", REAL).totals["cycles"]
    assert capsys.readouterr().out.startswith(f"{cycles:.1f}")


def test_a_kernel_of_one_instruction(tmp_path):
    path = tmp_path / "k.ptx"
    path.write_text(".version 9.0\n.target sm_80\n.address_size 64\n.entry k() { ret; }\n")
    case = abstim.load(str(path)).kernel("k").launch(grid=1, block=32, args=[])
    own = DetailedKernel(case, ["latency_cycles.other", "launch_latency_cycles"])
    cycles, gradient = own(own.defaults())
    assert cycles == abstim.run(case).totals["cycles"]
    assert gradient.tolist() == [1, 1]  # a warp is gone when its results are there
