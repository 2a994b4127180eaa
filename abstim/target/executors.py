"""Which executor runs kernels here: the default one, or, where isolation is asked for, that in a process of its own."""

from __future__ import annotations

import os
from functools import cache

from functional.errors import InputError
from functional.executor import Executor

ISOLATE = "ABSTIM_ISOLATE"  # an environment variable: 1 isolates, in processes that this one starts, too


def chosen_executor() -> Executor:
    """One a process: it keeps machine code and buffers. Raises InputError if isolation is asked for and impossible."""
    return _isolated() if isolating() else _default()


def isolating() -> bool:
    """Is isolation asked for? Raises InputError for a value of ISOLATE that is neither 0 nor 1."""
    text = os.environ.get(ISOLATE, "0")
    if text not in ("", "0", "1"):
        raise InputError(f"{ISOLATE} = {text!r} is neither 0 nor 1")
    return text == "1"


def _default() -> Executor:
    from functional.default_executor import default_executor  # not imported where nothing is executed

    return default_executor()


@cache
def _isolated() -> Executor:
    from abstim.target.isolation import IsolatedExecutor
    from functional.llvm_executor import LlvmExecutor

    return IsolatedExecutor(LlvmExecutor())
