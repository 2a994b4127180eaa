"""Whole CUDA programs: run as they are, their kernels executed and timed (docs/applications.md)."""
