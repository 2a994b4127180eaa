"""The typer app: subcommands, imported when they are asked for. What is slow they import when they run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand, TyperOption

from abstim import __version__

if TYPE_CHECKING:
    from typer._click.core import Context

# In the order of help, with the modules they are in
COMMANDS = {
    "run": ".run", "advise": ".advise", "explore": ".explore", "tune": ".tune", "fit": ".calibrate",
    "sample": ".sample", "coldstart": ".advise", "report": ".report", "gpus": ".listings", "suite": ".listings",
    "trace": ".trace", "characterize": ".trace", "validate": ".validate", "calibrate": ".calibrate",
    "bench": ".bench", "import-config": ".listings", "export-trace": ".trace", "app": ".application",
}  # fmt: skip


class Subcommand(TyperCommand):
    """As typer's, but for that."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Raises what typer raises for a bad option."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in self.params:
            if isinstance(option, TyperOption) and not (option.multiple or option.is_flag) and given.count(option) > 1:
                ctx.fail(f"{option.opts[-1]} was given {given.count(option)} times; it takes one value")
        return super().parse_args(ctx, args)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"abstim {__version__}")
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
_ISOLATE = "Execute all kernels, or none, in a process that can do nothing but compute. Default: those that did not "
_ISOLATE += "come along with abstim (on Linux with Landlock)."


def abstim(
    context: typer.Context,
    version: Annotated[bool, _VERSION] = False,
    isolate: Annotated[bool | None, typer.Option("--isolate/--no-isolate", help=_ISOLATE)] = None,
) -> None:
    """How long a CUDA kernel takes on a GPU that need not exist.

    Runs a kernel's PTX, times it on an abstract model of the GPU, and prints cycles.

    Caches are kept in `ABSTIM_CACHE` (default: `~/.cache/abstim`), at most `ABSTIM_TRACE_CACHE_BYTES` of traces.
    `ABSTIM_THREADS` threads execute a large kernel, and time it (default: the CPUs).
    `ABSTIM_SECONDS` of wall-clock time end a command, whatever it is doing (default: none).
    Where stderr is no terminal, a line of progress comes every `ABSTIM_PROGRESS_SECONDS` (10).
    `ABSTIM_ISOLATE=1`, `0` or `foreign` is `--isolate`, `--no-isolate` or the default.
    `ABSTIM_TRACEBACK=1` ends an error in its traceback; `ABSTIM_OUTSIDE_FILES=1` lets a launches.json name files
    outside of its folder."""
    from abstim.targets.execution import isolating

    context.with_resource(isolating(isolate))


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The app with the subcommand that is asked for, with all of them if there is none such."""
    asked = next((word for word in arguments if not word.startswith("-")), "")
    made = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    )
    made.callback()(abstim)
    for name in [asked] if asked in COMMANDS else COMMANDS:
        # What follows a program's name is the program's
        passed_on = {"ignore_unknown_options": True, "allow_interspersed_args": False} if name == "app" else None
        command = getattr(import_module(COMMANDS[name], "abstim.cli"), name.replace("-", "_"))
        made.command(cls=Subcommand, context_settings=passed_on)(command)
    return made
