"""Sampling on the real engine: what joins `sampling/`, which knows arrays alone, to executor and timing engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abstim.study.sample.methods import METHODS, Known

if TYPE_CHECKING:
    from abstim.study.sample.inside import INSIDE
    from abstim.study.sample.sample_result import Comparison, SampleResult
    from abstim.study.sample.sampler import compare, sample

__all__ = ["INSIDE", "METHODS", "Comparison", "Known", "SampleResult", "compare", "sample"]
_MODULES = {"INSIDE": "inside", "Comparison": "sample_result", "SampleResult": "sample_result"}


def __getattr__(name: str) -> Any:
    """What is exported, when it is first asked for: the table of methods alone loads no engine."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'sampler')}"), name)
