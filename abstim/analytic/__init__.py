"""The analytic path: a launch summarised once, then cycles of a design point from a smooth function, in microseconds.

summary = summarize(launch, table, trace, registers_per_thread, gpu)
prediction = predict(summary, points_of(gpus))            # `analytic_cycles` for one point, inside jit, vmap or grad
"""

from abstim.analytic.model import BOUNDS, Prediction, analytic_cycles, predict
from abstim.analytic.point import Point, points_of
from abstim.analytic.predictions import predict_points, summaries, whole_cycles
from abstim.analytic.summary import Summary, summarize

__all__ = [
    "BOUNDS", "Point", "Prediction", "Summary", "analytic_cycles", "points_of", "predict", "predict_points",
    "summaries", "summarize", "whole_cycles",
]  # fmt: skip
