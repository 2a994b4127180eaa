"""Launches: kernels with their arguments, on the contents of device memory."""
