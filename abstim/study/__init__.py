"""Questions that take many runs: validation, sweeps, fits, samples, cold start, abstim's own speed."""
