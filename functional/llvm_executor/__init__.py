"""The LLVM executor of PTX: a kernel as machine code, one warp as vectors of 32 lanes. The fast one."""

from functional.llvm_executor.run import LlvmExecutor

__all__ = ["LlvmExecutor"]
