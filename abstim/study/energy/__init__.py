"""Energy of a launch: what the detailed model counts, times energies fitted to measured power."""
