"""How far a long stage is, told to whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # what is done, steps finished, steps in all


def silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""
