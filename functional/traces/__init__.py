"""The dynamic trace of a launch, how its records are packed, and traces on disk."""
