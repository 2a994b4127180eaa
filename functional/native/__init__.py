"""Traces from a real GPU: kernels instrumented to write down what they do, and their notes turned into a trace."""

from functional.native.device import Device
from functional.native.instrument import instrument
from functional.native.record import record

__all__ = ["Device", "instrument", "record"]
