"""Student's t against scipy's, what a sum over the density says, and where quantiles are known exactly."""

import math

import numpy as np
import pytest
from scipy.special import ndtri, stdtr, stdtrit

from sampling.student_t import outside, two_sided

DEGREES = (1.0, 1.3, 2.0, 2.7, 5.0, 17.5, 100.0, 1000.0)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.999])
def test_quantiles_are_scipys(degrees, confidence):
    assert two_sided(degrees, confidence) == pytest.approx(stdtrit(degrees, (1 + confidence) / 2), rel=1e-11)


@pytest.mark.parametrize("degrees", DEGREES)
def test_probabilities_are_scipys(degrees):
    for x in (0.0, 1e-3, 0.5, 1.0, 2.0, 10.0, 100.0):
        assert outside(x, degrees) == pytest.approx(2 * stdtr(degrees, -x), rel=1e-10)


def test_quantiles_that_have_a_formula():
    assert two_sided(1.0, 0.9) == pytest.approx(math.tan(0.45 * math.pi))  # Cauchy's distribution
    assert two_sided(2.0, 0.9) == pytest.approx(0.9 * math.sqrt(2 / (1 - 0.9**2)))
    assert two_sided(0.2, 0.9) == two_sided(1.0, 0.9)  # none has fewer than one
    assert two_sided(math.inf, 0.95) == pytest.approx(ndtri(0.975))


def test_probability_is_the_area_under_the_density():
    x = np.linspace(1.5, 4000.0, 8_000_001)
    density = math.gamma(2.0) / math.gamma(1.5) / math.sqrt(3 * math.pi) * (1 + x**2 / 3) ** -2.0
    assert outside(1.5, 3.0) == pytest.approx(2 * np.trapezoid(density, x), rel=1e-6)
