"""`abstim gpus`, `abstim suite` and `abstim import-config`: the GPUs and benchmarks there are, and new GPUs."""

from dataclasses import asdict
from pathlib import Path

from abstim.cli.options import Json, Overrides, expanded
from abstim.show.tables import print_json, print_records, print_table, say
from functional.errors import note
from functional.keep.folder import write_output


@expanded
def import_config(files: list[Path], output: Path | None = None, base: str = "gtx480", as_json: Json = False) -> None:
    """Turn an Accel-Sim configuration into a GPU for `--gpu`, and list every option that was not used.

    FILE...  gpgpusim.config, and trace.config for latencies of SASS instructions.
    -o, --output TOML  Write the GPU here.
    --base GPU  Where values come from that no option says.

    Without `-o` the TOML goes to stdout and the list to stderr. Of an option given twice the last one counts.

    Example: `abstim import-config gpgpusim.config trace.config -o mine.toml`"""
    from abstim.gpu.import_config import import_config as imported_from

    imported = imported_from(files, base)
    if output:
        write_output(output, imported.toml.encode())
    if as_json:
        unused, values = [asdict(u) for u in imported.unused], {k: asdict(s) for k, s in imported.settings.items()}
        print_json({"values": values, "unused": unused, "from_base": imported.from_base, "toml": imported.toml})
    elif output:
        rows = [(u.option, u.value if len(u.value) <= 30 else u.value[:27] + "...", u.why) for u in imported.unused]
        print_table(f"Options not used ({len(rows)})", ("option", "value", "why"), rows, left=3)
        print(f"{output}: {len(imported.settings)} values, {len(imported.from_base)} more from {base}")
    else:
        print(imported.toml, end="")
        for left in imported.unused:
            note(f"not used: {left.option} {left.value}: {left.why}")


@expanded
def gpus(*, name: str | None = None, overrides: Overrides = None, as_json: Json = False) -> None:
    """List the GPUs, or every value of one with its unit and its source.

    [GPU]  Show every value of this GPU.

    Examples: `abstim gpus`, `abstim gpus gtx480`, `abstim gpus mine.toml --set sm_count=30`"""
    from abstim.gpu.config import gpu_names, load_gpu

    chosen = [load_gpu(each, overrides or ()) for each in (gpu_names() if name is None else [name])]
    if as_json:
        said = {gpu.name: {name: getattr(gpu, name) for name in _FACTS} for gpu in chosen}
        for gpu in chosen:
            said[gpu.name] |= {"sources": gpu.labels, "values": {k: asdict(s) for k, s in gpu.shown_settings.items()}}
        print_json(said)
    elif name is None:
        print_records("", _LIST, chosen, left=2, whole=(0, 1), mhz=lambda gpu: gpu.spec.core_clock_hz / 1e6)
    else:
        gpu = chosen[0]
        values = {key: s.value for key, s in gpu.shown_settings.items()}  # as `--set` takes them
        shown = {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in values.items()}
        rows = [(key, shown[key], s.source) for key, s in gpu.shown_settings.items()]
        print_table(f"{gpu.name}: {gpu.title}", ("key", "value", "source"), rows, left=3, whole=(0, 1, 2))
        print_table("Sources", ("", ""), gpu.labels.items(), left=2, whole=(0, 1))


_FACTS = ("title", "memory_model", "known_error")
_LIST = (
    "GPU: {name} | what: {title} | SMs: {spec.sm_count} "
    "| schedulers: {spec.schedulers_per_sm} {spec.scheduler} | MHz: {mhz}"
)


_WHAT = {
    "programs": "Programs of many launches (programs)",
    "16x": "16 times the size (16x)",
    "256x": "256 times the size (256x)",
}


@expanded
def suite(*, group: str | None = None, as_json: Json = False) -> None:
    """List the benchmarks that come with abstim, and the larger workloads made of them; each runs by its name.

    --group  Only this group: table1, apps, micro, programs, 16x or 256x.

    Example: `abstim suite --group table1`"""
    from abstim.targets.resolve import names_in
    from functional import suite as benchmarks
    from functional.suite import workloads

    larger = {g: workloads.names(g) for g in workloads.GROUPS if group in (None, g)}
    rows = []
    for name in names_in(group or "all") if group not in workloads.GROUPS else ():
        counts = benchmarks.instruction_counts(name)["active"]
        rows.append((name, benchmarks.group_of(name), ", ".join(benchmarks.registers(name)), len(counts), sum(counts)))
    keys = ("name", "group", "kernels", "launches", "thread_instructions")
    if as_json:
        names = [name for own in larger.values() for name in own]
        return print_json({"benchmarks": [dict(zip(keys, row, strict=True)) for row in rows], "workloads": names})
    if rows:
        print_table("", ("name", "group", "kernels", "launches", "thread instructions"), rows, left=3, whole=(0,))
    for name, own in larger.items():
        say(f"{_WHAT[name]}: {', '.join(own)}")
