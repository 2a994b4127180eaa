"""`abstim characterize`: what a program's instructions cost on a GPU's pipeline."""

from __future__ import annotations

from typing import Annotated

import typer

from abstim.cli.options import GpuName, Json, Overrides


def characterize(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A suite benchmark, a launches.json, or a .ptx file.")
    ],
    gpu: GpuName = "gtx480",
    overrides: Overrides = None,
    listing: Annotated[bool, typer.Option("--listing", help="Show every instruction.")] = False,
    as_json: Json = False,
) -> None:
    """Characterise a target's kernels on a GPU's pipeline and keep the latency tables.

    `abstim run` does this by itself; a table is made once for a program and a pipeline, and serves any number of SMs,
    schedulers, policies and cache sizes.

    Example: `abstim characterize hotspot --gpu gtx480 --listing`
    """
    from abstim.gpu.config import load_gpu
    from abstim.show.tables import print_json
    from abstim.target.resolve import programs_of
    from precharacterize import characterize as characterize_program

    point = load_gpu(gpu, overrides or ())
    tables = [(program, characterize_program(program, point.pipeline)) for program in programs_of(target)]
    if as_json:
        print_json({"kernels": [_as_json(program, table) for program, table in tables]})
        return
    _print_summary(tables)
    if listing:
        for program, table in tables:
            _print_listing(program, table)


def _as_json(program, table) -> dict:
    columns = ("unit", "latency_cycles", "initiation_cycles", "gap_cycles", "result_cycles")
    return {
        "kernel": program.name,
        "key": table.key,
        "blocks": [{"start": b.start, "stop": b.stop} for b in program.blocks],
        "instructions": [i.name for i in program.instructions],
        **{column: getattr(table, column).tolist() for column in columns},
    }


def _print_summary(tables) -> None:
    from abstim.show.tables import print_table

    rows = [
        (p.name, len(p.instructions), len(p.blocks), t.register_count, int(t.gap_cycles.sum()), t.key[:12])
        for p, t in tables
    ]
    columns = ("kernel", "instructions", "basic blocks", "registers", "cycles, each block once", "key")
    print_table("", columns, rows)


def _print_listing(program, table) -> None:
    from abstim.show.tables import print_table
    from precharacterize.parameters import UNITS

    rows = [
        (
            program.block_of(i.index) if i.index in {b.start for b in program.blocks} else "",
            i.line,
            i.name,
            UNITS[table.unit[i.index]],
            int(table.gap_cycles[i.index]),
            int(table.result_cycles[i.index]),
            int(table.initiation_cycles[i.index]),
        )
        for i in program.instructions
    ]
    columns = ("block", "line", "instruction", "unit", "gap cycles", "result cycles", "unit busy cycles")
    print_table(program.name, columns, rows, left=4)
