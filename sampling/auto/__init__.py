"""Sampling that chooses for the user: how much to simulate follows from the error that is asked for."""

from sampling.auto.interpolation import PairCycles, few_points, read_off
from sampling.auto.iterations import IterationSampling, Timed
from sampling.auto.launches import LaunchSampling, ProgramWork, TimedSelection, multiples, ratio, timed_selection
from sampling.auto.segment_simulation import Batch, Beginning, cut_into_segments
from sampling.auto.segments import SegmentSampling, has_giants
from sampling.auto.surface import Pair, Pairs

__all__ = [
    "Batch",
    "Beginning",
    "IterationSampling",
    "LaunchSampling",
    "Pair",
    "PairCycles",
    "Pairs",
    "ProgramWork",
    "SegmentSampling",
    "Timed",
    "TimedSelection",
    "cut_into_segments",
    "few_points",
    "has_giants",
    "multiples",
    "ratio",
    "read_off",
    "timed_selection",
]
