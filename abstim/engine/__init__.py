"""The timing engine: a launch's trace and latency table in, cycles out, on any number of design points."""

from abstim.engine.inputs import EngineResult, LaunchInputs
from abstim.engine.kept_caches import Caches
from abstim.engine.simulation import Simulation, simulate, simulate_point

__all__ = ["Caches", "EngineResult", "LaunchInputs", "Simulation", "simulate", "simulate_point"]
