"""The computer that this runs on: its main memory, and the threads to use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from functional.errors import refuse


@cache
def memory_bytes() -> int:
    """Main memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 34


_chosen: list[int] = []  # by `so_many_threads`, the last one counts


@contextmanager
def so_many_threads(count: int) -> Iterator[None]:
    """As if ABSTIM_THREADS were `count`. Raises InputError if that is no number of threads."""
    refuse(count < 1, f"{count} is not a number of threads, 1 or more")
    _chosen.append(count)
    try:
        yield
    finally:
        _chosen.pop()


def default_threads() -> int:
    """ABSTIM_THREADS, else the CPUs this process may use. Raises InputError if the environment's value is no count."""
    if _chosen:
        return _chosen[-1]
    if not (text := os.environ.get("ABSTIM_THREADS", "")):
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    refuse(not text.isdecimal() or int(text) < 1, f"ABSTIM_THREADS = {text!r} is not a number of threads, 1 or more")
    return int(text)
