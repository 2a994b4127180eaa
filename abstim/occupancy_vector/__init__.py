"""The occupancy-vector engine: what warps wait for, simulated for many SMs and design points at once, in JAX."""
