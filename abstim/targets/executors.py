"""Which executor runs kernels here: the default one, or, for those it should not trust, one in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from functional.errors import InputError
from functional.execution.executor import Executor
from functional.programs.program import Program

if TYPE_CHECKING:
    from functional.execution.default_executor import StrictExecutor
    from functional.llvm_executor import LlvmExecutor

ISOLATE = "ABSTIM_ISOLATE"  # an environment variable: one of the following
NONE, ALL, FOREIGN = "0", "1", "foreign"  # kernels; foreign are those that did not come along with abstim
_ROOT = Path(__file__).parents[2]
_OURS = (_ROOT / "functional", _ROOT / "abstim")
_chosen: list[str] = []  # by the commands that run, the last one counts


def chosen_executor(strict: bool = False) -> Executor:
    """One a process: it keeps machine code and buffers. `strict`: one that refuses what no GPU promises.

    Raises InputError if isolation is asked for and impossible.
    """
    which = isolated()
    if which not in (NONE, ALL, FOREIGN):
        raise InputError(f"{ISOLATE} = {which!r} is none of {NONE}, {ALL}, {FOREIGN}")
    return _inner(strict) if which == NONE else _isolated(which, strict)


def isolated() -> str:
    """Which kernels are isolated: the command's choice, else what the environment says."""
    return _chosen[-1] if _chosen else os.environ.get(ISOLATE) or NONE


def inherited() -> dict[str, str]:
    """The environment in which a process that this one starts has the command's choice, too."""
    return {ISOLATE: _chosen[-1]} if _chosen else {}


@contextmanager
def isolating(asked: bool | None) -> Iterator[None]:
    """A command's choice, as long as it runs: all kernels, none, or (None) what the environment says, else foreign ones
    where this system can. Raises InputError if all are asked for, and it cannot."""
    from abstim.targets.isolation.restrict import missing, refuse_where_impossible

    before = os.environ.get(ISOLATE)
    if asked or (before == ALL and asked is None):
        refuse_where_impossible()
    by_default = before or (NONE if missing() else FOREIGN)
    _chosen.append(by_default if asked is None else ALL if asked else NONE)
    try:
        yield
    finally:
        _chosen.pop()


def name_of(executor: Executor | None) -> str:
    """What an executor is called in the names of kept executions: where it runs decides nothing."""
    return type(getattr(executor, "inner", executor)).__name__


def came_along(program: Program) -> bool:
    """Is it a kernel of the suite or of the workloads?"""
    return any(Path(program.path).resolve().is_relative_to(folder) for folder in _OURS)


@cache
def _inner(strict: bool) -> LlvmExecutor | StrictExecutor:
    from functional.execution.default_executor import (
        StrictExecutor,
        default_executor,  # not imported where nothing is executed
    )

    return StrictExecutor() if strict else default_executor()


@cache
def _isolated(which: str, strict: bool) -> Executor:
    from abstim.targets.isolation.isolated_executor import IsolatedExecutor

    return IsolatedExecutor(_inner(strict), came_along if which == FOREIGN else lambda program: False)
