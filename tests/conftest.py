"""Tests keep their caches apart from the user's; compiled engines outlive a test run, and no two workers compile the
same one. A busy machine makes no test fail."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".pytest_cache" / "abstim"
os.environ["ABSTIM_CACHE"] = str(CACHE)
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # compiling takes longer than running what tests run
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands that tests start would compile all sources, each time
os.environ["ABSTIM_PROGRESS_SECONDS"] = "1000000"  # a slow machine prints no more than a fast one

import pytest  # noqa: E402  after the cache is known
from hypothesis import settings  # noqa: E402
from nightly import NIGHTLY  # noqa: E402

from functional.jit import machine_code  # noqa: E402
from functional.jit.machine_code import FEW_PASSES, Native, Staged, assembled  # noqa: E402
from functional.keep import folder  # noqa: E402

# `make test` tries the same random examples every time; `make nightly` tries others
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("same")


def _quickly_assembled(text: str, passes: tuple[str, ...] = FEW_PASSES, level: int = 0) -> bytes:
    """The two hundred kinds of engines that tests ask for run a second in all: optimising them takes five minutes.
    Commands that tests start, and `make nightly`, run what users run."""
    return assembled(text, passes, level)


if not NIGHTLY:
    machine_code.assembled = _quickly_assembled

if "PYTEST_XDIST_WORKER" in os.environ:

    def _one_worker_compiles(kind: type) -> None:
        """The second worker to need some machine code waits for the first, and reads what that has kept."""
        object_code = kind.object_code

        def locked(native: Native | Staged, *arguments: tuple) -> bytes:
            CACHE.mkdir(parents=True, exist_ok=True)
            with open(CACHE / f"{native._name}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return object_code(native, *arguments)

        kind.object_code = locked

    _one_worker_compiles(Native)
    _one_worker_compiles(Staged)


COMPILES = "test_simulation.py"  # needs the engine at once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What compiles the engine comes first, then what needs none: one worker compiles while the other tests. All else
    by files, those with the most tests first."""
    tests = Counter(item.path for item in items)
    kinds = {path: _kind(path) for path in tests}
    items.sort(key=lambda item: (kinds[item.path], -tests[item.path], item.path))


def _kind(path: Path) -> int:
    return 0 if path.name == COMPILES else 2 if "abstim" in path.read_text(encoding="utf-8") else 1


@pytest.fixture(autouse=True)
def _nothing_said():
    """What is said once a process is said once a test."""
    folder._told.clear()
