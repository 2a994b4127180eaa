"""The dynamic trace of a launch, and how its records are packed."""
