"""Kernels of strangers executed where they can do nothing but compute."""

from abstim.target.isolation.isolated_executor import IsolatedExecutor

__all__ = ["IsolatedExecutor"]
