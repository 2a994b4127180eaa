"""The files a report can be made of, recognised by what they hold, never by their name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from functional.errors import InputError

if TYPE_CHECKING:
    import pandas

# the key "kind" of a JSON result
KINDS = (
    "run", "runs", "validate", "bench", "explore", "sample", "sample-comparison", "coldstart", "advice",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One file: `data` is the JSON object, or a table for a sweep."""

    kind: str
    name: str
    data: Any


def read_source(path: Path) -> Source:
    """A result file. Raises InputError if it cannot be read or is none that abstim writes."""
    readers: dict[str, Callable[[Path], Source]] = {".parquet": _read_parquet, ".csv": _read_csv}
    try:
        return readers.get(path.suffix, _read_json)(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _read_json(path: Path) -> Source:
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if isinstance(data, list):
        return _sweep(path, data)
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in KINDS:
        raise InputError(f'{path}: not a result of abstim: its "kind" is {kind!r}, none of {", ".join(KINDS)}')
    if kind != "explore":
        return Source(kind, path.stem, data)
    found = _sweep(path, data.get("rows", []))
    found.data.attrs["sensitivity"] = data.get("sensitivity", [])
    return found


def _read_parquet(path: Path) -> Source:
    import pandas

    try:
        return _sweep(path, pandas.read_parquet(path))
    except ValueError as error:  # pyarrow's own errors are ValueErrors
        raise InputError(f"{path}: not a Parquet file: {error}") from None


def _read_csv(path: Path) -> Source:
    import pandas

    try:
        return _sweep(path, pandas.read_csv(path))
    except ValueError as error:  # so are those of pandas' parser
        raise InputError(f"{path}: not a CSV file: {error}") from None


def _sweep(path: Path, rows: list[dict[str, Any]] | pandas.DataFrame) -> Source:
    """A table of design points. Raises InputError without the columns every sweep has, or without any point."""
    import pandas

    try:
        table = pandas.DataFrame(rows)
    except (ValueError, AttributeError):
        raise InputError(f"{path}: not a list of design points") from None
    missing = [column for column in ("cycles", "seconds") if column not in table.columns]
    for column in {"cycles", "seconds"} - {*missing}:
        table[column] = pandas.to_numeric(table[column], errors="coerce")  # what is no number is no result
    if missing or table.empty:
        lack = f"no column {', '.join(missing)}" if missing else "no design point"
        raise InputError(f"{path}: {lack}; the result of a sweep has what was varied, cycles and seconds")
    return Source("explore", path.stem, table)
