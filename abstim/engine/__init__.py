"""The timing engine: a launch's trace and latency table in, cycles out, on any number of design points."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abstim.engine.kept_caches import Caches
    from abstim.engine.simulation import EngineResult, LaunchInputs, Simulation, simulate_point

__all__ = ["Caches", "EngineResult", "LaunchInputs", "Simulation", "simulate_point"]


def __getattr__(name: str) -> Any:
    """What is exported, when it is first asked for: who needs a number of the rules loads no engine."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'kept_caches' if name == 'Caches' else 'simulation'}"), name)
