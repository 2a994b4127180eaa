"""Cycles of finished jobs, kept on disk as they come: one SQLite file a version of the engine.

Every batch is a transaction, so a sweep that is killed loses the batches in flight and nothing else. Keys are hashes of
all that the engine reads (`jobs.py`): whichever sweep asks for a job next has its cycles.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from functional.keep.folder import cache_dir, make_folder
from functional.terminal import note

MOST_BYTES = 1 << 30  # of the file
_KEYS_A_QUERY = 500


def store_path(version: str) -> Path:
    """The file of a version of a model. It can be deleted at any time."""
    return cache_dir("explore") / f"{version}.sqlite"


class Store:
    """Job key -> cycles. A file that cannot be used costs time, not correctness: it is said on stderr."""

    def __init__(self, version: str) -> None:
        """Open or create the file of a version."""
        self._path = store_path(version)
        try:
            make_folder(self._path.parent)
            if self._path.is_file() and self._path.stat().st_size > MOST_BYTES:
                self._path.unlink()  # begun anew: there is no telling which rows are of use
            self._database = _open(self._path)
        except (OSError, sqlite3.DatabaseError) as error:
            self._replace(error)

    def known(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Cycles of those jobs that are done."""
        found: dict[bytes, int] = {}
        try:
            for first in range(0, len(keys), _KEYS_A_QUERY):
                part = keys[first : first + _KEYS_A_QUERY]
                marks = ",".join("?" * len(part))
                rows = self._database.execute(f"SELECT * FROM checked WHERE key IN ({marks})", part)
                found |= {key: _checked(key, cycles, check_sum) for key, cycles, check_sum in rows}
        except sqlite3.DatabaseError as error:
            self._replace(error)
            return {}
        return found

    def add(self, results: Iterable[tuple[bytes, int]]) -> None:
        """Keep a batch, whole or not at all."""
        try:
            with self._database:
                rows = ((key, cycles, _check_sum(key, cycles)) for key, cycles in results)
                self._database.executemany("INSERT OR IGNORE INTO checked VALUES (?, ?, ?)", rows)
        except sqlite3.DatabaseError as error:
            self._replace(error)

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _replace(self, error: Exception) -> None:
        """Go on without the file: a damaged one is deleted, one that cannot be written is left alone."""
        if isinstance(error, (OSError, sqlite3.OperationalError)):
            note(f"cache: cannot keep results in {self._path}: {error}; a killed sweep will start again")
        else:
            note(f"cache: {self._path} is damaged ({error}) and deleted; its points are timed again")
            self._path.unlink(missing_ok=True)
        self._database = _open(Path(":memory:"))


def _check_sum(key: bytes, cycles: int) -> bytes:
    """SQLite does not tell when bits of a row change."""
    return sha256(key + str(cycles).encode()).digest()[:8]


def _checked(key: bytes, cycles: int, check_sum: bytes) -> int:
    """The cycles of a row. Raises DatabaseError if they are not those that were kept."""
    if not isinstance(key, bytes) or check_sum != _check_sum(key, cycles):
        raise sqlite3.DatabaseError("the checksum of a row differs")
    return cycles


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=60)
    try:
        database.execute("PRAGMA journal_mode = WAL")  # of several sweeps one can write while others read
        database.execute("PRAGMA synchronous = NORMAL")
        with database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS checked "
                "(key BLOB PRIMARY KEY, cycles INTEGER NOT NULL, check_sum BLOB NOT NULL) WITHOUT ROWID"
            )
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database
