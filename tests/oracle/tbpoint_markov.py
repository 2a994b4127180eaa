"""IPC of warps that stall at random: TBPoint's Markov chain (section IV-A, Equation 3), Monte Carlo variation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64


def markov_ipc(stall_probability: float, stall_cycles: Float64[np.ndarray, "*sample warp"]) -> np.ndarray:
    """IPC of an SM, 1 - P(every warp stalled), for the average stall cycles M of each warp.

    Warps move independently, so the chain of 2^N states factors: a warp alone is stalled for the share
    p M / (1 + p M) of the time, and IPC = 1 - prod p M_i / (1 + p M_i).
    """
    stalled = stall_probability * np.asarray(stall_cycles, float)
    return 1.0 - np.prod(stalled / (1.0 + stalled), axis=-1)


def markov_ipc_by_matrix(stall_probability: float, stall_cycles: Float64[np.ndarray, " warp"]) -> float:
    """The same from the whole transition matrix of Equation 3, in which bit x of a state says that warp x can run.

    The chain starts with every warp runnable; its limit is the stationary vector of a 2^N x 2^N matrix, so N is small.
    """
    matrix = np.ones((1, 1))
    for cycles in stall_cycles:
        leave = 1.0 / cycles
        one = np.array([[1.0 - leave, leave], [stall_probability, 1.0 - stall_probability]])
        matrix = np.kron(matrix, one)
    size = len(matrix)
    balance = np.vstack([matrix.T - np.eye(size), np.ones(size)])
    steady = np.linalg.lstsq(balance, np.append(np.zeros(size), 1.0), rcond=None)[0]
    return 1.0 - float(steady[0])


def ipc_variation(
    stall_probability: float, stall_cycles: float, warps: int, rng: np.random.Generator, samples: int = 10_000
) -> Float64[np.ndarray, " sample"]:
    """IPC over its average when every warp's M is drawn from N(mu, 0.1 mu / 1.96) (Lemma 4.1, Figure 5)."""
    drawn = rng.normal(stall_cycles, 0.1 * stall_cycles / 1.96, (samples, warps))
    ipc = markov_ipc(stall_probability, np.maximum(drawn, 1.0))
    return ipc / ipc.mean()
