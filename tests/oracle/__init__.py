"""Scalar, literal transcriptions that the engines must equal: docs/timing-rules.md and GATSim's Algorithm 1.

Written from the pages, one statement a rule, with dictionaries and sets where the engines have rings and bit masks.
"""

from oracle.algorithm_1 import algorithm_1
from oracle.grid import simulate

__all__ = ["algorithm_1", "simulate"]
