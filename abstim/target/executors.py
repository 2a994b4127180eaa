"""Which executor runs kernels here: the default one, or, for those it should not trust, one in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from functional.errors import InputError
from functional.executor import Executor
from functional.program import Program

ISOLATE = "ABSTIM_ISOLATE"  # an environment variable: one of the following; processes that this one starts see it, too
NONE, ALL, FOREIGN = "0", "1", "foreign"  # kernels; foreign are those that did not come along with abstim
_ROOT = Path(__file__).parents[2]
_OURS = (_ROOT / "functional", _ROOT / "abstim")


def chosen_executor() -> Executor:
    """One a process: it keeps machine code and buffers. Raises InputError if isolation is asked for and impossible."""
    which = os.environ.get(ISOLATE) or NONE
    if which not in (NONE, ALL, FOREIGN):
        raise InputError(f"{ISOLATE} = {which!r} is none of {NONE}, {ALL}, {FOREIGN}")
    return _plain() if which == NONE else _isolated(which)


@contextmanager
def isolating(asked: bool | None) -> Iterator[None]:
    """A command's choice, as long as it runs: all kernels, none, or (None) what the environment says, else foreign ones
    where this system can. Raises InputError if all are asked for, and it cannot."""
    from abstim.target.isolation.restrict import missing, refuse_where_impossible

    before = os.environ.get(ISOLATE)
    if asked or (before == ALL and asked is None):
        refuse_where_impossible()
    if asked is not None or not before:
        os.environ[ISOLATE] = ALL if asked else NONE if asked is not None or missing() else FOREIGN
    try:
        yield
    finally:
        os.environ.pop(ISOLATE, None)
        if before is not None:
            os.environ[ISOLATE] = before


def came_along(program: Program) -> bool:
    """Is it a kernel of the suite or of the workloads?"""
    return any(Path(program.path).resolve().is_relative_to(folder) for folder in _OURS)


def _plain() -> Executor:
    from functional.default_executor import default_executor  # not imported where nothing is executed

    return default_executor()


@cache
def _isolated(which: str) -> Executor:
    from abstim.target.isolation.isolated_executor import IsolatedExecutor
    from functional.llvm_executor import LlvmExecutor

    return IsolatedExecutor(LlvmExecutor(), came_along if which == FOREIGN else lambda program: False)
