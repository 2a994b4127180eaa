"""A subcommand that refuses an option given twice where one value counts: the last one would win, without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.core import TyperCommand, TyperOption

if TYPE_CHECKING:
    from typer._click.core import Context  # typer has no public name for the one that is passed here


class Subcommand(TyperCommand):
    """As typer's, but for that."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Raises what typer raises for a bad option."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in self.params:
            if isinstance(option, TyperOption) and not (option.multiple or option.is_flag) and given.count(option) > 1:
                ctx.fail(f"{option.opts[-1]} was given {given.count(option)} times; it takes one value")
        return super().parse_args(ctx, args)
