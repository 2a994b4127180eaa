"""Loops over a trace as machine code, and JAX programs, both kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba

from functional.disk.folder import cache_dir


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


@contextmanager
def persistent_programs() -> Iterator[None]:
    """Keep compiled JAX programs on disk, without changing what the caller has configured."""
    import jax

    wanted = {
        "jax_compilation_cache_dir": str(cache_dir("jax")),
        "jax_persistent_cache_min_compile_time_secs": 1.0,
        "jax_enable_x64": False,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    try:
        for name, value in wanted.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
