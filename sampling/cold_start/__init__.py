"""The cold-start problem of sampled launches: how large it is, and what to do about it (thesis, 2024)."""

from sampling.cold_start.correction import Correction, evenly_used_controllers
from sampling.cold_start.latency import Blrl, Mrrl
from sampling.cold_start.launch_reuse import affected_share, backward_reuse, footprint, forward_reuse, ipc_difference
from sampling.cold_start.warm_up import WarmUp

__all__ = [
    "Blrl",
    "Correction",
    "Mrrl",
    "WarmUp",
    "affected_share",
    "backward_reuse",
    "evenly_used_controllers",
    "footprint",
    "forward_reuse",
    "ipc_difference",
]
