"""The cycles of a launch as one JAX function: what XLA calls is exact, lowers for accelerators, and composes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_command import call
from jax import export
from nightly import of

import abstim
from abstim.gpu.config import gpu_names, load_gpu
from abstim.occupancy_vector.jax_lanes import Cut, bytes_of, ends_of
from tests.oracle import occupancy_vector as oracle
from tests.test_occupancy_vector import random_lanes

NAMES = ("l1d_latency_cycles", "dram_sector_cycles", "launch_latency_cycles")


def ends(part):
    """A function of the machine's numbers [point, lane, number] as bytes."""
    rest = map(bytes_of, (part.streams.lane_items, part.streams.terms, part.streams.starts))
    items, terms, starts = rest

    def function(machine):
        with jax.enable_x64(True):
            return ends_of(part, Cut(machine, items, terms, starts))

    return jax.jit(function)


@pytest.mark.parametrize("name", gpu_names()[:: of(2, 1)])
def test_lanes_called_by_xla_equal_their_oracle(name):
    part = random_lanes(np.random.default_rng(30), load_gpu(name))
    slower = part._replace(machine=part.machine + 64)
    found = ends(part)(np.stack([bytes_of(own.machine) for own in (part, slower, part)]))
    first, second = (oracle.run(own)[0] for own in (part, slower))
    np.testing.assert_array_equal(found, [first, second, first])


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_lanes_lower_for_accelerators(platform):
    part = random_lanes(np.random.default_rng(31), load_gpu("gtx480"))
    program = export.export(ends(part), platforms=[platform])(bytes_of(part.machine)[None])
    assert program.platforms == (platform,) and "custom_call" not in program.mlir_module()


def cycles_of(model, names=NAMES):
    return lambda values: abstim.kernel_time(dict(zip(names, values, strict=True)), "fir", "gtx480", model=model)


def values_of(names=NAMES):
    return jnp.array([load_gpu("gtx480").settings[name].value for name in names])


@pytest.mark.parametrize("model", of(["occupancy"], ["occupancy", "analytic"]))
def test_cycles_compose_with_what_jax_does(model):
    cycles, values = cycles_of(model), values_of()
    points = jnp.stack([values, values + jnp.array([3, 0, 0]), values + jnp.array([0, 0.25, 7])])
    alone = np.array([cycles(point) for point in points])
    said = abstim.run("fir", "gtx480", model=model).totals["cycles"]
    assert alone[0] == (said if model == "occupancy" else pytest.approx(said, abs=1)) and len(set(alone)) == 3
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.vmap(cycles)))(points[None])[0], alone, rtol=1e-6)
    _, (found, slopes) = jax.lax.scan(lambda c, x: (c, jax.value_and_grad(lambda v: 2 * cycles(v))(x)), 0, points)
    np.testing.assert_allclose(found, 2 * alone, rtol=1e-6)
    assert (slopes > 0).all() and (slopes[:, 2] > 1).all()
    np.testing.assert_allclose(jax.jit(jax.jacfwd(cycles))(values) * 2, slopes[0], rtol=1e-5)


def test_where_only_memory_beyond_l1d_changes_the_cut_is_kept():
    names = ("l2_request_cycles", "dram_latency_cycles")
    cycles, values = cycles_of("occupancy", names), values_of(names)
    alone = abstim.run("fir", "gtx480", ["l2_request_cycles=99", "dram_latency_cycles=301"], model="occupancy")
    both = jax.jit(jax.vmap(cycles))(jnp.stack([values, jnp.array([99.0, 301.0])]))
    assert both[1] == alone.totals["cycles"] != both[0]


def test_a_command_runs_the_arrays():
    code, out, _ = call("run", "fir", "--model", "occupancy", "--device", "arrays", "--json")
    assert code == 0
    assert json.loads(out)["totals"]["cycles"] == abstim.run("fir", "gtx480", model="occupancy").totals["cycles"]
    assert call("run", "fir", "--device", "arrays")[0] == call("run", "fir", "--device", "x")[0] == 2
