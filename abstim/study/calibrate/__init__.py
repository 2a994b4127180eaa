"""Our own micro-benchmarks, on a description or on the GPU itself, beside figures measured in public."""

from abstim.study.calibrate.calibration import Calibration, at_measured_clock, calibrate

__all__ = ["Calibration", "at_measured_clock", "calibrate"]
