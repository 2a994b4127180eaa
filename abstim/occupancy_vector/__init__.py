"""The occupancy-vector engine: what warps wait for, simulated an item at a time, compiled or as a JAX program."""
