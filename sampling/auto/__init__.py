"""Sampling that chooses for the user: how much to simulate follows from the error that is asked for."""

from sampling.auto.launch_sampling import LaunchSampling, ProgramWork
from sampling.auto.segments import SegmentSampling, cut_into_segments

__all__ = ["LaunchSampling", "ProgramWork", "SegmentSampling", "cut_into_segments"]
