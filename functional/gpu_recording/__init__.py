"""Traces from a real GPU: kernels instrumented to write down what they do, and their notes turned into a trace."""

from functional.gpu_recording.record import instrument, record

__all__ = ["instrument", "record"]
