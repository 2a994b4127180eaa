"""Derivatives of the occupancy model: exact where nothing changes its mind, near what the model itself says else."""

import jax
import numpy as np
import pytest

import abstim
from abstim.gpu.config import load_gpu
from abstim.gradient.occupancy_kernel import OccupancyKernel
from abstim.gradient.parameter_vector import PARAMETERS, is_whole
from abstim.gradient.timed_models import kernel_of
from functional.errors import InputError


@pytest.fixture(scope="module", params=[("gtx480_perfect", "bitonic_sort"), ("qv100", "relu"), ("titanx", "transpose")])
def kernel(request):
    gpu, target = request.param
    return OccupancyKernel(target, PARAMETERS, load_gpu(gpu), [0])


def test_value_is_what_the_model_says(kernel):
    values = kernel.defaults()
    cycles, _ = kernel(values)
    assert cycles == kernel.engine_cycles(values).sum()
    more = values + np.array([3 if is_whole(name) and v > 5 else 0 for name, v in zip(PARAMETERS, values, strict=True)])
    assert kernel(more)[0] == kernel.engine_cycles(more).sum() != cycles


def test_gradient_against_central_differences(kernel):
    """In the cell of a point the schedule is frozen, and cycles are linear in every parameter."""
    values = kernel.defaults()
    gradient = kernel(values)[1]
    for k, name in enumerate(PARAMETERS):
        step = np.zeros(len(values))
        step[k] = 0.2 if is_whole(name) else 1e-3
        slope = (kernel(values + step)[0] - kernel(values - step)[0]) / (2 * step[k])
        assert slope == pytest.approx(gradient[k], rel=1e-6, abs=1e-6), name


def test_slopes_foretell_what_a_longer_latency_costs():
    """Of the latencies that matter, the slope and what the model says 5 cycles on; 25 %: the schedule changes."""
    kernel = OccupancyKernel("fir", ["l1d_latency_cycles", "dram_latency_cycles", "l2_request_cycles"], "qv100")
    values = kernel.defaults()
    cycles, gradient = kernel(values)
    for k in range(len(values)):
        step = np.zeros(len(values))
        step[k] = 5
        grown = kernel.engine_cycles(values + step).sum() - cycles
        assert 5 * gradient[k] == pytest.approx(grown, rel=0.25), kernel.names[k]


def test_kernel_time_is_a_function_that_jax_transforms():
    def cycles(latency, which):
        return abstim.kernel_time({"latency_cycles.int_add": latency}, "bitonic_sort", "gtx480_perfect", model=which)

    slope = jax.grad(cycles)(4.0, "occupancy")
    assert slope > 0
    assert jax.jit(jax.jacfwd(lambda x: cycles(x, "occupancy")))(4.0) == pytest.approx(float(slope))
    many = jax.vmap(lambda x: cycles(x, "occupancy"))(np.array([4.0, 6.0]))
    assert many[1] > many[0] == abstim.run("bitonic_sort", "gtx480_perfect", model="occupancy").totals["cycles"]


def test_a_model_without_derivatives_is_refused():
    with pytest.raises(InputError, match="no derivatives by model 'analytic'"):
        kernel_of("analytic")
