"""The analytic path: a launch summarised once, then cycles of a design point from a smooth function, in microseconds.

summary = summarize(launch, table, trace, registers_per_thread, gpu)
prediction = predict([summary], points_of(gpus))  # `analytic_cycles` of `as_arrays` for jit, vmap or grad
"""

from abstim.analytic.model import BOUNDS, analytic_cycles
from abstim.analytic.point import Point, points_of
from abstim.analytic.predictions import predict, predict_points, summaries, whole_cycles
from abstim.analytic.summary import Summary, as_arrays, summarize

__all__ = [
    "BOUNDS", "Point", "Summary", "analytic_cycles", "as_arrays", "points_of", "predict", "predict_points",
    "summaries", "summarize", "whole_cycles",
]  # fmt: skip
