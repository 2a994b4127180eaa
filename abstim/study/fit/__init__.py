"""Latencies of a GPU from measured cycles."""

from abstim.study.fit.fitted import Fit
from abstim.study.fit.solve import fit

__all__ = ["Fit", "fit"]
