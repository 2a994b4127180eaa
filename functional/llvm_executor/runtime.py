"""The run time: all routines as one LLVM module, compiled once and kept."""

from __future__ import annotations

from functional.jit import native
from functional.llvm_executor import (  # noqa: F401 - to load their routines
    runtime_access,
    runtime_atomics,
    runtime_matrices,
    runtime_races,
    runtime_schedule,
    runtime_stack,
    runtime_streams,
)
from functional.llvm_executor.emit import ATTRIBUTES

PACKAGE = "functional.llvm_executor"


def exported() -> tuple[str, ...]:
    """Names of the routines that kernels and Python call."""
    return native.exported(PACKAGE)


def text() -> str:
    """IR of the module."""
    return f"{native.text(PACKAGE)}\n{ATTRIBUTES}\n"
