"""Latencies of a GPU from measured cycles."""

from abstim.fit.driver import fit
from abstim.fit.result import Fit

__all__ = ["Fit", "fit"]
