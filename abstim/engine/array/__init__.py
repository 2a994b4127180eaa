"""The engine as one array program over all SMs of all design points, for accelerators and wide searches."""

from abstim.engine.array.run import simulate_points

__all__ = ["simulate_points"]
