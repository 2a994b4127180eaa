"""`abstim trace` and `abstim export-trace`: what a target does, executed once and kept, to be timed elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from abstim.cli.options import InstructionBudget, Json, LaunchOptions, expanded
from abstim.show.tables import counted, duration, print_json, print_printf, progress, quantity, say
from functional.terminal import note

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

    case = open_target(launch.of(target))
    with progress(quiet=as_json) as report:
        files = write(case, output, sass_opcode, compress=xz, progress=report)
    total = sum(file.stat().st_size for file in files)
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
