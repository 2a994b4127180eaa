"""Sampling on the real engine: what joins `sampling/`, which knows arrays alone, to executor and timing engine."""

from abstim.study.sample.inside import INSIDE
from abstim.study.sample.methods import METHODS, Known
from abstim.study.sample.sample_result import Comparison, SampleResult
from abstim.study.sample.sampler import compare, sample

__all__ = ["INSIDE", "METHODS", "Comparison", "Known", "SampleResult", "compare", "sample"]
