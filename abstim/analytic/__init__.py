"""The analytic path: a launch looked at once, then cycles of a design point from a smooth function, in microseconds.

launches = summaries(session, gpu)
predictions = predict(launches[0], points_of(gpus))  # `analytic_cycles` of `as_arrays` for jit, vmap or grad"""

from abstim.analytic.model import BOUNDS, Summary, analytic_cycles, as_arrays
from abstim.analytic.point import Point, points_of
from abstim.analytic.predictions import predict, summaries, whole_cycles

__all__ = [
    "BOUNDS", "Point", "Summary", "analytic_cycles", "as_arrays", "points_of", "predict", "summaries", "whole_cycles",
]  # fmt: skip
