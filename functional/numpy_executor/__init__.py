"""The NumPy executor of PTX: all warps at one basic block in one array operation an instruction. The oracle."""

from functional.numpy_executor.run import NumpyExecutor

__all__ = ["NumpyExecutor"]
