"""PKA (Baddouh et al., MICRO 2021): principal kernels, two-level profiling, projection inside a launch."""

from sampling.pka.features import METRICS, features, read_nsight_compute
from sampling.pka.pka import Pka
from sampling.pka.pkp import Pkp
from sampling.pka.pks import Pks
from sampling.pka.two_level_profiling import LightProfile, TwoLevel, read_nsight_systems

__all__ = [
    "METRICS",
    "LightProfile",
    "Pka",
    "Pkp",
    "Pks",
    "TwoLevel",
    "features",
    "read_nsight_compute",
    "read_nsight_systems",
]
