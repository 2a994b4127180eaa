"""The `abstim` command: thin over the library, one file a subcommand."""

from __future__ import annotations

import gc
import os
import sys


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Bad input ends in one line on stderr and exit code 2, an interrupt in exit code 130."""
    gc.set_threshold(200_000)  # imports make objects that stay; looking through them takes a tenth of a short run
    from typer._click.exceptions import ClickException  # typer has no public name for it

    from abstim.cli.app import app
    from functional.errors import InputError

    try:
        status = app(arguments, prog_name="abstim", standalone_mode=False)
        if status == 130:  # how typer passes an interrupt on
            raise KeyboardInterrupt
    except (InputError, ClickException) as error:
        message = error.format_message() if isinstance(error, ClickException) else str(error)
        status = _fail(message or "a command is needed; see `abstim --help`", 2)
    except KeyboardInterrupt:
        status = _fail("interrupted", 130)
    except BrokenPipeError:  # `abstim ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> int:
    print("abstim: " + " ".join(message.split()), file=sys.stderr)
    return status
