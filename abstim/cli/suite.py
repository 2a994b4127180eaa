"""`abstim suite`: the benchmarks that come with abstim."""

from __future__ import annotations

from abstim.cli.options import Json, expanded
from abstim.show.tables import print_json, print_table, say

_WHAT = {
    "programs": "Programs of many launches (programs)",
    "16x": "16 times the size (16x)",
    "256x": "256 times the size (256x)",
}


@expanded
def suite(*, group: str | None = None, as_json: Json = False) -> None:
    """List the benchmarks that come with abstim, and the larger workloads made of them; each runs by its name.

    --group  Only this group: table1, apps, micro, programs, 16x or 256x.

    Example: `abstim suite --group table1`
    """
    from abstim.targets import workloads
    from abstim.targets.resolve import names_in
    from functional import suite as benchmarks

    larger = {g: workloads.names(g) for g in workloads.GROUPS if group in (None, g)}
    rows = []
    for name in names_in(group or "all") if group not in workloads.GROUPS else ():
        counts = benchmarks.instruction_counts(name)["active"]
        kernels = benchmarks.registers(name)
        rows.append((name, benchmarks.group_of(name), ", ".join(kernels), len(counts), sum(counts)))
    keys = ("name", "group", "kernels", "launches", "thread_instructions")
    if as_json:
        names = [name for own in larger.values() for name in own]
        print_json({"benchmarks": [dict(zip(keys, row, strict=True)) for row in rows], "workloads": names})
        return
    if rows:
        print_table("", ("name", "group", "kernels", "launches", "thread instructions"), rows, left=3)
    for name, own in larger.items():
        say(f"{_WHAT[name]}: {', '.join(own)}")
