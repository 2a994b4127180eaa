"""Sampling that chooses for the user: how much to simulate follows from the error that is asked for."""

from sampling.auto.interpolation import Parts, PointFactors, few_points, read_off
from sampling.auto.iterations import IterationSampling, Timed
from sampling.auto.kernel_sample import ProgramWork
from sampling.auto.launch_sampling import LaunchSampling
from sampling.auto.reuse import TimedSelection, error_of_parts, ratio, timed_selection
from sampling.auto.segment_simulation import Batch, Beginning, cut_into_segments
from sampling.auto.segments import SegmentSampling, has_giants

__all__ = [
    "Batch",
    "Beginning",
    "IterationSampling",
    "LaunchSampling",
    "Parts",
    "PointFactors",
    "ProgramWork",
    "SegmentSampling",
    "Timed",
    "TimedSelection",
    "cut_into_segments",
    "error_of_parts",
    "few_points",
    "has_giants",
    "ratio",
    "read_off",
    "timed_selection",
]
