"""Loops over a trace as machine code, kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from abstim.cache import cache_dir


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, without the interpreter lock, and keep the code for later processes.

    The folder's name holds the sources: the compiler's own check does not see a constant change in another file.
    """
    files = [*Path(__file__).parent.glob("*.py"), Path(__file__).parents[2] / "precharacterize" / "classify.py"]
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in sorted(files))).hexdigest()[:16]
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_dir("analytic") / digest)
    try:
        return numba.njit(cache=True, nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = previous
