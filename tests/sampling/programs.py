"""Programs of many launches with known cycles: kernels, drifting shapes, phases and noise."""

from __future__ import annotations

import numpy as np

from sampling.nsight import METRICS
from sampling.selection import Profile


def program(seed: int, launches: int = 400, kernels: int = 5, noise: float = 0.05, profile_noise: float = 0.02):
    """A profile (as measured on another machine) and the true cycles of every launch on the simulated one.

    Each kernel has its own mix of instructions and CPI, which falls with size; sizes take a few values and drift.
    """
    rng = np.random.default_rng([9, seed])
    kernel = rng.integers(kernels, size=launches)
    base = rng.uniform(2e4, 2e6, kernels)
    scale = rng.choice([1.0, 1.0, 2.0, 4.0, 16.0], launches) * (1 + 0.2 * np.arange(launches) / launches)
    blocks = np.maximum((base[kernel] / 2e3 * scale).round(), 1)
    threads = rng.choice([64, 128, 256], kernels)[kernel]
    instructions = blocks * 2e3 * rng.uniform(0.99, 1.01, launches)
    mix = rng.dirichlet(np.ones(9), kernels)[kernel]
    cpi = (rng.uniform(0.02, 0.1, kernels)[kernel]) * (1 + 30 / (30 + blocks))
    ideal = cpi * instructions
    true = ideal * rng.lognormal(-(noise**2) / 2, noise, launches)
    seen = 1.3 * true * rng.lognormal(-(profile_noise**2) / 2, profile_noise, launches)
    counts = mix * instructions[:, None]
    names = [name for name in METRICS if name not in ("instructions", "divergence_efficiency", "thread_blocks")]
    columns = dict(zip(names, counts.T, strict=True))
    columns |= {"instructions": instructions, "divergence_efficiency": 32 * mix[:, 0], "thread_blocks": blocks}
    profile = Profile(
        instructions=instructions,
        kernels=kernel,
        thread_instructions=instructions * 32,
        memory_requests=counts[:, 0] + counts[:, 1],
        thread_blocks=blocks.astype(np.int64),
        threads_per_block=threads,
        block_size_variation=np.zeros(launches),
        features=np.stack([columns[name] for name in METRICS], axis=1),
        basic_blocks=np.hstack([counts, np.eye(kernels)[kernel] * instructions[:, None]]),
        cycles=seen,
    )
    return profile, true
