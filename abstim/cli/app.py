"""The typer app: every subcommand, registered. Subcommands import what is slow when they run, not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand, TyperOption

from abstim import __version__
from abstim.cli.advise import advise, coldstart
from abstim.cli.application import app as application
from abstim.cli.bench import bench
from abstim.cli.calibrate import calibrate, fit
from abstim.cli.characterize import characterize
from abstim.cli.explore import explore
from abstim.cli.listings import gpus, import_config, suite
from abstim.cli.report import report
from abstim.cli.run import run
from abstim.cli.sample import sample
from abstim.cli.trace import export_trace, trace
from abstim.cli.tune import tune
from abstim.cli.validate import validate

if TYPE_CHECKING:
    from typer._click.core import Context


class Subcommand(TyperCommand):
    """As typer's, but for that."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Raises what typer raises for a bad option."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in self.params:
            if isinstance(option, TyperOption) and not (option.multiple or option.is_flag) and given.count(option) > 1:
                ctx.fail(f"{option.opts[-1]} was given {given.count(option)} times; it takes one value")
        return super().parse_args(ctx, args)


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
TIMING = (run, advise, explore, tune, fit, sample, coldstart, report, gpus, suite, trace, characterize)
for command in (*TIMING, validate, calibrate, bench, import_config, export_trace):
    app.command(cls=Subcommand)(command)
# What follows the program's name is the program's
app.command(cls=Subcommand, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(
    application
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"abstim {__version__}")
        raise typer.Exit


@app.callback()
def abstim(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
    isolate: Annotated[
        bool | None,
        typer.Option(
            "--isolate/--no-isolate",
            help="Execute all kernels, or none, in a process that can do nothing but compute. Default: those that did "
            "not come along with abstim (on Linux with Landlock).",
        ),
    ] = None,
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
