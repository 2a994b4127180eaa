"""Kernel time as a function one can differentiate: record a run of the engine, replay it at other latencies."""

from abstim.gradient.recorded_kernel import Recording, record_launch

__all__ = ["Recording", "record_launch"]
