"""The tables that `abstim run` prints: launches, limits, GPUs side by side, hot lines of the source and of the PTX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abstim.brief import grouped
from abstim.show import tables
from abstim.show.tables import counted, duration, known, on_gpu, print_table, quantity, say, scaled
from functional.errors import note
from functional.ptx.source import shown_name

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu
    from abstim.session.issue_logs import HotSpot
    from abstim.session.result import LaunchResult, RunResult
    from abstim.session.side_by_side import Overlap, StreamedLaunch
    from abstim.study.baseline import Baseline
    from abstim.study.energy import Energy

MOST_LINES = 12
CODE = 22  # characters of a line of code
HEADS: tuple[str, ...] = ("where", "code", "share", "issues", "waits for")
HEADS += ("L1D misses", "L2 sectors", "sectors a request", "bank passes")


def print_hot(spots: Sequence[HotSpot]) -> None:
    """By CUDA line, if the PTX names them, and by PTX line."""
    from abstim.session.issue_logs import by_source_line

    total = max(1, sum(spot.cycles for spot in spots))
    lines = sorted(by_source_line(spots), key=lambda line: -line.cycles)[:MOST_LINES]
    if lines:
        rows = [_row(f"{Path(x.file).name}:{x.line}", x.text.strip(), x.spots, total) for x in lines]
        print_table("Hot lines of the source (share of the warps' cycles)", HEADS, rows, left=2)
    hottest = sorted(spots, key=lambda spot: -spot.cycles)[:MOST_LINES]
    rows = [_row(f"PTX {x.line}", x.text, [x], total) for x in hottest if x.cycles]
    print_table("Hot instructions", HEADS, rows, left=2)
    if not lines:
        print("The PTX names no source lines; compile with -lineinfo to see them")


def _row(where: str, code: str, spots: Sequence[HotSpot], total: int) -> tuple:
    cycles = sum(spot.cycles for spot in spots)
    requests, passes = sum(spot.requests for spot in spots), sum(spot.shared_requests for spot in spots)
    sectors, banks = sum(spot.sectors for spot in spots), sum(spot.bank_passes for spot in spots)
    line, worst = " ".join(code.split()), max(spots, key=lambda spot: spot.cycles).worst or "-"
    shown = line if len(line) <= CODE else f"{line[: CODE - 1]}…"
    counts = [sum(getattr(spot, name) for spot in spots) for name in ("issues", "l1d_misses", "l2_sectors")]
    each = (sectors / requests if requests else None, banks / passes if passes else None)
    return (where, shown, f"{cycles / total:.1%}", counts[0], worst, *counts[1:], *each)


UNLIKE_MEMORY = "with perfect memory nothing behind the first-level caches takes time; compare it with its like"
MOST_GRIDS = 3  # launches of which it is said what their grid leaves idle
MOST_LIMITS = 8  # resources that are printed
POWER_TERMS = {"idle": "idle", "active_sms": "SMs", "warp_instructions": "issue"}
POWER_TERMS |= {"shared_accesses": "shared", "l1d_sectors": "L1D", "dram_sectors": "DRAM"}
MOST_ROWS = 250  # launches of a target that are printed one by one


def print_notes(launches: Sequence[LaunchResult]) -> None:
    """On stderr, of the first that have some; what is said of several launches of a kernel, once."""
    said = {(x.kernel, line): f"abstim: {_name(x)}: {line}" for x in reversed(launches) for line in reversed(x.notes)}
    for line in [*said.values()][: -MOST_GRIDS - 1 : -1]:
        note(line)


def print_results(results: list[RunResult], refused: Sequence[Gpu] = ()) -> None:
    """One result in full, several side by side; before it what the kernels wrote with `printf`. `refused`: GPUs that a
    thread block does not fit on."""
    tables.print_printf(results[0].printf)
    print_notes(results[0].launches)
    if len(results) == 1 and not refused:
        _print_run(results[0])
    else:
        _print_comparison(results, refused)


def _print_run(result: RunResult) -> None:
    total, first = result.totals, result.launches[0]
    if len(result.launches) > MOST_ROWS:
        _print_kernels(result)
    else:
        held = "occupancy" if result.model == "detailed" else "occupancy at most"  # others count what fits
        columns = "launch: {name} | grid | block | cycles | time: {seconds:time} | IPC: {ipc} "
        columns += f"| {held}: {{occupancy:.0%}} | blocks an SM: {{blocks_per_sm}} ({{occupancy_limiter}})"
        tables.print_records(f"{result.target} on {on_gpu(result)}", columns, result.launches, name=_name)
    if first.issue_slots:
        _print_slots(result)
        if len(result.launches) <= MOST_ROWS:
            _print_memory(result)
        _print_limits(result)
    else:
        _print_bounds(result)
    if result.overlap:
        print_overlap(result.overlap, "cycles", quantity)
        if result.flush != "none":
            say("Caches are emptied once for all that may overlap, in both; --serial empties them before each launch")
    size = f"{quantity(total['cycles'])} cycles, {duration(total['seconds'])}"
    say(f"Total: {size}, {quantity(total['thread_instructions'])} thread instructions, {total['ipc']:.4g} a cycle")
    for line in _rate_lines(result):
        say(line)
    counts = sorted({launch.registers_per_thread for launch in result.launches})
    sources = " and ".join(dict.fromkeys(launch.registers_source for launch in result.launches))
    shown = f"{counts[0]} to {counts[-1]}" if counts[1:] else counts[0]
    print(f"Registers a thread: {shown} (from {sources})")
    if result.timed_code != "PTX":
        alike = all(launch.timed_code == first.timed_code for launch in result.launches)
        say(f"Timed: {first.timed_code if alike else result.timed_code}; {_timed_parts(result.launches)}")
    if result.note:
        say(f"Note: {result.note}")
    say(f"Error on this GPU: {result.known_error}")
    say("This took " + ", ".join(f"{stage} {duration(s)}" for stage, s in result.wall_seconds.items()))


BAR = 24  # characters of a timeline
MOST_SPANS = 40  # kernels that have a row each


def print_overlap(overlap: Overlap, unit: str, shown: Callable[[int], str]) -> None:
    """A row a kernel, stream by stream, over time; a row a stream where kernels are many. `shown`: cycles in words."""
    streams, rows = [*grouped(overlap.launches, lambda x: x.stream).values()], []
    many = len(overlap.launches) > MOST_SPANS
    for own in streams if many else [[x] for one in streams for x in one]:
        name = f"{len(own):,} kernels" if many else f"{own[0].launch} {shown_name(own[0].kernel)}"
        times = shown(min(x.start_cycle for x in own)), shown(max(x.end_cycle for x in own))
        rows.append((own[0].stream or "-", name, *times, _bar(own, overlap.cycles)))
    print_table(f"Streams, {unit}", ("stream", "kernel", "start", "end", "over time"), rows, left=2)
    serial = f"one after the other {shown(overlap.serial_cycles)}"
    say(f"Side by side: {shown(overlap.cycles)}; {serial}: {overlap.speed_up:.2f}x")


def _bar(launches: Sequence[StreamedLaunch], cycles: int) -> str:
    places = set[int]()
    for x in launches:
        first = min(BAR - 1, x.start_cycle * BAR // cycles)
        places |= set(range(first, max(first + 1, round(x.end_cycle * BAR / cycles))))
    return "".join("█" if place in places else "·" for place in range(BAR))


def _timed_parts(launches: Sequence[LaunchResult]) -> str:
    """Of what is timed the part that is machine code, and of what was executed those timed: the least of all."""
    least: dict[str, float] = {}
    for name, share in [pair for launch in launches for pair in launch.timed_shares.items()]:
        least[name] = min(share, least.get(name, 1.0))
    made = min(launch.machine_code_share for launch in launches)
    parts = ", ".join(f"{share:.1%} of the {name}" for name, share in least.items())
    return f"{made:.1%} of that machine code. Of what was executed it has {parts or 'all'}"


def _rate_lines(result: RunResult) -> Iterator[str]:
    """What all launches together reach of the GPU's peaks, and what the grids leave idle."""
    from abstim.session.limits import grid_notes

    units = {"flops": {"TFLOP/s": 1e12, "GFLOP/s": 1e9, "MFLOP/s": 1e6}, "bytes": {"GB/s": 1e9, "MB/s": 1e6}}
    found, said = result.rates, list[str]()
    for name, rate in found.items():
        kind, _, measure = name.partition("_")
        if measure in units:
            named = list(units[measure].items())
            unit, scale = next((one for one in named if rate >= one[1] / 100), named[0])
            share = f" ({found[f'{name}_share']:.1%} of the peak)" if f"{name}_share" in found else ""
            said.append(f"{kind.upper() if kind != 'tensor' else kind} {rate / scale:.3g} {unit}{share}")
    if said:
        yield "Rates: " + ", ".join(said)
    sms = result.gpu_values["sm_count"]
    notes = [line for x in result.launches for line in grid_notes(_name(x), prod(x.grid), x.blocks_per_sm, sms)]
    yield from grid_lines(notes)


def grid_lines(notes: Sequence[str]) -> Iterator[str]:
    """What grids leave idle, of the first launches, and of how many more."""
    yield from (f"Grid: {line}" for line in notes[:MOST_GRIDS])
    if len(notes) > MOST_GRIDS:
        yield f"Grid: and {len(notes) - MOST_GRIDS:,} launches more that leave SMs idle"


def _print_kernels(result: RunResult) -> None:
    """A row a kernel, where there are too many launches to read."""
    rows = []
    for kernel, launches in grouped(result.launches, lambda launch: launch.kernel).items():
        cycles, seconds = sum(x.cycles for x in launches), sum(x.seconds for x in launches)
        ipc = sum(x.thread_instructions for x in launches) / cycles
        rows.append((shown_name(kernel), len(launches), cycles, duration(seconds), ipc))
    title = f"{result.target} on {on_gpu(result)}, {len(result.launches):,} launches (--json has each)"
    print_table(title, ("kernel", "launches", "cycles", "time", "IPC"), rows)


def _name(launch) -> str:
    return f"{launch.launch} {shown_name(launch.kernel)}" + (f" ({launch.label})" if launch.label else "")


def _print_slots(result: RunResult) -> None:
    from abstim.session.result import SLOT_REASONS

    slots = {reason: sum(launch.issue_slots[reason] for launch in result.launches) for reason in SLOT_REASONS}
    total = max(1, sum(slots.values()))
    names = [reason.replace("_", " ") for reason in SLOT_REASONS]
    rows = [("cycles", *slots.values()), ("share", *(f"{count / total:.1%}" for count in slots.values()))]
    print_table("Issue slots, scheduler cycles of all launches", ("", *names), rows)


def _print_memory(result: RunResult) -> None:
    rows = []
    for launch in result.launches:
        of = launch.memory
        hits = [known(of.get(f"{cache}_hit_rate"), ".1%") for cache in ("l1d", "const", "l1i", "l2")]
        moved = [of["l2_bytes"], of["dram_read_bytes"] + of["dram_write_bytes"]]
        kib = [f"{count / 1024:,.0f} KiB" for count in moved]
        rows.append((launch.launch, *hits, *kib, f"{of['dram_use']:.0%}", launch.limit))
    limited = "limited by" if result.limits else "limited by (est.)"
    columns = ("launch", "L1D hits", "const", "L1I", "L2 hits", "to L2", "to DRAM", "DRAM use", limited)
    print_table("Memory", columns, rows, left=1)


def _print_limits(result: RunResult) -> None:
    """What would be gained by more of each thing; how to find out if nobody asked."""
    if not result.limits:
        say(f"Limited by: {result.limit} (an estimate; --limits tries every resource)")
        return
    shown = [limit for limit in result.limits[:MOST_LIMITS] if limit.gain]
    tables.print_records("Each resource twice as fast, alone", "resource | cycles | saved: {gain:+.1%}", shown)
    rest = len(result.limits) - len(shown)
    say(f"Limited by: {result.limit}; of {rest} resources more each saves less" + (", or nothing" if rest else ""))


def _print_bounds(result: RunResult) -> None:
    """Of the analytic model: what limits each launch, hit rates, traffic."""
    rows: list[tuple] = []
    x: Any  # a launch with bounds
    for x in result.launches:
        second = sorted(x.bounds_cycles.values())[-2] / max(1.0, x.bounds_cycles[x.limit])
        rates = [known(x.memory.get(f"{cache}_hit_rate"), ".1%") for cache in ("l1d", "l2")]
        moved = x.memory.get("dram_bytes", x.memory.get("dram_read_bytes"))
        rows.append((_name(x), x.limit, f"{second:.0%}", *rates, moved))
    head = "DRAM bytes" if "dram_bytes" in result.launches[0].memory else "DRAM bytes read"
    print_table("Limits", ("launch", "bound", "next bound", "L1D hits", "L2 hits", head), rows, left=2)


def _print_comparison(results: list[RunResult], refused: Sequence[Gpu]) -> None:
    first = results[0].totals["seconds"]
    mixed = len({r.timed_code for r in results}) > 1
    rows: list[tuple[Any, ...]] = []
    for r in results:
        gpu = f"{r.gpu} (PTX)" if mixed and r.timed_code.startswith("PTX") else r.gpu
        cycles, seconds, ipc = (r.totals[name] for name in ("cycles", "seconds", "ipc"))
        limit = r.limit + (f" ({r.limits[0].gain:.0%})" if r.limits else "")
        rows.append((gpu, r.memory_model, int(cycles), duration(seconds), ipc, f"{first / seconds:.2f}x", limit))
    rows += [(gpu.name, gpu.memory_model, None, None, None, None, "does not fit") for gpu in refused]
    limited = "limited by (saved by twice it)" if results[0].limits else "limited by (est.)"
    title = f"{results[0].target} ({counted(len(results[0].launches))})"
    columns = ("GPU", "memory", "cycles", "time", "IPC", f"against {results[0].gpu}", limited)
    print_table(title, columns, rows, left=2)
    # what the rows do not say: that memory is not alike, and how far each GPU's times are to be trusted
    if len({r.memory_model for r in results}) > 1:
        say(f"Not alike: {UNLIKE_MEMORY}")
    if len(codes := {r.timed_code for r in results}) > 1:
        say(f"Not alike: times of {' beside those of '.join(sorted(codes))}; --timed-code ptx times all alike")
    for r in results:
        if r.note:
            say(f"Note on {r.gpu}: {r.note}")
        say(f"Error on {r.gpu}: {r.known_error}")


def print_baseline(found: Baseline) -> None:
    """Beside an earlier result, and what else changed."""
    rows = [
        (row.launch, row.cycles_before, row.cycles_after, f"{row.speed_up:.2f}x", row.limit_before, row.limit_after)
        for row in [*found.rows[:-1][:MOST_ROWS], found.rows[-1]]
    ]
    columns = ("launch", "cycles before", "now", "speed-up", "limited by, before", "now")
    print_table("Beside the earlier result", columns, rows)
    for line in found.changed:
        say(f"Not the same: {line}")


def print_energy(energy: Energy) -> None:
    """Energy and mean power a launch, or a kernel where there are too many, and by what it is spent."""
    many = len(energy.launches) > MOST_ROWS
    groups = grouped(energy.launches, lambda x: shown_name(x.kernel) if many else _name(x))
    terms, rows = list(energy.launches[0].watts_by_term), []
    for name, launches in groups.items():
        seconds, joules = sum(x.seconds for x in launches), sum(x.joules for x in launches)
        watts = [joules / seconds, *(sum(x.watts_by_term[t] * x.seconds for x in launches) / seconds for t in terms)]
        rows.append([name, scaled(joules, "J"), *(f"{each:.0f} W" for each in watts)])
    heads = ("kernel" if many else "launch", "energy", "power", *(POWER_TERMS[term] for term in terms))
    print_table("Energy, and what the power is spent on", heads, rows, left=1)
    print(f"Energy: {scaled(energy.joules, 'J')}")
    say(f"Error of the power: {energy.known}")
    for phrase in energy.unlike:
        say(f"Not known of: {phrase}")
