"""Our own micro-benchmarks, on a description or on the GPU itself, beside figures measured in public."""
