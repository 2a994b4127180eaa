"""Sampling on the real engine: what joins `sampling/`, which knows arrays alone, to executor and timing engine."""
