"""The command called in this process, as a shell would."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import NamedTuple

import pytest

from abstim.cli import main


class Said(NamedTuple):
    code: int
    out: str
    err: str


def call(*words: object) -> Said:
    """What `abstim WORDS...` prints and exits with; whatever it does, it ends in SystemExit."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return Said(end.value.code or 0, out.getvalue(), err.getvalue())
