"""TBPoint's Markov chain: the factored form against the full matrix, the paper's Figure 5, and the one-issue queue."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.tbpoint_markov import ipc_variation, markov_ipc

from abstim.analytic.model import ipc_one_issue

PROBABILITIES = st.floats(0.01, 0.99)
STALLS = st.lists(st.floats(1.5, 800), min_size=1, max_size=6)


def transition_matrix(stall_probability: float, stall_cycles: np.ndarray) -> np.ndarray:
    """The paper's T (equation 3), 2^N x 2^N. Bit x of a state, from the most significant on, is 1 if warp x can run."""
    matrix = np.ones((1, 1))
    for cycles in stall_cycles:
        warp = np.array([[1 - 1 / cycles, 1 / cycles], [stall_probability, 1 - stall_probability]])
        matrix = np.kron(matrix, warp)
    return matrix


def steady_state(matrix: np.ndarray) -> np.ndarray:
    """The distribution that the matrix leaves as it is. State 0 of the paper: every warp is stalled."""
    size = len(matrix)
    equations = np.vstack([matrix.T - np.eye(size), np.ones(size)])
    return np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)[0]


@settings(max_examples=60)
@given(PROBABILITIES, STALLS)
def test_factored_ipc_is_that_of_the_full_matrix(p, stalls):
    matrix = transition_matrix(p, np.array(stalls))
    assert np.allclose(matrix.sum(1), 1)
    state = steady_state(matrix)
    assert np.allclose(state @ matrix, state, atol=1e-9)
    assert float(markov_ipc(p, np.array(stalls))) == pytest.approx(1 - state[0], abs=1e-6)


def test_steady_state_is_where_the_paper_starts_from_ends_up():
    matrix = transition_matrix(0.2, np.array([4.0, 7.0, 2.0]))
    state = np.zeros(8)
    state[-1] = 1.0  # all warps can run
    assert np.allclose(state @ np.linalg.matrix_power(matrix, 2000), steady_state(matrix))


def test_entry_of_the_paper():
    matrix = transition_matrix(0.1, np.array([10.0, 20.0, 40.0, 5.0]))
    assert matrix[0b0110, 0b0010] == pytest.approx(
        (1 - 1 / 10) * 0.1 * (1 - 0.1) * (1 - 1 / 5)
    )  # S(6,2): warp 2 stalls


@pytest.mark.parametrize("p", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("mean", [100, 200, 400])
@pytest.mark.parametrize("warps", [4, 8, 16])
def test_ipc_hardly_varies_with_the_stalls(p, mean, warps):
    found = ipc_variation(p, mean, warps, np.random.default_rng(0))
    assert len(found) == 10_000 and found.std() > 0
    assert (np.abs(found - 1) < 0.1).mean() > 0.95


def queue_ipc(offered, warps):
    """1 - P(all stalled) of a birth and death chain: k stalled warps return at rate k / M, one more stalls at p."""
    weights = [1.0]
    for stalled in range(1, warps + 1):
        weights.append(weights[-1] * offered / stalled)
    return 1 - weights[-1] / sum(weights)


@pytest.mark.parametrize("warps", [1, 2, 7, 24, 64])
@pytest.mark.parametrize("offered", [0.05, 1.0, 9.0, 60.0])
def test_one_issue_is_the_queue_solved_state_by_state(offered, warps):
    assert float(ipc_one_issue(np.float32(offered), np.float32(warps))) == pytest.approx(
        queue_ipc(offered, warps), rel=1e-4
    )


def test_one_issue_against_a_simulation():
    generator = np.random.default_rng(7)
    p, mean, warps, issued, cycles = 0.25, 40.0, 9, 0, 60_000
    back = np.zeros(warps)  # cycle in which a warp can run again
    for t in range(cycles):
        ready = np.flatnonzero(back <= t)
        if len(ready):
            issued += 1
            if generator.random() < p:
                back[ready[0]] = t + 1 + generator.geometric(1 / mean)
    assert issued / cycles == pytest.approx(float(ipc_one_issue(np.float32(p * mean), np.float32(warps))), rel=0.05)


def test_one_issue_lies_between_the_paper_and_the_limit():
    offered, warps = 9.0, 16
    paper = float(markov_ipc(0.1, np.full(warps, 10 * offered)))
    assert paper < float(ipc_one_issue(np.float32(offered), np.float32(warps))) <= min(1, warps / (1 + offered))


def test_warps_need_not_be_whole():
    warps = np.arange(0.25, 12, 0.25, dtype=np.float32)
    assert (np.diff(np.asarray(ipc_one_issue(np.full_like(warps, 5.0), warps))) > 0).all()
