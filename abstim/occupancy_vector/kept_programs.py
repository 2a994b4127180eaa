"""Programs that JAX has compiled, kept on disk between runs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

import jax

from functional.keep.folder import cache_dir, make_folder

_changing = Lock()
_before: list[dict[str, Any]] = []  # one for each who is inside; the first has what the caller had configured


@contextmanager
def kept_programs() -> Iterator[None]:
    """JAX keeps compiled programs on disk, in its own way, and counts in 32 bits; what the caller has configured stays,
    whoever else is inside meanwhile: threads share all but the bits."""
    folder = cache_dir("jax")
    with suppress(OSError):  # one that cannot be made costs time
        make_folder(folder)
    wanted = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 1.0}
    with _changing:
        _before.append({name: getattr(jax.config, name) for name in wanted})
        _configure(wanted)
    try:
        with jax.enable_x64(False):
            yield
    finally:
        with _changing:
            before = _before.pop()
            if not _before:
                _configure(before)


def _configure(values: dict[str, Any]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
