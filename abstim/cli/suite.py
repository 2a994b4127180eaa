"""`abstim suite`: the benchmarks that come with abstim."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from abstim.cli.options import Json


def suite(
    group: Annotated[str | None, typer.Option(help="Only this group: table1, apps or micro.")] = None,
    as_json: Json = False,
) -> None:
    """List the benchmarks that come with abstim, and the larger workloads made of them; each runs by its name.

    Example: `abstim suite --group table1`
    """
    from abstim import workloads
    from abstim.cli.tables import print_json, print_table
    from functional import suite as benchmarks

    rows = []
    for name in benchmarks.names(group):
        counts = benchmarks.instruction_counts(name)["active"]
        kernels = benchmarks.registers(name)
        rows.append((name, benchmarks.group_of(name), ", ".join(kernels), len(counts), sum(counts)))
    keys = ("name", "group", "kernels", "launches", "thread_instructions")
    larger = workloads.names() if group is None else ()
    if as_json:
        print_json({"benchmarks": [dict(zip(keys, row, strict=True)) for row in rows], "workloads": larger})
        return
    print_table("", ("name", "group", "kernels", "launches", "thread instructions"), rows, left=3)
    if larger:
        print(textwrap.fill(f"Workloads: {', '.join(larger)}", 100))
