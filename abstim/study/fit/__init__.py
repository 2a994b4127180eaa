"""Latencies of a GPU from measured cycles."""

from abstim.study.fit.driver import fit
from abstim.study.fit.result import Fit

__all__ = ["Fit", "fit"]
