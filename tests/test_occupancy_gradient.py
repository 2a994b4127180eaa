"""Derivatives of the occupancy model: exact where nothing changes its mind, near what the model itself says else."""

import jax
import numpy as np
import pytest
from nightly import of

import abstim
from abstim.gpu.config import load_gpu
from abstim.gradient.occupancy_kernel import AT_ONCE, OccupancyKernel, number_slopes, term_slopes
from abstim.gradient.timed_kernel import PARAMETERS, is_whole, kernel_of
from abstim.occupancy_vector.lanes import run_with_derivatives
from abstim.occupancy_vector.records import TICKS
from functional.errors import InputError

KERNELS = (
    ("gtx480_perfect", "bitonic_sort"), ("qv100", "relu"), ("titanx", "transpose"), ("rtx3070", "nn_euclid"),
    ("rtx2060", "maxpool"), ("gtx480", "backprop_adjust_weights"),
)  # fmt: skip
SHAKE, STEP = 1e-4, 1e-7  # ticks; the smaller the step, the fewer of what is nearly equal changes places
TOLERANCE = 1e-3
ROUNDINGS = 8  # of doubles, at most so many of which end in the difference of two ends


@pytest.fixture(scope="module", params=KERNELS[:: of(2, 1)], ids=lambda own: "-".join(own))
def kernel(request):
    gpu, target = request.param
    return OccupancyKernel(target, PARAMETERS, load_gpu(gpu), [0])


def shaken(lanes):
    """Lanes whose times are a little off whole ticks, so that no two are equal: what is picked is the same, since picks
    go by whole ticks."""
    rng = np.random.default_rng(3)
    return moved(lanes, *(rng.uniform(-SHAKE, SHAKE, own.shape) for own in (lanes.streams.terms, lanes.machine)))


def moved(lanes, terms, machine):
    """Lanes with so many ticks more; where there are none, none are added."""
    own = lanes.streams.terms + np.where(lanes.streams.terms, terms, 0)
    return lanes._replace(machine=lanes.machine + machine, streams=lanes.streams._replace(terms=own))


def end(lanes, slopes):
    """The last lane's end in ticks, and how it changes."""
    found = run_with_derivatives(lanes, *slopes)
    return found[found[:, 0].argmax()]


def test_value_is_what_the_model_says(kernel):
    values = kernel.defaults()
    cycles, _ = kernel(values)
    assert cycles == kernel.engine_cycles(values).sum()
    more = values + np.array([3 if is_whole(name) and v > 5 else 0 for name, v in zip(PARAMETERS, values, strict=True)])
    assert kernel(more)[0] == kernel.engine_cycles(more).sum() != cycles


def test_gradient_against_central_differences(kernel, request):
    """Of the engine itself, each parameter with two kernels; where times are equal, which at whole cycles they often
    are, a derivative is a mean of several, so they are shaken first."""
    every = PARAMETERS[KERNELS.index(request.node.callspec.params["kernel"]) % of(3, 1) :: of(3, 1)]
    point = kernel.point(0, kernel.defaults())
    lanes = shaken(point.lanes)
    for first in range(0, len(every), AT_ONCE):
        names = every[first : first + AT_ONCE]
        slopes = *term_slopes(point, names), number_slopes(point, names)
        found = end(lanes, slopes)
        assert found[0] == pytest.approx(end(point.lanes, slopes)[0], abs=0.5)
        noise = max(TOLERANCE, ROUNDINGS * np.spacing(found[0]) / (2 * STEP / TICKS))  # ticks a cycle
        for k, name in enumerate(names):
            step = [STEP / TICKS * own[..., k] for own in (slopes[1][slopes[0]], slopes[2])]
            up, down = (end(moved(lanes, sign * step[0], sign * step[1]), slopes)[0] for sign in (1, -1))
            assert (up - down) / (2 * STEP / TICKS) == pytest.approx(found[1 + k], rel=TOLERANCE, abs=noise), name


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
    target = "transpose", "gtx480_perfect"  # three launches

    def cycles(latency):
        return abstim.kernel_time({"latency_cycles.int_add": latency}, *target, model="occupancy")

    slope = jax.grad(cycles)(4.0)
    assert slope > 0
    assert jax.jit(jax.jacfwd(cycles))(4.0) == pytest.approx(float(slope))
    many = jax.vmap(cycles)(np.array([4.0, 12.0]))
    assert many[1] > many[0] == abstim.run(*target, model="occupancy").totals["cycles"]


def test_a_model_that_is_none_is_refused():
    with pytest.raises(InputError, match="no derivatives by model 'formula'"):
        kernel_of("formula")
