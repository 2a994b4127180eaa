"""Write docs/cli.md to stdout from the commands' own help: `make docs`."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from typing import Any

_HEAD = """# The `abstim` command

Generated from the commands' own help; `make docs` rewrites it, and a test says when it is out of date.

Bad input ends in one line on stderr and exit code 2, an interrupt in exit code 130. `--json` prints exactly one object
on stdout; notes and progress go to stderr.
"""


def markdown() -> str:
    """The whole page: options of several commands first, then every command with its own."""
    import typer

    from abstim.cli.app import app

    group: Any = typer.main.get_command(app)
    counts = Counter(_line(p) for command in group.commands.values() for p in command.params)
    shared = {line for line, count in counts.items() if count > 1}
    parts = [_HEAD, "## abstim [OPTIONS] COMMAND\n", *map(_line, group.params), "\n## Options of several commands\n"]
    parts += [line for line in counts if line in shared]
    for name, command in group.commands.items():
        parts.append(_command(name, command, shared))
    return "\n".join(parts).rstrip() + "\n"


def _command(name: str, command: Any, shared: set[str]) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join(["abstim", name, *(p.metavar or p.name.upper() for p in arguments)])
    text = re.sub(r"(?m)^(`abstim .*`)\n\n(?=`abstim )", r"\1\\\n", inspect.cleandoc(command.help or ""))
    also = ", ".join(f"`{p.opts[0]}`" for p in options if _line(p) in shared)
    own = [_line(p) for p in (*arguments, *options) if _line(p) not in shared]
    return "\n".join([f"\n## {usage} [OPTIONS]\n\n{text}\n", *own, *([f"- and {also}"] if also else [])])


def _line(parameter: Any) -> str:
    default = parameter.default
    shown = "" if default in (None, False, "", ()) or callable(default) else default
    shown = ", ".join(shown) if isinstance(shown, list) else str(shown)
    if parameter.param_type_name == "argument":
        name = parameter.name.upper()
    else:
        name = ", ".join((*parameter.opts, *parameter.secondary_opts))
        if not parameter.is_flag:
            name += f" {parameter.metavar or parameter.name.upper()}"
    help_text = re.sub(r"\s+", " ", parameter.help or "Show the help.")
    return f"- `{name}` {help_text}{f' Default: `{shown}`.' if shown else ''}"


if __name__ == "__main__":
    print(markdown(), end="")
