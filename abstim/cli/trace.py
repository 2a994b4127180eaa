"""`abstim trace` and `abstim export-trace`: what a target does, executed once and kept, to be timed elsewhere; and
`abstim characterize`: what its instructions cost on a GPU's pipeline."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from abstim.cli.options import GpuOptions, InstructionBudget, Json, LaunchOptions, expanded
from abstim.show.tables import counted, duration, print_json, print_printf, print_table, progress, quantity, say
from functional.errors import note
from functional.ptx.source import ptx_text, shown_name

if TYPE_CHECKING:
    from functional.traces.store import Manifest


@expanded
def export_trace(*, target: str, output: Path, xz: bool = False, launch: LaunchOptions, as_json: Json = False) -> None:
    """Execute a target and write an Accel-Sim trace directory: kernelslist.g, and a .traceg file a launch.

    TARGET  A suite benchmark or a launches.json.
    -o, --output DIR  A directory without a trace.
    --xz  Compress the kernels: `.traceg.xz`.

    Example: `abstim export-trace hotspot -o traces/hotspot --xz`"""
    from abstim.targets.resolve import open_target, sass_opcode
    from functional.accelsim import write
    from functional.launches.case import StreamedCase
    from functional.launches.launch import may_overlap

    case = open_target(launch.of(target))
    with progress(quiet=as_json) as report:
        files = write(case, output, sass_opcode, compress=xz, progress=report)
    total = sum(file.stat().st_size for file in files)
    if not isinstance(case, StreamedCase) and may_overlap(case.launches):
        note(f"abstim: {output} keeps no streams: its launches are timed one after the other")
    if as_json:
        print_json({"directory": str(output), "kernels": [f.name for f in files], "bytes": total})
    else:
        print(f"{output}: {counted(len(files), 'kernel', 'kernels')}, {quantity(total)} bytes")


@expanded
def trace(
    *, target: str, out: str, overwrite: bool = False, launch: LaunchOptions,
    instruction_budget: InstructionBudget = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Execute a target and write what it did to a folder, which can be timed without the target's files.

    TARGET  A suite benchmark (`abstim suite`), a launches.json, or a .ptx file.
    --out, -o DIR  Folder to write, new or empty.
    --overwrite  Replace the trace store in DIR.

    The folder holds the PTX, the launches and their compressed traces. A damaged or incomplete one is refused.

    Examples:
    `abstim trace hotspot -o hotspot.trace`, then `abstim run hotspot.trace --gpu gtx480`
    `abstim trace k.ptx -o k.trace --grid 64 --block 256 --arg buf:f32:16384 --arg 16384`"""
    from abstim.targets.execution import chosen_executor, write_store

    case = launch.of(target)()
    started = perf_counter()
    with progress(quiet=as_json) as report:
        manifest = write_store(case, Path(out), chosen_executor(), instruction_budget, overwrite, report)
    seconds = perf_counter() - started
    total: dict = summary(manifest)
    if as_json:
        return print_json({"folder": out, "seconds": seconds} | total)
    print_printf(manifest.printed)
    executed = f"{quantity(total['thread_instructions'])} thread instructions"
    say(f"{out}: {counted(len(manifest.launches))} of {manifest.name}, {executed}, in {duration(seconds)}")
    in_file, in_memory = (total[key] / max(1, total["warp_instructions"]) for key in ("file_bytes", "trace_bytes"))
    each = f"{in_file:.3g} a warp instruction ({in_memory:.3g} in memory)"
    say(f"{quantity(total['file_bytes'])} bytes of traces, {each}; to time them: abstim run {out}")
    for output in manifest.outputs:
        if output.mismatches:
            note(f"abstim: output {output.message}")


def summary(manifest: Manifest) -> dict[str, object]:
    """Totals of a store, and its launches one by one."""
    keys = ("thread_instructions", "warp_instructions", "trace_bytes", "file_bytes")
    totals = {key: sum(getattr(launch, key) for launch in manifest.launches) for key in keys}
    names = ("kernel", "label", "grid", "block", "file", *keys)
    launches = [{name: getattr(launch, name) for name in names} for launch in manifest.launches]
    outputs = [asdict(output) for output in manifest.outputs]
    return {"target": manifest.name} | totals | {"launches": launches, "outputs": outputs, "printf": manifest.printed}


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
    if point.spec.timed_code == "machine":
        note(f"abstim: {point.name} is timed from machine code where it is there; these tables are of the PTX")
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
