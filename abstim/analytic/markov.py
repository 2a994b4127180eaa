"""TBPoint's Markov chain (IPDPS 2014, Section IV-A): IPC of a scheduler whose warps stall at random.

A warp that can run stalls with probability p an instruction; one that is stalled can run again with probability 1 / M a
cycle. The warps are independent, so that the chain of 2^N states factors: warp i is stalled with probability
p M_i / (1 + p M_i), and the scheduler idles when all are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Float

MOST_WARPS = 64  # of a scheduler
SAMPLES = 10_000  # of the Monte Carlo
SPREAD = 0.1 / 1.96  # standard deviation of M over its mean: 95 % of all M lie within 10 %


def ipc(stall_probability: Float[Array, "*point"], stall_cycles: Float[Array, "*point warp"]) -> Float[Array, "*point"]:
    """Steady-state IPC, warps on the last axis: 1 - prod_i(p M_i / (1 + p M_i))."""
    stalled = jnp.asarray(stall_probability)[..., None] * stall_cycles
    return 1 - jnp.prod(stalled / (1 + stalled), axis=-1)


def ipc_one_issue(
    stall_cycles_an_instruction: Float[Array, "*point"], warps: Float[Array, "*point"]
) -> Float[Array, "*point"]:
    """IPC of a scheduler of which only the warp that issues can stall.

    In the chain above every warp that can run moves on in every cycle, issued or not. Here those not issued keep
    waiting: a closed queue of one server and N sources, whose server idles with the probability of Erlang's loss
    formula B(N, p M), whatever the distribution of stalls. `warps` need not be whole.
    """
    offered = stall_cycles_an_instruction
    start = warps - jnp.floor(warps)
    blocked = offered / (offered + start)

    def step(n, blocked):
        more = offered * blocked / (start + n + offered * blocked)
        return jnp.where(start + n <= warps + 1e-3, more, blocked)

    return 1 - jax.lax.fori_loop(1, MOST_WARPS + 1, step, blocked)


def transition_matrix(stall_probability: float, stall_cycles: Float[np.ndarray, " warp"]) -> Float[np.ndarray, "i j"]:
    """The paper's T (equation 3), 2^N x 2^N. Bit x of a state, from the most significant on, is 1 if warp x can run."""
    matrix = np.ones((1, 1))
    for cycles in stall_cycles:
        warp = np.array([[1 - 1 / cycles, 1 / cycles], [stall_probability, 1 - stall_probability]])
        matrix = np.kron(matrix, warp)
    return matrix


def steady_state(matrix: Float[np.ndarray, "i i"]) -> Float[np.ndarray, " i"]:
    """The distribution that the matrix leaves as it is. State 0 of the paper: every warp is stalled."""
    size = len(matrix)
    equations = np.vstack([matrix.T - np.eye(size), np.ones(size)])
    return np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)[0]


def sampled_ipc(
    stall_probability: float, mean_stall_cycles: float, warps: int, samples: int = SAMPLES, seed: int = 0
) -> Float[np.ndarray, " sample"]:
    """The paper's Monte Carlo: IPC of a homogeneous interval whose M are drawn from N(mu, 0.1 mu / 1.96)."""
    generator = np.random.default_rng(seed)
    cycles = generator.normal(mean_stall_cycles, SPREAD * mean_stall_cycles, (samples, warps))
    stalled = stall_probability * np.maximum(cycles, 1.0)
    return 1 - np.prod(stalled / (1 + stalled), axis=1)
