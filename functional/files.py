"""What a user's file holds. All of them are read here: some, such as pipes and `/dev/zero`, have no end."""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from functional.errors import InputError, refuse

MOST_BYTES = 1 << 32  # of a file, most of which a buffer of a kernel may fill


def read_bytes(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The bytes of a file. Raises OSError, for what is no regular file or is longer too."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(file, "rb") as stream:
        found = os.fstat(file)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "no regular file, so it may have no end; copy it to one", str(path))
        if found.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"has {found.st_size:,} bytes; at most {most_bytes:,} are read", str(path))
        return stream.read()


def toml_beside(module: str, name: str) -> dict[str, Any]:
    """A table of TOML that lies beside a module, which is given by its `__file__`."""
    import tomllib  # not where nothing has a table

    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))


@cache
def rows_beside(module: str, name: str) -> tuple[dict[str, str], ...]:
    """The rows of a CSV that lies beside a module, which is given by its `__file__`."""
    import csv

    with Path(module).with_name(name).open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def read_text(path: str | Path, encoding: str = "utf-8-sig", errors: str = "strict") -> str:
    """The text of a file, its lines ended by a line feed each. Raises OSError, UnicodeDecodeError."""
    return read_bytes(path, MOST_BYTES >> 4).decode(encoding, errors).replace("\r\n", "\n").replace("\r", "\n")


def table_rows(path: str | Path, columns: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a user's CSV file, each with its place. Raises InputError for a file that cannot be read,
    lacks one of these columns or has one twice, or a row with more fields than columns."""
    import csv

    try:
        reader = csv.DictReader(read_text(path).splitlines())
        if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
            raise InputError(f"{path}: no column {', '.join(missing)}; such a table has {', '.join(columns)}")
        names = reader.fieldnames or ()
        if twice := next((name for k, name in enumerate(names) if name and name in names[:k]), ""):
            raise InputError(f"{path}: two columns {twice}")
        for row in reader:
            where = f"{path}:{reader.line_num}"
            refuse(None in row, f"{where}: more fields than the {len(names)} columns; is there a comma in a number?")
            yield where, row
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a CSV file: {error}") from None


def number_in(where: str, row: dict[str, str], column: str) -> float:
    """What a row has in a column. Raises InputError for anything but a finite number, 0 or above."""
    try:
        value = float(row[column])
    except (KeyError, TypeError, ValueError):
        value = -1.0
    refuse(not 0 <= value < float("inf"), f"{where}: needs a number in the column {column}, 0 or above")
    return value
