"""Programs that JAX has compiled, kept on disk between runs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jax

from functional.keep.folder import cache_dir, make_folder


@contextmanager
def kept_programs() -> Iterator[None]:
    """JAX keeps compiled programs on disk, in its own way; what the caller has configured stays."""
    folder = cache_dir("jax")
    with suppress(OSError):  # one that cannot be made costs time
        make_folder(folder)
    wanted = {
        "jax_compilation_cache_dir": str(folder),
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
