"""The executor that is used unless another one is asked for."""

from __future__ import annotations

from functools import cache

from functional.llvm_executor import LlvmExecutor


@cache
def default_executor() -> LlvmExecutor:
    """One a process: it keeps machine code and buffers."""
    return LlvmExecutor()
