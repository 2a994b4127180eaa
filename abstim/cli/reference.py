"""Write docs/cli.md to stdout from the commands' own help: `make docs`."""

from __future__ import annotations

import inspect
import re

_HEAD = """# The `abstim` command

Generated from the commands' own help; `make docs` rewrites it, and a test says when it is out of date.

Bad input ends in one line on stderr and exit code 2, an interrupt in exit code 130. `--json` prints exactly one object
on stdout; notes and progress go to stderr.
"""


def markdown() -> str:
    """The whole page."""
    import typer

    from abstim.cli.app import app
    from abstim.study.sample.methods import table_for_docs

    group = typer.main.get_command(app)
    parts = [_HEAD, "## abstim [OPTIONS] COMMAND\n", "| | | default |\n|---|---|---|", *map(_row, group.params), ""]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option"]
        usage = " ".join(["abstim", name, *(p.metavar or p.name.upper() for p in arguments)])
        parts.append(f"## {usage} [OPTIONS]\n\n{inspect.cleandoc(command.help or '')}\n")
        parts.append("| | | default |\n|---|---|---|")
        parts += [_row(p) for p in (*arguments, *options)]
        parts.append("")
        if name == "sample":
            parts.append(f"{table_for_docs()}\n")
    return "\n".join(parts).rstrip() + "\n"


def _row(parameter) -> str:
    default = parameter.default
    shown = "" if default in (None, False, "", ()) or callable(default) else default
    shown = ", ".join(shown) if isinstance(shown, list) else str(shown)
    if parameter.param_type_name == "argument":
        name = parameter.name.upper()
    else:
        name = ", ".join((*parameter.opts, *parameter.secondary_opts))
        if not parameter.is_flag:
            name += f" {parameter.metavar or parameter.name.upper()}"
    help_text = re.sub(r"\s+", " ", parameter.help or "Show the help.").replace("|", "\\|")
    name = name.replace("|", "\\|")
    return f"| `{name}` | {help_text} | {f'`{shown}`' if shown else ''} |"


if __name__ == "__main__":
    print(markdown(), end="")
