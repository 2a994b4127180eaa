"""What a user is told besides the output. Errors that a user can cause are one clear line each: what, where, what to
do; the CLI ends with exit code 2. Notes are one line, and text is made fit for a terminal."""

import re
import sys
from contextlib import suppress


class InputError(Exception):
    """Bad input. `str()` of it is the one line a user sees."""


def refuse(wrong: object, message: str, error: type[Exception] = InputError) -> None:
    """Raises an error with the message if something is wrong."""
    if wrong:
        raise error(message)


class PtxError(InputError):
    """PTX that does not parse or holds an unsupported instruction."""

    def __init__(self, path: str, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}")
        self.path, self.line = path, line


class ExecutionError(InputError):
    """A kernel that faults: out of bounds, misaligned, deadlock, over its instruction budget."""


class BudgetSpent(ExecutionError):
    """A launch that runs more thread instructions than it may. `line`: of the PTX, where it was then."""

    def __init__(self, kernel: str, path: str, line: int, budget: int, cost: str = "") -> None:
        super().__init__(
            f"kernel '{kernel}', {path}:{line}: the launch exceeds its budget of {budget} thread instructions{cost}; "
            "if it does end, raise the instruction budget"
        )
        self.line = line


def note(line: str) -> None:
    """One line to the user that is no part of the output; nobody may be there to read it."""
    if sys.stderr is not None:  # `print` would take stdout in its place
        with suppress(OSError, ValueError):
            print(plain(line), file=sys.stderr)


def plain(text: str) -> str:
    """A text that may be a stranger's, fit for a terminal: control characters are spelt out, but for ends of lines and
    tabs, and so are bytes of names that are no text."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text)
