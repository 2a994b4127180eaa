"""Keeping compiled code on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

import functional.trace
import precharacterize.classify
from abstim.cache import cache_dir

# Arrays belong to the caller throughout: counting references to them took three quarters of the run time. A call hands
# over 60 words of array descriptions, half of the rest: everything is inlined but what runs long.
jit = numba.njit(_nrt=False, forceinline=True)
outlined = numba.njit(_nrt=False)


def sources_digest() -> str:
    """Of every file whose constants or functions end up in the compiled code.

    The compiler's own check sees a change in the decorated function's file alone.
    """
    constants = (functional.trace, precharacterize.classify)
    files = [*Path(__file__).parent.glob("*.py"), *(Path(str(module.__file__)) for module in constants)]
    return hashlib.sha256(b"".join(f.read_bytes() for f in sorted(files))).hexdigest()[:16]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, release the interpreter lock, and keep the machine code for later processes."""
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_dir("engine") / sources_digest())
    try:
        return numba.njit(cache=True, nogil=True, _nrt=False)(function)
    finally:
        numba.config.CACHE_DIR = previous
