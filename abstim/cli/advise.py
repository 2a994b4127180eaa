"""`abstim advise` and `abstim coldstart`: what changes of a target would save, and what empty caches cost it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abstim.cli.options import Json, LaunchOptions, TimedGpuOptions, expanded
from abstim.cli.run_tables import grid_lines
from abstim.show.tables import counted, on_gpu, print_json, print_records, progress, say
from functional.ptx.source import shown_name

if TYPE_CHECKING:
    from abstim.study.cold_start import ColdStart


@expanded
def advise(*, target: str, gpu: TimedGpuOptions, launch: LaunchOptions, as_json: Json = False) -> None:
    """Say what could be changed about a target: uncoalesced accesses, bank conflicts, atomics, occupancy, tail waves.

    TARGET  A suite benchmark, a launches.json, a .ptx or .cu file.

    What each would save is found by timing the launches without it, not by a rule of thumb.

    Examples:
    `abstim advise transpose`
    `abstim advise hist.cu --kernel hist --grid 120 --block 256 --arg buf:i32:65536:random --arg 65536 --arg
    buf:i32:256`"""
    from abstim.session.limits import grid_notes
    from abstim.session.session import open_session
    from abstim.study.counterfactual import advise as run

    point = gpu.load()
    with progress(quiet=as_json) as report:
        session = open_session(launch.of(target), [point], progress=report)
        found = run(session, point, report)
    grids = list[str]()
    for number in range(len(session)):
        own, held = session.launch(number), session.blocks_per_sm(number, point)
        name = f"launch {number} {shown_name(own.program.name)}"
        grids += grid_notes(name, own.thread_blocks, held, point.spec.sm_count)
    if as_json:
        return print_json(found.to_json() | {"grids": grids})
    title = f"{found.target} on {on_gpu(found)}: {found.cycles:,} cycles"
    if found.findings:
        print_records(title, "finding: {kind} | cycles without it: {cycles} | saved: {gain:.1%}", found.findings)
    else:
        print(title)
        say("Nothing that abstim looks for would save 2 %; abstim run --limits says what limits it")
    for finding in found.findings:
        say(f"{finding.kind}: {finding.text}")
    if found.note:
        say(f"Note: {found.note}")
    for line in grid_lines(grids):
        say(line)


@expanded
def coldstart(*, target: str, gpu: TimedGpuOptions, launch: LaunchOptions, as_json: Json = False) -> None:
    """Say what it costs to simulate each launch of a target from empty caches, and what each way to warm up gives back.

    TARGET  A suite benchmark, a workload, or a launches.json.

    Accuracy is that of a launch's IPC against the launch with the caches as all before it left them.

    Examples:
    `abstim coldstart dct8x8`
    `abstim coldstart gaussian_elimination --gpu rtx3070 --json`"""
    from abstim.session.session import open_session
    from abstim.study.cold_start import cold_start

    point = gpu.load()
    with progress(quiet=as_json) as report:
        found = cold_start(open_session(launch.of(target), [point], progress=report), point, report)
    print_json(found.to_json()) if as_json else _print_cold_start(found)


POLICIES = (
    "warm-up: {name} | worst launch: {worst_accuracy:.1%} | all, by instructions: {mean_accuracy:.1%} "
    "| warmed a launch: {warmed_share:.1%}"
)


def _print_cold_start(found: ColdStart) -> None:
    title = f"{found.target} on {on_gpu(found)}: accuracy of IPC, {counted(len(found.instructions))}"
    print_records(title, POLICIES, found.to_json()["policies"])
    classes = ", ".join(f"{least:.0%}: {share:.1%}" for least, share in found.affected.items())
    say(f"Instructions whose IPC flushing changes by {classes}")
    after, before = _mean(found.forward_reuse), _mean(found.backward_reuse)
    say(f"Lines that the next launch touches too: {after}, the one before: {before}")
    if len(found.instructions) == 1:
        say("Note: nothing runs before the only launch, so its caches are empty in any case")
    if found.note:
        say(f"Note: {found.note}")


def _mean(shares) -> str:
    known = shares[shares == shares]
    return f"{known.mean():.1%} (mean)" if len(known) else "no neighbour"
