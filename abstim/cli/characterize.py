"""`abstim characterize`: what a program's instructions cost on a GPU's pipeline."""

from dataclasses import asdict

from abstim.cli.options import GpuOptions, Json, expanded
from abstim.show.tables import print_json, print_table
from functional.ptx.source import ptx_text, shown_name

MOST_LETTERS = 44  # of an instruction with its operands


@expanded
def characterize(*, target: str, gpu: GpuOptions, listing: bool = False, as_json: Json = False) -> None:
    """Characterise a target's kernels on a GPU's pipeline and keep the latency tables.

    TARGET  A suite benchmark, a launches.json, or a .ptx file.
    --listing  Show every instruction, the longest chains, and how busy units are.

    `abstim run` does this by itself.

    Example: `abstim characterize hotspot --gpu gtx480 --listing`"""
    from abstim.targets.resolve import programs_of
    from precharacterize import characterize as characterize_program

    point = gpu.load()
    tables = [(program, characterize_program(program, point.pipeline)) for program in programs_of(target)]
    if as_json:
        return print_json({"kernels": [_as_json(program, table) for program, table in tables]})
    rows = [
        (shown_name(p.name), len(p.instructions), len(p.blocks), t.register_count, int(t.gap_cycles.sum()), t.key[:12])
        for p, t in tables
    ]
    print_table("", ("kernel", "instructions", "basic blocks", "registers", "cycles, each block once", "key"), rows)
    for program, table in tables if listing else ():
        _print_listing(program, table)


def _as_json(program, table) -> dict:
    columns = ("unit", "latency_cycles", "initiation_cycles", "gap_cycles", "result_cycles")
    return {
        "kernel": program.name,
        "key": table.key,
        "blocks": [asdict(bounds) for bounds in _bounds(program, table)],
        "instructions": [i.name for i in program.instructions],
        **{column: getattr(table, column).tolist() for column in columns},
    }


def _print_listing(program, table) -> None:
    from precharacterize.table import UNITS

    bounds, lines = _bounds(program, table), ptx_text(program).splitlines()
    starts, critical = {b.start: b.index for b in program.blocks}, {i for found in bounds for i in found.path}
    cycles = zip(table.gap_cycles.tolist(), table.result_cycles.tolist(), table.initiation_cycles.tolist(), strict=True)
    rows: list[tuple] = []
    for i, own in zip(program.instructions, cycles, strict=True):
        text = " ".join(lines[i.line - 1].split())[:MOST_LETTERS] if i.line <= len(lines) else i.name
        path = "*" if i.index in critical else ""
        rows.append((starts.get(i.index, ""), i.line, text, path, UNITS[table.unit[i.index]], *own))
    columns = ("block", "line", "instruction", "path", "unit", "gap cycles", "result cycles", "unit busy cycles")
    print_table(shown_name(program.name), columns, rows, left=5)
    print("path: on the longest chain of results of its block (loads hit)\ngap: to the next issue of a lone warp")
    # what bounds each block: its longest chain, or the unit that is busy longest
    units = [unit for unit in UNITS if any(unit in found.unit_cycles for found in bounds)]
    rows = [
        (str(number), found.stop - found.start, found.path_cycles, *(found.unit_cycles.get(unit, 0) for unit in units))
        for number, found in enumerate(bounds)
    ]
    heads = ("block", "instructions", "longest chain, cycles", *(f"{unit} busy" for unit in units))
    print_table("Pressure on the units, a warp's visit of each block", heads, rows)


def _bounds(program, table) -> list:
    from precharacterize.bounds import block_bounds

    return [block_bounds(table, block.start, block.stop) for block in program.blocks]
