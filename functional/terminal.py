"""What a terminal is given to show besides the output: notes to the user, and text made fit for it."""

import re
import sys
from contextlib import suppress


def note(line: str) -> None:
    """One line to the user that is no part of the output; nobody may be there to read it."""
    if sys.stderr is not None:  # `print` would take stdout in its place
        with suppress(OSError, ValueError):
            print(plain(line), file=sys.stderr)


def plain(text: str) -> str:
    """A text that may be a stranger's, fit for a terminal: control characters are spelt out, but for ends of lines and
    tabs, and so are bytes of names that are no text."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text)
