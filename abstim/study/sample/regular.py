"""Launches of which one tells of others: thread blocks that do alike, and so many that chance evens out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from abstim.session.warm_up import EMPTY
from abstim.study.sample.profiling import data_decide
from abstim.study.sample.sampled_program import SampledProgram

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int64

# Warp instructions an SM. Of six kinds of launches of ResNet-152, five each, those of so many lasted as long as each
# other within 0.2 to 0.5 % on the GTX 480 and 0.2 to 1.2 % on the RTX 3070 (standard deviations), smaller ones within
# 0.3 to 2 % and 0.4 to 6 %
LARGE_INSTRUCTIONS = 20_000


def regular(program: SampledProgram, asked: Bool[np.ndarray, " launch"]) -> Bool[np.ndarray, " launch"]:
    """Those `asked` for whose thread blocks do alike, whatever the data, and wait for no other thread block."""
    found, kernels = asked & (program.launches.signatures is not None), dict[str, bool]()
    for number in np.flatnonzero(found).tolist():  # a stream makes each launch as it is looked at
        launch = program.case.launches[number]
        name = launch.program.name
        if name not in kernels:
            kernels[name] = not data_decide(launch.program)
        found[number] = kernels[name] and launch.cluster.total == 1 and not launch.grid_workspace
    return found


def large(program: SampledProgram, instructions: Float64[np.ndarray, " launch"]) -> Bool[np.ndarray, " launch"]:
    """Launches of so many warp instructions that chance evens out."""
    return np.asarray(instructions >= program.gpu.spec.sm_count * LARGE_INSTRUCTIONS)


def lasting_alike(
    program: SampledProgram, kinds: Int64[np.ndarray, " launch"], instructions: Float64[np.ndarray, " launch"]
) -> Int64[np.ndarray, " launch"]:
    """Equal where launches of one of the `kinds`, which do the same, last as long too: not where the launch before
    decides what they find in the caches."""
    alike = regular(program, large(program, instructions) & (program.warm_up.name == EMPTY))
    own = kinds.max() + 1 + np.arange(len(kinds))
    return np.unique(np.where(alike, kinds, own), return_inverse=True)[1].reshape(-1)
