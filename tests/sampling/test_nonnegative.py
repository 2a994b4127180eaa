"""Non-negative least squares against its conditions (Karush, Kuhn, Tucker), every subset of columns, and scipy's."""

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import nnls

from sampling.auto.nonnegative import non_negative


def best_of_all_subsets(a, b):
    """Residual of the best set of columns whose least squares are positive."""
    found = [float(np.linalg.norm(b))]
    for count in range(1, a.shape[1] + 1):
        for columns in combinations(range(a.shape[1]), count):
            x = np.linalg.lstsq(a[:, columns], b, rcond=None)[0]
            if (x >= 0).all():
                found.append(float(np.linalg.norm(a[:, columns] @ x - b)))
    return min(found)


@pytest.mark.parametrize("rows", [2, 5, 40])
@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_least_and_not_negative(rows, seed):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(rows, 6)) if seed % 2 else rng.uniform(size=(rows, 6))
    b = rng.normal(size=rows)
    x = non_negative(a, b)
    assert (x >= 0).all()
    left = float(np.linalg.norm(a @ x - b))
    assert left == pytest.approx(best_of_all_subsets(a, b), rel=1e-9, abs=1e-12)
    assert left == pytest.approx(nnls(a, b)[1], rel=1e-9, abs=1e-12)
    gradient = a.T @ (b - a @ x)
    assert (gradient < 1e-9).all() and np.abs(gradient[x > 0]).max(initial=0.0) < 1e-9


def test_columns_that_say_the_same_or_nothing():
    a = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [3.0, 3.0, 0.0]])
    x = non_negative(a, a[:, 0] * 2)
    assert a @ x == pytest.approx([2.0, 4.0, 6.0]) and x[2] == 0.0
    assert not non_negative(a, -a[:, 0]).any()
    assert not non_negative(np.zeros((3, 2)), np.ones(3)).any()
