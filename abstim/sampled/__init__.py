"""Sampling on the real engine: what joins `sampling/`, which knows arrays alone, to executor and timing engine."""

from abstim.sampled.driver import compare, sample
from abstim.sampled.inside import INSIDE
from abstim.sampled.methods import METHODS, Known
from abstim.sampled.result import Comparison, SampleResult

__all__ = ["INSIDE", "METHODS", "Comparison", "Known", "SampleResult", "compare", "sample"]
