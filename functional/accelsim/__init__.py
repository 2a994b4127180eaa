"""Accel-Sim's NVBit traces: read as launches with their traces, and written from our own executor."""

from functional.accelsim.read import read
from functional.accelsim.static_code import Opcodes
from functional.accelsim.trace_files import is_trace
from functional.accelsim.write import write

__all__ = ["Opcodes", "is_trace", "read", "write"]
