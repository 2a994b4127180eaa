"""The timing engine: a launch's trace and latency table in, cycles out, on any number of design points."""

from abstim.engine.inputs import EngineResult, LaunchInputs
from abstim.engine.kept_caches import Caches
from abstim.engine.simulate import simulate

__all__ = ["Caches", "EngineResult", "LaunchInputs", "simulate"]
