"""The analytic path: a launch summarised once, then cycles of a design point from a smooth function, in microseconds.

summary, predictions = summarize(given_of(table, trace), timed_code(program, table, gpu), shape, Asking(points))
predict(summary, points)  # on points like these; `analytic_cycles` of `as_arrays` for jit, vmap or grad"""

from abstim.analytic.model import BOUNDS, Summary, analytic_cycles, as_arrays
from abstim.analytic.point import Point, points_of
from abstim.analytic.predictions import predict, summaries, whole_cycles
from abstim.analytic.summary import Asking, given_of, summarize, timed_code

__all__ = [
    "BOUNDS", "Asking", "Point", "Summary", "analytic_cycles", "as_arrays", "given_of", "points_of", "predict",
    "summaries", "summarize", "timed_code", "whole_cycles",
]  # fmt: skip
