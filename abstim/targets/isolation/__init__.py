"""Kernels of strangers executed where they can do nothing but compute."""
